"""The simulation notices calls that the product must not make while it holds a lock; see tests/test_protocol.py."""

import logging
from unittest.mock import patch

import pytest

from outbox.harvest.exactly_once.rounds.rounds import Rounds
from tests.simulation.checkers import Violation
from tests.simulation.exactly_once.scenario import PLAIN, run
from tests.support.protocol import watched
from tests.support.watched import Seen


@pytest.mark.parametrize("forbidden", ["a pause", "a log handler"])
def test_what_is_forbidden_under_the_lock_of_the_round_is_caught(forbidden: str) -> None:
    ready = Rounds.ready

    def planted(rounds: Rounds, *given: object) -> None:
        with rounds._lanes.changed:
            ready(rounds, *given)  # type: ignore[arg-type]
            if forbidden == "a pause":
                rounds._runtime.sleep(0.0)
            else:
                logging.getLogger("outbox.harvest").info("lane_ready")

    with patch.object(Rounds, "ready", planted), pytest.raises(Violation, match=f"{forbidden} is waited for while"):
        run(0, PLAIN, lambda: watched(Seen()))
