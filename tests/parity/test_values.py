"""The reports about a harvest: events, meter, log lines. Pure."""

import logging
import uuid
from types import SimpleNamespace

import pytest

from outbox import conf, signals
from outbox.cli import reaper
from outbox.core.at_least_once.values import (
    DeadlineExceeded,
    DropProducers,
    Finished,
    Limits,
    NotPurged,
    RecordHeld,
    RemarkRequested,
    Reset,
)
from outbox.core.contract import MeterRead
from outbox.core.election.neli import LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from outbox.core.meter import Meter
from outbox.harvest.lane_host import Host
from outbox.service.receivers import translate
from tests.core.at_least_once.test_scoreboard import LIMITS, ME, Bench, Row

LEADER = uuid.uuid4()
READING = MeterRead(0, LEADER, 500, 2.0, 100.0, 50.0, 7)


# ---- events


@pytest.mark.parametrize(
    ("event", "signal", "arguments"),
    [
        (LeaderAcquired(0, LEADER, 7), signals.leader_acquired, {"leader_id": LEADER, "epoch": 7}),
        (LeaderRefreshed(0, LEADER, 7), signals.leader_refreshed, {"leader_id": LEADER, "epoch": 7}),
        (LeaderRevoked(0, LEADER), signals.leader_revoked, {"leader_id": LEADER}),
        (LeaderFenced(0, LEADER, "lost"), signals.leader_fenced, {"leader_id": LEADER, "reason": "lost"}),
        (
            READING,
            signals.meter_read,
            {"leader_id": LEADER, "delivered": 500, "interval_s": 2.0, "rate": 100.0, "average_rate": 50.0,
             "in_flight": 7},
        ),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_each_event_has_a_readable_form_and_the_arguments_of_its_signal(event, signal, arguments):
    assert repr(event).startswith(f"{type(event).__name__}(")
    assert str(LEADER) in repr(event)
    found, given = translate(event)
    assert found is signal
    assert given == arguments


@pytest.mark.parametrize("kind", [LeaderAcquired, LeaderRefreshed])
def test_the_id_of_an_event_is_the_one_that_was_given(kind):
    assert kind(0, LEADER, 1).leader_id == LEADER


# ---- meter


def test_a_reading_has_a_readable_form():
    text = repr(READING)
    for part in ("lane=0", "delivered=500", "interval_s=2.0", "rate=100.0", "average_rate=50.0", "in_flight=7"):
        assert part in text


def test_a_meter_counts_since_the_reading_before_and_since_its_begin():
    meter = Meter(0, 5.0, 100.0)
    first = meter.read(1000, LEADER, 3, 110.0)
    assert (first.delivered, first.interval_s, first.rate, first.average_rate) == (1000, 10.0, 100.0, 100.0)
    second = meter.read(1500, LEADER, 3, 120.0)
    assert (second.delivered, second.interval_s, second.rate, second.average_rate) == (1500, 10.0, 50.0, 75.0)
    anew = Meter(0, 5.0, 120.0)  # of the next leadership: there is no reset, every one has its own meter
    assert anew.read(10, LEADER, 0, 130.0).average_rate == 1.0


def test_a_meter_is_read_only_when_due_and_only_when_something_was_delivered():
    meter = Meter(0, 5.0, 100.0)
    assert not meter.is_due(104.9)
    assert meter.is_due(105.0)
    assert meter.read(0, LEADER, 0, 105.0) is None
    assert not meter.is_due(109.0)
    assert meter.read(1, LEADER, 0, 110.0).interval_s == 5.0


@pytest.fixture
def host(caplog):
    caplog.set_level(logging.DEBUG, "outbox")
    sent = []
    events = SimpleNamespace(put=lambda lane, event, then=None: sent.append(event))
    made = Host(LeaderAcquired(0, LEADER, 1), SimpleNamespace(), events, sent.append, logging.getLogger("outbox.test"))
    made.sent = sent
    return made


@pytest.mark.parametrize(
    ("event", "level", "line", "is_signal"),
    [
        (READING, "INFO", "meter_read lane=0 delivered=500 rate=100 average_rate=50 in_flight=7", True),
        (RecordHeld(5, ("t", "k"), 2, 0.0, "too large"), "WARNING",
         "record_held lane=0 id=5 key=('t', 'k') attempts=2 error='too large'", True),
        (NotPurged((1, 2)), "WARNING", "not_purged lane=0 count=2 ids=[1, 2]", False),
        (RemarkRequested("mark-failed"), "WARNING", "remark_requested lane=0 reason='mark-failed'", False),
        (DeadlineExceeded("queue", ("t", "k"), 30.04), "WARNING",
         "deadline_exceeded lane=0 kind=queue key=('t', 'k') waited_s=30.0", False),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_each_event_of_a_lane_is_one_line_of_the_log(host, caplog, event, level, line, is_signal):
    host.emit(event)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, line)]
    assert host.sent == ([event] if is_signal else [])


def test_a_lane_that_has_ended_says_nothing_more(host, caplog):
    host.detach()
    host.emit(READING)
    assert (host.sent, caplog.records) == ([], [])


# ---- settings


def test_settings_and_limits_have_a_readable_form():
    shown = repr(conf.parse({"NAME": "shop", "IN_FLIGHT_MAX": 77, "KAFKA": {"sasl.password": "hidden"}}))
    assert "name='shop'" in shown
    assert "in_flight_max=77" in shown
    assert "hidden" not in shown
    assert "in_flight_max=1000" in repr(Limits())


def test_properties_of_producers_lie_over_those_of_every_client():
    both = {"socket.timeout.ms": 1000, "client.rack": "r1"}
    found = conf.parse({"KAFKA": both, "PRODUCER": {"socket.timeout.ms": 2000}})
    assert found.kafka.client_properties == both
    assert {name: found.producer_properties[name] for name in both} == {"socket.timeout.ms": 2000, "client.rack": "r1"}
    assert both == {"socket.timeout.ms": 1000, "client.rack": "r1"}


@pytest.mark.parametrize("name", ["minPollInterval", "pollDuration"])
def test_an_interval_of_zero_is_refused(name):
    [found] = reaper.read(f"harvest:\n  limits:\n    {name}: 0\n", "r.yaml").problems
    assert "cannot be blank" in str(found)


@pytest.mark.parametrize("name", ["a b", "a/b", "a%b", "ü", ".."])
def test_a_topic_or_group_of_other_characters_is_refused(name):
    for setting in ("NAME", "LEADER_TOPIC"):
        with pytest.raises(conf.ConfErrors, match=setting):
            conf.parse({setting: name})


# ---- the scoreboard


def test_a_failed_reset_is_tried_again_until_the_deadline():
    bench = Bench()
    bench.mark(Row(1), Row(2))
    bench.sent()
    bench.board.finish(bench.now, bench.now + 5.0)
    bench.ack(1)
    bench.purge()
    [reset] = [e for e in bench.seen if isinstance(e, Reset)] or bench.tick(Reset)
    bench.seen.clear()
    bench.board.reset_failed(reset.ticket, bench.now)
    assert bench.tick(Reset, after=0.4) == []
    [again] = bench.tick(Reset, after=0.2)
    assert (again.leader_id, again.ids) == (ME, (2,))
    bench.board.reset_failed(again.ticket, bench.now)
    assert bench.tick(Finished, after=5.0) == [Finished()]


def test_rows_that_were_not_there_to_reset_keep_nobody():
    bench = Bench()
    bench.mark(Row(1), Row(2))
    bench.sent()
    bench.ack(1)
    bench.purge()
    bench.board.finish(bench.now, bench.now + 5.0)
    [reset] = bench.tick(Reset)
    bench.board.reset_done(reset.ticket, bench.now)  # whatever the count was
    assert bench.tick(Finished) == [Finished()]


def test_a_finish_that_exceeds_its_deadline_leaves_nothing_that_could_be_sent():
    bench = Bench(LIMITS)
    bench.mark(*(Row(n, str(n)) for n in range(10)))
    assert len(bench.sent()) == 10
    bench.board.finish(bench.now, bench.now + 1.0)
    assert bench.tick(DropProducers, after=1.1) == [DropProducers(1)]
    bench.ack(*range(10))  # reports of producers that were dropped
    assert bench.tick(object) == [Finished()]
    assert bench.board.tick(bench.now + 100) == []


def test_a_held_key_frees_its_place_in_the_window():
    bench = Bench()
    bench.mark(Row(1, "bad"), *(Row(n, str(n)) for n in range(2, 11)))
    assert len(bench.sent()) == 10
    bench.board.refused(0, [(1, "too large")], bench.now)
    assert bench.board.in_flight == 9
