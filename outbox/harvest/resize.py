"""Changing the lane count while harvesters work: what the owner of lane 0 does, and how its successor goes on.

The count lives in the state row. In order: partitions for the new lanes; "closed, going to N" into the row; every old
lane's transactional id initialised and its last batch settled; N and "open" into the row. Owners read the row only
after their own init: whoever saw the old count is fenced by the third step, whoever is initialised later finds the
lanes closed. Each step may be done twice, so a successor just goes on from what the row says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from outbox.conf import Conf
from outbox.core.verdict import State, Stop, idle_lane
from outbox.edges.ledger_topic import LedgerRefused, LedgerTopic
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once_database import Database, Purges
from outbox.harvest.exactly_once_takeover import Owned, Takeover, Unreadable

logger = logging.getLogger("outbox.harvest")

_SETTLE_S = 30.0
_AGAIN_S = 0.05


class LaneCount:
    """The count of one table's lanes, as the owner of lane 0 sees and changes it."""

    def __init__(self, conf: Conf, database: Database, purges: Purges, ledger: LedgerTopic) -> None:
        self._conf, self._database, self._purges, self._ledger = conf, database, purges, ledger
        self._grown_to = 0

    def follow(self, may_go_on: Callable[[], bool], partitions_added: Callable[[], None]) -> bool:
        """Carry out what the row wishes for or has begun; False when it was not brought to its end."""
        state = self._state(may_go_on)
        if state is not None and state.resize_to is None:
            if self._grown_to != state.lane_count:
                self._grow_leader_topic(state.lane_count, partitions_added)
            if state.wanted is None:
                return True
            if not self._begin(state, may_go_on, partitions_added):
                return False
            state = self._state(may_go_on)
        if state is None or state.resize_to is None:
            return False
        failpoint("lanes-closed")
        return self._settle_and_open(state, may_go_on)

    def _grow_leader_topic(self, partitions: int, partitions_added: Callable[[], None]) -> None:
        """A lane without a partition there would have no owner."""
        if self._ledger.grow(self._conf.leader_topic, partitions):
            partitions_added()
        self._grown_to = partitions

    def _state(self, may_go_on: Callable[[], bool]) -> State | None:
        found: State | None = self._ask(lambda statements, c: statements.state(c, self._conf.lanes)[1], may_go_on)
        return found

    def _ask(self, question: Callable[[Any, Any], Any], may_go_on: Callable[[], bool]) -> Any:
        return self._purges.ask(lambda connection: question(self._database.statements, connection), may_go_on)

    def _begin(self, state: State, may_go_on: Callable[[], bool], partitions_added: Callable[[], None]) -> bool:
        """Nothing is closed before everything is there that the new lanes need."""
        wanted, count = state.wanted, state.lane_count
        assert wanted is not None
        if wanted == count:
            self._ask(lambda statements, c: statements.refuse_wish(c, wanted, ""), may_go_on)
            return True
        try:
            self._ledger.grow(self._ledger.name, wanted)
            self._grow_leader_topic(wanted, partitions_added)
        except LedgerRefused as error:
            note = str(error)
            logger.error("lanes_not_changed lanes=%d wanted=%d reason=%r", count, wanted, note)
            self._ask(lambda statements, c: statements.refuse_wish(c, wanted, note), may_go_on)
            return True
        failpoint("lanes-grown")
        closed = self._ask(lambda statements, c: statements.close_lanes(c, wanted), may_go_on)
        if closed:
            logger.info("lanes_closed lanes=%d wanted=%d", count, wanted)
        return bool(closed)

    def _settle_and_open(self, state: State, may_go_on: Callable[[], bool]) -> bool:
        begun, note, lanes = time.monotonic(), "", state.resize_to
        assert lanes is not None
        for lane in range(state.lane_count):
            stop = self._settle(lane, state, may_go_on)
            if stop is None:
                return False
            if stop:
                # Safe at any time: nobody has worked with another count than the old one.
                note, lanes = f"The count was not changed: {stop}", state.lane_count
                break
            failpoint("lane-settled")
        opened = self._ask(lambda statements, c: statements.open_lanes(c, state.resize_no, lanes, note), may_go_on)
        failpoint("lanes-opened")
        if opened:
            logger.info(
                "lanes_opened lanes=%d before=%d closed_s=%.3f", lanes, state.lane_count, time.monotonic() - begun
            )
        if note:
            logger.error("lanes_not_changed lanes=%d wanted=%s reason=%r", lanes, state.resize_to, note)
        return bool(opened)

    def _settle(self, lane: int, state: State, may_go_on: Callable[[], bool]) -> str | None:
        """Fence the lane's owners and purge what they have committed: "" when that is done, else why an operator must
        decide first; None when it may not go on or somebody else has ended the change."""
        takeover = Takeover(self._conf, lane, self._database, self._purges, self._ledger, settling=state)
        while may_go_on():
            outcome = takeover.run(_SETTLE_S, may_go_on)
            if isinstance(outcome, Owned):
                outcome.producer.drop_and_wait()
                return ""
            if isinstance(outcome, Stop | Unreadable):
                return outcome.text
            if (now := self._state(may_go_on)) is None or (now.resize_to, now.resize_no) != (
                state.resize_to,
                state.resize_no,
            ):
                return None
            time.sleep(_AGAIN_S)  # a purge was under way
        return None


class IdleLanes:
    """The ledger's partitions at or above the count, compared with the table by the first takeover after each connect:
    a restore from before a change of the count shows there only."""

    def __init__(self, database: Database, purges: Purges, ledger: LedgerTopic) -> None:
        self._database, self._purges, self._ledger = database, purges, ledger
        self._found_good: tuple[float, int] | None = None

    def examine(self, give_up_at: float, may_go_on: Callable[[], bool]) -> Stop | None:
        """What forbids every lane of this process to send."""

        def look(connection: Any) -> Any:
            statements = self._database.statements
            identity, state = statements.state(connection, self._database.state.lane_count)
            return identity, state.lane_count, statements.purged_of_all(connection), connection.opened_at

        found = self._purges.ask(look, may_go_on)
        if found is None:
            return None
        identity, count, purged, opened_at = found
        if self._found_good == (opened_at, count):
            return None
        for lane in range(count, self._ledger.partitions()):
            stop = idle_lane(lane, count, identity, purged.get(lane, 0), self._ledger.last_entry(lane, give_up_at))
            if stop is not None:
                return stop
        self._found_good = opened_at, count
        return None
