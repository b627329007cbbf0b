"""What the lane's next batch carries out with its purge, see `HoldActions`: records that leave the table, and promises
to operators that the lane leaves alone what they have paused."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import islice

from outbox.core.holds.hold import HoldEvent, HoldState, Name, Register
from outbox.core.holds.values import DISCARD, HoldActions, HoldRow
from outbox.core.region import Transitions

_ACTIONS_MAX = 1_000  # of one batch: they share the transaction that purges it


class Promise(Enum):
    """That what an operator has paused is left alone."""

    PAUSED = "paused"
    """It is left alone, and no batch has promised so yet."""
    CONFIRMING = "confirming"
    """A batch is to write the promise down."""
    CONFIRMED = "confirmed"
    """The table has the promise."""


class Said(Enum):
    """Of a promise."""

    TAKEN = "taken"
    """By a batch that is to write it down."""
    DONE = "done"
    NOT_DONE = "not done"
    SHOWN = "shown"
    """The table has it."""
    NOT_SHOWN = "not shown"


PAUSE: Transitions[Promise, Said] = Transitions(
    "pause",
    Promise.PAUSED,
    {
        (Promise.PAUSED, Said.TAKEN): Promise.CONFIRMING,
        (Promise.PAUSED, Said.DONE): Promise.CONFIRMED,  # by a batch that was believed to have failed
        (Promise.PAUSED, Said.NOT_DONE): Promise.PAUSED,
        (Promise.PAUSED, Said.SHOWN): Promise.CONFIRMED,
        (Promise.PAUSED, Said.NOT_SHOWN): Promise.PAUSED,
        (Promise.CONFIRMING, Said.DONE): Promise.CONFIRMED,
        (Promise.CONFIRMING, Said.NOT_DONE): Promise.PAUSED,
        (Promise.CONFIRMING, Said.SHOWN): Promise.CONFIRMED,
        (Promise.CONFIRMING, Said.NOT_SHOWN): Promise.CONFIRMING,
    },
)


class Removals:
    """Of one lane."""

    def __init__(self, held: Register) -> None:
        self._held = held
        self._under_way: dict[int, Name] = {}  # by their heads
        self._promises: dict[int, Promise] = {}  # by the ids of holds, until they are confirmed
        self._most = _ACTIONS_MAX  # less after a failure
        self._may_try = True  # after a failure not before the table was looked at again

    def looked(self) -> None:
        self._may_try = True

    def load(self, pauses: Iterable[HoldRow], lane: int) -> None:
        """All that operators pause."""
        before, self._promises = self._promises, {}
        for row in sorted(pauses, key=lambda row: row.id):
            said = Said.SHOWN if lane in row.confirmed_by else Said.NOT_SHOWN
            promise = PAUSE.after(before.get(row.id, PAUSE.first), said)
            if promise is not Promise.CONFIRMED:
                self._promises[row.id] = promise

    def take(self) -> HoldActions | None:
        leaving = self._held.of(HoldState.LEAVING)
        if not (leaving or self._promises) or not self._may_try:
            return None
        names = list(islice(leaving, self._most))
        paused = (id_ for id_, promise in self._promises.items() if promise is Promise.PAUSED)
        confirmed = tuple(islice(paused, self._most))
        if not names and not confirmed:
            return None
        taken = [self._held.on(name, HoldEvent.TAKEN) for name in names]
        self._under_way.update((hold.head, name) for name, hold in zip(names, taken, strict=True))
        self._tell(confirmed, Said.TAKEN)
        dead_records = tuple(hold.dead_record() for hold in taken if hold.fate != DISCARD)
        return HoldActions(dead_records, tuple(hold.head for hold in taken if hold.fate == DISCARD), confirmed)

    def done(self, hold_actions: HoldActions) -> None:
        """The heads are gone, their keys go on with the next read: a page that is read at this moment has left out
        what it held of them before, and may not send what comes later."""
        for name in self._arrived(hold_actions):
            self._held.on(name, HoldEvent.DONE)
        self._tell(hold_actions.confirmed, Said.DONE)
        self._most = min(_ACTIONS_MAX, 2 * self._most)

    def not_done(self, hold_actions: HoldActions) -> None:
        """To be carried out once more, after all others and fewer at a time: what another batch has under way is not
        touched, and what can never be done keeps nobody else waiting."""
        for name in self._arrived(hold_actions):
            self._held.on(name, HoldEvent.NOT_DONE)
        self._tell(hold_actions.confirmed, Said.NOT_DONE)
        self._most = max(1, len(hold_actions) // 4)
        self._may_try = False

    def none_done(self) -> None:
        """No batch is under way any more: what was is to be carried out once more."""
        self._under_way.clear()
        for name in list(self._held.of(HoldState.UNDER_WAY)):
            self._held.on(name, HoldEvent.NOT_DONE)
        self._tell(self._promises, Said.NOT_DONE)
        self._may_try = False

    def _arrived(self, hold_actions: HoldActions) -> list[Name]:
        """What is still under way: in the meantime another record may be at the head, or none."""
        under_way = self._held.of(HoldState.UNDER_WAY)
        carried = [(head, self._under_way.pop(head)) for head in hold_actions.heads if head in self._under_way]
        return [name for head, name in carried if name in under_way and under_way[name].head == head]

    def _tell(self, ids: Iterable[int], said: Said) -> None:
        """Of holds that operators have lifted meanwhile nothing is to be told."""
        for id_ in [id_ for id_ in ids if id_ in self._promises]:
            self._promises[id_] = PAUSE.after(self._promises[id_], said)
            if self._promises[id_] is Promise.CONFIRMED:
                del self._promises[id_]
