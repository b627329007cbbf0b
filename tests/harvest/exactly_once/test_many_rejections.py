"""Many rejected records: what they cost the others, and what each takeover leaves behind."""

import gc
import os
import re
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds import trials
from outbox.core.sizes import Sizes
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.exactly_once.test_denied import set_config
from tests.support.topics import create_topic

HEAD = 80  # rejected records, each with a key of its own
LIMIT = 2_000  # bytes that the broker takes
RANDOM = "(SELECT string_agg(md5(random()::text || o.id || n), '') FROM generate_series(1, {}) n)"
TOO_LARGE_HERE = "repeat('x', 1100000)"
TOO_LARGE_THERE = RANDOM.format(150)  # 4,800 characters, 2,400 bytes at the least
PACKS_WELL = "repeat('x', 50000)"
HELD = "SELECT attempts, count(*) FROM outbox_hold WHERE reason = 'rejected' GROUP BY attempts"


def change(bench, ids, value):
    """Others than were stashed: they are not expected to arrive as they were."""
    bench.db.execute(f"UPDATE outbox AS o SET kafka_value = {value} WHERE id = ANY(%s)", [ids])


def restore(bench, ids):
    """What `stash` had given them, so that `check` expects them."""
    for id_, key in bench.db.execute("SELECT id, kafka_key FROM outbox WHERE id = ANY(%s)", [ids]).fetchall():
        before = bench.originals[id_]
        assert before in bench.stashed.by_key[key]
        bench.db.execute("UPDATE outbox SET kafka_value = %s WHERE id = %s", [before, id_])
    bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")


def head(bench, value, keys=HEAD, **config):
    """Refused records, then as many of the same keys, then others; the ids of the first."""
    bench.topic = create_topic(bench.servers, 3, **config)
    ids = bench.stash([f"bad-{n}" for n in range(keys)])
    bench.originals = dict(bench.db.execute("SELECT id, kafka_value FROM outbox").fetchall())
    change(bench, ids, value)
    bench.stash([f"bad-{n}" for n in range(keys)])
    bench.stash([f"good-{n % 20}" for n in range(1_000)])
    return ids


def others_gone(bench):
    return not bench.db.execute("SELECT EXISTS (SELECT FROM outbox WHERE kafka_key LIKE 'good%')").fetchone()[0]


def tried_alone(host):
    """How often: each costs a takeover, at its pace. To search for one costs two."""
    return sum(event.attempts > 0 for event in host.of(RecordHeld))


def test_what_the_client_refuses_is_left_out_of_its_batch_and_costs_no_producer(bench):
    ids = head(bench, TOO_LARGE_HERE)
    with bench.working(BATCH_MAX=1_000) as host:
        wait_until(lambda: others_gone(bench))
        assert bench.count == 2 * HEAD
        wait_until(lambda: sum(count for _, count in bench.db.execute(HELD)) == HEAD)
        assert {event.attempts for event in host.of(RecordHeld)[:HEAD]} == {1}
        restore(bench, ids)
        bench.wait_empty()
        assert host.worker.statistics().takeovers == 1
    bench.check()
    assert all(entry.ids for entry in bench.entries()), "a batch of which nothing was left was committed"


def test_a_page_read_before_the_refusal_does_not_overtake_the_held_record(bench, monkeypatch):
    """While one page is sent the next one is dealt out already."""
    ids = bench.stash([f"k{n % 5}" for n in range(300)])
    wrong = ids[10:150:31]
    bench.originals = dict(bench.db.execute("SELECT id, kafka_value FROM outbox").fetchall())
    change(bench, wrong, TOO_LARGE_HERE)
    begin = TransactionalProducer.begin

    def begin_late(self):
        time.sleep(0.03)
        begin(self)

    monkeypatch.setattr(TransactionalProducer, "begin", begin_late)
    with bench.working(BATCH_MAX=20) as host:
        wait_until(lambda: len({event.name for event in host.of(RecordHeld)}) == 5)
        restore(bench, wrong)
        bench.wait_empty()
        assert host.worker.statistics().takeovers == 1
    bench.check()


def test_what_the_client_refuses_is_dead_or_delivered_and_its_key_goes_on(bench):
    ids = head(bench, TOO_LARGE_HERE, 50)
    for id_ in ids:
        key = bench.db.execute("SELECT kafka_key FROM outbox WHERE id = %s", [id_]).fetchone()[0]
        bench.stashed.by_key[key].remove(bench.originals[id_])
    with bench.working(REJECTION_POLICY="skip", BATCH_MAX=1_000) as host:
        bench.wait_empty()
        assert host.worker.statistics().takeovers == 1
    assert [row[0] for row in bench.db.execute("SELECT record_id FROM outbox_dead ORDER BY 1")] == ids
    bench.check()


@pytest.mark.parametrize("may_ask", [True, False], ids=["limit known", "limit learnt"])
def test_what_is_too_large_for_the_topic_is_held_in_one_go(bench, monkeypatch, may_ask):
    monkeypatch.setattr(trials, "_REST_S", 0.3)
    if not may_ask:
        monkeypatch.setattr(LedgerTopic, "size_limits", lambda self, topics: {})
    ids = head(bench, TOO_LARGE_THERE, **{"max.message.bytes": str(LIMIT)})
    packed = bench.stash(["packs-well"])
    bench.originals.update(bench.db.execute("SELECT id, kafka_value FROM outbox WHERE id = ANY(%s)", [packed]))
    change(bench, packed, PACKS_WELL)
    with bench.working(BATCH_MAX=1_000) as host:
        wait_until(lambda: others_gone(bench))
        wait_until(lambda: bench.count == 2 * HEAD)  # what packs well was sent
        assert host.worker.statistics().takeovers <= tried_alone(host) + (5 if may_ask else 50)
        wait_until(lambda: dict(bench.db.execute(HELD)).get(1))  # tried alone: it is what the broker says that counts
        set_config(bench.servers, bench.topic, "max.message.bytes", "1000000")
        bench.wait_empty()
    bench.stashed.by_key["packs-well"] = ["x" * 50_000]
    found = bench.by_key()
    for number, id_ in enumerate(ids):
        key = f"bad-{number}"
        assert len(found[key][0]) == 4_800
        assert found[key][1:] == bench.stashed.by_key[key][1:], id_
    assert found["packs-well"] == bench.stashed.by_key["packs-well"]


def test_records_that_are_too_large_together_are_sent_in_smaller_requests(bench):
    bench.topic = create_topic(bench.servers, 1, **{"max.message.bytes": str(LIMIT)})
    bench.stash([f"k{n % 20}" for n in range(3_000)], size=50)
    with bench.working(BATCH_MAX=1_000) as host:
        bench.wait_empty()
        assert host.worker.statistics().takeovers <= 4
        assert not host.of(RecordHeld)
    bench.check()


def test_records_that_the_broker_names_are_held_in_one_go(bench):
    """Keyless ones, in a topic that is compacted."""
    compacted = create_topic(bench.servers, 2, **{"cleanup.policy": "compact"})
    bench.stash([""] * HEAD, topic=compacted)
    ids = bench.stash(["k"] * 10, topic=compacted)
    bench.stash([f"good-{n % 20}" for n in range(1_000)])
    with bench.working(BATCH_MAX=1_000) as host:
        wait_until(lambda: bench.count == HEAD)
        assert host.worker.statistics().takeovers <= tried_alone(host) + 12
    assert [int(record.headers[-1][1]) for record in bench.read(compacted)] == ids
    bench.check()


def test_records_that_the_broker_names_do_not_leave_one_for_each_producer(bench):
    """A new owner tries one of those that are held. It leaves, and the page that it stood in has room for one more."""
    compacted = create_topic(bench.servers, 1, **{"cleanup.policy": "compact"})
    bench.stash([""] * 2 * HEAD, topic=compacted)
    bench.stash([f"good-{n % 20}" for n in range(100)])
    with bench.working(REJECTION_POLICY="skip", BATCH_MAX=10):
        wait_until(lambda: sum(count for _, count in bench.db.execute(HELD)) >= HEAD // 4)
    with bench.working(REJECTION_POLICY="skip", BATCH_MAX=10) as host:
        wait_until(lambda: others_gone(bench))
        assert host.worker.statistics().takeovers <= 2 * HEAD // 10 + 12


# ---- what a takeover leaves behind


def left_behind():
    status = Path("/proc/self/status").read_text()
    kinds = (TransactionalProducer, Producer, Consumer, AdminClient)
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "clients": sum(isinstance(one, kinds) for one in gc.get_objects()),
        "MB": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024,
    }


@pytest.mark.parametrize("takeovers", [20, pytest.param(1_000, marks=[pytest.mark.torture, pytest.mark.timeout(900)])])
def test_takeovers_leave_nothing_behind(bench, monkeypatch, takeovers):
    """Not even until the collector finds it: it may run in a thread in which no client may end."""
    monkeypatch.setattr(Sizes, "exceeds", lambda *_: False)  # each is searched for
    head(bench, TOO_LARGE_THERE, takeovers, **{"max.message.bytes": str(LIMIT)})
    bench.stash(["good"] * 10_000)  # they are being handed over when the refusal comes
    with bench.working(BATCH_MAX=10_000) as host:
        wait_until(lambda: host.worker.statistics().takeovers >= 5)
        gc.collect()
        gc.disable()
        try:
            before = left_behind()
            wait_until(lambda: host.worker.statistics().takeovers >= 5 + takeovers, 840)
            after = left_behind()
        finally:
            gc.enable()
    print(before, after)
    allowed = {"threads": 15, "descriptors": 30, "clients": 4, "MB": 30}
    assert {name: more for name, more in allowed.items() if after[name] > before[name] + more} == {}, (before, after)
