"""The book of holds of one lane: which records it holds, and which it may send.

The table `<TABLE>_hold` keeps these decisions. `writes` has the changes that must still be written to it; `load` takes
in its rows, and with them the requests of operators. A rejected record is sent alone whenever it is tried again. Some
decisions are hold actions of the lane's next batch (see `HoldActions`): to delete a record, or to confirm to an
operator that a record is left alone. Until the action is done, the key stays held. `hold` defines the states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from outbox.core.at_least_once.values import RecordHeld
from outbox.core.holds.crashes import CAREFUL_MAX
from outbox.core.holds.hold import NEVER, BookedHold, HoldEvent, HoldState, Name, Pause, Register
from outbox.core.holds.removals import Removals
from outbox.core.holds.suspects import Suspects
from outbox.core.holds.trials import Trials
from outbox.core.holds.values import (
    BY_OPERATORS,
    HISTORY_MAX,
    OF_RECORDS,
    POISON,
    REJECTED,
    RETRY,
    HoldActions,
    HoldRow,
    Writes,
    fate_of,
    is_given_up,
    pause_s,
    rejected,
)
from outbox.core.names import LONG_KEY, held_key
from outbox.core.rows import Row

_UNKNOWN_S = 30.0  # for which an attempt is waited for whose record the table of holds does not know
_LONG_KEY = LONG_KEY // 4  # characters; shorter ones are called by themselves


def _never(topic: str) -> int:
    return 0


def held_as_a_whole(books: Mapping[int, Holds], lanes: Collection[int]) -> tuple[frozenset[str], frozenset[int]]:
    """What a read for these lanes may leave to the server: the topics that every lane holds, and the lanes that are
    paused. Nothing, if the holds of a lane are not known here."""
    held = {lane: books[lane] for lane in lanes if lane in books}
    if len(held) < len(lanes) or not any(held.values()):
        return frozenset(), frozenset()
    topics = set.intersection(*(holds.topics for holds in held.values()))
    return frozenset(topics), frozenset(lane for lane, holds in held.items() if holds.is_paused)


class Holds:
    """The holds of one lane. `attempts_max` gives the rejections after which a record of a topic becomes a dead letter;
    0: never."""

    def __init__(
        self, lane: int = 0, attempts_max: Callable[[str], int] = _never, *, keep_empty_key: bool = False
    ) -> None:
        self._lane, self._attempts_max, self._keep_empty_key = lane, attempts_max, keep_empty_key
        self._held = Register()
        self._paused: dict[Name, Pause] = {}  # by operators
        self._all: Pause | None = None  # the lane itself
        self._lifted: set[int] = set()  # records whose holds the table may still show
        self._released: list[int] = []  # from which to read again
        self._suspects = Suspects()
        self._trials = Trials(self._held)
        self._removals = Removals(self._held)
        self.is_careful = False
        self.writes = Writes()

    def __len__(self) -> int:
        return len(self._held) + len(self._paused) + (self._all is not None)

    @property
    def rejected_count(self) -> int:
        """Keys, records and topics behind a record that was rejected, or that crashed harvesters. A topic counts only
        in the lane of that record. For any thread."""
        return sum(hold.row.head_lane in (None, self._lane) for hold in self._held.all())

    # ---- which rows may be sent

    def name_of(self, row: Row) -> Name:
        return (row[1], held_key(row[1], row[2])) if row[2] or self._keep_empty_key else int(row[0])

    def without(self, rows: list[Row], names: Collection[Name]) -> list[Row]:
        return [row for row in rows if self.name_of(row) not in names] if names else rows

    def keep(self, rows: list[Row]) -> list[Row]:
        """Drop the rows under a hold."""
        if self._all is not None:
            for row in rows[:1]:
                self._all.dropped(row[0])
            return []
        if not (self._paused or self._held.is_blocking):
            return rows
        names = self._held.blocked(self._paused)
        if all(isinstance(name, tuple) for name in names):  # mostly, and at full speed each lookup counts
            keys = {key for _, key in names}  # type: ignore[misc]
            kept = [row for row in rows if row[2] not in keys or (row[1], row[2]) not in names]
        else:
            kept = [row for row in rows if not ((row[1], row[2]) in names or row[1] in names or row[0] in names)]
        if any(len(row[2]) > _LONG_KEY for row in kept):
            kept = [row for row in kept if len(row[2]) <= _LONG_KEY or self.name_of(row) not in names]
        if len(kept) < len(rows):
            self._note_dropped(rows, names)
        return kept

    def _note_dropped(self, rows: list[Row], names: Collection[Name]) -> None:
        first = rows[0][0]
        if all(hold.lowest <= first for hold in self._blocking()):
            return
        for row in rows:
            if row[1] in names or self.name_of(row) in names:
                hold = self._hold_of(row)
                if hold is not None and row[0] < hold.lowest:
                    hold.dropped(row[0])

    def _blocking(self) -> Iterable[BookedHold | Pause]:
        yield from (hold for hold in self._held.all() if hold.state is not HoldState.TRYING)
        yield from self._paused.values()

    def _hold_of(self, row: Row) -> BookedHold | Pause | None:
        name, topic = self.name_of(row), row[1]
        paused = (self._paused.get(name) or self._paused.get(topic)) if self._paused else None
        return paused or self._held.blocking(name, topic)

    def is_held(self, row: Row) -> bool:
        """Of a row that was found outside of a page: when its hold ends, the lane reads again from there."""
        hold = self._all or self._hold_of(row)
        if hold is not None:
            hold.dropped(row[0])
        return hold is not None

    @property
    def topics(self) -> set[str]:
        """Those held as a whole."""
        return {name for name in self._held.blocked(self._paused) if isinstance(name, str)}

    @property
    def is_paused(self) -> bool:
        """The lane itself."""
        return self._all is not None

    def passed_over(self, topics: Collection[str], look: int) -> None:
        """A read above `look` leaves out these topics, and a paused lane: when their holds end, it goes on there."""
        holds = [hold for topic in topics for hold in (self._held.blocking(topic), self._paused.get(topic))]
        for hold in (*holds, self._all):
            if hold is not None:
                hold.dropped(look + 1)

    def take_writes(self) -> Writes:
        """Those that were not taken before."""
        taken, self.writes = self.writes, Writes()
        return taken

    def be_careful(self, is_careful: bool) -> None:
        """While careful, few records share a transaction."""
        self.is_careful = is_careful

    def cut(self, rows: list[Row]) -> list[Row]:
        """As many rows from the front as may share a transaction."""
        if self.is_careful:
            rows = rows[:CAREFUL_MAX]
        rows = self._suspects.cut(rows)
        if tried := self._held.of(HoldState.TRYING):
            alone = {hold.head for hold in tried.values()}
            for index, row in enumerate(rows):
                if row[0] in alone:
                    return rows[: max(1, index)]
        return rows

    def is_tried(self, row: Row) -> bool:
        """Whether the record was held and now travels alone."""
        tried = self._held.of(HoldState.TRYING)
        hold = tried.get(self.name_of(row)) or tried.get(row[1])
        return hold is not None and hold.head == row[0]

    def is_judged(self, row: Row) -> bool:
        """Whether it counts as an attempt that the brokers rejected a batch and named this record. Not while others are
        held that were not tried yet: then this one waits with them. If it became a dead letter at once, the next page
        would bring another such record, and each would cost the lane a producer."""
        return self.is_tried(row) or not self._trials.is_doubtful

    def counts(self, row: Row, *, is_named: bool) -> bool:
        """Whether a rejection is an attempt of this record. `is_named`: the brokers would have named it beside others
        too."""
        return not is_named or self.is_judged(row)

    def first_of_each_key(self, rows: Iterable[Row]) -> list[Row]:
        """What follows of its key waits behind it anyway."""
        firsts: dict[Name, Row] = {}
        for row in rows:
            firsts.setdefault(self.name_of(row), row)
        return [*firsts.values()]

    @property
    def is_narrow(self) -> bool:
        """Whether the lane is searching for the cause of a rejected batch."""
        return self._suspects.is_searching

    @property
    def is_risky(self) -> bool:
        """Whether a record may be sent that has crashed a harvester before."""
        return any(hold.row.reason == POISON for hold in list(self._held.of(HoldState.TRYING).values()))

    @property
    def must_record(self) -> bool:
        """Whether it is written down which records are sent, before they are."""
        return self.is_careful or self.is_risky

    def may_calm_down(self, delivered: int) -> bool:
        """After a batch of so many records, of which none is suspected. One without records proves nothing: the next
        one may hold the record that ends this process too."""
        return delivered > 0 and self.is_careful and not self.is_narrow

    def suspect(self, ids: Collection[int]) -> None:
        """A previous owner died while it sent these records."""
        self._suspects.begin(ids)

    # ---- what Kafka says

    def refused_batch(self, ids: Collection[int], rows: Iterable[Row] = (), code: str = "") -> None:
        """Kafka rejected these rows of a batch together, and it is not known which of them is the cause."""
        self._suspects.refused_batch(ids, rows, code)

    def refused(
        self, row: Row, error: str, now: float, *, whole_topic: bool = False, is_sure: bool = True
    ) -> RecordHeld:
        """`is_sure` is False when the record was not sent, or not alone: then no attempt is counted. Like every held
        record, it is tried alone when its time comes."""
        self._suspects.refused(row[0])
        name: Name = row[1] if whole_topic else self.name_of(row)
        before = self._held.get(name)
        was_tried = before is not None and before.state is HoldState.TRYING
        self._trials.refused(now, was_tried=was_tried, is_sure=is_sure)
        attempts = (before.row.attempts if before else 0) + is_sure
        wait_s, error = pause_s(attempts), error.replace("\0", "")
        held = rejected(row[0], row[1], None if whole_topic else row[2], attempts, error, wait_s)
        if was_tried:
            self._trials.put_back(now, name)
        hold = self._head(name, before, held, now + wait_s)
        self._lifted.discard(row[0])
        # A topic is the cause for all of its records: else its whole backlog would become dead letters.
        if not whole_topic and is_given_up(attempts, self._attempts_max(row[1])):
            hold.decide(hold.fate or REJECTED)
        self._leave_if_fated(name, hold)
        self.writes.placed.append(hold.row)
        shown = (row[1], "*") if whole_topic else name
        assert not isinstance(shown, str)
        return RecordHeld(row[0], shown, attempts, now + wait_s, error)

    def _head(self, name: Name, before: BookedHold | None, row: HoldRow, retry_at: float) -> BookedHold:
        """The record at the head was refused, once more or for the first time."""
        lowest: float = row.head
        if before is not None and before.state is not HoldState.TRYING:
            lowest = min(lowest, before.lowest)
        if before is None or before.head != row.head:
            self._held.forget(name)
            hold = BookedHold(row, lowest, retry_at)
            self._held.place(name, hold)
            return hold
        hold = self._held.on(name, HoldEvent.REJECTED)
        history = (*before.row.history, *row.history)[-HISTORY_MAX:]
        hold.refused_again(replace(row, id=before.row.id, history=history), lowest, retry_at)
        return hold

    def delivered(self, rows: Iterable[Row]) -> None:
        """A batch was committed: its records are no suspects any more."""
        tried = self._held.of(HoldState.TRYING)
        if not (self._suspects.is_searching or tried):
            return
        ids = {row[0] for row in rows}
        self._suspects.cleared(ids)
        for name in [name for name, hold in tried.items() if hold.head in ids]:
            hold = self._held.on(name, HoldEvent.DELIVERED)
            self._lift(hold.head)
            if not hold.is_wanted:
                self._trials.delivered()

    def _lift(self, record_id: int) -> None:
        self._lifted.add(record_id)
        self.writes.lifted.append(record_id)

    def release_due(self, now: float, *, is_behind: bool = False) -> list[int]:
        """End the holds whose time has come; the ids from which to read again. `is_behind`: more waits than a page
        can hold."""
        released, self._released = self._released, []
        for name in list(self._held.of(HoldState.OVER)):
            released.append(int(self._held.on(name, HoldEvent.RELEASED).lowest))
        for name in self._trials.due(now, is_behind=is_behind):
            released.append(int(self._held.on(name, HoldEvent.DUE).lowest))
        return released

    # ---- hold actions

    def _leave_if_fated(self, name: Name, hold: BookedHold) -> None:
        """The key of a head that is to leave waits until that is certain: were its later records sent before, a
        successor could still send the head behind them."""
        if hold.fate:
            hold.put_off(NEVER)
            self._held.on(name, HoldEvent.TO_LEAVE)

    def take_actions(self) -> HoldActions | None:
        """What the next batch is to carry out beside its purge."""
        return self._removals.take()

    def done(self, hold_actions: HoldActions) -> None:
        self._removals.done(hold_actions)

    def not_done(self, hold_actions: HoldActions) -> None:
        self._removals.not_done(hold_actions)

    def none_done(self) -> None:
        self._removals.none_done()

    # ---- what the table says

    def load(self, rows: Sequence[HoldRow], now: float) -> None:
        """Take in all holds of the table."""
        self._removals.looked()
        if not rows and not (len(self) or self._lifted):
            return
        mine = [row for row in rows if row.of_lane in (None, self._lane)]
        self._load_pauses([row for row in mine if row.reason in BY_OPERATORS])
        refused = [row for row in mine if row.reason in OF_RECORDS]
        # Its record may have been gone when its hold was to be written: then the attempt never ends.
        tried = self._held.of(HoldState.TRYING).items()
        for name in [name for name, hold in tried if not hold.is_known and hold.retry_at + _UNKNOWN_S < now]:
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
        after = {self._named(row): before.get(self._named(row)) or Pause() for row in rows}
        self._released += [int(p.lowest) for name, p in before.items() if name not in after and p.lowest < NEVER]
        self._all = after.pop("", None)
        self._paused = after
        self._removals.load(rows, self._lane)

    def _load_refused(self, name: Name, row: HoldRow, now: float) -> None:
        hold = self._held.get(name)
        if hold is not None and hold.state in (HoldState.UNDER_WAY, HoldState.OVER):
            return  # what is under way ends first
        if not row.is_there:
            self._lift(row.head)
            if hold is None or hold.head == row.head:
                self._forget(name)
            return
        if hold is None or hold.head != row.head:
            self._forget(name)
            hold = BookedHold(row, row.head, NEVER if row.due_s is None else now + row.due_s)
            self._held.place(name, hold)
        else:
            hold.shown(row)
        self._heed(name, hold, row, now)

    def _heed(self, name: Name, hold: BookedHold, row: HoldRow, now: float) -> None:
        """What operators want of a record."""
        if row.wanted == RETRY and hold.fate not in ("", REJECTED):  # decided otherwise before it was carried out
            hold.decide("")
            self._held.on(name, HoldEvent.TO_STAY)
        if row.wanted == RETRY and hold.state is HoldState.WAITING:
            hold.want(now)
        hold.decide(fate_of(row, self._attempts_max(row.topic)) or hold.fate)
        self._leave_if_fated(name, hold)

    def _forget_lifted(self, names: Collection[Name]) -> None:
        for state in (HoldState.WAITING, HoldState.TRYING, HoldState.LEAVING):
            for name in [n for n, hold in self._held.of(state).items() if hold.is_known and n not in names]:
                self._forget(name)

    def _forget(self, name: Name) -> None:
        hold = self._held.forget(name)
        if hold is not None:
            self._released.append(int(hold.lowest))
