"""Where something that is held stands: the table of a record that was refused or has crashed processes.

A record *waits* for its next attempt, during which it is *trying*, alone. One that becomes a dead letter, or is to be
deleted, is *leaving*. A batch takes that along: it is *under way* until the batch is purged or has failed, also when
the batch before had the record too and Kafka refuses it there. When the record is gone its hold is *over*, until the
next read has been told where to begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from outbox.core.holds.values import Burial, HoldRow
from outbox.core.region import Table

Name = tuple[str, str] | int | str
"""(topic, key); the id of a record without key; a topic. With KEEP_EMPTY_KEY the empty key is one like any other."""
NEVER = float("inf")


class State(Enum):
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


class Event(Enum):
    DUE = "due"
    """The time of the next attempt has come."""
    REFUSED = "refused"
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


RECORD: Table[State, Event] = Table(
    "hold",
    State.WAITING,
    {
        (State.WAITING, Event.DUE): State.TRYING,
        (State.WAITING, Event.REFUSED): State.WAITING,  # it was sent before the table showed it
        (State.WAITING, Event.TO_LEAVE): State.LEAVING,
        (State.WAITING, Event.FORGOTTEN): State.ENDED,
        (State.TRYING, Event.REFUSED): State.WAITING,
        (State.TRYING, Event.NOT_NOW): State.WAITING,
        (State.TRYING, Event.DELIVERED): State.ENDED,
        (State.TRYING, Event.TO_LEAVE): State.LEAVING,
        (State.TRYING, Event.FORGOTTEN): State.ENDED,
        (State.LEAVING, Event.REFUSED): State.LEAVING,
        (State.LEAVING, Event.TO_LEAVE): State.LEAVING,
        (State.LEAVING, Event.TO_STAY): State.WAITING,
        (State.LEAVING, Event.TAKEN): State.UNDER_WAY,
        (State.LEAVING, Event.FORGOTTEN): State.ENDED,
        (State.UNDER_WAY, Event.REFUSED): State.UNDER_WAY,  # by the batch before, which had it too
        (State.UNDER_WAY, Event.TO_LEAVE): State.UNDER_WAY,
        (State.UNDER_WAY, Event.DONE): State.OVER,
        (State.UNDER_WAY, Event.NOT_DONE): State.LEAVING,
        (State.UNDER_WAY, Event.FORGOTTEN): State.ENDED,
        (State.OVER, Event.RELEASED): State.ENDED,
        (State.OVER, Event.FORGOTTEN): State.ENDED,
    },
)
_BLOCKING = (State.WAITING, State.LEAVING, State.UNDER_WAY, State.OVER)


@dataclass(slots=True)
class Pause:
    """Of a key, a record without key, a topic or a lane."""

    lowest: float = NEVER
    """Of the rows that were read and dropped: from here the reading goes on when the hold ends."""


@dataclass(slots=True)
class Hold:
    row: HoldRow
    """What the table shows, or is about to show."""
    lowest: float
    """As of a pause."""
    retry_at: float
    state: State = State.WAITING
    fate: str = ""
    """Why the record becomes a dead letter, or DISCARD; empty: it does not leave."""
    is_wanted: bool = False
    """An operator has it tried."""

    @property
    def head(self) -> int:
        return self.row.head

    @property
    def is_known(self) -> bool:
        """The table has shown it: when it is missing there, somebody has lifted it."""
        return self.row.id > 0

    def burial(self) -> Burial:
        return Burial(self.row, self.fate)


class Register:
    """The holds of records of one lane: by what is held, and by their states, which change here alone."""

    __slots__ = ("_by_name", "_by_state")

    def __init__(self) -> None:
        self._by_name: dict[Name, Hold] = {}
        self._by_state: dict[State, dict[Name, Hold]] = {state: {} for state in State}

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: Name) -> Hold | None:
        return self._by_name.get(name)

    def blocking(self, *names: Name) -> Hold | None:
        """The first hold of these names whose record is not tried."""
        for name in names:
            hold = self._by_name.get(name)
            if hold is not None and hold.state is not State.TRYING:
                return hold
        return None

    def all(self) -> list[Hold]:
        """For any thread."""
        return list(self._by_name.values())

    def of(self, state: State) -> Mapping[Name, Hold]:
        """In the order in which they came to be in it."""
        return self._by_state[state]

    @property
    def is_blocking(self) -> bool:
        return len(self._by_name) > len(self._by_state[State.TRYING])

    def blocked(self, also: Iterable[Name]) -> set[Name]:
        """What may not be sent, beside others."""
        return set(also).union(*(self._by_state[state] for state in _BLOCKING))

    def place(self, name: Name, hold: Hold) -> None:
        assert name not in self._by_name
        self._by_name[name] = self._by_state[hold.state][name] = hold

    def on(self, name: Name, event: Event) -> Hold:
        """`event` has happened to what is held under this name."""
        hold = self._by_name[name]
        before, hold.state = hold.state, RECORD.after(hold.state, event)
        if hold.state is not before:
            del self._by_state[before][name]
            if hold.state is State.ENDED:
                del self._by_name[name]
            else:
                self._by_state[hold.state][name] = hold
        return hold

    def forget(self, name: Name) -> Hold | None:
        return self.on(name, Event.FORGOTTEN) if name in self._by_name else None
