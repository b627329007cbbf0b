"""Changing the lane count while harvesters work: what the owner of lane 0 does, and how its successor goes on.

The count lives in the state row. In order: partitions for the new lanes; "closed, going to N" into the row; every old
lane's transactional id initialised and its last batch settled; N and "open" into the row. An owner reads the count that
it relies on after its own init: if that is the old one, the third step fences the owner; if the init comes later, the
owner finds the lanes closed. Each step may be done twice, so a successor just goes on from what the row says: what that
asks for, and which lanes are settled, is decided in `core.exactly_once.resize`. All of this runs in the thread of lane
0.

Before the lanes are opened, the number of the change is marked in lane 0's ledger partition. A row with a smaller
number is that of a server which took over from, or was restored to, a state before the change: then every lane that
ever was is settled like that before anybody may go on. Such a change leads to the count that the row has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from outbox.conf import Conf
from outbox.core.exactly_once import decisions, resize
from outbox.core.exactly_once import ledger as entries
from outbox.core.exactly_once.decisions import AskElection, Closed, StateRow, Stop
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.resize import Act, GoodPartitions
from outbox.core.exactly_once.takeover import Unreadable, has_ended, unreadable
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerOpen, LedgerRefused
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.database import PurgeSession
from outbox.harvest.exactly_once.takeover import (
    Owned,
    Takeover,
    UnreadableMark,
    close_forgotten,
    newest_change,
    newest_change_of_any,
)

logger = logging.getLogger("outbox.harvest")

_SETTLE_S = 30.0
_AGAIN_S = 0.05

NotFollowed = AskElection | Stop | Unreadable
"""Why the count does not stand: somebody else may be at work on it, or an operator must settle a lane first."""


class LaneCount:
    """The count of one table's lanes, as the owner of lane 0 sees and changes it."""

    def __init__(self, conf: Conf, servers: Servers, purges: PurgeSession) -> None:
        self._conf, self._servers, self._purges = conf, servers, purges
        self._runtime, self._database, self._kafka = servers.runtime, servers.database, servers.kafka
        self._grown_to = 0

    def follow(self, may_go_on: Callable[[], bool], partitions_added: Callable[[], None]) -> NotFollowed | None:
        """Carry out what the row asks for or has begun, or has forgotten; None: the count stands. Raises
        `MayNotGoOn`."""
        try:
            state = self._remembering_state(may_go_on)
        except UnreadableMark as error:
            return unreadable(0, error.reason)
        if (act := resize.next_act(state)) is not Act.SETTLE:
            if self._grown_to != state.lane_count:
                self._grow_leader_topic(state.lane_count, partitions_added)
            if act is Act.STANDS:
                return None
            if not self._begin(state, act, may_go_on, partitions_added):
                return AskElection()
            state = self._state(may_go_on)
            if resize.next_act(state) is not Act.SETTLE:
                return AskElection()
        failpoint("lanes-closed")
        return self._settle_and_open(state, may_go_on)

    def _remembering_state(self, may_go_on: Callable[[], bool]) -> StateRow:
        """The state, closed for a settling of all lanes if the ledger knows of a change that it does not."""
        identity, state = self._identity_and_state(may_go_on)
        try:
            give_up_at = self._runtime.monotonic() + _SETTLE_S
            newest = newest_change_of_any(self._kafka, identity, give_up_at, self._conf, state, waits=False)
        except LedgerOpen:
            if (meanwhile := resize.while_ledger_is_open(state)) is None:
                raise
            return meanwhile
        if not decisions.forgets_change(state, newest):
            return state
        close_forgotten(self._servers, self._purges, state, newest, may_go_on)
        return self._state(may_go_on)

    def _grow_leader_topic(self, partitions: int, partitions_added: Callable[[], None]) -> None:
        """A lane without a partition there would have no owner."""
        if self._kafka.grow(self._conf.election.leader_topic, partitions):
            partitions_added()
        self._grown_to = partitions

    def _state(self, may_go_on: Callable[[], bool]) -> StateRow:
        return self._identity_and_state(may_go_on)[1]

    def _identity_and_state(self, may_go_on: Callable[[], bool]) -> tuple[UUID, StateRow]:
        found: tuple[UUID, StateRow] = self._ask(
            lambda statements, c: statements.state(c, self._conf.election.lanes), may_go_on
        )
        return found

    def _ask(self, question: Callable[[Any, Any], Any], may_go_on: Callable[[], bool]) -> Any:
        return self._purges.ask(lambda connection: question(self._database.statements, connection), may_go_on)

    def _begin(
        self, state: StateRow, act: Act, may_go_on: Callable[[], bool], partitions_added: Callable[[], None]
    ) -> bool:
        """Nothing is closed before everything is there that the new lanes need."""
        wanted, count = state.wanted, state.lane_count
        assert wanted is not None
        if act is Act.REFUSE:
            self._ask(lambda statements, c: statements.refuse_request(c, wanted, ""), may_go_on)
            return True
        try:
            self._kafka.grow(self._kafka.name, wanted)
            self._grow_leader_topic(wanted, partitions_added)
        except LedgerRefused as error:
            note = str(error)
            logger.error("lanes_not_changed lanes=%d wanted=%d reason=%r", count, wanted, note)
            self._ask(lambda statements, c: statements.refuse_request(c, wanted, note), may_go_on)
            return True
        failpoint("lanes-grown")
        closed = self._ask(lambda statements, c: statements.close_lanes(c, wanted), may_go_on)
        if closed:
            logger.info("lanes_closed lanes=%d wanted=%d", count, wanted)
        return bool(closed)

    def _settle_and_open(self, state: StateRow, may_go_on: Callable[[], bool]) -> NotFollowed | None:
        begun, opening = self._runtime.monotonic(), resize.as_wanted(state)
        settled: dict[int, int] = {}
        for lane in self._lanes_to_settle(state):
            found = self._settle(lane, state, may_go_on)
            if found is None:
                return AskElection()
            if isinstance(found, Stop | Unreadable):
                if self._may_have_been_open(state):
                    return found
                opening = resize.given_up(state, found.text)
                break
            settled[lane] = found
            failpoint("lane-settled")
        opened = self._ask(
            lambda statements, c: statements.open_lanes(c, state.resize_no, opening.lanes, opening.note, settled),
            may_go_on,
        )
        failpoint("lanes-opened")
        if opened:
            logger.info(
                "lanes_opened lanes=%d before=%d closed_s=%.3f",
                opening.lanes,
                state.lane_count,
                self._runtime.monotonic() - begun,
            )
        if opening.note:
            logger.error("lanes_not_changed lanes=%d wanted=%s reason=%r", opening.lanes, state.resize_to, opening.note)
        return None if opened else AskElection()

    def _lanes_to_settle(self, state: StateRow) -> Iterable[int]:
        return resize.lanes_to_settle(state, self._kafka.partitions() if resize.is_repair(state) else 0)

    def _may_have_been_open(self, state: StateRow) -> bool:
        if resize.is_repair(state):
            return resize.may_have_been_open(state, None)
        identity, marked = self._database.identity, None
        assert identity is not None
        try:
            marked = newest_change(self._kafka, identity, self._runtime.monotonic() + _SETTLE_S)
        except (UnreadableMark, LedgerMissing):
            pass
        return resize.may_have_been_open(state, marked)

    def _settle(self, lane: int, state: StateRow, may_go_on: Callable[[], bool]) -> int | Stop | Unreadable | None:
        """Fence the lane's owners and purge what they have committed: up to which batch that is done, or why an
        operator must decide first; None when it may not go on or somebody else has ended the change."""
        takeover = Takeover(self._conf, lane, self._servers, self._purges, settling=state)
        while may_go_on():
            outcome = takeover.run(_SETTLE_S, may_go_on)
            if isinstance(outcome, Owned):
                try:
                    return outcome.batch if lane or self._mark(outcome, state) else None
                finally:
                    outcome.producer.drop_and_wait()
            if isinstance(outcome, Stop | Unreadable):
                return outcome
            if has_ended(state, self._state(may_go_on)):
                return None
            self._runtime.sleep(_AGAIN_S)  # a purge was under way
        return None

    def _mark(self, owned: Owned, state: StateRow) -> bool:
        """Lane 0's last entry once more, with the number of the change; False when that is not certain."""
        from confluent_kafka import KafkaException

        last = owned.entry or Entry(0, 0, uuid4(), owned.identity, (), 0, datetime.now(UTC))
        if (entry := resize.marked(last, state.resize_no)) is None:
            return True
        payload, producer = entries.encode(entry), owned.producer
        try:
            producer.begin()
            producer.send_entry(self._kafka.name, 0, entries.entry_key(0), payload, entries.headers(last))
            producer.commit(self._conf.exactly_once.commit_timeout_s)
        except (KafkaException, SystemError) as error:
            logger.warning("change_not_marked change=%d reason=%r", state.resize_no, str(error))
            return False
        failpoint("change-marked")
        return True


class IdleLanes:
    """The ledger's partitions at or above the count, compared with the table by the first takeover after each connect:
    a restore from before a change of the count shows there only."""

    def __init__(self, servers: Servers, purges: PurgeSession) -> None:
        self._runtime, self._database, self._kafka = servers.runtime, servers.database, servers.kafka
        self._purges = purges
        self._good = GoodPartitions()

    def examine(self, patience_s: float, may_go_on: Callable[[], bool]) -> Closed | Stop | None:
        """What forbids every lane of this process to send; closed: lane 0's owner knows better than an operator. Each
        partition has so much time, and is not looked at again by the next attempt when it was good: after a large
        shrink there are many, and what was found must not be lost because one of them answers late."""

        def look(connection: Any) -> Any:
            statements = self._database.statements
            identity, state = statements.state(connection, self._database.state.lane_count)
            return identity, state, statements.purged_of_all(connection), connection.opened_at

        identity, state, purged, opened_at = self._purges.ask(look, may_go_on)
        if self._good.has_all(opened_at, state):
            return None
        good = self._good.begin(opened_at, identity, state)
        for lane in range(state.lane_count, self._kafka.partitions()):
            if lane in good:
                continue
            if not may_go_on():
                return Closed(state.lane_count)  # not None, which would mean that all of them are good
            entry = self._kafka.last_entry(lane, self._runtime.monotonic() + patience_s)
            forbidden = resize.judge_idle(lane, state, identity, purged.get(lane, 0), entry)
            if forbidden is not None:
                return forbidden
            good.add(lane)
        self._good.found_all(opened_at, state)
        return None
