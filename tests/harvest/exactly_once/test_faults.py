"""Outages, lost replies and late frames: PostgreSQL and Kafka by way of proxies."""

import threading
import time

import psycopg
import pytest

from outbox.core.at_least_once.values import RecordHeld
from outbox.edges.kafka.exactly_once import transactional
from tests.harvest.exactly_once.bench import finish, stopped, wait_until
from tests.support.proxy import (
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CLIENT,
    DROP,
    END_TXN,
    HOLD,
    INIT_PRODUCER_ID,
    PRODUCE,
    TO_CLIENT,
    TO_SERVER,
    Proxy,
)

# The waits inside of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)


def drained(bench, timeout_s=60):
    with bench.working():
        bench.wait_empty(timeout_s)
    bench.check()


def test_a_commit_whose_reply_is_lost_is_resolved_by_the_ledger(proxied):
    proxied.stash([f"key-{n % 20}" for n in range(1000)])
    with proxied.working(COMMIT_TIMEOUT=1) as host:
        wait_until(lambda: host.worker.statistics().delivered > 200)
        rule = proxied.proxy.on_reply(END_TXN, DROP)
        rule.wait()
        proxied.wait_empty(60)
        assert host.worker.statistics().takeovers >= 2
    drained(proxied)


@pytest.mark.parametrize("api", [PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN])
def test_requests_that_arrive_late_on_cut_connections(proxied, api):
    """The client gives a connection up; what it wrote reaches the broker half a second later."""
    proxied.stash([f"key-{n % 20}" for n in range(3000)])
    with proxied.working() as host, proxied.writing(pause_s=0.02):
        for _ in range(2):
            before = host.worker.statistics().delivered
            rule = proxied.proxy.on_request(api, HOLD)
            rule.wait()
            proxied.proxy.cut(CLIENT)
            time.sleep(0.5)
            rule.release()
            wait_until(lambda before=before: host.worker.statistics().delivered > before + 20)
    drained(proxied)


def late_commits(proxied, rounds=3):
    """Let the first copy of an EndTxn arrive while the next transaction is open and half of it is written."""
    proxied.stash([f"key-{n % 20}" for n in range(10_000)])
    with proxied.working(BATCH_MAX=200, COMMIT_TIMEOUT=9) as host:
        for _ in range(rounds):
            before = host.worker.statistics().delivered
            wait_until(lambda before=before: host.worker.statistics().delivered > before)
            end = proxied.proxy.on_request(END_TXN, HOLD)
            end.wait()
            proxied.proxy.cut(CLIENT)
            reply = proxied.proxy.on_reply(PRODUCE, HOLD, times=1)  # records of the next one are written
            reply.wait()
            end.release()
            time.sleep(0.2)
            reply.release()
    with proxied.working():
        proxied.wait_empty(60)
    values = [record.value for record in proxied.read()]
    return len(values) - len(set(values))


def test_a_late_commit_does_not_end_the_next_transaction(proxied):
    assert late_commits(proxied) == 0
    proxied.check()


def test_a_late_commit_would_end_the_next_transaction_if_the_producer_were_kept(proxied, monkeypatch):
    """The control: without the renewal the same fault doubles records."""
    monkeypatch.setattr(transactional, "is_trouble", lambda facility, text, was_connected: False)
    assert late_commits(proxied) > 0


def test_a_commit_repeated_without_a_line_in_the_log_stops_the_lane_and_is_reported(proxied, monkeypatch):
    """As with a client that words its log differently: the statistics notice, later."""
    monkeypatch.setattr(transactional, "is_trouble", lambda facility, text, was_connected: False)
    proxied.stash([f"key-{n % 20}" for n in range(3000)])
    with proxied.working(PRODUCER={"statistics.interval.ms": 100}) as host:
        wait_until(lambda: host.worker.statistics().delivered)
        end = proxied.proxy.on_request(END_TXN, HOLD)
        end.wait()
        end.cut(CLIENT)
        end.drop()
        text = stopped(host)
        assert "EndTxn requests for" in text
        assert "run manage.py outbox_verify" in text
        proxied.wait_empty()
    proxied.check()


def test_a_producer_notices_that_the_connection_of_its_commit_was_cut(proxied):
    """The canary: a client that words its log differently must fail here."""
    given = {"bootstrap.servers": proxied.servers}
    properties = transactional.properties_of(given, proxied.name, transaction_timeout_s=10)
    producer = transactional.TransactionalProducer(properties)
    producer.initialise(10)
    producer.begin()
    producer.send([(1, proxied.topic, "k", "v", None, None, None)], time.monotonic() + 10)
    producer.wait_reports(lambda: False)
    assert producer.trouble == ""
    rule = proxied.proxy.on_request(END_TXN, HOLD)
    cutter = threading.Thread(target=lambda: (rule.wait(), proxied.proxy.cut(CLIENT)))
    cutter.start()
    producer.commit(10)  # succeeds: the client has repeated it elsewhere
    cutter.join()
    producer.poll()
    assert producer.trouble.startswith("FAIL ")
    rule.release()
    producer.drop_and_wait()


def test_a_broker_that_nobody_listens_on_is_no_trouble(bench):
    given = {"bootstrap.servers": f"127.0.0.1:1,{bench.servers}"}
    properties = transactional.properties_of(given, bench.name, transaction_timeout_s=10)
    producer = transactional.TransactionalProducer(properties)
    producer.initialise(10)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        producer.client.poll(0.1)
    assert producer.trouble == ""
    producer.drop_and_wait()


def test_connections_that_are_closed_while_a_lane_rests_cost_the_next_record_nothing(proxied, caplog):
    """As brokers do after ten minutes without a request: the producer is renewed then, and nothing has failed."""
    with proxied.working() as host:
        proxied.stash(["a"])
        proxied.wait_empty()
        proxied.proxy.cut()
        wait_until(lambda: host.worker.statistics().renewals and host.worker.statistics().phase == "ready")
        assert host.worker.statistics().batches == 1
        proxied.stash(["a"])
        proxied.wait_empty()
        assert host.worker.statistics().circuit.failures == 0
    assert "send_failed" not in caplog.text
    drained(proxied)


def without(hidden):
    """Brokers that do not know these requests: their numbers are none in the answer to which they do."""

    def edit(frame):
        if (frame.direction, frame.api_key) != (TO_CLIENT, API_VERSIONS):
            return frame.data
        data, first = bytearray(frame.data), 11  # after length, correlation, error and a count of one byte
        assert data[10] < 0x80, "the count has one byte"
        for at in range(first, first + 7 * (data[10] - 1), 7):
            if int.from_bytes(data[at : at + 2], "big") in hidden:
                data[at : at + 2] = (30_000 + at).to_bytes(2, "big")
        return bytes(data)

    return edit


def answering(error):
    """A producer is initialised with this error, as brokers of other releases do."""

    def edit(frame):
        data = frame.data
        if (frame.direction, frame.api_key) == (TO_CLIENT, INIT_PRODUCER_ID):
            data = data[:13] + error.to_bytes(2, "big") + data[15:]  # after length, correlation, tags and throttling
        return data

    return edit


@pytest.mark.parametrize(
    ("edit", "code", "remedy"),
    [
        (without({22, 24, 25, 26, 28}), "_UNSUPPORTED_FEATURE", "use Kafka 3.0 or newer"),
        (answering(35), "UNSUPPORTED_VERSION", "use Kafka 3.0 or newer"),
        (answering(31), "CLUSTER_AUTHORIZATION_FAILED", "Allow the user IDEMPOTENT_WRITE on the cluster"),
        (answering(53), "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "Allow the user WRITE and DESCRIBE on the transact"),
        (answering(50), "INVALID_TRANSACTION_TIMEOUT", "Lower TRANSACTION_TIMEOUT"),
    ],
)
def test_brokers_without_transactions_or_rights_are_one_error_at_the_start(proxied, caplog, edit, code, remedy):
    proxied.stash(["a"])
    proxied.proxy.edit = edit
    with proxied.working() as host:
        error = wait_until(lambda: host.errors)[0]
        assert isinstance(error, transactional.TransactionsRefused)
        assert code in str(error)
        assert remedy in str(error)
        assert host.worker.join(15)
    assert len(host.errors) == 1
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert proxied.count == 1


def test_an_init_that_is_slow_is_hedged_and_exact(proxied):
    proxied.stash([f"key-{n % 20}" for n in range(1000)])
    rule = proxied.proxy.on_request(INIT_PRODUCER_ID, HOLD)
    with proxied.working() as host:
        rule.wait()
        wait_until(lambda: host.worker.statistics().delivered > 100)
        rule.release()  # fences the owner late: it takes over again
        proxied.wait_empty(60)
    drained(proxied)


def test_kafka_away_for_a_while(proxied):
    with proxied.working() as host, proxied.writing(pause_s=0.02):
        wait_until(lambda: host.worker.statistics().delivered > 50)
        proxied.proxy.refuse()
        proxied.proxy.cut()
        away = wait_until(lambda: (view := host.worker.statistics().circuit).state != "closed" and view)
        assert away.reason
        time.sleep(2)
        proxied.proxy.accept()
        before = host.worker.statistics().delivered
        wait_until(lambda: host.worker.statistics().delivered > before + 50, 60)
        wait_until(lambda: host.worker.statistics().circuit.state == "closed")
        assert host.of(RecordHeld) == [], "an outage costs no record an attempt"
        assert host.errors == []
    drained(proxied)


def test_postgresql_cuts_its_sessions_again_and_again(bench):
    with bench.working() as host:
        for _ in range(20):
            bench.stash([f"key-{n % 5}" for n in range(50)])
            time.sleep(0.1)
            bench.db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name LIKE 'outbox %'"
            )
        bench.wait_empty(60)
        assert host.errors == []
    drained(bench)


@pytest.mark.parametrize("away", ["postgres", "kafka"])
def test_finish_and_abandon_are_bounded_while_a_server_is_away(proxied, away):
    port = int(psycopg.conninfo.conninfo_to_dict(proxied.url)["port"])
    with Proxy(target=port) as database:
        url = database.rewrite(proxied.url)
        for end in (lambda host: finish(host, 3), lambda host: None):
            with proxied.writing(writers=1, pause_s=0.02):
                with proxied.working(url=url) as host:
                    wait_until(lambda host=host: host.worker.statistics().delivered > 20)
                    (database if away == "postgres" else proxied.proxy).hold(TO_SERVER)
                    time.sleep(0.3)
                    begun = time.monotonic()
                    end(host)
                assert time.monotonic() - begun < 12
                (database if away == "postgres" else proxied.proxy).release(TO_SERVER)
    drained(proxied)


def test_postgresql_does_not_answer_for_a_while(bench):
    port = int(psycopg.conninfo.conninfo_to_dict(bench.url)["port"])
    with (
        Proxy(target=port) as database,
        bench.working(url=database.rewrite(bench.url), STATEMENT_TIMEOUT=1) as host,
        bench.writing(pause_s=0.02),
    ):
        wait_until(lambda: host.worker.statistics().delivered > 50)
        database.hold(TO_CLIENT)
        time.sleep(3)
        database.cut()
        database.release(TO_CLIENT)
        before = host.worker.statistics().delivered
        wait_until(lambda: host.worker.statistics().delivered > before + 50, 60)
    drained(bench)
