"""The harvester with a coordinator that obeys the test, and with clients that fail."""

import ast
import logging
import re
import threading
import time
import uuid

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from outbox.core.election import neli
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.election.clients import Clients
from outbox.exceptions import OutboxError
from outbox.harvest import State
from outbox.harvest import harvester as daemon
from tests.parity.loopback import Beats, Loopback, Standing, Worker, harvester, settings, wait_until
from tests.support.databases import ROOT


def leads(one):
    one.clients.standing.assign_lanes(0)
    wait_until(lambda: one.is_leader or one.state is State.STOPPED)
    assert one.is_leader
    return one


def names(heard):
    return [name for name, _ in heard]


# ---- a whole life


def test_it_subscribes_once_and_closes_every_client_once(started):
    one = leads(started.standing())
    one.stop()
    assert one.wait(20) is True
    assert one.clients.standing.subscribed == ["loop.neli"]
    assert (one.clients.standing.closed, one.clients.heartbeats_read.closed) == (1, 1)
    assert one.state is State.STOPPED


def test_properties_of_the_settings_reach_every_client_of_the_election(monkeypatch):
    given = []
    for kind in ("Consumer", "Producer"):
        monkeypatch.setattr(confluent_kafka, kind, lambda properties, kind=kind: given.append((kind, properties)))
    clients = Clients(settings(KAFKA={"client.rack": "r1"}, NAME="shop"))
    clients.member(print, print), clients.reader(print), clients.producer(print)
    assert [kind for kind, _ in given] == ["Consumer", "Consumer", "Producer"]
    assert all(p["client.rack"] == "r1" and p["bootstrap.servers"] == "nowhere:1" for _, p in given)
    assert [p["group.id"] for _, p in given[:2]] == ["shop", "shop"]
    idempotent_producer({"bootstrap.servers": "nowhere:1"})
    assert given[3][1]["enable.idempotence"] is True
    beats = given[2][1]
    assert (beats["linger.ms"], beats["delivery.timeout.ms"]) == (0, 2000)


def test_a_standby_leads_nothing_and_waits_as_long_as_asked(started):
    one = started.standing()
    began = time.monotonic()
    assert one.wait(1) is False
    assert 1 <= time.monotonic() - began < 3
    assert (one.is_leader, one.leader_id, one.leader_ids) == (False, None, {})


def test_after_the_end_nothing_begins_again(started):
    one = leads(started.standing())
    one.stop()
    one.wait(20)
    one.start()
    assert (one.state, one.is_leader, one.leader_id) == (State.STOPPED, False, None)
    assert len(Worker.made) == 1


def test_only_partition_0_makes_the_owner_of_a_single_lane(started, heard):
    one = started.standing()
    standing = one.clients.standing
    standing.assign_lanes(0, 1, 2)
    wait_until(lambda: one.is_leader)
    standing.revoke_lanes(1)
    assert one.is_leader
    standing.revoke_lanes(0, 2)
    assert not one.is_leader
    standing.assign_lanes(1)
    time.sleep(0.3)  # nothing may happen
    assert one.leader_ids == {}
    wait_until(lambda: names(heard) == ["leader_acquired", "leader_revoked"])


def test_acquired_revoked_acquired_fenced_and_acquired_again(started, heard, caplog):
    caplog.set_level(logging.INFO, "outbox")
    one = started.standing()
    standing, log = one.clients.standing, one.clients.log
    assert (one.is_leader, one.leader_id) == (False, None)
    standing.assign_lanes(0)
    first = wait_until(lambda: one.leader_id)
    standing.revoke_lanes(0)
    assert one.leader_id is None
    standing.assign_lanes(0)
    second = wait_until(lambda: one.leader_id)
    log.swallowing = True
    wait_until(lambda: one.leader_id is None)
    log.swallowing = False
    third = wait_until(lambda: one.leader_id)
    expected = [
        ("leader_acquired", first),
        ("leader_revoked", first),
        ("leader_acquired", second),
        ("leader_fenced", second),
        ("leader_acquired", third),
    ]
    wait_until(lambda: len(heard) == 5)
    assert [(name, arguments["leader_id"]) for name, arguments in heard] == expected
    assert len({first, second, third}) == 3
    assert heard[3][1]["reason"] == "heartbeat-timeout"
    assert [worker.told for worker in Worker.made] == [["start", "finish"], ["start", "abandon"], ["start"]]
    levels = {r.getMessage().split()[0]: r.levelname for r in caplog.records}
    assert (levels["leader_acquired"], levels["leader_revoked"]) == ("INFO", "INFO")
    assert levels["leader_fenced"] == "WARNING"


def test_lost_partitions_are_fenced_at_once(started, heard):
    one = leads(started.standing())
    one.clients.standing.lose_lanes(0)
    assert one.leader_id is None
    wait_until(lambda: names(heard) == ["leader_acquired", "leader_fenced"])
    assert Worker.made[0].told == ["start", "abandon"]


def test_between_stop_and_the_end_it_is_stopping_and_nobody_waits_for_ever(started, monkeypatch):
    lets_go = threading.Event()
    monkeypatch.setattr(
        Worker, "finish", lambda self, deadline: threading.Timer(0.3, self.host.finished, [self.lane]).start()
    )
    assert harvester(Loopback()).wait(0.05) is False  # never started
    one = leads(started.standing())
    threading.Thread(target=lambda: (one.wait(), lets_go.set())).start()
    one.stop()
    assert one.state is State.STOPPING
    assert not lets_go.is_set()
    assert lets_go.wait(20)
    assert one.state is State.STOPPED


def test_a_logger_of_the_application_is_used(started, caplog):
    caplog.set_level(logging.INFO, "shop.outbox")
    one = leads(started.standing(logger=logging.getLogger("shop.outbox")))
    one.stop()
    one.wait(20)
    lines = [r.getMessage().split()[0] for r in caplog.records if r.name == "shop.outbox"]
    assert lines == [
        "harvester_started",
        "leader_acquired",
        "harvester_stopping",
        "leader_revoked",
        "harvester_stopped",
    ]


# ---- clients that fail


@pytest.mark.parametrize("kind", ["member", "reader", "producer"])
def test_a_client_that_cannot_be_made_ends_it_with_the_cause(started, kind):
    one = started(Loopback(broken=[kind]))
    with pytest.raises(RuntimeError, match=f"no {kind}: simulated"):
        one.wait(20)
    assert one.state is State.STOPPED
    assert one.clients.standing is None, "it stands in the group before all is made"


def test_a_subscription_that_fails_ends_it_and_closes_the_consumer(started):
    clients = Loopback()
    clients.standing = Standing(None)
    clients.standing.subscribe_error = RuntimeError("no subscription: simulated")
    one = started(clients)
    with pytest.raises(RuntimeError, match="no subscription"):
        one.wait(20)
    assert clients.standing.closed == 1


def test_a_recoverable_error_of_the_group_is_logged_once_and_survived(started, caplog):
    caplog.set_level(logging.INFO, "outbox.election")
    one = leads(started.standing())
    for _ in range(3):
        one.clients.standing.answer(KafkaError(KafkaError._TRANSPORT, "simulated"))
    wait_until(lambda: one.clients.standing.steps.empty())
    time.sleep(0.1)
    assert one.is_leader
    one.stop()
    assert one.wait(20) is True
    kinds = "election_failed kind=_TRANSPORT", "election_works_again"
    told = [r.levelname for r in caplog.records if r.getMessage().startswith(kinds)]
    # Each heartbeat that is read ends it, and one may come between two of the errors.
    assert re.fullmatch("WARNING( INFO WARNING)*( INFO)?", " ".join(told))


@pytest.mark.parametrize("client", ["member", "producer"])
def test_a_fatal_error_of_a_client_ends_it_and_surfaces(started, client, heard, caplog):
    one = leads(started.standing())
    one.clients.on_error[client](KafkaError(KafkaError._FATAL, "Fatal error: simulated", fatal=True))
    with pytest.raises(OutboxError, match="Fatal error: simulated"):
        one.wait(20)
    assert (one.state, one.leader_id) == (State.STOPPED, None)
    assert [r.levelname for r in caplog.records if "harvester_failed" in r.getMessage()] == ["ERROR"]


def test_an_exception_in_the_polling_thread_ends_it_and_surfaces(started, heard, caplog):
    one = started.standing()
    one.clients.standing.answer(RuntimeError("simulated"))
    with pytest.raises(RuntimeError, match="simulated"):
        one.wait(20)
    assert heard == []
    assert one.clients.standing.closed == 1
    assert any("harvester_failed reason='simulated'" in r.getMessage() for r in caplog.records)


def test_a_heartbeat_that_cannot_be_sent_is_logged_and_survived(started, caplog):
    errors = [BufferError("full: simulated"), KafkaException(KafkaError(KafkaError._TRANSPORT, "cut: simulated"))]
    both = [leads(started.standing()) for _ in errors]
    for one, error in zip(both, errors, strict=True):
        one.clients.beats.errors.append(error)
    wait_until(lambda: not any(one.clients.beats.errors for one in both))
    time.sleep(2.5)  # longer than the heartbeat time-out: the next ones must have earned trust
    assert all(one.is_leader for one in both)
    told = [r.getMessage() for r in caplog.records if "election_failed kind=heartbeat" in r.getMessage()]
    assert [sum(f"{cause}: simulated" in line for line in told) for cause in ("full", "cut")] == [1, 1]
    assert len(told) == 2


def test_an_error_while_closing_is_raised_and_it_has_stopped_all_the_same(started, monkeypatch):
    monkeypatch.setattr(daemon, "LEAVE_TIMEOUT_S", 60)
    one = leads(started.standing())
    one.clients.standing.close_error = RuntimeError("close: simulated")
    began = time.monotonic()
    one.stop()
    with pytest.raises(RuntimeError, match="close: simulated"):
        one.wait(90)
    assert one.state is State.STOPPED
    assert time.monotonic() - began < 20, "the threads of the election did not end with the group's"


def test_a_close_that_hangs_is_left_behind_with_a_warning(started, monkeypatch, caplog):
    monkeypatch.setattr(daemon, "LEAVE_TIMEOUT_S", 0.2)
    lets_go = threading.Event()
    one = leads(started.standing())
    standing = one.clients.standing
    close = standing.close
    standing.close = lambda: (lets_go.wait(60), close())
    began = time.monotonic()
    one.stop()
    assert one.wait(90) is True
    assert time.monotonic() - began < 19
    assert [r.levelname for r in caplog.records if "group_not_left name=loop" in r.getMessage()] == ["WARNING"]
    lets_go.set()
    assert one._member.join(10)


# ---- two members that both believe they lead


def test_of_two_members_forced_on_one_lane_the_older_is_fenced(started, heard):
    """Like members that the brokers have evicted and that continue: fetching is not tied to membership."""
    first = leads(started.standing())
    second = started(Loopback(first.clients.log))
    wait_until(lambda: second.clients.standing and second.clients.standing.subscribed)
    first.clients.standing.commit = lambda offsets, asynchronous: None  # the coordinator does not know it any more
    began = time.monotonic()
    second.clients.standing.assign_lanes(0)
    wait_until(lambda: second.is_leader)
    wait_until(lambda: not first.is_leader)
    assert time.monotonic() - began < 6
    time.sleep(3)  # longer than the heartbeat time-out
    assert (first.is_leader, second.is_leader) == (False, True)
    fenced = [arguments for name, arguments in heard if name == "leader_fenced"]
    assert [(a["harvester"], a["reason"]) for a in fenced] == [(first, "newer-owner")]


# ---- clocks


def test_jumps_of_the_wall_clock_change_nothing(started, heard, monkeypatch):
    one = leads(started.standing())
    real = time.time
    for jump_s in (86_400, -86_400):
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        ends = time.monotonic() + 2.5  # longer than the heartbeat time-out
        while time.monotonic() < ends:
            assert one.is_leader
            time.sleep(0.02)
    assert names(heard) == ["leader_acquired"]
    one.clients.log.swallowing = True
    began = time.monotonic()
    wait_until(lambda: not one.is_leader)
    assert time.monotonic() - began < 6


def test_nothing_that_decides_reads_the_wall_clock():
    """The wall clock names a member, dates a span and a minute of samples, is written into the entry for a lane that
    has none, and is compared with the other clock."""
    found = set()
    for package in ("core", "election", "edges", "harvest", "runtime", "service"):
        for path in sorted((ROOT / "outbox" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                wall = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if wall and (node.value.id, node.attr) in {("time", "time"), ("time", "time_ns"), ("datetime", "now")}:
                    found.add(path.relative_to(ROOT / "outbox").as_posix())
    assert found <= {
        "harvest/harvester.py",
        "harvest/exactly_once/resize.py",
        "harvest/samples.py",
        "edges/kafka/common/wall_clock.py",
        "runtime/threads.py",
    }


# ---- questions to the core alone


def test_before_the_first_heartbeat_there_is_no_trust_and_afterwards_it_moves():
    core = neli.Neli(uuid.uuid4, lanes=1, heartbeat_timeout_s=2.0, margin_s=0.2, revoke_timeout_s=3.0)
    assert core.trusted_until(0) == float("-inf")
    [publish] = [e for e in core.assigned([0], 5.0) if isinstance(e, neli.PublishHeartbeat)]
    assert core.trusted_until(0) == float("-inf")
    core.heartbeat_seen(0, 1, publish.beat, 5.1)
    first = core.trusted_until(0)
    [again] = [e for e in core.tick(5.6) if isinstance(e, neli.PublishHeartbeat)]
    core.heartbeat_seen(0, 2, again.beat, 5.7)
    assert core.trusted_until(0) > first >= 5.0


def test_what_the_core_decides_takes_effect_with_the_call_that_causes_it():
    """The core is its own double: no thread and no pulse stands between an input and its effects."""
    core = neli.Neli(uuid.uuid4, lanes=1, heartbeat_timeout_s=2.0, margin_s=0.2, revoke_timeout_s=3.0)
    assert core.state(0) is None
    [publish] = core.assigned([0], 0.0)
    [acquired] = core.heartbeat_seen(0, 1, publish.beat, 0.1)
    assert isinstance(acquired, neli.LeaderAcquired)
    [fenced, *_] = core.step_down(0, 0.2)
    assert isinstance(fenced, neli.LeaderFenced)
    [beat] = [e.beat for e in core.tick(0.2) if isinstance(e, neli.PublishHeartbeat)]
    [ask] = core.heartbeat_seen(0, 2, beat, 0.3)
    [acquired] = core.confirmed(0, ask.ticket, True, 0.3)
    assert isinstance(acquired, neli.LeaderAcquired)
    [finish] = core.revoked([0], 0.4)
    assert isinstance(finish, neli.FinishBatch)
    assert [type(e) for e in core.released(0, 0.5)] == [neli.LeaderRevoked]


def test_events_of_the_election_have_a_readable_form():
    lane, leader = 3, uuid.uuid4()
    for event in (
        neli.LeaderAcquired(lane, leader, 7),
        neli.LeaderRefreshed(lane, leader, 7),
        neli.LeaderRevoked(lane, leader),
        neli.LeaderFenced(lane, leader, "lost"),
    ):
        assert repr(event).startswith(f"{type(event).__name__}(lane=3, leader_id={leader!r}")


def test_the_stand_ins_are_what_is_injected():
    clients = Loopback()
    assert harvester(clients)._clients is clients
    assert isinstance(clients.producer(print), Beats)
