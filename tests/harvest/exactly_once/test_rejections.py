"""Both sides must agree: a database or a ledger that went back in time stops the lane, which says why."""

import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient

from outbox.core.exactly_once.decisions import StateRow
from outbox.core.exactly_once.lane import Retake
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerTopic
from outbox.harvest.exactly_once.takeover import newest_change, newest_change_of_any
from outbox.harvest.exactly_once.values import Command
from tests.faults.exactly_once.without_guards import gate_purges
from tests.harvest.exactly_once.bench import finish, stopped, wait_until
from tests.support.topics import create_topic


def deliver(bench, count=300):
    bench.stash([f"key-{n % 5}" for n in range(count)])
    with bench.working() as host:
        bench.wait_empty()
        finish(host)


def test_a_deleted_ledger_stops_the_lane(bench):
    deliver(bench)
    admin = AdminClient({"bootstrap.servers": bench.servers})
    admin.delete_topics([f"{bench.name}.ledger"])[f"{bench.name}.ledger"].result(20)
    bench.stash(["a"])
    with bench.working() as host:
        text = stopped(host)
    assert f"The table says batch {bench.purged} was purged, but the ledger has no entry of this lane" in text
    assert "outbox_resolve --lane 0 with --resend" in text
    assert bench.count == 1
    assert len(bench.read()) == 300


def test_a_ledger_that_is_not_there_is_no_word_about_changes_of_the_count(bench):
    """Only one that is there and empty knows of none."""
    deliver(bench)
    topic = LedgerTopic({"bootstrap.servers": bench.servers}, f"{bench.name}.none")
    identity, give_up_at = uuid.uuid4(), time.monotonic() + 60
    with pytest.raises(LedgerMissing):
        newest_change(topic, identity, give_up_at)
    assert newest_change_of_any(topic, identity, give_up_at, bench.conf(), StateRow(2)) == 0
    assert topic.partitions() == 2
    topic.close()


def test_the_ledger_of_another_database_stops_the_lane(bench):
    deliver(bench)
    bench.db.execute("UPDATE outbox_state SET database = %s", [uuid.uuid4()])
    bench.stash(["a"])
    with bench.working() as host:
        assert "--adopt-ledger" in stopped(host)
    assert bench.count == 1


def test_a_database_restored_to_an_older_state_stops_the_lane(bench):
    deliver(bench)
    assert bench.purged > 2
    bench.db.execute("UPDATE outbox_purged SET batch = 1")
    bench.stash(["a"])
    with bench.working() as host:
        assert "The table says batch 1 was the last one purged, but the ledger has batch" in stopped(host)
    assert bench.count == 1


def test_a_database_that_goes_back_under_a_living_owner_stops_it(bench):
    with bench.working() as host:
        for _ in range(5):
            bench.stash(["a"])
            bench.wait_empty()
        bench.db.execute("UPDATE outbox_purged SET batch = 1")
        bench.stash(["a"])
        assert "database went back in time" in stopped(host)
        assert bench.count == 1


def test_a_lane_goes_on_when_both_sides_agree_again(bench, monkeypatch):
    from outbox.harvest.exactly_once import lane

    monkeypatch.setattr(lane, "_STOPPED_S", 0.2)
    deliver(bench)
    purged = bench.purged
    bench.db.execute("UPDATE outbox_purged SET batch = 0")
    bench.stash(["a"])
    with bench.working() as host:
        stopped(host)
        bench.db.execute("UPDATE outbox_purged SET batch = %s", [purged])
        bench.wait_empty()
    bench.check()


def test_a_truncated_table_with_other_ids_goes_on(bench, monkeypatch):
    """Nothing stands under the ids that were sent: only the number moves."""
    gate = gate_purges(monkeypatch)
    bench.stash([f"key-{n}" for n in range(50)])
    with bench.working():
        assert gate.reached.wait(60)
        bench.db.execute("TRUNCATE outbox")
        bench.stash([f"key-{n}" for n in range(50)])
        gate.open()
        bench.wait_empty()
    bench.check()


def test_vacuum_full_beside_a_purge_changes_nothing(bench, monkeypatch):
    gate = gate_purges(monkeypatch)
    bench.stash([f"key-{n}" for n in range(50)])
    with bench.working():
        assert gate.reached.wait(60)
        bench.db.execute("VACUUM FULL outbox")
        gate.open()
        bench.wait_empty()
    bench.check()


def test_a_sequence_restarted_by_hand_does_not_let_a_purge_delete_new_rows(bench, monkeypatch):
    gate = gate_purges(monkeypatch)
    bench.stash([f"key-{n}" for n in range(50)])
    with bench.working() as host:
        assert gate.reached.wait(60)
        bench.db.execute("DELETE FROM outbox")
        bench.db.execute("ALTER SEQUENCE outbox_id_seq RESTART")
        bench.stash([f"key-{n}" for n in range(30)])
        gate.open()
        assert "the harvester sends and deletes nothing there" in stopped(host)
        assert bench.count == 30


def test_a_ledger_that_forgets_is_refused_at_the_start(bench):
    create_topic(bench.servers, 1, f"{bench.name}.ledger", **{"cleanup.policy": "delete"})
    with bench.working() as host:
        error = wait_until(lambda: host.errors)[0]
    assert "cleanup.policy=delete" in str(error)


def test_a_ledger_made_anew_that_forgets_is_refused_at_the_next_takeover(bench):
    """Brokers with auto.create.topics.enable do that while a harvester works."""
    bench.stash(["a"])
    with bench.working() as host:
        bench.wait_empty()
        ledger, admin = f"{bench.name}.ledger", AdminClient({"bootstrap.servers": bench.servers})
        admin.delete_topics([ledger])[ledger].result(20)
        wait_until(lambda: ledger not in admin.list_topics(timeout=10).topics)
        create_topic(bench.servers, 1, ledger, **{"cleanup.policy": "delete"})
        host.worker._mailbox.put(Command(host.worker._state.session, Retake()))
        error = wait_until(lambda: host.errors)[0]
    assert "cleanup.policy=delete" in str(error)
    assert "kafka-configs.sh --alter" in str(error)


def test_a_ledger_with_too_few_partitions_is_refused_at_the_start(bench):
    create_topic(bench.servers, 1, f"{bench.name}.ledger", **{"cleanup.policy": "compact"})
    with bench.working(LANES=2) as host:
        error = wait_until(lambda: host.errors)[0]
    assert "has 1 partitions, but needs 2" in str(error)


def test_a_stranger_in_the_ledger_stops_the_lane(bench):
    from confluent_kafka import Producer

    deliver(bench, 10)
    producer = Producer({"bootstrap.servers": bench.servers})
    producer.produce(f"{bench.name}.ledger", b"hello", b"0")
    producer.flush(10)
    with bench.working() as host:
        assert "Another program writes to the ledger topic" in stopped(host)
