"""Which keys of a lane are held back, and how the culprit of a refused batch is found.

Pure, without a clock. What is decided here lasts in `<TABLE>_hold`: `writes` is what the table is to be told, `load`
takes in what it says, which is also how operators are heard. A record that was refused travels alone whenever it is
tried again. What deletes a record, or promises operators that it is left alone, is an errand of the lane's next batch
(see `core.holds.values.Errands`); until it is done the key is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from outbox.core.bisection import Bisection
from outbox.core.faults import TOO_LARGE
from outbox.core.holds.values import (
    BY_OPERATORS,
    CRASHED,
    DISCARD,
    HISTORY_MAX,
    OF_RECORDS,
    POISON,
    REFUSED,
    REJECTED,
    RETRY,
    SKIP,
    SKIPPED,
    Burial,
    Errands,
    HoldRow,
    Park,
    Writes,
    code_in,
    is_given_up,
    pause_s,
)
from outbox.core.names import LONG_KEY, held_key
from outbox.core.quarantine import CAREFUL_MAX
from outbox.core.scoreboard_values import RecordHeld
from outbox.edges.reader import Row, size_of

Name = tuple[str, str] | int | str
"""(topic, key); the id of a record without key; a topic. With KEEP_EMPTY_KEY the empty key is one like any other."""

_REST_S = 2.0  # between attempts that are likely to be refused: each costs the lane its producer
_BEHIND_S = 30.0  # after a refusal, while the lane has more to send than it can: then each costs throughput
_UNKNOWN_S = 30.0  # for which an attempt is waited for whose record the table of holds does not know
_ERRANDS_MAX = 1_000  # of one batch: they share the transaction that purges it
_LONG_KEY = LONG_KEY // 4  # characters; shorter ones are called by themselves
_NEVER = float("inf")


@dataclass(slots=True)
class _Hold:
    head: int
    lowest: float
    """Of the rows that were read and dropped: from here the reading goes on when the hold ends."""
    attempts: int = 0
    retry_at: float = _NEVER
    reason: str = REJECTED
    code: str = ""
    error: str = ""
    history: tuple[dict[str, Any], ...] = ()
    is_known: bool = False
    """The table has shown it: when it is missing there, somebody has lifted it."""
    fate: str = ""
    """Why the head becomes a dead letter, or DISCARD; empty: it does not leave."""
    is_leaving: bool = False
    """A batch is under way that carries this out."""
    is_wanted: bool = False
    """An operator has it tried."""
    is_elsewhere: bool = False
    """The head is another lane's."""

    def burial(self) -> Burial:
        return Burial(self.head, self.fate, self.attempts, self.code, self.error, self.history)


def _likely(rows: Iterable[Row], ids: Collection[int], code: str) -> int | None:
    """Which of these records is to blame, as far as their sizes tell."""
    if code not in TOO_LARGE:
        return None
    largest = max((row for row in rows if row[0] in ids), key=size_of, default=None)
    return int(largest[0]) if largest is not None else None


def _never(topic: str) -> int:
    return 0


class Holds:
    """The holds of one lane. `attempts_max` gives the refusals after which a record of a topic becomes a dead letter;
    0: never."""

    def __init__(
        self, lane: int = 0, attempts_max: Callable[[str], int] = _never, *, keep_empty_key: bool = False
    ) -> None:
        self._lane, self._attempts_max, self._keep_empty_key = lane, attempts_max, keep_empty_key
        self._held: dict[Name, _Hold] = {}
        self._tried: dict[Name, _Hold] = {}  # released for another attempt whose outcome is not known
        self._paused: dict[Name, _Hold] = {}  # by operators
        self._all: _Hold | None = None  # the lane itself is paused
        self._leaving: dict[Name, None] = {}  # those of the held that have a fate, in the order of their turn
        self._under_way: dict[int, Name] = {}  # of these, by their heads, those that a batch is to carry out
        self._errands_max = _ERRANDS_MAX  # less after a failure
        self._over: list[Name] = []  # those of the held whose heads are gone
        self._confirming: dict[int, bool] = {}  # holds that are to be confirmed: whether that is under way
        self._lifted: set[int] = set()  # records whose holds the table may still show
        self._released: list[int] = []  # from which to read again
        self._search = Bisection()
        self._rest_until, self._is_doubtful = 0.0, False  # an attempt was refused, so the next one is likely to be
        self._refused_at = -_NEVER
        self._may_try = True  # errands; after a failure not before the table was looked at again
        self.is_careful = False
        self.writes = Writes()

    def __len__(self) -> int:
        return len(self._held) + len(self._tried) + len(self._paused) + (self._all is not None)

    @property
    def refused_count(self) -> int:
        """Keys, records and topics behind a record that was refused, or that crashed harvesters; a topic counts in the
        lane of that record alone. For any thread."""
        return sum(not hold.is_elsewhere for holds in (self._held, self._tried) for hold in list(holds.values()))

    def name_of(self, row: Row) -> Name:
        return (row[1], held_key(row[1], row[2])) if row[2] or self._keep_empty_key else int(row[0])

    def without(self, rows: list[Row], names: Collection[Name]) -> list[Row]:
        return [row for row in rows if self.name_of(row) not in names] if names else rows

    def keep(self, rows: list[Row]) -> list[Row]:
        """Drop the rows under a hold."""
        if not (self._held or self._paused or self._all):
            return rows
        if self._all is not None:
            self._all.lowest = min([self._all.lowest, *(row[0] for row in rows[:1])])
            return []
        names: set[Name] = {*self._held, *self._paused}
        if all(isinstance(name, tuple) for name in names):  # mostly, and at full speed each lookup counts
            keys = {key for _, key in names}  # type: ignore[misc]
            kept = [row for row in rows if row[2] not in keys or (row[1], row[2]) not in names]
        else:
            kept = [row for row in rows if not ((row[1], row[2]) in names or row[1] in names or row[0] in names)]
        if any(len(row[2]) > _LONG_KEY for row in kept):
            kept = [row for row in kept if len(row[2]) <= _LONG_KEY or self.name_of(row) not in names]
        if len(kept) < len(rows):
            self._note_dropped(rows)
        return kept

    def _note_dropped(self, rows: list[Row]) -> None:
        first = rows[0][0]
        if all(hold.lowest <= first for holds in (self._held, self._paused) for hold in holds.values()):
            return
        for row in rows:
            hold = self._hold_of(row)
            if hold is not None and row[0] < hold.lowest:
                hold.lowest = row[0]

    def _hold_of(self, row: Row) -> _Hold | None:
        name, topic = self.name_of(row), row[1]
        for holds in (self._paused, self._held):
            if holds and (hold := holds.get(name) or holds.get(topic)) is not None:
                return hold
        return None

    def is_held(self, row: Row) -> bool:
        """Of a row that was found elsewhere than in a page: when its hold ends, the reading goes on from there."""
        hold = self._all or self._hold_of(row)
        if hold is not None:
            hold.lowest = min(hold.lowest, row[0])
        return hold is not None

    @property
    def topics(self) -> set[str]:
        """Those held as a whole."""
        return {name for holds in (self._held, self._paused) for name in holds if isinstance(name, str)}

    @property
    def is_paused(self) -> bool:
        """The lane itself."""
        return self._all is not None

    def passed_over(self, topics: Collection[str], look: int) -> None:
        """A read above `look` leaves out these topics, and a paused lane: when their holds end, it goes on there."""
        left_out = [holds[topic] for holds in (self._held, self._paused) for topic in topics if topic in holds]
        for hold in (*left_out, *([self._all] if self._all is not None else [])):
            hold.lowest = min(hold.lowest, look + 1)

    def cut(self, rows: list[Row]) -> list[Row]:
        """As many rows from the front as may share a transaction."""
        if self.is_careful:
            rows = rows[:CAREFUL_MAX]
        if self._search.is_searching:
            ids = [row[0] for row in rows]
            if ids:  # else the page had nothing but held records, and says nothing about suspects behind them
                self._search = self._search.among([*ids, *(s for s in self._search.suspects if s > ids[-1])])
            rows = rows[: self._search.take(ids)]
        if self._tried:
            suspects = {hold.head for hold in self._tried.values()}
            for index, row in enumerate(rows):
                if row[0] in suspects:
                    return rows[: max(1, index)]
        return rows

    def is_tried(self, row: Row) -> bool:
        """Whether the record was held and now travels alone."""
        hold = self._tried.get(self.name_of(row)) or self._tried.get(row[1])
        return hold is not None and hold.head == row[0]

    @property
    def is_narrow(self) -> bool:
        """Whether the culprit of a refused batch is being looked for."""
        return self._search.is_searching

    @property
    def is_risky(self) -> bool:
        """Whether a record may be sent that has crashed a harvester before."""
        return any(hold.reason == POISON for hold in list(self._tried.values()))

    def suspect(self, ids: Collection[int]) -> None:
        """An owner before this one died while it sent these records."""
        self._search = Bisection(frozenset(ids))

    # ---- what Kafka says

    def refused_batch(self, ids: Collection[int], rows: Iterable[Row] = (), code: str = "") -> None:
        """These rows of a batch were refused together, and which of them is at fault is not known."""
        self._search = self._search.refused(ids, _likely(rows, set(ids), code))

    def refused(
        self, row: Row, error: str, now: float, *, whole_topic: bool = False, is_sure: bool = True
    ) -> RecordHeld:
        """Not sure: it was not sent, or not alone, and no attempt is counted. When its time comes it is tried alone, as
        everything that is held."""
        if row[0] in self._search.suspects:
            self._search = self._search.refused([row[0]])
        name: Name = row[1] if whole_topic else self.name_of(row)
        before = self._tried.pop(name, None)
        # Not by each that comes while others are held: then none of those would be tried as long as more are refused.
        if before is not None or not self._held:
            self._refused_at = now
        if before is not None:
            self._tire(now)
        elif not (is_sure or self._is_doubtful):
            self._rest_until, self._is_doubtful = now + _REST_S, True
        before = before or self._held.get(name)
        attempts = (before.attempts if before else 0) + is_sure
        wait_s = pause_s(attempts)
        error = error.replace("\0", "")
        code = code_in(error)
        hold = _Hold(row[0], row[0], attempts, now + wait_s, code=code, error=error)
        if before is not None and before.head == row[0]:
            hold.history, hold.is_known, hold.fate = before.history, before.is_known, before.fate
        hold.history = (*hold.history, {"code": code, "error": error})[-HISTORY_MAX:]
        self._held[name] = hold
        self._lifted.discard(row[0])
        # A topic is at fault for all of its records: nobody wants a whole backlog among the dead letters.
        if not whole_topic and is_given_up(attempts, self._attempts_max(row[1])):
            hold.fate = hold.fate or REFUSED
        self._part_if_fated(name, hold)
        self.writes.parks.append(Park(row[0], row[1], None if whole_topic else row[2], attempts, code, error, wait_s))
        shown = (row[1], "*") if whole_topic else name
        assert not isinstance(shown, str)
        return RecordHeld(row[0], shown, attempts, now + wait_s, error)

    def _tire(self, now: float) -> None:
        """However many records are held, trying them must not take the lane's time: those that were released beside
        the one that was refused wait again, and from now on one at a time is tried, with pauses."""
        self._rest_until, self._is_doubtful = now + _REST_S, True
        for name in [name for name, hold in self._tried.items() if not hold.is_wanted]:
            hold = self._held[name] = self._tried.pop(name)
            hold.retry_at = now

    def delivered(self, rows: Iterable[Row]) -> None:
        """A batch was committed: its records are no suspects any more."""
        if self._search.is_searching or self._tried:
            ids = {row[0] for row in rows}
            self._search = self._search.cleared(ids)
            for name in [name for name, hold in self._tried.items() if hold.head in ids]:
                hold = self._tried.pop(name)
                self._lift(hold.head)
                if not hold.is_wanted:  # what has refused it takes records again
                    self._rest_until, self._is_doubtful, self._refused_at = 0.0, False, -_NEVER

    def _lift(self, record_id: int) -> None:
        self._lifted.add(record_id)
        self.writes.lifted.append(record_id)

    def release_due(self, now: float, *, is_behind: bool = False) -> list[int]:
        """End the holds whose time has come; the ids from which to read again. `is_behind`: more waits than a page
        can hold."""
        released, self._released = self._released, []
        if not self._held:
            return released
        over, self._over = self._over, []
        released += [int(self._held.pop(name).lowest) for name in over if name in self._held]
        due = self._due(now, is_behind)
        for name in due:
            self._tried[name] = self._held.pop(name)
        return released + [int(self._tried[name].lowest) for name in due]

    def _due(self, now: float, is_behind: bool) -> list[Name]:
        due = [name for name, hold in self._held.items() if hold.retry_at <= now]
        due.sort(key=lambda name: self._held[name].retry_at)
        wanted, others = ([n for n in due if self._held[n].is_wanted is is_wanted] for is_wanted in (True, False))
        if is_behind and now < self._refused_at + _BEHIND_S:
            return wanted
        if not self._is_doubtful:
            return due
        may_try = now >= self._rest_until and all(hold.is_wanted for hold in self._tried.values())
        return wanted + others[: int(may_try)]

    # ---- errands

    def _part_if_fated(self, name: Name, hold: _Hold) -> None:
        """The head is to leave. Its key waits until that is certain: were its later records sent before, a successor
        could still send the head behind them."""
        if hold.fate:
            hold.retry_at = _NEVER
            self._leaving[name] = None

    def take_errands(self) -> Errands | None:
        """What the next batch is to carry out beside its purge."""
        if not (self._leaving or self._confirming) or not self._may_try:
            return None
        waiting = (name for name in self._leaving if not self._held[name].is_leaving)
        names = list(islice(waiting, self._errands_max))
        unconfirmed = (id_ for id_, is_under_way in self._confirming.items() if not is_under_way)
        confirmed = tuple(islice(unconfirmed, self._errands_max))
        if not names and not confirmed:
            return None
        leaving = [self._held[name] for name in names]
        for name, hold in zip(names, leaving, strict=True):
            hold.is_leaving = True
            self._under_way[hold.head] = name
        self._confirming.update(dict.fromkeys(confirmed, True))
        burials = tuple(hold.burial() for hold in leaving if hold.fate != DISCARD)
        return Errands(burials, tuple(hold.head for hold in leaving if hold.fate == DISCARD), confirmed)

    def done(self, errands: Errands) -> None:
        """The heads are gone, their keys go on with the next read: a page that is read at this moment has left out
        what it held of them before, and may not send what comes later."""
        for name in self._arrived(errands):
            del self._leaving[name]
            self._over.append(name)
        for id_ in errands.confirmed:
            self._confirming.pop(id_, None)
        self._errands_max = min(_ERRANDS_MAX, 2 * self._errands_max)

    def not_done(self, errands: Errands) -> None:
        """To be carried out once more, after all others and fewer at a time: what another batch has under way is not
        touched, and what can never be done keeps nobody else waiting."""
        for name in self._arrived(errands):
            self._held[name].is_leaving = False
            del self._leaving[name]
            self._leaving[name] = None
        self._confirming.update(dict.fromkeys(self._confirming.keys() & set(errands.confirmed), False))
        self._errands_max = max(1, len(errands) // 4)
        self._may_try = False

    def _arrived(self, errands: Errands) -> list[Name]:
        """What was under way."""
        heads = [(head, self._under_way.pop(head, None)) for head in errands.heads]
        return [name for head, name in heads if name in self._leaving and self._held[name].head == head]

    def none_done(self) -> None:
        """No batch is under way any more: what was is to be carried out once more."""
        self._under_way.clear()
        for name in self._leaving:
            self._held[name].is_leaving = False
        self._confirming = dict.fromkeys(self._confirming, False)
        self._may_try = False

    # ---- what the table says

    def load(self, rows: Sequence[HoldRow], now: float) -> None:
        """Take in all holds of the table."""
        self._may_try = True
        if not rows and not (self._held or self._tried or self._paused or self._all or self._lifted):
            return
        mine = [row for row in rows if row.of_lane in (None, self._lane)]
        self._load_pauses([row for row in mine if row.reason in BY_OPERATORS])
        refused = [row for row in mine if row.reason in OF_RECORDS]
        # Its record may have been gone when its hold was to be written: then the attempt never ends.
        for name in [n for n, hold in self._tried.items() if not hold.is_known and hold.retry_at + _UNKNOWN_S < now]:
            self._forget(name)
        self._lifted &= {row.record_id for row in refused if row.record_id is not None}
        for row in refused:
            if row.record_id not in self._lifted:
                self._load_refused(self._named(row), row, now)
            elif not row.is_there and row.record_id is not None:
                self.writes.lifted.append(row.record_id)  # the first attempt may have failed
        self._forget_lifted({self._named(row) for row in refused})

    def _named(self, row: HoldRow) -> Name:
        """The empty text is the lane."""
        if row.key is None:
            return row.topic
        return (row.topic, held_key(row.topic, row.key)) if row.key or self._keep_empty_key else int(row.record_id or 0)

    def _load_pauses(self, rows: Sequence[HoldRow]) -> None:
        before = dict(self._paused)
        if self._all is not None:
            before[""] = self._all
        after = {self._named(row): before.get(self._named(row)) or _Hold(0, _NEVER, reason=row.reason) for row in rows}
        self._released += [int(h.lowest) for name, h in before.items() if name not in after and h.lowest < _NEVER]
        self._all = after.pop("", None)
        self._paused = after
        wanted = sorted(row.id for row in rows if self._lane not in row.confirmed_by)
        self._confirming = {id_: self._confirming.get(id_, False) for id_ in wanted}

    def _load_refused(self, name: Name, row: HoldRow, now: float) -> None:
        assert row.record_id is not None
        hold = self._held.get(name) or self._tried.get(name)
        if hold is not None and hold.is_leaving:
            return  # what is under way ends first
        if not row.is_there:
            self._lift(row.record_id)
            if hold is None or hold.head == row.record_id:
                self._forget(name)
            return
        if hold is None or hold.head != row.record_id:
            self._forget(name)
            due = _NEVER if row.due_s is None else now + row.due_s
            hold = self._held[name] = _Hold(row.record_id, row.record_id, row.attempts, due, row.reason)
            hold.code, hold.error = row.code, row.error
        hold.is_known, hold.history = True, row.history
        hold.is_elsewhere = row.head_lane not in (None, self._lane)
        if row.wanted == RETRY and hold.fate in (SKIPPED, DISCARD, CRASHED):
            hold.fate = ""  # decided otherwise before it was carried out
            self._leaving.pop(name, None)
        if row.wanted == RETRY and name in self._held and not hold.fate:
            hold.retry_at, hold.is_wanted = now, True
        elif row.wanted in (SKIP, DISCARD):
            hold.fate = SKIPPED if row.wanted == SKIP else DISCARD
        elif row.reason == POISON and self._attempts_max(row.topic):
            hold.fate = CRASHED
        if hold.fate:
            self._held[name] = self._tried.pop(name, hold)
            self._part_if_fated(name, hold)

    def _forget_lifted(self, names: Collection[Name]) -> None:
        for holds in (self._held, self._tried):
            for name in [n for n, hold in holds.items() if hold.is_known and not hold.is_leaving and n not in names]:
                self._forget(name)

    def _forget(self, name: Name) -> None:
        for holds in (self._held, self._tried):
            hold = holds.pop(name, None)
            if hold is not None:
                self._released.append(int(hold.lowest))
        self._leaving.pop(name, None)
