"""Settings of the at-least-once worker that no other test here changes: each has its effect."""

import time

import pytest

from outbox.core.at_least_once.values import DeadlineExceeded
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.edges.postgres.at_least_once.marks import Marks
from outbox.edges.postgres.common.session import Session
from tests.harvest.hosts import wait_until
from tests.support.proxy import HOLD, PRODUCE

TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = 'outbox harvest' AND datname = current_database()"
)


def running(host):
    wait_until(lambda: host.worker.statistics().phase == "running")


@pytest.mark.parametrize(("setting", "refused"), [("MARK_BACKOFF", False), ("IO_BACKOFF", True)])
def test_pauses_between_statements(bench, monkeypatch, setting, refused):
    submit, seen = Session.submit, []

    def noting(session, *given, **named):
        if session._thread.name.startswith("outbox-mark"):
            seen.append(time.monotonic())
        submit(session, *given, **named)

    monkeypatch.setattr(Session, "submit", noting)
    given = {"url": "postgresql://nobody@127.0.0.1:1/x"} if refused else {}
    with bench.working(**given, **{setting: 0.4}) as host:
        if not refused:
            running(host)
            time.sleep(1.2)  # the pauses have grown to their longest
        begun = len(seen)
        wait_until(lambda: len(seen) >= begun + 4)
        assert seen[begun + 3] - seen[begun] >= 3 * 0.4 * 0.9


def test_mark_bytes_max(bench, monkeypatch):
    bench.db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT %s, n::text, repeat('x', 10000) FROM generate_series(1, 20) AS n",
        [bench.topic],
    )
    mark, sizes = Marks.mark, []

    def counting(*given, **named):
        rows = mark(*given, **named)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(Marks, "mark", counting)
    with bench.working(MARK_BYTES_MAX=50_000):
        bench.wait_empty()
    assert len(bench.read()) == sum(sizes) == 20
    assert max(sizes) <= 5


def test_queue_timeout(proxied):
    proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    proxied.insert(["a", "a"])
    with proxied.working(QUEUE_TIMEOUT=0.3, DELIVERY_TIMEOUT=20) as host:
        told = wait_until(lambda: host.of(DeadlineExceeded))[0]
        assert (told.kind, told.name) == ("queue", (proxied.topic, "a"))
        assert told.waited_s >= 0.3


@pytest.mark.parametrize(("drain_timeout", "gives_up"), [(2, True), (60, False)])
def test_drain_timeout(proxied, drain_timeout, gives_up):
    """An outcome in doubt waits so long for what is in flight."""
    rule = proxied.proxy.on_request(PRODUCE, HOLD, times=None)
    proxied.insert([f"k{n}" for n in range(5)])
    with proxied.working(DRAIN_TIMEOUT=drain_timeout, DELIVERY_TIMEOUT=20) as host:
        wait_until(lambda: host.worker.statistics().in_flight == 5)
        proxied.db.execute(TERMINATE)
        wait_until(lambda: host.worker.statistics().phase == "draining" or host.refreshes)
        if gives_up:
            wait_until(lambda: host.refreshes, 6)
        else:
            time.sleep(1)
            assert not host.refreshes
        rule.release()
        proxied.wait_empty()


def test_send_concurrency(bench):
    """So many clients, and all before the first record: one that is made for a record delays it by half a second."""
    made = []

    def make(properties):
        made.append(properties)
        return idempotent_producer(properties)

    with bench.working(SEND_CONCURRENCY=3, seams={"make_producer": make}) as host:
        running(host)
        assert len(made) == 3
        bench.insert([f"k{n}" for n in range(50)])
        bench.wait_empty()
        assert len(made) == 3
