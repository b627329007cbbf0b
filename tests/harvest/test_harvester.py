"""The harvester as a part of another program, on a real Kafka; its workers only record where they are not the topic."""

import gc
import logging
import os
import re
import threading
import time
import uuid
import weakref
from contextlib import ExitStack
from unittest.mock import Mock
from urllib.parse import urlsplit

import psycopg
import pytest
from django.dispatch import Signal

from outbox import signals
from outbox.conf import AT_LEAST_ONCE, EVENTS, EXACTLY_ONCE, parse
from outbox.contrib import celery
from outbox.core.at_least_once.values import NotPurged, RecordHeld
from outbox.core.contract import BatchDelivered, LaneStopped, MeterRead
from outbox.core.election.neli import LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from outbox.edges.postgres.counts.overview import DatabaseUnreachable
from outbox.election import topic as election_topic
from outbox.election.clients import Clients
from outbox.election.errors import KafkaUnreachable
from outbox.exceptions import OutboxError
from outbox.harvest import Harvester, State
from outbox.harvest.at_least_once.lane import AtLeastOnce
from outbox.harvest.exactly_once.lane import ExactlyOnce
from outbox.harvest.harvester import default_factory
from outbox.service.receivers import translate
from tests.support.databases import ROOT, fresh_database
from tests.support.proxy import TO_SERVER, Proxy
from tests.support.tables import create_table, insert
from tests.support.topics import create_topic

SIGNALS = (*EVENTS, "batch_delivered")


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Idle:
    """A worker that sends nothing and remembers what it was told."""

    made = []

    def __init__(self, conf, lane, leader_id, epoch, host):
        self.lane, self.host, self.told, self.keeps = lane, host, [], False
        self.made.append(self)

    def start(self):
        self.told.append("start")

    def refreshed(self, leader_id):
        self.told.append("refreshed")

    def finish(self, deadline):
        self.told.append("finish")
        if not self.keeps:
            self.host.finished(self.lane)

    def abandon(self):
        self.told.append("abandon")

    def join(self, timeout_s):
        return True

    def statistics(self):
        return type("Statistics", (), {"in_flight": 3, "in_flight_keys": (("t", "k"),), "delivered": 7})()


@pytest.fixture
def conf(bootstrap_servers):
    name = f"d{uuid.uuid4().hex[:12]}"
    return parse({"NAME": name, "BOOTSTRAP_SERVERS": bootstrap_servers, "DELIVERY": AT_LEAST_ONCE})


@pytest.fixture
def harvester(conf):
    Idle.made = []
    made = []

    def make(given=None, **arguments):
        made.append(Harvester(given or conf, **{"worker_factory": Idle, "check_table": lambda *_: None, **arguments}))
        return made[-1]

    yield make
    for one in made:
        one.stop(force=True)
        one._stopped.wait(30)


@pytest.fixture
def seen():
    """(name, arguments) of every signal, and the receiver's own connections, undone at the end."""
    found, connected = [], []

    def hear(name, receiver=None):
        def note(sender, signal, **arguments):
            found.append((name, arguments))
            if receiver:
                receiver(**arguments)

        getattr(signals, name).connect(note, weak=False)
        connected.append((name, note))

    found_and = type("Seen", (), {"events": found, "hear": staticmethod(hear)})()
    found_and.names = lambda: [name for name, _ in found]
    yield found_and
    for name, note in connected:
        getattr(signals, name).disconnect(note)


# ---- lifecycle


def test_it_is_created_running_and_stopped(harvester):
    one = harvester()
    assert (one.state, one.is_leader, one.leader_id, one.in_flight) == (State.CREATED, False, None, 0)
    with one:
        assert one.state is State.RUNNING
        wait_until(lambda: one.is_leader)
        assert one.leader_ids == {0: one.leader_id}
        assert (one.in_flight, one.in_flight_keys) == (3, (("t", "k"),))
        assert one.wait(0) is False
    assert (one.state, one.is_leader, one.leader_id, one.in_flight) == (State.STOPPED, False, None, 0)
    assert Idle.made[0].told == ["start", "finish"]


def test_stop_is_safe_before_start_and_twice(harvester):
    one = harvester()
    one.stop()
    assert one.state is State.STOPPED
    one.start()
    one.stop()
    assert one.wait(1) is True
    two = harvester().start()
    two.stop()
    two.stop()
    assert two.wait(60) is True


def test_a_second_start_is_refused(harvester):
    one = harvester().start()
    with pytest.raises(OutboxError, match="can be started only once"):
        one.start()


def test_a_fatal_error_stops_it_and_surfaces_in_wait(harvester):
    one = harvester().start()
    wait_until(lambda: one.is_leader)
    Idle.made[0].host.fatal(OutboxError("the worker broke"))
    with pytest.raises(OutboxError, match="the worker broke"):
        one.wait(60)
    assert one.state is State.STOPPED


def test_a_worker_that_cannot_be_made_is_fatal(harvester):
    def broken(*arguments):
        raise RuntimeError("no worker")

    with pytest.raises(RuntimeError, match="no worker"):
        harvester(worker_factory=broken).start().wait(20)


def test_an_error_of_the_block_is_not_hidden(harvester):
    with pytest.raises(KeyError), harvester():
        raise KeyError("mine")


@pytest.mark.parametrize(
    ("given", "kind"),
    [({}, ExactlyOnce), ({"DELIVERY": EXACTLY_ONCE}, ExactlyOnce), ({"DELIVERY": AT_LEAST_ONCE}, AtLeastOnce)],
)
def test_the_worker_is_that_of_the_delivery(given, kind):
    conf = parse({"NAME": "x", "BOOTSTRAP_SERVERS": "nowhere:1", **given})
    factory = default_factory(conf)
    assert isinstance(factory(conf, 0, uuid.uuid4(), 1, Mock()), kind)


def test_it_waits_for_a_database_that_is_away(harvester, caplog):
    attempts = []

    def check(*arguments):
        attempts.append(arguments)
        if len(attempts) < 3:
            raise DatabaseUnreachable("PostgreSQL is away")

    with caplog.at_level(logging.INFO, "outbox"), harvester(check_table=check) as one:
        wait_until(lambda: one.is_leader)
    text = caplog.text
    assert text.count("PostgreSQL is away") == text.count("waiting_over") == 1


def test_fail_fast_does_not_wait(harvester):
    def check(*arguments):
        raise DatabaseUnreachable("PostgreSQL is away")

    with pytest.raises(DatabaseUnreachable):
        harvester(check_table=check, fail_fast=True).start().wait(20)


def test_a_forced_stop_drops_what_is_in_hand(harvester, conf):
    one = harvester(parse({**raw(conf), "SESSION_TIMEOUT": 40})).start()
    wait_until(lambda: one.is_leader)
    Idle.made[0].keeps = True
    began = time.monotonic()
    one.stop(force=True)
    assert one.wait(60)
    assert time.monotonic() - began < 15, "it waited for FLUSH_TIMEOUT, 30 s"
    assert "abandon" in Idle.made[0].told


def test_a_worker_that_does_not_finish_is_abandoned_in_time(harvester, conf, seen):
    seen.hear("leader_revoked")
    one = harvester(parse({**raw(conf), "FLUSH_TIMEOUT": 1, "SESSION_TIMEOUT": 40})).start()
    wait_until(lambda: one.is_leader)
    Idle.made[0].keeps = True
    began = time.monotonic()
    one.stop()
    assert one.wait(60)
    assert 0.9 < time.monotonic() - began < 15, "only the session bounds it, at 30 s"
    assert Idle.made[0].told[:3] == ["start", "finish", "abandon"]
    assert seen.names() == ["leader_revoked"]
    Idle.made[0].host.finished(0)  # too late, and of no consequence
    assert seen.names() == ["leader_revoked"]


def raw(conf):
    return {"NAME": conf.name, "BOOTSTRAP_SERVERS": conf.kafka.bootstrap_servers, "DELIVERY": conf.delivery}


# ---- events


def test_events_arrive_in_order_with_their_arguments(harvester, seen):
    for name in SIGNALS:
        seen.hear(name)
    one = harvester().start()
    wait_until(lambda: one.is_leader)
    host, first = Idle.made[0].host, one.leader_id
    host.emit(MeterRead(0, first, 10, 1.0, 10.0, 10.0, 2))
    host.emit(RecordHeld(7, ("t", "k"), 1, 0.0, "too large"))
    host.emit(NotPurged((1, 2)))
    host.emit(LaneStopped(0, "an operator must decide"))
    host.refresh(0)
    wait_until(lambda: one.leader_id != first)
    second = one.leader_id
    one.stop()
    assert one.wait(60)
    host.emit(MeterRead(0, first, 11, 1.0, 1.0, 1.0, 2))
    assert seen.names() == [
        "leader_acquired", "meter_read", "record_held", "lane_stopped", "leader_refreshed", "leader_revoked",
    ]  # fmt: skip
    acquired, meter, held, stopped, refreshed, revoked = (arguments for _, arguments in seen.events)
    assert all(arguments["harvester"] is one and arguments["lane"] == 0 for _, arguments in seen.events)
    assert acquired["leader_id"] == first
    assert isinstance(acquired["epoch"], int)
    assert refreshed["leader_id"] == revoked["leader_id"] == second
    assert (meter["delivered"], meter["rate"], meter["in_flight"]) == (10, 10.0, 2)
    assert stopped["reason"] == "an operator must decide"
    assert (held["record_id"], held["topic"], held["key"], held["error"]) == (7, "t", "k", "too large")


def test_fenced_comes_with_its_reason_and_acquired_follows(harvester, seen):
    for name in SIGNALS:
        seen.hear(name)
    one = harvester().start()
    wait_until(lambda: one.is_leader)
    Idle.made[0].host.step_down(0)
    wait_until(lambda: len(Idle.made) == 2)
    assert Idle.made[0].told == ["start", "abandon"]
    one.stop()
    assert one.wait(60)
    assert seen.names() == ["leader_acquired", "leader_fenced", "leader_acquired", "leader_revoked"]
    assert seen.events[1][1]["reason"] == "superseded"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_raising_receiver_changes_nothing_and_is_logged(harvester, seen, caplog):
    def broken(**arguments):
        raise RuntimeError("receiver broke")

    seen.hear("leader_acquired", broken)
    seen.hear("leader_acquired")
    with harvester() as one:
        wait_until(lambda: len(seen.events) == 2)
        assert one.is_leader
    assert "receiver_failed event=LeaderAcquired" in caplog.text


def test_a_slow_receiver_delays_neither_election_nor_worker(harvester, conf, seen):
    lets_go = threading.Event()
    seen.hear("leader_acquired", lambda **arguments: lets_go.wait(60))
    patient = parse({**raw(conf), "HEARTBEAT_TIMEOUT": 3, "SESSION_TIMEOUT": 12})  # a busy machine fences nobody
    one = harvester(patient).start()
    wait_until(lambda: Idle.made and Idle.made[0].told == ["start"])
    time.sleep(1.5 * patient.election.heartbeat_timeout_s)  # long enough to be fenced, if heartbeats were held up
    assert one.is_leader
    assert Idle.made[0].host.may_send(0)
    lets_go.set()


def test_the_successor_waits_for_receivers_of_leader_revoked(harvester, conf, seen):
    began_and_ended = []

    def slow(**arguments):
        began_and_ended.append(time.monotonic())
        time.sleep(1.5)
        began_and_ended.append(time.monotonic())

    first, second = harvester().start(), harvester()
    wait_until(lambda: first.is_leader)
    second.start()
    seen.hear("leader_revoked", slow)
    first.stop()
    wait_until(lambda: second.is_leader)
    assert len(began_and_ended) == 2


def test_the_successor_does_not_wait_for_ever(harvester, conf, seen):
    lets_go = threading.Event()
    seen.hear("leader_revoked", lambda **arguments: lets_go.wait(60))
    short = parse({**raw(conf), "FLUSH_TIMEOUT": 1})
    first, second = harvester(short).start(), harvester(short)
    wait_until(lambda: first.is_leader)
    second.start()
    first.stop()
    wait_until(lambda: second.is_leader, 60)
    lets_go.set()


def test_readings_are_dropped_when_receivers_cannot_follow(harvester, seen, caplog):
    lets_go = threading.Event()
    seen.hear("meter_read", lambda **arguments: lets_go.wait(20))
    seen.hear("leader_revoked")
    one = harvester().start()
    wait_until(lambda: one.is_leader)
    for _ in range(500):
        Idle.made[0].host.emit(MeterRead(0, one.leader_id, 1, 1.0, 1.0, 1.0, 1))
    assert 250 < one.events_dropped < 500
    assert caplog.text.count("events_dropped") == 1
    one.stop()
    wait_until(lambda: one.leader_id is None)
    lets_go.set()
    assert one.wait(60)
    assert seen.names().count("leader_revoked") == 1
    assert seen.names().count("meter_read") <= 2  # readings of an ended leadership are no news


def test_every_signal_is_documented_with_its_arguments():
    told = (ROOT / "docs" / "events.md").read_text()
    for name in SIGNALS:
        assert f"| `{name}` |" in told
    ours = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert ours == set(SIGNALS)
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", told, re.MULTILINE))
    leader = uuid.uuid4()
    for event in (
        LeaderAcquired(0, leader, 1),
        LeaderRefreshed(0, leader, 1),
        LeaderRevoked(0, leader),
        LeaderFenced(0, leader, "lost"),
        MeterRead(0, leader, 10, 1.0, 10.0, 10.0, 2),
        RecordHeld(7, ("t", "k"), 1, 0.0, "too large"),
        LaneStopped(0, "an operator must decide"),
        BatchDelivered(0, leader, 1, 1, 0.1, 1, 2),
    ):
        signal, arguments = translate(event)
        [name] = [name for name in SIGNALS if getattr(signals, name) is signal]
        assert re.findall(r"`(\w+)`", documented[name]) == list(arguments), name
        if name in EVENTS:
            assert getattr(celery, name).providing_args == {"harvester", "lane", *arguments}, name


def test_a_client_that_a_failed_start_has_used_is_gone_without_the_collector(conf, monkeypatch):
    monkeypatch.setattr(election_topic, "REQUEST_TIMEOUT_S", 1.0)
    made = []

    class Noting(Clients):
        def admin(self, on_error):
            client = super().admin(on_error)
            made.append(weakref.ref(client))
            return client

    nowhere = parse({**raw(conf), "BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    gc.disable()  # it might run in a thread of the client, where the end of a client aborts the process
    try:
        one = Harvester(nowhere, clients=Noting(nowhere), check_table=lambda *_: None, fail_fast=True).start()
        with pytest.raises(KafkaUnreachable) as caught:
            one.wait(60)
        assert caught.value is one._error
        assert [reference() for reference in made] == [None]
    finally:
        gc.enable()


# ---- with real faults


@pytest.mark.slow
def test_it_stops_in_bounded_time_while_kafka_is_away(harvester, conf, kafka_factory):
    kafka = kafka_factory()
    one = harvester(parse({**raw(conf), "BOOTSTRAP_SERVERS": kafka.bootstrap_servers})).start()
    wait_until(lambda: one.is_leader)
    kafka.pause()
    began = time.monotonic()
    one.stop()
    assert one.wait(60)
    assert time.monotonic() - began < 19.5


@pytest.mark.slow
def test_it_stops_in_bounded_time_while_postgres_is_away(postgres, bootstrap_servers, conf, monkeypatch):
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
        proxy = stack.enter_context(Proxy(target=urlsplit(url).port))
        db = stack.enter_context(psycopg.connect(url, autocommit=True))
        create_table(db)
        topic = create_topic(bootstrap_servers)
        source = {"conninfo": proxy.rewrite(url), "connect_timeout": 2}
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: source)
        one = Harvester(conf).start()
        wait_until(lambda: one.is_leader)
        insert(db, topic, ["a"] * 50)
        wait_until(lambda: db.execute("SELECT count(*) FROM outbox").fetchone()[0] == 0)
        proxy.hold(TO_SERVER)
        insert(db, topic, ["a"] * 50)
        began = time.monotonic()
        one.stop()
        assert one.wait(60)
        assert time.monotonic() - began < 19.5


@pytest.mark.slow
def test_a_lane_is_given_back_in_bounded_time_while_postgres_is_away(
    harvester, postgres, bootstrap_servers, conf, monkeypatch, seen
):
    """A newcomer takes one of two lanes; the other one goes on without being fenced."""
    two = parse({**raw(conf), "BOOTSTRAP_SERVERS": bootstrap_servers, "LANES": 2, "FLUSH_TIMEOUT": 3})
    seen.hear("leader_fenced")
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
        proxy = stack.enter_context(Proxy(target=urlsplit(url).port))
        db = stack.enter_context(psycopg.connect(url, autocommit=True))
        create_table(db)
        topic = create_topic(bootstrap_servers)
        source = {"conninfo": proxy.rewrite(url), "connect_timeout": 2}
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: source)
        first = harvester(two, worker_factory=None).start()
        wait_until(lambda: set(first.leader_ids) == {0, 1})
        insert(db, topic, [f"k{n}" for n in range(50)])
        wait_until(lambda: db.execute("SELECT count(*) FROM outbox").fetchone()[0] == 0)
        proxy.hold(TO_SERVER)
        insert(db, topic, [f"k{n}" for n in range(50)])
        second = harvester(two).start()
        began = time.monotonic()
        wait_until(lambda: len(first.leader_ids) == len(second.leader_ids) == 1)
        assert time.monotonic() - began < 9
        assert seen.names() == []
        first.stop()
        assert first.wait(60)
        assert time.monotonic() - began < 20


def test_a_worker_that_ends_while_others_are_forgotten_is_joined_too(conf):
    """Lanes are dropped in the election's thread, what has ended is forgotten in another."""
    harvester = Harvester(conf)
    late = Mock(join=lambda timeout_s: False)

    def join(timeout_s):
        harvester._owned._ending.append(late)
        return True

    harvester._owned._ending.append(Mock(join=join))
    harvester._owned.forget_ended()
    assert harvester._owned._ending == [late]
