"""The errors of real brokers and the client when a transaction fails: the table in tests/faults/MATRIX.md, as
assertions.

The code of an error by itself decides nothing, because one of them has three meanings. So after any error the producer
is dropped and the ledger is read. These tests notice when a new client or broker reports something else.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox.devstack import Kafka
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, kafka_error, properties_of
from tests.faults.exactly_once import without_guards
from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.exactly_once.test_kills import _is_stopped as is_stopped
from tests.support.proxy import END_TXN, HOLD, INIT_PRODUCER_ID, PRODUCE
from tests.support.topics import create_topic

# The waits of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)

NEVER = lambda: False  # noqa: E731


@pytest.fixture(scope="module")
def hasty(pytestconfig):
    """Brokers that check every half second for transactions and transactional ids that have been idle too long."""
    properties = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "transactional.id.expiration.ms": "3000",
    }
    with Kafka(pytestconfig.getoption("kafka_version"), properties=properties) as cluster:
        yield cluster.bootstrap_servers


@pytest.fixture
def producing():
    """Makes producers with a lane's settings, and drops them."""
    made = []

    def make(servers, name, *, timeout_s=10, **properties):
        given = properties_of({"bootstrap.servers": servers}, name, transaction_timeout_s=timeout_s)
        producer = TransactionalProducer({**given, **{key.replace("_", "."): v for key, v in properties.items()}})
        made.append(producer)
        producer.initialise(20)
        return producer

    yield make
    for producer in made:
        producer.drop_and_wait()


def row(topic, value="v", number=1):
    return (number, topic, f"k{number}", value, None, None, None)


def send(producer, topic, report_of=None, values=("v",)):
    producer.begin()
    rows = [row(topic, value, number) for number, value in enumerate(values, 1)]
    producer.send(rows, time.monotonic() + 10, report_of)


def error_of(action, *arguments):
    with pytest.raises((KafkaException, SystemError)) as raised:
        action(*arguments)
    return kafka_error(raised.value)


def test_a_commit_without_reply_times_out_and_continues_when_it_is_called_again(proxied, producing):
    producer = producing(proxied.servers, proxied.name)
    send(producer, proxied.topic)
    producer.wait_reports(NEVER)
    rule = proxied.proxy.on_reply(END_TXN, HOLD)
    error = error_of(producer.commit, 0.5)
    assert (error.name(), error.retriable(), error.txn_requires_abort()) == ("_TIMED_OUT", True, False)
    rule.release()
    producer.commit(10)
    assert len(proxied.read()) == 1


def test_a_commit_beyond_the_time_of_its_records_must_be_aborted(proxied, producing):
    """The same name, another meaning."""
    producer = producing(proxied.servers, proxied.name, timeout_s=1)
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    send(producer, proxied.topic)
    error = error_of(producer.client.commit_transaction, 10)
    assert error.name() in ("_TIMED_OUT", "_INCONSISTENT")
    assert error.txn_requires_abort()
    rule.drop()
    assert proxied.read() == []


def test_a_request_that_times_out_is_an_error(proxied, producing):
    """The other line of the client's log after which a lane must renew a producer."""
    producer = producing(proxied.servers, proxied.name, timeout_s=5, socket_timeout_ms=1000)
    send(producer, proxied.topic)
    producer.wait_reports(NEVER)
    rule = proxied.proxy.on_request(END_TXN, HOLD)
    producer.commit(10)  # repeated on another connection, with success
    producer.poll()
    assert producer.trouble.startswith("REQTMOUT ")
    rule.release()


def test_a_missing_broker_would_be_an_error_if_every_failure_counted(bench, producing, monkeypatch):
    """The control: a lane would have to renew a new producer at once if the producer tries that broker first, as every
    second one does; the others never try it."""
    without_guards.take_every_failure_for_trouble(monkeypatch)

    def one_more():
        producer = producing(f"127.0.0.1:1,{bench.servers}", bench.name)
        producer.client.poll(0.05)
        return producer.trouble

    assert "in state CONNECT" in wait_until(one_more)


def commit_again(producer, topic):
    send(producer, topic, values=("of the older one",))
    producer.client.commit_transaction(10)


def test_a_commit_that_races_with_a_successor_s_init(proxied, producing):
    """Both are in flight at once. The client's error for such a commit differs, and decides nothing: the entry is there
    if and only if the record is, and the successor finds it or never will."""
    topic, ledger = proxied.topic, create_topic(proxied.servers)
    said, expected = {}, set()

    def commit(producer):
        try:
            producer.client.commit_transaction(30)
        except (KafkaException, SystemError) as error:
            return kafka_error(error)

    with ThreadPoolExecutor() as pool:
        for turn in range(4):
            name = f"{proxied.name}-{turn}"
            older = producing(proxied.servers, name)
            send(older, topic, values=(str(turn),))
            older.send_entry(ledger, 0, b"entry", str(turn).encode())
            older.wait_reports(NEVER)
            end = proxied.proxy.on_request(END_TXN, HOLD)
            committed = pool.submit(commit, older)
            end.wait()
            init = proxied.proxy.on_request(INIT_PRODUCER_ID, HOLD)
            successor = pool.submit(producing, proxied.servers, name)
            init.wait()
            for rule in (end, init) if turn % 3 == 0 else (init, end):
                rule.release()
                time.sleep(turn * 0.001)
            said[turn] = committed.result(60)
            successor = successor.result(60)
            entries = {record.value.decode() for record in proxied.read(ledger)}
            assert said[turn] is not None or str(turn) in entries
            expected |= {str(turn)} & entries
            if said[turn] is not None:
                assert said[turn].fatal() or said[turn].txn_requires_abort(), said[turn]
            error_of(commit_again, older, topic)  # also after a success: the producer is not used again
            send(successor, topic, values=(f"after {turn}",))
            successor.commit(10)
            expected.add(f"after {turn}")
    print({turn: error and error.name() for turn, error in said.items()})
    found = [record.value.decode() for record in proxied.read()]
    assert sorted(found) == sorted(expected), "what the entries said when each successor began"


def test_a_fenced_producer_can_do_nothing_any_more(bench, producing):
    older = producing(bench.servers, bench.name)
    send(older, bench.topic)
    older.wait_reports(NEVER)
    producing(bench.servers, bench.name)
    error = error_of(older.commit, 10)
    assert (error.name(), error.fatal()) == ("_FENCED", True)
    for action in (older.client.abort_transaction, older.begin, older.client.init_transactions):
        assert error_of(action).name() in ("_FENCED", "_STATE", "_FATAL")
    assert bench.read() == []


def ends(servers, topic):
    """The sum of the end offsets of its partitions: a transaction that ends adds its markers."""
    found = 0
    with closing(Consumer({"bootstrap.servers": servers, "group.id": "ends"})) as consumer:
        for number in consumer.list_topics(topic, 10).topics[topic].partitions:
            found += consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1]
    return found


def wait_aborted(servers, topic):
    """Wait until the brokers have ended the transaction that is open there."""
    begun = ends(servers, topic)
    wait_until(lambda: time.sleep(0.1) or ends(servers, topic) > begun)


def test_a_producer_that_takes_too_long_is_fenced(hasty, bench_on, producing):
    """Its records are acknowledged long before: otherwise their own time would be over first."""
    with bench_on(hasty) as bench:
        producer = producing(hasty, bench.name, timeout_s=3)
        send(producer, bench.topic)
        producer.wait_reports(NEVER)
        wait_aborted(hasty, bench.topic)
        error = error_of(producer.commit, 10)
        assert (error.name(), error.fatal()) == ("_FENCED", True)


def test_an_expired_transactional_id_is_unknown_and_initialised_again(hasty, bench_on, producing):
    """By a producer of the test's, and by a lane that was idle meanwhile."""
    with bench_on(hasty) as bench, bench.working() as host:
        producer = producing(hasty, f"{bench.name}-other")
        other = create_topic(hasty)
        send(producer, other)
        producer.wait_reports(NEVER)
        producer.commit(10)
        bench.stash(["a", "b"])
        bench.wait_empty()
        before = host.worker.statistics().takeovers
        time.sleep(4.5)
        send(producer, other)
        error = error_of(producer.client.commit_transaction, 10)
        assert (error.name(), error.txn_requires_abort()) == ("INVALID_PRODUCER_ID_MAPPING", True)
        assert len(bench.read(other)) == 1
        bench.stash(["a", "b"])
        bench.wait_empty()
        assert host.worker.statistics().takeovers > before
        bench.check()


def test_a_lane_paused_beyond_its_transaction_continues_without_a_successor(hasty, bench_on):
    """The brokers fence it although nobody else leads. The lane takes itself over again."""
    import os
    import signal

    with bench_on(hasty) as bench:
        bench.stash([f"key-{n % 20}" for n in range(1000)])
        process = bench.spawn("before-commit=stop@2", TRANSACTION_TIMEOUT=3)
        try:
            wait_until(lambda: is_stopped(process.pid), 60)
            wait_aborted(hasty, bench.topic)
            os.kill(process.pid, signal.SIGCONT)
            bench.wait_empty(60)
        finally:
            process.kill()
            process.wait()
        bench.check()


def test_one_record_that_is_too_large_takes_its_neighbours_with_it(bench, producing):
    """So the reports do not name the poison record; and a producer that has aborted is of no use any more."""
    topic, failed = create_topic(bench.servers, 1, **{"max.message.bytes": "2000"}), []
    producer = producing(bench.servers, bench.name, compression_type="none", linger_ms=200)

    def report(error, message):
        failed.append(error and error.name())

    send(producer, topic, lambda _: report, ["small", "x" * 5000, "small"])
    producer.wait_reports(NEVER)
    assert failed == ["MSG_SIZE_TOO_LARGE"] * 3
    error = error_of(producer.client.commit_transaction, 10)
    assert error.txn_requires_abort()
    producer.client.abort_transaction(10)
    send(producer, topic)
    reused = error_of(producer.client.commit_transaction, 10)
    assert reused.name() == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_an_unknown_topic_stalls_a_transaction_and_ends_it(bench, producing):
    """The client waits as long as the topic may be new. So a lane asks for topics before."""
    producer = producing(bench.servers, bench.name, topic_metadata_propagation_max_ms=500)
    assert list(producer.unknown_topics(["not-there", bench.topic], 5)) == ["not-there"]
    send(producer, "not-there")
    error = error_of(producer.client.commit_transaction, 10)
    assert (error.name(), error.txn_requires_abort()) == ("_INCONSISTENT", True)


def test_a_full_queue_of_the_client_is_waited_for(bench):
    bench.stash([f"key-{n % 7}" for n in range(500)])
    with bench.working(PRODUCER={"queue.buffering.max.messages": 10}):
        bench.wait_empty()
    bench.check()


@pytest.mark.parametrize("what", ["too large", "queue full"])
def test_a_swallowed_error_of_produce_is_a_silent_loss(bench, monkeypatch, what):
    """The control: the transaction stays committable without the record."""
    without_guards.swallow_errors_of_produce(monkeypatch)
    ids = bench.stash([f"key-{n}" for n in range(40)])
    if what == "too large":
        bench.db.execute("UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = %s", [ids[30]])
    full = {"PRODUCER": {"queue.buffering.max.messages": 10}} if what == "queue full" else {}
    with bench.working(**full) as host:
        bench.wait_empty()
        assert host.errors == []
    assert 0 < len(bench.read()) < 40
