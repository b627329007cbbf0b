"""How a lane ends whose purge was given up, before it has read why."""

import uuid
from types import SimpleNamespace

import pytest

from outbox.conf import parse
from outbox.harvest.exactly_once.lane import ExactlyOnce
from outbox.runtime.threads import THREADS


@pytest.mark.parametrize(("end", "told"), [("finish", 1), ("abandon", 0)])
def test_it_leaves_what_was_sent_unsettled(end, told):
    emitted, left = [], []
    host = SimpleNamespace(emit=emitted.append, finished=lambda lane: None)
    lane = ExactlyOnce(
        parse({"BOOTSTRAP_SERVERS": "nobody:1", "NAME": "outbox"}), 0, uuid.uuid4(), host, lambda state: None, THREADS
    )
    lane._rounds = SimpleNamespace(
        failed=lambda state: state.end(),
        wait_purged=lambda state, may_go_on: not state.is_being_purged,
        release_lease=lambda state, may_go_on: left.append("released"),
        leave=lambda state, is_settled: left.append(is_settled),
    )
    lane._transactions = SimpleNamespace(is_in_doubt=False, drop=lambda: None)
    lane._crashes = SimpleNamespace(leave=lambda may_wait: None)
    lane._machine.made()
    lane._state.begin(1)
    lane._state.submitted = 2
    lane._state.stopped()
    lane._ending.finish(float("inf")) if end == "finish" else lane._ending.abandon()
    lane._close()
    assert left == [False]
    assert len(emitted) == told
