"""The exactly-once worker on a real PostgreSQL and a real Kafka, without faults of theirs."""

import time
import uuid
from contextlib import ExitStack
from types import SimpleNamespace

import psycopg
import pytest

from outbox.core.at_least_once.values import RecordHeld
from outbox.core.contract import MeterRead
from outbox.edges.kafka.exactly_once.failures import reporter
from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.harvest.exactly_once import transaction
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from tests.harvest.exactly_once.bench import Host, finish, wait_until
from tests.support.topics import create_topic


def test_everything_arrives_once_in_order_with_its_id_and_is_purged(bench):
    ids = bench.stash([f"key-{n % 37}" for n in range(3000)])
    with bench.working() as host:
        bench.wait_empty()
        finish(host)
    bench.check()
    headers = [dict(record.headers) for record in bench.read()]
    assert sorted(int(found["outbox-id"]) for found in headers) == ids
    assert [entry.batch for entry in bench.entries()] == list(range(1, bench.purged + 1))
    assert sorted(id_ for entry in bench.entries() for id_ in entry.ids) == ids
    assert host.errors == []


def test_values_keys_and_headers_of_every_kind(bench):
    bench.db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_value_binary, kafka_header_keys, "
        "kafka_header_values) VALUES (%(t)s, '', NULL, NULL, '{}', '{}'), (%(t)s, 'k', NULL, '\\x00ff', '{}', '{}'), "
        "(%(t)s, 'k', 'zürich', NULL, '{a,b}', '{1,ü}')",
        {"t": bench.topic},
    )
    with bench.working(ID_HEADER=None):
        bench.wait_empty()
    found = sorted(((r.key, r.value, r.headers) for r in bench.read()), key=str)
    assert found == sorted(
        [
            (None, None, []),
            (b"k", b"\x00\xff", []),
            (b"k", "zürich".encode(), [("a", b"1"), ("b", "ü".encode())]),
        ],
        key=str,
    )


@pytest.mark.parametrize(("name", "value"), [("a", "NULL"), ("NULL", "1"), ("{a}", "{1}")])
def test_a_header_that_is_no_text_holds_back_only_its_key(bench, name, value):
    """A table of others has no constraint against it."""
    bad = bench.stash(["bad"])
    bench.db.execute(
        "UPDATE outbox SET kafka_header_keys = %s, kafka_header_values = %s WHERE id = %s",
        [f"{{{name}}}", f"{{{value}}}", bad[0]],
    )
    bench.stash(["good"] * 10)
    with bench.working() as host:
        wait_until(lambda: bench.count == 1)
        assert host.of(RecordHeld)[0].error == "a header key or value is NULL"
        assert host.errors == []
    assert {record.key for record in bench.read()} == {b"good"}


def test_what_commits_late_is_delivered_whatever_its_id(bench):
    with psycopg.connect(bench.url) as slow, bench.working():
        bench.stash(["a"], connection=slow)
        bench.stash(["b"])
        wait_until(lambda: bench.count == 0)
        slow.commit()
        wait_until(lambda: len(bench.read()) == 2)
        bench.wait_empty()
    bench.check()


def test_writers_with_late_commits_and_rollbacks(bench):
    with bench.working(BATCH_MAX=7), bench.writing():
        wait_until(lambda: bench.stashed.count > 1000, 60)
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_a_purge_flushes_what_the_next_read_has_shown(bench, monkeypatch):
    """Also where pages are not full: one commit in PostgreSQL for every batch instead of two."""
    flushes = []
    flush = Companions.flush
    monkeypatch.setattr(Companions, "flush", lambda self, connection: flushes.append(1) or flush(self, connection))
    with bench.working(BATCH_MAX=5000) as host:
        wait_until(lambda: host.worker.statistics().takeovers)
        with bench.writing(writers=2, pause_s=0.01):
            wait_until(lambda: host.worker.statistics().batches - len(flushes) >= 5)
        bench.wait_empty()
    bench.check()


def test_several_lanes_share_one_reader(bench):
    bench.stash([f"key-{n % 50}" for n in range(2000)] + [""] * 50)
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    given = {"LANES": 3, "factory": factory}
    with (
        bench.working(lane=0, **given) as first,
        bench.working(lane=1, **given) as second,
        bench.working(lane=2, **given) as third,
    ):
        bench.wait_empty()
        hosts = (first, second, third)
        assert len({id(host.worker._rounds) for host in hosts}) == 1
        wait_until(lambda: sum(host.worker.statistics().delivered for host in hosts) == 2050)
        assert all(host.worker.statistics().delivered for host in hosts)
    found = bench.by_key()
    assert sorted(found.pop(""), key=int) == bench.stashed.by_key.pop("")
    assert found == dict(bench.stashed.by_key)


def test_a_lane_that_joins_or_leaves_does_not_disturb_its_neighbour(bench):
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    given = {"LANES": 2, "factory": factory}
    with bench.working(lane=0, **given), bench.writing():
        for _ in range(4):
            with bench.working(lane=1, **given) as host:
                before = bench.stashed.count
                wait_until(lambda before=before: bench.stashed.count > before + 100)
                finish(host)
    with bench.working(lane=0, **given), bench.working(lane=1, **given):
        bench.wait_empty()
    bench.check()


def test_finish_sends_nothing_twice_and_leaves_nothing_unpurged(bench):
    bench.stash([f"key-{n % 10}" for n in range(6000)])
    for _ in range(3):
        with bench.working() as host:
            wait_until(lambda host=host: host.worker.statistics().delivered > 500)
            finish(host)
        assert bench.entries()[-1].batch == bench.purged
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_finish_before_anything_and_twice(bench):
    with bench.working() as host:
        finish(host)
        host.ended.clear()
        host.worker.finish(time.monotonic() + 5)
        assert host.ended.wait(15)


def test_nothing_is_sent_without_trust(bench):
    host = Host()
    host.trusted = False
    bench.stash(["a"])
    with bench.working(host=host):
        wait_until(lambda: host.worker.statistics().phase == "waiting")
        time.sleep(0.2)
        assert bench.read() == []
        host.trusted = True
        bench.wait_empty()


@pytest.mark.parametrize("piece", [500, 7])
def test_a_refused_record_holds_its_key_and_an_operator_can_free_it(bench, monkeypatch, piece):
    monkeypatch.setattr(transaction, "_PIECE", piece)
    ids = bench.stash(["bad", "bad", "good"] * 60)
    bench.db.execute("UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = %s", [ids[30]])
    with bench.working() as host:
        wait_until(lambda: bench.count == 120 - 20)
        wait_until(lambda: len(host.of(RecordHeld)) >= 2)
        assert {(event.id, event.name) for event in host.of(RecordHeld)} == {(ids[30], (bench.topic, "bad"))}
        assert "MSG_SIZE_TOO_LARGE" in host.of(RecordHeld)[0].error
        bench.db.execute("UPDATE outbox SET kafka_value = '31' WHERE id = %s", [ids[30]])
        bench.wait_empty()
    bench.check()


@pytest.mark.parametrize("piece", [500, 3])
def test_a_record_that_the_broker_refuses_is_found_among_its_batch(bench, monkeypatch, piece):
    monkeypatch.setattr(transaction, "_PIECE", piece)
    bench.topic = create_topic(bench.servers, 1, **{"max.message.bytes": "20000"})
    ids = bench.stash([f"key-{n}" for n in range(40)])
    bench.db.execute(  # random, so that compression does not make it acceptable
        "UPDATE outbox SET kafka_value = (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1500)) "
        "WHERE id = %s",
        [ids[17]],
    )
    with bench.working() as host:
        wait_until(lambda: bench.count == 1)
        held = wait_until(lambda: host.of(RecordHeld))
        assert (held[0].id, held[0].name) == (ids[17], (bench.topic, "key-17"))
        bench.db.execute("UPDATE outbox SET kafka_value = '18' WHERE id = %s", [ids[17]])
        bench.wait_empty()
    bench.check()


def test_a_missing_topic_holds_back_its_own_records_and_stalls_nothing(bench):
    bench.stash(["k", "k"], topic="not-there")
    bench.stash([f"k{n}" for n in range(50)])
    begun = time.monotonic()
    with bench.working() as host:
        wait_until(lambda: bench.count == 2)
        assert time.monotonic() - begun < 20, "inside of a transaction an unknown topic costs 30 s"
        assert wait_until(lambda: host.of(RecordHeld))[0].name == ("not-there", "*")
    bench.check()


def test_a_missing_companion_is_fatal_and_named(bench):
    bench.db.execute("DROP TABLE outbox_purged")
    with bench.working() as host:
        error = wait_until(lambda: host.errors)[0]
        assert isinstance(error, WrongTable)
        assert "migrate outbox" in str(error)


def test_another_way_is_refused_while_it_is_alive(bench):
    bench.db.execute(
        "INSERT INTO outbox_state (lanes, lease_mode, lease_owner, lease_time) "
        "VALUES (1, 'at-least-once', 'other', now())"
    )
    with bench.working(SESSION_TIMEOUT=6) as host:
        assert "'at-least-once'" in str(wait_until(lambda: host.errors)[0])
    bench.db.execute("UPDATE outbox_state SET lease_time = now() - interval '7 s'")
    bench.stash(["a"])
    with bench.working(SESSION_TIMEOUT=6):
        bench.wait_empty()


def test_the_way_is_released_by_a_finished_worker_and_held_by_one_that_died(bench):
    fresh = "SELECT lease_mode, lease_time > now() - interval '6 s' FROM outbox_state"
    with bench.working() as host:
        wait_until(lambda: host.worker.statistics().takeovers)
        assert bench.db.execute(fresh).fetchone() == ("exactly-once", True)
        finish(host)
        assert bench.db.execute(fresh).fetchone() == ("exactly-once", False)
    with bench.working() as host:
        wait_until(lambda: host.worker.statistics().takeovers)
    assert bench.db.execute(fresh).fetchone() == ("exactly-once", True)


def test_the_lanes_of_the_state_row_win_over_the_setting(bench):
    bench.db.execute("INSERT INTO outbox_state (lanes) VALUES (1)")
    with bench.working(lane=3, LANES=4) as host:
        wait_until(lambda: host.worker.statistics().phase == "idle")


def test_lanes_that_wait_ask_together(bench, monkeypatch):
    """Whatever their number: what they wait for is one row, which the heartbeat looks at too."""
    asked, state = [], Companions.state
    monkeypatch.setattr(Companions, "state", lambda *given, **named: asked.append(1) or state(*given, **named))
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    create_topic(bench.servers, 2, f"{bench.name}.ledger", **{"cleanup.policy": "compact"})
    with ExitStack() as stack:
        made = [
            stack.enter_context(bench.working(lane=lane, LANES=1, factory=factory, BATCH_MAX=7)) for lane in range(12)
        ]
        for host in made[1:]:
            wait_until(lambda host=host: host.worker.statistics().phase == "idle")
        asked.clear()
        time.sleep(2)
        assert len(asked) <= 12, "each of them twice a second were 44"
        bench.db.execute("UPDATE outbox_state SET lanes = 2, resize_no = resize_no + 1")
        wait_until(lambda: made[1].worker.statistics().takeovers)


def test_a_property_that_the_client_does_not_take_is_named(bench):
    with bench.working(PRODUCER={"batch.size": "large"}) as host:
        error = wait_until(lambda: host.errors)[0]
    assert "The Kafka client rejects its configuration" in str(error)
    assert "batch.size" in str(error)
    assert "Correct KAFKA or PRODUCER" in str(error)


def test_the_meter_reads_while_records_are_delivered(bench):
    bench.stash([f"k{n}" for n in range(100)])
    with bench.working(METRICS_INTERVAL=0.2) as host:
        assert wait_until(lambda: host.of(MeterRead))[0].delivered == 100


@pytest.mark.parametrize("batch_bytes", [1, 50_000])
def test_large_records_make_small_pages(bench, batch_bytes):
    bench.stash([f"k{n % 5}" for n in range(200)], size=2000)
    with bench.working(BATCH_BYTES_MAX=batch_bytes) as host:
        bench.wait_empty()
        assert host.worker.statistics().batches >= (3 if batch_bytes > 1 else 50)
    bench.check()


def test_a_worker_replaced_in_the_same_process_gives_way(bench):
    """The election may name this process again before the first worker has noticed its end."""
    factory = ExactlyOnceFactory(source=lambda: {"conninfo": bench.url})
    with bench.writing(), bench.working(factory=factory) as first:
        wait_until(lambda: first.worker.statistics().delivered)
        with bench.working(factory=factory) as second:
            first.worker.abandon()
            wait_until(lambda: second.worker.statistics().delivered > 100)
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_owners_are_shown(bench):
    with bench.working():
        wait_until(lambda: bench.db.execute("SELECT count(*) FROM outbox_lane").fetchone() == (1,))
        identity, owner = bench.db.execute("SELECT database, lease_owner FROM outbox_state").fetchone()
        assert isinstance(identity, uuid.UUID)
        assert owner


def test_a_record_refused_while_the_rest_is_handed_over_is_found_too(bench):
    """In a large batch the broker's answer arrives before the last record is in the client's hands."""
    bench.topic = create_topic(bench.servers, 1, **{"max.message.bytes": "20000"})
    ids = bench.stash([f"key-{n % 1000}" for n in range(10_000)])
    bench.db.execute(
        "UPDATE outbox SET kafka_value = (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 1500)) "
        "WHERE id = %s",
        [ids[777]],
    )
    with bench.working(BATCH_MAX=10_000) as host:
        wait_until(lambda: bench.count == 10)
        assert {(event.id, event.name) for event in host.of(RecordHeld)} == {(ids[777], (bench.topic, "key-777"))}
        bench.db.execute("UPDATE outbox SET kafka_value = '778' WHERE id = %s", [ids[777]])
        bench.wait_empty()
    bench.check()


def test_a_report_tells_its_record_by_its_place_in_the_batch():
    failures = []
    error = SimpleNamespace(name=lambda: "MSG_SIZE_TOO_LARGE", str=lambda: "too large")
    reporter(failures, begin=500)(3)(error, None)
    assert failures == [(503, "MSG_SIZE_TOO_LARGE", "too large")]
