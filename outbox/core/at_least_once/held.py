"""Holds of an at-least-once lane: when to look at their table, what to write there, and which records leave. Pure.

The scoreboard keeps the order of a key whose head was rejected, as long as its leader lives. The table has what
outlives it, and what others may ask for. What operators pause is left out of the marks. A lane that has such rows in
flight begins again with its marks, and confirms when that is done.

Each method returns what is to be done, in that order; the outcomes are reported back. The lane's thread owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from outbox.core import faults
from outbox.core.at_least_once.scoreboard import Phase, Scoreboard
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds.values import (
    BY_OPERATORS,
    DISCARD,
    OF_RECORDS,
    POISON,
    REJECTED,
    RETRY,
    DeadRecord,
    HoldActions,
    HoldRow,
    fate_of,
    is_given_up,
    rejected,
)
from outbox.core.region import Region, Transitions

_LOOK_S, _LANES_MAX = 1.0, 4
_NEVER = float("inf")
_GOHARVEST_S = 30.0  # between two looks for the tables, where there are none
_DEAD_RECORDS_MAX = 1_000
_AGAIN_S = 5.0  # after a deletion that failed
_NOT_MARKED = (*BY_OPERATORS, POISON)


class HoldsSeen(Enum):
    UNKNOWN = "unknown"
    """Nothing is marked before the holds were looked at once."""
    ASKED_FIRST = "asked for the first time"
    KNOWN = "known"
    ASKED = "asked again"


class HoldsAsked(Enum):
    ASKED = "the table is asked"
    LOADED = "its holds are there, or there is no such table"
    FAILED = "the table could not be asked"


HOLDS_SEEN = Transitions(
    "holds of an at-least-once lane",
    HoldsSeen.UNKNOWN,
    {
        (HoldsSeen.UNKNOWN, HoldsAsked.ASKED): HoldsSeen.ASKED_FIRST,
        (HoldsSeen.ASKED_FIRST, HoldsAsked.LOADED): HoldsSeen.KNOWN,
        (HoldsSeen.ASKED_FIRST, HoldsAsked.FAILED): HoldsSeen.UNKNOWN,
        (HoldsSeen.KNOWN, HoldsAsked.ASKED): HoldsSeen.ASKED,
        (HoldsSeen.ASKED, HoldsAsked.LOADED): HoldsSeen.KNOWN,
        (HoldsSeen.ASKED, HoldsAsked.FAILED): HoldsSeen.KNOWN,
    },
)


class HoldTables(Enum):
    """Of holds and dead letters."""

    MISSING = "missing"
    """As far as is known. What is rejected is then only logged."""
    THERE = "there"


class TablesSeen(Enum):
    LOADED = "holds were loaded"


HOLD_TABLES = Transitions(
    "tables of holds",
    HoldTables.MISSING,
    {(state, TablesSeen.LOADED): HoldTables.THERE for state in HoldTables},
)


class Confirming(Enum):
    NO = "no"
    UNDER_WAY = "under way"


class ConfirmEvent(Enum):
    ASKED = "the table is to say that the lane leaves alone what is held"
    ANSWERED = "it says so, or could not be asked"


CONFIRMING = Transitions(
    "confirmation of holds",
    Confirming.NO,
    {
        (Confirming.NO, ConfirmEvent.ASKED): Confirming.UNDER_WAY,
        (Confirming.UNDER_WAY, ConfirmEvent.ANSWERED): Confirming.NO,
    },
)


# ---- what is to be done


@dataclass(frozen=True, slots=True)
class PlaceHolds:
    """Write them into the table, and report `written`."""

    rows: tuple[HoldRow, ...]


@dataclass(frozen=True, slots=True)
class LiftHolds:
    """Of these records, which are gone. Nothing is reported."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveRecords:
    """Delete the records, as dead letters or for good, and report `removed`."""

    hold_actions: HoldActions
    leader_id: UUID
    are_marked: bool = True
    """By that leader id. Else they are left out of the marks, and only the owner of the lane may delete them."""
    is_written: bool = False
    """Beside the holds: `written` is reported too."""


@dataclass(frozen=True, slots=True)
class ConfirmHolds:
    """The lane leaves alone what these hold; report `confirmed`. Only the owner of the lane may say so."""

    ids: tuple[int, ...]


ToDo = PlaceHolds | LiftHolds | RemoveRecords | ConfirmHolds


@dataclass(frozen=True, slots=True)
class HoldScope:
    """What operators hold."""

    topic: str
    key: str | None
    lane: int | None
    record_id: int | None


class HeldRecords:
    def __init__(
        self, lane: int, board: Scoreboard, attempts_max: Callable[[str], int], *, keep_empty_key: bool = False
    ) -> None:
        """`attempts_max`: after so many rejections a record of this topic becomes a dead letter; 0: never."""
        self._lane, self._board, self._attempts_max, self._keep_empty_key = lane, board, attempts_max, keep_empty_key
        self._seen, self._tables, self._confirming = Region(HOLDS_SEEN), Region(HOLD_TABLES), Region(CONFIRMING)
        self._look_at, self._pause_s = 0.0, _LOOK_S
        self.scopes: frozenset[HoldScope] = frozenset()
        """What is left out of the marks."""
        self._before: UUID | None = None
        """The leader id under which rows of these may still be in flight. None: no row is."""
        self._leaving: set[int] = set()  # records whose deletion is under way
        self._placed: dict[tuple[str, str, int], HoldRow] = {}  # not written yet, by what they hold
        self._dead_records: list[tuple[UUID, DeadRecord]] = []
        """Not written yet, with the leader id that had them marked."""
        self._writing = 0  # writes of such that are under way

    @property
    def may_mark(self) -> bool:
        """Not before the holds were looked at once."""
        return not self._is_first

    @property
    def _is_first(self) -> bool:
        return self._seen.state in (HoldsSeen.UNKNOWN, HoldsSeen.ASKED_FIRST)

    # ---- looking

    def looks(self, now: float, lanes: int) -> bool:
        """Whether to ask the table now, which is reported by `loaded` or `failed`. Once a second, or less often where
        one process has several lanes: an idle one asks little."""
        if self._seen.state in (HoldsSeen.ASKED_FIRST, HoldsSeen.ASKED) or now < self._look_at:
            return False
        self._pause_s = _LOOK_S * min(lanes, _LANES_MAX)
        self._seen.on(HoldsAsked.ASKED)
        return True

    def failed(self, now: float) -> None:
        self._look_at = now + self._pause_s
        self._seen.on(HoldsAsked.FAILED)

    def loaded(self, rows: Sequence[HoldRow] | None, now: float) -> list[ToDo]:
        """None: there is no such table."""
        if rows is not None:
            self._tables.on(TablesSeen.LOADED)
        self._look_at = now + (self._pause_s if self._has_tables else _GOHARVEST_S)
        mine = [row for row in rows or () if row.of_lane in (None, self._lane)]
        to_do = self._respect([row for row in mine if row.reason in _NOT_MARKED and row.wanted != RETRY], now)
        to_do += self._look_at_records([row for row in mine if row.reason in OF_RECORDS], now)
        self._seen.on(HoldsAsked.LOADED)
        return to_do

    @property
    def _has_tables(self) -> bool:
        return self._tables.state is HoldTables.THERE

    def _respect(self, rows: Sequence[HoldRow], now: float) -> list[ToDo]:
        """What operators hold."""
        board = self._board
        no_key = None if self._keep_empty_key else ""  # whose records are held one by one
        scopes = frozenset(
            HoldScope(r.topic, r.key, r.lane, r.record_id if r.key is not None and r.key == no_key else None)
            for r in rows
        )
        if not scopes <= self.scopes:
            self._before = None if board.phase is Phase.TAKING else board.leader_id
            board.remark("holds", now)
        self.scopes = scopes
        wanted = tuple(row.id for row in rows if row.reason != POISON and self._lane not in row.confirmed_by)
        if wanted and self._is_over and self._confirming.expects(ConfirmEvent.ASKED):
            self._confirming.on(ConfirmEvent.ASKED)
            return [ConfirmHolds(wanted)]
        return []

    @property
    def _is_over(self) -> bool:
        """Whether no row of the scopes is in flight any more."""
        return self._board.phase is Phase.RUNNING and self._board.leader_id != self._before

    def confirmed(self) -> None:
        """Or not: then it is asked again."""
        self._confirming.on(ConfirmEvent.ANSWERED)

    def _look_at_records(self, rows: Sequence[HoldRow], now: float) -> list[ToDo]:
        to_do: list[ToDo] = []
        with_id = [(row, row.record_id) for row in rows if row.record_id is not None]
        if gone := tuple(id_ for row, id_ in with_id if not row.is_there):
            to_do.append(LiftHolds(gone))
        for row, id_ in with_id:
            if row.is_there:
                to_do += self._look_at_record(row, id_, now)
        return to_do

    def _look_at_record(self, row: HoldRow, id_: int, now: float) -> list[ToDo]:
        board, is_rejected = self._board, row.reason == REJECTED
        if self._is_first and is_rejected and row.key is not None:
            name = (row.topic, row.key) if row.key or self._keep_empty_key else id_
            board.expect(id_, name, row.attempts, now + (row.due_s if row.due_s is not None else _AGAIN_S))
        fate = fate_of(row, self._attempts_max(row.topic))
        if id_ in self._leaving:
            return []  # also when another attempt is wanted meanwhile: it must not be sent beside its deletion
        if row.wanted == RETRY:
            board.retry(id_, now)
        elif fate:
            hold_actions = HoldActions(discarded=(id_,)) if fate == DISCARD else HoldActions((DeadRecord(row, fate),))
            if board.is_asleep(id_):  # until this is decided, so it is not on its way
                self._await_deletion([id_])
                return [self._removal(hold_actions)]
            if not is_rejected and self._is_over and not board.knows(id_):
                # As long as the takeover stands, nobody else has it in flight either.
                return [self._removal(hold_actions, are_marked=False)]
        return []

    # ---- what was rejected

    def rejected(self, event: RecordHeld, now: float) -> list[ToDo]:
        """A record is held: for people to see, or to become a dead letter."""
        if not self._has_tables:
            return []
        topic, key = event.topic, event.name[1] if isinstance(event.name, tuple) else ""
        held = rejected(event.id, topic, key, event.attempts, event.error, max(0.0, event.retry_at - now))
        is_own = faults.KINDS.get(held.code) is not faults.Kind.TOPIC
        if is_own and is_given_up(event.attempts, self._attempts_max(topic)):
            self._await_deletion([event.id])
            self._dead_records.append((self._board.leader_id, DeadRecord(held, REJECTED)))
        else:
            self._placed[topic, key, 0 if key else event.id] = held
        return self._write()

    def _write(self) -> list[ToDo]:
        """All that was rejected since the last such write was sent, in one: each waits for PostgreSQL's disk, and
        purges wait behind it."""
        if self._writing:
            return []
        to_do: list[ToDo] = []
        if self._placed:
            to_do.append(PlaceHolds((*self._placed.values(),)))
            self._placed = {}
        now, self._dead_records = self._dead_records[:_DEAD_RECORDS_MAX], self._dead_records[_DEAD_RECORDS_MAX:]
        # Of an older leader id: a record that was marked again may be in flight again.
        current = self._board.leader_id
        self._leaving.difference_update(dead.hold.head for leader, dead in now if leader != current)
        if left := tuple(dead for leader, dead in now if leader == current):
            to_do.append(self._removal(HoldActions(left), is_written=True))
        self._writing = len(to_do)
        return to_do

    def written(self) -> list[ToDo]:
        """Or not: then the record is rejected once more."""
        self._writing -= 1
        return self._write() if self._placed or self._dead_records else []

    # ---- deleting

    def _await_deletion(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            self._leaving.add(id_)
            self._board.retry(id_, _NEVER)

    def _removal(
        self, hold_actions: HoldActions, *, are_marked: bool = True, is_written: bool = False
    ) -> RemoveRecords:
        self._leaving.update(hold_actions.heads)
        return RemoveRecords(hold_actions, self._board.leader_id, are_marked, is_written)

    def removed(self, removal: RemoveRecords, gone: Collection[int], now: float) -> list[ToDo]:
        """Of these records, those in `gone`. The others are still there, or nobody knows."""
        ids = removal.hold_actions.heads
        self._leaving.difference_update(ids)
        self._board.gone(gone, now)
        for id_ in ids:
            if id_ not in gone:  # marked again by a remark, for instance: its successors must not overtake it
                self._board.retry(id_, now + _AGAIN_S)
        return self.written() if removal.is_written else []
