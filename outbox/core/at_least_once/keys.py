"""The queue of one key: what it may do, and what stands behind its undecided record."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import IntEnum

from outbox.core.at_least_once.values import KeyName, Record
from outbox.core.region import Transitions


class KeyState(IntEnum):
    """At most one record of a key is undecided: it is ready, in flight or being purged. (Numbers are found faster in a
    table than names.)"""

    IDLE = 0
    """No record is undecided."""
    BUSY = 1
    """One is."""
    ASLEEP = 2
    """None is: the next one failed, and is tried again at a time."""
    FETCHING_NEXT = 3
    """None is: the next one is being fetched."""
    FETCHING_BEHIND = 4
    """One is, and some behind it are being fetched."""


class KeyEvent(IntEnum):
    TAKEN = 0
    """A record becomes the undecided one."""
    PURGED = 1
    """The undecided record is purged, and none that could follow is here."""
    FETCH = 2
    """Rows that were deferred are asked for."""
    FETCHED = 3
    """They are here."""
    NOT_FETCHED = 4
    """They are not: the statement failed, or the rows are gone."""
    SLEEP = 5
    """Its next record failed, or is known to have failed, or is tried again at another time."""
    WAKE = 6
    REMARK = 7
    """What is not sent is forgotten."""


KEY: Transitions[KeyState, KeyEvent] = Transitions(
    "key",
    KeyState.IDLE,
    {
        (KeyState.IDLE, KeyEvent.TAKEN): KeyState.BUSY,
        (KeyState.BUSY, KeyEvent.PURGED): KeyState.IDLE,
        (KeyState.FETCHING_BEHIND, KeyEvent.PURGED): KeyState.FETCHING_NEXT,
        (KeyState.IDLE, KeyEvent.FETCH): KeyState.FETCHING_NEXT,
        (KeyState.BUSY, KeyEvent.FETCH): KeyState.FETCHING_BEHIND,
        (KeyState.FETCHING_NEXT, KeyEvent.FETCHED): KeyState.BUSY,
        (KeyState.FETCHING_BEHIND, KeyEvent.FETCHED): KeyState.BUSY,
        (KeyState.FETCHING_NEXT, KeyEvent.NOT_FETCHED): KeyState.IDLE,
        (KeyState.FETCHING_BEHIND, KeyEvent.NOT_FETCHED): KeyState.BUSY,
        (KeyState.IDLE, KeyEvent.SLEEP): KeyState.ASLEEP,
        (KeyState.BUSY, KeyEvent.SLEEP): KeyState.ASLEEP,
        (KeyState.ASLEEP, KeyEvent.SLEEP): KeyState.ASLEEP,
        (KeyState.FETCHING_BEHIND, KeyEvent.SLEEP): KeyState.ASLEEP,
        (KeyState.ASLEEP, KeyEvent.WAKE): KeyState.IDLE,
        (KeyState.BUSY, KeyEvent.REMARK): KeyState.BUSY,
        (KeyState.FETCHING_BEHIND, KeyEvent.REMARK): KeyState.BUSY,
    },
)

IDLE, BUSY, ASLEEP, FETCHING_NEXT, FETCHING_BEHIND = KeyState


def _states_after(wanted: KeyEvent) -> dict[KeyState, KeyState]:
    return {before: after for (before, event), after in KEY.transitions.items() if event is wanted}


# These two happen to each record.
_AFTER_TAKEN, _AFTER_PURGED = _states_after(KeyEvent.TAKEN), _states_after(KeyEvent.PURGED)


class Key:
    """The queue of one key with records here; the key's place is its shard."""

    __slots__ = ("deferred", "is_reported", "name", "outages", "shard", "state", "until", "waiting", "waits_since")

    def __init__(self, name: KeyName, shard: int) -> None:
        self.name = name
        self.shard = shard
        self.state = IDLE
        self.until = 0.0  # asleep until then
        self.outages = 0
        self.waiting: deque[Record] | None = None
        self.deferred: deque[int] | None = None  # of later records than those that wait
        self.waits_since = 0.0
        self.is_reported = False  # that it waits too long

    @property
    def wants_rows(self) -> bool:
        """Whether its next rows are not here, nor asked for, nor held back."""
        return bool(self.deferred and not self.waiting and (self.state is IDLE or self.state is BUSY))

    # ---- its undecided record

    def take(self) -> None:
        """A record of it becomes the undecided one."""
        self.state = _AFTER_TAKEN[self.state]

    def purged(self, now: float) -> Record | None:
        """The undecided record is; the next one, if it is here."""
        self.outages = 0
        if self.waiting:
            self.waits_since, self.is_reported = now, False
            return self.waiting.popleft()
        self.state = _AFTER_PURGED[self.state]
        return None

    def undelivered(self) -> int:
        """For the how-many-th time in a row."""
        self.outages += 1
        return self.outages

    # ---- what stands behind it

    def wait(self, row: Record, now: float) -> None:
        if not self.waiting:
            self.waiting = self.waiting or deque()
            self.waits_since = now
        self.waiting.append(row)

    def reported(self) -> None:
        self.is_reported = True

    def defer(self, id_: int) -> None:
        if self.deferred is None:
            self.deferred = deque()
        self.deferred.append(id_)

    def defer_first(self, ids: Sequence[int]) -> None:
        """Before all others."""
        if self.deferred is None:
            self.deferred = deque()
        self.deferred.extendleft(reversed(ids))

    def empty_waiting(self) -> list[int]:
        ids = [row.id for row in self.waiting or ()]
        self.waiting = None
        return ids

    def forget(self) -> None:
        """All but its undecided record."""
        self._on(KeyEvent.REMARK)
        self.waiting = self.deferred = None

    # ---- fetching

    def fetch(self, count: int) -> list[int]:
        """The first so many of what is deferred are asked for."""
        assert self.deferred is not None
        self._on(KeyEvent.FETCH)
        return [self.deferred.popleft() for _ in range(count)]

    def fetched(self) -> None:
        self._on(KeyEvent.FETCHED)

    def not_fetched(self) -> None:
        self._on(KeyEvent.NOT_FETCHED)

    # ---- sleeping

    def sleep(self, until: float) -> None:
        self._on(KeyEvent.SLEEP)
        self.until = until

    def wake(self) -> None:
        self._on(KeyEvent.WAKE)

    def _on(self, event: KeyEvent) -> None:
        self.state = KEY.after(self.state, event)
