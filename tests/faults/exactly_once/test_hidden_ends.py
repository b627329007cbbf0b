"""A lost EndTxn that the client's log does not report as a lost connection: during a new authentication, and after a
line that hides its equal. The late frame then ends the next transaction, unless the producer was renewed.

A producer by itself runs the scenes: test_frames.py shows what a lane does after an error.
"""

import logging
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from outbox.devstack import Kafka
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, properties_of
from tests.faults.exactly_once import without_guards
from tests.harvest.exactly_once.bench import wait_until
from tests.support.proxy import API_VERSIONS, CLIENT, CUT, END_TXN, HOLD, INIT_PRODUCER_ID, PASS, TO_SERVER, Proxy
from tests.support.topics import create_topic, read_topic

pytestmark = [pytest.mark.timeout(420), pytest.mark.usefixtures("own_servers")]

NEVER = lambda: False  # noqa: E731
COORDINATOR = "[thrd:TxnCoordinator]"
REAUTH_MS = 10_000
PASSWORDS = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_u="p";'
    ),
    "listener.name.client.plain.connections.max.reauth.ms": str(REAUTH_MS),
}
USER = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p",
}


class Scene:
    """Brokers behind a proxy each; `proxy` is that of the coordinator."""

    def __init__(self, proxies, inside, caplog, **given):
        self.proxies, self.inside, self.caplog, self.given = proxies, inside, caplog, given
        caplog.set_level(logging.DEBUG, "outbox.kafka")
        self.proxy, self.name = proxies[0], f"hidden-{uuid.uuid4().hex[:8]}"
        self.topic = create_topic(inside)
        self.made = []

    def producer(self, *, when=lambda made: None):
        """An initialised one; `when` is called meanwhile."""
        made = TransactionalProducer(properties_of(self.given, self.name, transaction_timeout_s=20))
        self.made.append(made)
        with ThreadPoolExecutor(1) as pool:
            initialised = pool.submit(made.initialise, 20)
            when(made)
            initialised.result(30)
        return made

    def failures(self):
        """The client's log lines about connections to the coordinator."""
        lines = [record.getMessage() for record in self.caplog.records if record.name == "outbox.kafka"]
        return [line for line in lines if line.startswith("FAIL") and COORDINATOR in line]

    def failing_at_first(self):
        """A producer whose first connections to the coordinator were closed before they were up."""
        closed = self.proxy.on_request(API_VERSIONS, CUT, times=None)

        def wait(made):
            wait_until(lambda: (made.client.poll(0.01), self.failures())[1])
            seen = closed.seen
            wait_until(lambda: closed.seen >= seen + 2)
            closed.release()

        return self.producer(when=wait)

    def send(self, producer, value):
        producer.begin()
        producer.send([(1, self.topic, "k", value, None, None, None)], time.monotonic() + 10)
        producer.wait_reports(NEVER)

    def lose_an_end(self, producer, when):
        """Commit a transaction whose EndTxn stays in flight. Returns the rule that holds it. The client repeats it."""
        self.send(producer, "first")
        end = self.proxy.on_request(END_TXN, HOLD)
        lost = threading.Thread(target=lambda: (end.wait(), when(), end.cut(CLIENT)))
        lost.start()
        producer.commit(15)
        lost.join()
        producer.poll()
        return end

    def find_coordinator(self):
        """Any producer of the transactional id asks it to be initialised."""
        rules = [proxy.on_request(INIT_PRODUCER_ID, PASS) for proxy in self.proxies]
        self.producer().drop_and_wait()
        (self.proxy,) = [proxy for proxy, rule in zip(self.proxies, rules, strict=True) if rule.seen]
        for proxy in self.proxies:
            proxy.heal()

    def close(self):
        for producer in self.made:
            producer.drop_and_wait()
        for proxy in self.proxies:
            proxy.heal()


@contextmanager
def proxied_cluster(version, *, brokers=1, properties=None):
    """Brokers, and a proxy before each."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(kafka=True)) for _ in range(brokers)]
        ports = [proxy.port for proxy in proxies]
        cluster = stack.enter_context(
            Kafka(version, brokers=brokers, properties=properties, advertised_port=ports),
        )
        for proxy, broker in zip(proxies, cluster.brokers, strict=True):
            proxy.target = broker.port
        yield cluster, proxies


@contextmanager
def scene_on(cluster, proxies, caplog, **client):
    inside = ",".join(f"127.0.0.1:{int(broker.internal_port)}" for broker in cluster.brokers)
    servers = ",".join(proxy.address for proxy in proxies)
    scene = Scene(proxies, inside, caplog, **{"bootstrap.servers": servers}, **client)
    try:
        scene.find_coordinator()
        yield scene
    finally:
        scene.close()


@pytest.fixture(scope="module")
def asking_for_passwords(own_servers, pytestconfig):
    with proxied_cluster(pytestconfig.getoption("kafka_version"), properties=PASSWORDS) as found:
        yield found


@pytest.fixture(scope="module")
def three_brokers(own_servers, pytestconfig):
    with proxied_cluster(pytestconfig.getoption("kafka_version"), brokers=3) as found:
        yield found


@pytest.fixture
def authenticating(asking_for_passwords, caplog):
    with scene_on(*asking_for_passwords, caplog, **USER) as scene:
        yield scene


@pytest.fixture
def three(three_brokers, caplog):
    """More than one broker: a client that has lost all of them starts again, with new objects that hide nothing."""
    with scene_on(*three_brokers, caplog) as scene:
        yield scene


def lose_during_authentication(scene):
    """The client authenticates again at nine tenths of the connection's time; after all of it the broker takes no
    request."""
    producer = scene.producer()
    connected = time.monotonic()
    scene.send(producer, "before")
    producer.commit(10)
    assert producer.trouble == ""
    until = connected + 0.91 * REAUTH_MS / 1000
    return producer, scene.lose_an_end(producer, lambda: time.sleep(max(0.0, until - time.monotonic())))


def lose_behind_a_hiding_line(scene):
    """The connection that carries the EndTxn is closed with the log line of those that were closed before they were
    up."""
    producer = scene.failing_at_first()
    return producer, scene.lose_an_end(producer, lambda: None)


SITUATIONS = {
    "authenticating": (lose_during_authentication, "in state AUTH_HANDSHAKE"),
    "three": (lose_behind_a_hiding_line, "in state APIVERSION_QUERY"),
}


def run_scene(scene, lose, trouble):
    """The late frame arrives while the next transaction is open, and its owner dies. Returns how often a consumer sees
    the records of that transaction."""
    producer, end = lose(scene)
    assert trouble in producer.trouble if trouble else not producer.trouble, (
        producer.trouble
    )  # a new client may word its log differently
    next_one = producer
    if producer.trouble:
        producer.drop_and_wait()
        next_one = scene.producer()
    value = f"of the next one {time.monotonic()}"
    scene.send(next_one, value)
    end.release()
    wait_until(lambda: not scene.proxy.held(TO_SERVER))
    time.sleep(0.5)  # the late frame takes effect, or is refused
    next_one.drop_and_wait()
    successor = scene.producer()
    scene.send(successor, value)
    successor.commit(10)
    return [record.value.decode() for record in read_topic(scene.inside, scene.topic)].count(value)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_hidden_end_that_arrives_late_ends_no_other_transaction(request, situation):
    lose, trouble = SITUATIONS[situation]
    assert run_scene(request.getfixturevalue(situation), lose, trouble) == 1


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_hidden_end_would_commit_a_half_if_the_state_of_the_connection_were_trusted(request, monkeypatch, situation):
    """The control."""
    without_guards.trust_the_state_of_connections(monkeypatch)
    scene = request.getfixturevalue(situation)
    lose, _trouble = SITUATIONS[situation]
    assert any(run_scene(scene, lose, "") == 2 for _ in range(3)), (
        "a frame that comes too late for its connection is refused"
    )


def test_a_producer_whose_first_connections_fail_serves_for_one_transaction(three):
    """Otherwise a lane would stop where brokers, or a proxy before them, close every first connection."""
    producer = three.failing_at_first()
    assert producer.trouble == ""
    three.send(producer, "first")
    producer.commit(10)
    assert "in state APIVERSION_QUERY" in producer.trouble


def test_the_statistics_tell_of_a_repeated_end_that_the_log_hides(three, monkeypatch):
    """The second witness: more requests than transactions."""
    without_guards.trust_the_state_of_connections(monkeypatch)
    three.given["statistics.interval.ms"] = 200
    producer, _end = lose_behind_a_hiding_line(three)
    assert producer.trouble == ""
    wait_until(lambda: producer.poll() or producer.repeated)
    assert producer.repeated == "2 EndTxn requests for 1 transactions"


def test_the_client_closes_no_connection_where_an_answer_is_awaited(three):
    """The client closes an idle connection without a line in its log."""
    three.given["connections.max.idle.ms"] = 500
    producer = three.producer()
    three.send(producer, "first")
    end = three.proxy.on_request(END_TXN, HOLD, times=None)
    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(producer.commit, 15)
        end.wait()
        time.sleep(1.5)
        seen = end.seen
        end.release()
        committed.result(20)
    assert seen == 1
    producer.poll()
    assert producer.trouble == ""
