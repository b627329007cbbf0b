"""The proxy's faults on plain sockets, and once between a real producer and a real Kafka."""

import socket
import threading
import time
import uuid

import pytest

from tests.support.proxy import (
    BOTH,
    CLIENT,
    CUT,
    DROP,
    END_TXN,
    HOLD,
    HOST,
    PRODUCE,
    SERVER,
    TO_CLIENT,
    TO_SERVER,
    Proxy,
)

# Also a whole Kafka frame, of a kind that no rule here knows.
READY = bytes([0, 0, 0, 8, 0, 99, 0, 0, 0, 0, 0, 99])


class Server:
    """Accepts connections; the test plays its part."""

    def __init__(self):
        self.listener = socket.create_server((HOST, 0))
        self.listener.settimeout(5)
        self.port = self.listener.getsockname()[1]
        self.opened = []

    def accept(self):
        connection, _ = self.listener.accept()
        connection.settimeout(5)
        self.opened.append(connection)
        return connection

    def close(self):
        for connection in (*self.opened, self.listener):
            connection.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def pair(server, proxy):
    """Both ends of a connection through the proxy."""
    with socket.create_connection((HOST, proxy.port), timeout=5) as client:
        yield established(client, server.accept())


def exactly(connection, size):
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        assert chunk, f"closed after {received!r}"
        received += chunk
    return received


def established(client, server):
    """Both ends, once the proxy is known to have taken up the connection."""
    for source, sink in ((client, server), (server, client)):
        source.sendall(READY)
        assert exactly(sink, len(READY)) == READY
    return client, server


def arrives_nothing(connection, seconds=0.2):
    connection.settimeout(seconds)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)


def frame(*, api_key, correlation, body=b""):
    data = api_key.to_bytes(2) + (0).to_bytes(2) + correlation.to_bytes(4) + body
    return len(data).to_bytes(4) + data


def reply(*, correlation, body=b""):
    data = correlation.to_bytes(4) + body
    return len(data).to_bytes(4) + data


def test_bytes_pass_in_both_directions(pair):
    client, server = pair
    client.sendall(b"ping")
    assert exactly(server, 4) == b"ping"
    server.sendall(b"pong")
    assert exactly(client, 4) == b"pong"


def test_much_data_passes_unchanged(pair):
    client, server = pair
    data = bytes(range(256)) * 20_000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert exactly(server, len(data)) == data
    sender.join()


def test_an_end_is_passed_on_and_the_other_direction_stays_open(pair):
    client, server = pair
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    server.sendall(b"still")
    assert exactly(client, 5) == b"still"


def test_a_cut_by_reset_is_a_reset_on_both_sides(pair, proxy):
    client, server = pair
    assert proxy.cut() == 1
    for end in (client, server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_a_cut_by_fin_is_an_orderly_end(pair, proxy):
    client, server = pair
    proxy.cut(BOTH, reset=False)
    assert client.recv(1) == b""
    assert server.recv(1) == b""


def test_a_cut_of_the_servers_side_ends_the_clients_too(pair, proxy):
    client, _server = pair
    proxy.cut(SERVER)
    assert client.recv(1) == b""


def test_after_a_cut_new_connections_pass(server, proxy, pair):
    proxy.cut()
    with socket.create_connection((HOST, proxy.port), timeout=5) as again:
        other = server.accept()
        again.sendall(b"again")
        assert exactly(other, 5) == b"again"
    assert proxy.accepted == 2


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_drop_swallows_one_direction_alone(pair, proxy, direction):
    client, server = pair
    source, sink = (client, server) if direction == TO_SERVER else (server, client)
    proxy.drop(direction)
    source.sendall(b"lost")
    assert arrives_nothing(sink)
    sink.sendall(b"back")
    assert exactly(source, 4) == b"back"


@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
def test_held_bytes_arrive_in_order_after_release(pair, proxy, direction):
    client, server = pair
    source, sink = (client, server) if direction == TO_SERVER else (server, client)
    proxy.hold(direction)
    source.sendall(b"one ")
    source.sendall(b"two")
    assert arrives_nothing(sink)
    proxy.release(direction)
    assert exactly(sink, 7) == b"one two"


def test_delay_postpones_one_direction(pair, proxy):
    client, server = pair
    proxy.delay(TO_SERVER, 0.2)
    started = time.monotonic()
    client.sendall(b"slow")
    assert exactly(server, 4) == b"slow"
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("gone", ["closed", "reset", "cut"])
def test_held_bytes_arrive_late_when_the_client_has_gone(pair, proxy, gone):
    client, server = pair
    proxy.hold(TO_SERVER)
    client.sendall(b"late")
    assert arrives_nothing(server)  # and by then the proxy has read it
    if gone == "cut":
        proxy.cut(CLIENT)
    else:
        linger = (1 if gone == "reset" else 0).to_bytes(4, "little") + bytes(4)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
    assert arrives_nothing(server)
    proxy.release(TO_SERVER)
    assert exactly(server, 4) == b"late"
    assert server.recv(1) == b""


def test_refused_connections_are_reset_until_accepted_again(server, proxy):
    proxy.refuse()
    with pytest.raises(ConnectionResetError), socket.create_connection((HOST, proxy.port), timeout=5) as refused:
        refused.recv(1)
    proxy.accept()
    with socket.create_connection((HOST, proxy.port), timeout=5):
        server.accept()


def test_a_target_that_does_not_listen_resets(proxy, server):
    server.listener.close()
    with pytest.raises(ConnectionResetError), socket.create_connection((HOST, proxy.port), timeout=5) as client:
        client.recv(1)


def test_the_address_of_a_database_is_rewritten(proxy):
    found = proxy.rewrite("postgresql://me:secret@db:5432/outbox?a=b")
    assert found == f"postgresql://me:secret@127.0.0.1:{proxy.port}/outbox?a=b"


@pytest.fixture
def kafka_proxy(server):
    with Proxy(server.port, kafka=True) as proxy:
        yield proxy


@pytest.fixture
def kafka_pair(server, kafka_proxy):
    with socket.create_connection((HOST, kafka_proxy.port), timeout=5) as client:
        yield established(client, server.accept())


def test_frames_are_seen_whole_however_they_are_cut_into_packets(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    seen = []
    kafka_proxy.hook = seen.append
    data = frame(api_key=PRODUCE, correlation=1, body=b"x" * 10) + frame(api_key=END_TXN, correlation=2)
    for byte in data:
        client.sendall(bytes([byte]))
    assert exactly(server, len(data)) == data
    assert [(one.api_key, one.correlation_id, len(one.data)) for one in seen] == [(PRODUCE, 1, 22), (END_TXN, 2, 12)]


def test_a_dropped_request_is_lost_and_the_next_passes(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    rule = kafka_proxy.on_request(END_TXN, DROP)
    lost, kept = frame(api_key=END_TXN, correlation=1), frame(api_key=END_TXN, correlation=2)
    client.sendall(lost + kept)
    assert exactly(server, len(kept)) == kept
    assert rule.seen == 1
    assert rule.frames[0].correlation_id == 1


def test_a_held_request_holds_what_follows_and_is_delivered_after_the_client_has_gone(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    rule = kafka_proxy.on_request(END_TXN, HOLD)
    first, second = frame(api_key=END_TXN, correlation=1), frame(api_key=PRODUCE, correlation=2)
    client.sendall(first + second)
    rule.wait()
    client.close()
    assert arrives_nothing(server)
    rule.release()
    assert exactly(server, len(first + second)) == first + second


def test_a_held_request_can_be_forgotten(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    rule = kafka_proxy.on_request(END_TXN, HOLD)
    second = frame(api_key=PRODUCE, correlation=2)
    client.sendall(frame(api_key=END_TXN, correlation=1) + second)
    rule.wait()
    rule.drop()
    assert exactly(server, len(second)) == second


def test_a_reply_is_known_by_its_request(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    rule = kafka_proxy.on_reply(END_TXN, DROP)
    requests = frame(api_key=PRODUCE, correlation=7) + frame(api_key=END_TXN, correlation=8)
    client.sendall(requests)
    exactly(server, len(requests))
    server.sendall(reply(correlation=8) + reply(correlation=7, body=b"kept"))
    assert exactly(client, 12) == reply(correlation=7, body=b"kept")
    assert rule.seen == 1


def test_a_request_can_cut_its_connection_instead_of_arriving(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    kafka_proxy.on_request(END_TXN, CUT)
    client.sendall(frame(api_key=END_TXN, correlation=1))
    for end in (client, server):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_healing_ends_every_fault(kafka_pair, kafka_proxy):
    client, server = kafka_pair
    rule = kafka_proxy.on_request(END_TXN, HOLD, times=None)
    kafka_proxy.hold(TO_CLIENT)
    request, answer = frame(api_key=END_TXN, correlation=1), reply(correlation=1)
    client.sendall(request)
    rule.wait()
    kafka_proxy.heal()
    assert exactly(server, len(request)) == request
    server.sendall(answer)
    assert exactly(client, len(answer)) == answer


def test_waiting_for_a_frame_that_never_comes_fails(kafka_proxy):
    with pytest.raises(AssertionError, match="0 of 1 frames of api 26"):
        kafka_proxy.on_request(END_TXN, HOLD).wait(timeout_s=0.05)


def test_a_real_commit_is_held_between_producer_and_kafka(kafka_factory):
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    with Proxy(kafka=True) as proxy:
        cluster = kafka_factory(advertised_port=proxy.port)
        proxy.target = cluster.brokers[0].port
        admin = AdminClient({"bootstrap.servers": proxy.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        producer = Producer({"bootstrap.servers": proxy.address, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"value")
        producer.flush(30)
        rule = proxy.on_request(END_TXN, HOLD)
        committed = threading.Thread(target=producer.commit_transaction, args=(30,))
        committed.start()
        rule.wait()
        assert committed.is_alive()
        rule.release()
        committed.join(30)
        assert not committed.is_alive()
        assert rule.seen == 1
