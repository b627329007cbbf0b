"""The states of a hold on a record that Kafka rejected or that has crashed processes.

The record *waits* for its next attempt, during which it is *trying*, alone. If it becomes a dead letter, or an operator
discards it, it is *leaving*. A batch carries out the removal, which is *under way* until the batch is purged or has
failed, even if the previous batch had the record too and Kafka rejects it there. When the record is gone, its hold is
*over*, until the next read begins where the key was left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from outbox.core.holds.values import DeadRecord, HoldRow
from outbox.core.region import Transitions

Name = tuple[str, str] | int | str
"""(topic, key); the id of a record without key; a topic. With KEEP_EMPTY_KEY the empty key is one like any other."""
NEVER = float("inf")


class HoldState(Enum):
    WAITING = "waiting"
    """For its next attempt, or for an operator. What follows of its key is held back."""
    TRYING = "trying"
    """The attempt is under way, or begins with the next page."""
    LEAVING = "leaving"
    """The next batch is to take its removal along."""
    UNDER_WAY = "under way"
    """A batch has taken its removal along, and is not purged yet."""
    OVER = "over"
    """The record is gone, and the next read begins where its key was left."""
    ENDED = "ended"
    """There is no hold any more."""


class HoldEvent(Enum):
    DUE = "due"
    """The time of the next attempt has come."""
    REJECTED = "rejected"
    NOT_NOW = "not now"
    """Another record was refused that was tried beside this one."""
    DELIVERED = "delivered"
    TO_LEAVE = "to leave"
    """An operator wants that, or it was refused often enough."""
    TO_STAY = "to stay"
    """An operator has it tried once more."""
    TAKEN = "taken"
    """By a batch that is to carry it out."""
    DONE = "done"
    NOT_DONE = "not done"
    RELEASED = "released"
    """The next read begins where its key was left."""
    FORGOTTEN = "forgotten"
    """The table knows it no more, or another record is at the head."""


RECORD: Transitions[HoldState, HoldEvent] = Transitions(
    "hold",
    HoldState.WAITING,
    {
        (HoldState.WAITING, HoldEvent.DUE): HoldState.TRYING,
        (HoldState.WAITING, HoldEvent.REJECTED): HoldState.WAITING,  # it was sent before the table showed it
        (HoldState.WAITING, HoldEvent.TO_LEAVE): HoldState.LEAVING,
        (HoldState.WAITING, HoldEvent.FORGOTTEN): HoldState.ENDED,
        (HoldState.TRYING, HoldEvent.REJECTED): HoldState.WAITING,
        (HoldState.TRYING, HoldEvent.NOT_NOW): HoldState.WAITING,
        (HoldState.TRYING, HoldEvent.DELIVERED): HoldState.ENDED,
        (HoldState.TRYING, HoldEvent.TO_LEAVE): HoldState.LEAVING,
        (HoldState.TRYING, HoldEvent.FORGOTTEN): HoldState.ENDED,
        (HoldState.LEAVING, HoldEvent.REJECTED): HoldState.LEAVING,
        (HoldState.LEAVING, HoldEvent.TO_LEAVE): HoldState.LEAVING,
        (HoldState.LEAVING, HoldEvent.TO_STAY): HoldState.WAITING,
        (HoldState.LEAVING, HoldEvent.TAKEN): HoldState.UNDER_WAY,
        (HoldState.LEAVING, HoldEvent.FORGOTTEN): HoldState.ENDED,
        (HoldState.UNDER_WAY, HoldEvent.REJECTED): HoldState.UNDER_WAY,  # by the batch before, which had it too
        (HoldState.UNDER_WAY, HoldEvent.TO_LEAVE): HoldState.UNDER_WAY,
        (HoldState.UNDER_WAY, HoldEvent.DONE): HoldState.OVER,
        (HoldState.UNDER_WAY, HoldEvent.NOT_DONE): HoldState.LEAVING,
        (HoldState.UNDER_WAY, HoldEvent.FORGOTTEN): HoldState.ENDED,
        (HoldState.OVER, HoldEvent.RELEASED): HoldState.ENDED,
        (HoldState.OVER, HoldEvent.FORGOTTEN): HoldState.ENDED,
    },
)
_BLOCKING = (HoldState.WAITING, HoldState.LEAVING, HoldState.UNDER_WAY, HoldState.OVER)


class TrialBy(Enum):
    """Why the next attempt is made."""

    TIME = "time"
    """Its time comes by itself."""
    OPERATOR = "operator"
    """An operator wants it."""


class TrialEvent(Enum):
    WANTED = "an operator wants an attempt"
    REJECTED = "the record is rejected once more"


TRIAL = Transitions(
    "next attempt of a held record",
    TrialBy.TIME,
    {
        **{(state, TrialEvent.WANTED): TrialBy.OPERATOR for state in TrialBy},
        **{(state, TrialEvent.REJECTED): TrialBy.TIME for state in TrialBy},
    },
)


@dataclass(slots=True)
class Pause:
    """Of a key, a record without key, a topic or a lane."""

    lowest: float = NEVER
    """Of the rows that were read and dropped: from here the reading goes on when the hold ends."""

    def dropped(self, id_: int) -> None:
        self.lowest = min(self.lowest, id_)


@dataclass(slots=True)
class BookedHold:
    row: HoldRow
    """What the table shows, or is about to show."""
    lowest: float
    """As of a pause."""
    retry_at: float
    state: HoldState = HoldState.WAITING
    fate: str = ""
    """Why the record becomes a dead letter, or DISCARD; empty: it does not leave."""
    trial: TrialBy = TRIAL.first

    @property
    def head(self) -> int:
        return self.row.head

    @property
    def is_wanted(self) -> bool:
        """An operator has it tried."""
        return self.trial is TrialBy.OPERATOR

    @property
    def is_known(self) -> bool:
        """The table has shown it: when it is missing there, somebody has lifted it."""
        return self.row.id > 0

    def dropped(self, id_: int) -> None:
        self.lowest = min(self.lowest, id_)

    def on(self, event: HoldEvent) -> None:
        self.state = RECORD.after(self.state, event)

    def refused_again(self, row: HoldRow, lowest: float, retry_at: float) -> None:
        self.row, self.lowest, self.retry_at = row, lowest, retry_at
        self.trial = TRIAL.after(self.trial, TrialEvent.REJECTED)

    def shown(self, row: HoldRow) -> None:
        """The table has the hold so. It may have been read before the last rejection was written."""
        self.row = replace(self.row, id=row.id, history=row.history, head_lane=row.head_lane)

    def put_off(self, until: float) -> None:
        self.retry_at = until

    def want(self, now: float) -> None:
        """An operator does, at once."""
        self.retry_at, self.trial = now, TRIAL.after(self.trial, TrialEvent.WANTED)

    def decide(self, fate: str) -> None:
        self.fate = fate

    def dead_record(self) -> DeadRecord:
        return DeadRecord(self.row, self.fate)


class Register:
    """The holds of records of one lane: by what is held, and by their states, which change here alone."""

    __slots__ = ("_by_name", "_by_state")

    def __init__(self) -> None:
        self._by_name: dict[Name, BookedHold] = {}
        self._by_state: dict[HoldState, dict[Name, BookedHold]] = {state: {} for state in HoldState}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: Name) -> BookedHold | None:
        return self._by_name.get(name)

    def blocking(self, *names: Name) -> BookedHold | None:
        """The first hold of these names whose record is not tried."""
        for name in names:
            hold = self._by_name.get(name)
            if hold is not None and hold.state is not HoldState.TRYING:
                return hold
        return None

    def all(self) -> list[BookedHold]:
        """For any thread."""
        return list(self._by_name.values())

    def of(self, state: HoldState) -> Mapping[Name, BookedHold]:
        """In the order in which they came to be in it."""
        return self._by_state[state]

    @property
    def is_blocking(self) -> bool:
        return len(self._by_name) > len(self._by_state[HoldState.TRYING])

    def blocked(self, also: Iterable[Name]) -> set[Name]:
        """What may not be sent, beside others."""
        return set(also).union(*(self._by_state[state] for state in _BLOCKING))

    def place(self, name: Name, hold: BookedHold) -> None:
        assert name not in self._by_name
        self._by_name[name] = self._by_state[hold.state][name] = hold

    def on(self, name: Name, event: HoldEvent) -> BookedHold:
        """`event` has happened to what is held under this name."""
        hold = self._by_name[name]
        before = hold.state
        hold.on(event)
        if hold.state is not before:
            del self._by_state[before][name]
            if hold.state is HoldState.ENDED:
                del self._by_name[name]
            else:
                self._by_state[hold.state][name] = hold
        return hold

    def forget(self, name: Name) -> BookedHold | None:
        return self.on(name, HoldEvent.FORGOTTEN) if name in self._by_name else None
