"""What a process knows when its rounds end while a lane is still at work."""

import threading
from types import SimpleNamespace

import pytest

from outbox.conf import parse
from outbox.core.exactly_once.decisions import StateRow
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds import rounds as exactly_once_rounds
from outbox.harvest.exactly_once.rounds.lanes import LaneState
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.runtime.threads import THREADS


@pytest.fixture
def rounds():
    connection = SimpleNamespace(closed=False, broken=False, close=lambda: None)
    lease = SimpleNamespace(take=lambda *given, **named: True, release=lambda connection: None)
    database = SimpleNamespace(
        connect=lambda name: connection, lease=lambda owner: lease, state=StateRow(1), owner="", identity=None
    )
    kafka = SimpleNamespace(prepare=lambda *given: None, close=lambda: None)
    conf = parse({"BOOTSTRAP_SERVERS": "nobody:1", "NAME": "outbox", "NOTIFY": True})
    rounds = Rounds(conf, Servers(THREADS, database, kafka), "me")
    yield rounds
    rounds._reader._break(RuntimeError("the test ends"))
    assert rounds.join(5.0)


def test_lanes_of_rounds_that_break_are_unsettled_before_other_rounds_can_follow(rounds):
    lane = LaneState(0, post=lambda order: None)
    assert rounds.register(lane)
    rounds._reader._break(RuntimeError("broken"))
    assert not rounds.register(LaneState(0, post=lambda order: None)), "from now on others follow"
    assert rounds._lanes.unsettled == {0}
    rounds._lanes.unsettled.clear()  # the others have taken it over
    rounds.leave(lane, is_settled=False)
    assert rounds._lanes.unsettled == set()


def test_rounds_that_end_while_they_begin_to_listen_leave_nobody_listening(rounds, monkeypatch):
    lane, closed = LaneState(0, post=lambda order: None), threading.Event()
    threads = []

    def listen(*given):
        threads.append(threading.Thread(target=rounds.leave, args=(lane,), kwargs={"is_settled": True}))
        threads[0].start()
        rounds._reader.join(0.5)
        return SimpleNamespace(close=closed.set)

    monkeypatch.setattr(exactly_once_rounds, "Ear", listen)
    assert rounds.register(lane)
    rounds.prepare()
    threads[0].join(5.0)
    assert rounds.join(5.0)
    assert closed.is_set()
