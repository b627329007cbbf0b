"""What a lane was told before it was taken over again."""

import uuid
from types import SimpleNamespace

import pytest

from outbox.conf import parse
from outbox.core.exactly_once.decisions import Stop, Why
from outbox.core.exactly_once.lane import Did, Doubt, Retake
from outbox.harvest.exactly_once.lane import ExactlyOnce
from outbox.runtime.threads import THREADS


@pytest.fixture
def lane():
    """Taken over."""
    host = SimpleNamespace(doubted=[], emitted=[])
    host.doubt, host.emit = host.doubted.append, host.emitted.append
    conf = parse({"BOOTSTRAP_SERVERS": "nobody:1", "NAME": "outbox"})
    lane = ExactlyOnce(conf, 0, uuid.uuid4(), host, lambda state: None, THREADS)
    lane._machine.on(Did.TURN)
    lane._machine.on(Did.ALLOWED)
    lane._state.begin(1)
    return lane


def test_orders_are_obeyed_in_the_readiness_to_which_they_belong(lane):
    lane._state.tell(Stop(Why.ROWS_KEPT, "rows are kept"))
    lane._harvest(None)
    assert [event.text for event in lane._host.emitted] == ["rows are kept"]


@pytest.mark.parametrize("stale", [Stop(Why.ROWS_KEPT, "rows were kept"), Doubt()])
def test_an_order_of_an_earlier_readiness_is_not_obeyed(lane, stale):
    lane._state.tell(stale)
    lane._state.end()
    lane._state.begin(2)
    lane._state.tell(Retake())
    assert lane._harvest(None) == 0.0
    assert (lane._host.emitted, lane._host.doubted) == ([], [])
    assert not lane._machine.awaits_decision
