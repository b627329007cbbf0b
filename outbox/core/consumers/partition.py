"""One partition that the group has assigned to this process: how far its life is, and what was fetched of it. Pure.

Two regions go on beside each other: its life, and whether a batch with its messages is under way. What was fetched
belongs to one place at which reading began: when that place is left, all of it is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from operator import attrgetter

from outbox.core.consumers.blame import MessageFailed
from outbox.core.consumers.crashes import CAREFUL_MIN, DEATHS, NO_SUSPICION, Caution, Suspicion
from outbox.core.consumers.holding import CAREFUL_MAX, Tries
from outbox.core.consumers.values import Fetched, Partition, Position
from outbox.core.region import Region, Transitions

POISON_REASON = f"the process ended {DEATHS} times while it handled this message by itself"
_EPOCH, _VALUE = attrgetter("leader_epoch"), attrgetter("value")


KNOWN_MAX = 1_000
"""Messages that are known to have failed. An operator may have discarded one that is never asked for again."""


class Life(Enum):
    ASSIGNED = "assigned"
    """Its position is to be loaded."""
    LOADING = "loading"
    """A worker loads its position. If there is none, the worker creates it from `start` and commits it."""
    PLACED = "placed"
    """Its position is committed, and reading is to begin there."""
    READING = "reading"
    OUT_OF_BOUNDS = "out of bounds"
    """The topic does not have the position. A new leader may know too little for a while."""
    STOPPED = "stopped"
    """An operator has to decide."""
    REVOKING = "revoking"
    """The group has taken it back, and a batch with its messages is under way."""
    REVOKED = "revoked"


class Lives(Enum):
    LOADS = "a worker loads its position"
    LOADED = "its position is committed"
    AGAIN = "its position has moved, or could not be loaded"
    STARTED = "the client reads it"
    OUT = "the topic does not have the position"
    BACK = "the topic has the position after all"
    STOPS = "an operator has to decide"
    TAKEN_BACK = "the group has taken it back"
    TAKEN_BACK_AT_WORK = "so too, and a batch with its messages is under way"
    RELEASED = "that batch has ended"


_L, _E = Life, Lives
_HELD = (_L.ASSIGNED, _L.LOADING, _L.PLACED, _L.READING, _L.OUT_OF_BOUNDS, _L.STOPPED)
LIFE = Transitions(
    "partition of a consumer",
    Life.ASSIGNED,
    {
        (_L.ASSIGNED, _E.LOADS): _L.LOADING,
        (_L.LOADING, _E.AGAIN): _L.ASSIGNED,
        (_L.LOADING, _E.LOADED): _L.PLACED,
        (_L.LOADING, _E.STOPS): _L.STOPPED,
        (_L.PLACED, _E.STARTED): _L.READING,
        (_L.PLACED, _E.AGAIN): _L.ASSIGNED,
        (_L.PLACED, _E.STOPS): _L.STOPPED,
        (_L.READING, _E.AGAIN): _L.ASSIGNED,
        (_L.READING, _E.OUT): _L.OUT_OF_BOUNDS,
        (_L.READING, _E.STOPS): _L.STOPPED,
        (_L.OUT_OF_BOUNDS, _E.BACK): _L.PLACED,
        (_L.OUT_OF_BOUNDS, _E.AGAIN): _L.ASSIGNED,
        (_L.OUT_OF_BOUNDS, _E.STOPS): _L.STOPPED,
        **{(state, _E.TAKEN_BACK): _L.REVOKED for state in _HELD},
        **{(state, _E.TAKEN_BACK_AT_WORK): _L.REVOKING for state in _HELD if state is not _L.LOADING},
        (_L.REVOKING, _E.RELEASED): _L.REVOKED,
    },
)


class Work(Enum):
    """Whether a batch with its messages is under way."""

    IDLE = "idle"
    IN_BATCH = "in a batch"


class Works(Enum):
    TAKEN = "a batch takes messages of it"
    ENDED = "the batch has ended"


WORK = Transitions(
    "work on a partition of a consumer",
    Work.IDLE,
    {(Work.IDLE, Works.TAKEN): Work.IN_BATCH, (Work.IN_BATCH, Works.ENDED): Work.IDLE},
)


class Form(Enum):
    """How the next messages are handled."""

    PLAIN = "plain"
    CAREFUL = "careful"
    """With a savepoint around each."""
    ALONE = "alone"
    """A transaction of its own."""
    RECORDED = "recorded"
    """So too, and the table says that it was begun: it may end the process."""
    KEPT = "kept"
    """It is known to have failed, so its row is written, and no function is called."""


class AssignedPartition:
    """From one assignment to its end; the next assignment has another one."""

    def __init__(self, partition: Partition, position: Position | None = None) -> None:
        """`position`: what this process has committed of it in an earlier assignment."""
        self.partition = partition
        self.life, self.work = Region(LIFE), Region(WORK)
        self.position = position
        """As it is known to be committed."""
        self.reason = ""
        """Why it is stopped or out of bounds, or which error the client reports of it."""
        self.load_at = float("-inf")
        """When its position may be loaded; past: now."""
        self.out_since = 0.0
        self.is_paused = False
        self.confirmed: int | None = None
        """The position when the topic had the position's id for the last time."""
        self.doubted_at: float | None = None
        """Since then the client does not know the topic: nothing is handled until the id is asked for."""
        self._fetched: deque[Fetched] = deque()
        self._next = 0
        self._epoch = -1
        self._first = -1, 0
        """The offset and the time of the first message that was fetched, when all of them were forgotten."""
        self._bytes_each = 0
        self._end: int | None = None
        self._alone = range(0)
        self._careful_to = -1
        self._known: dict[int, MessageFailed] = {}
        self._tries, self._tried_since = Tries(), 0.0
        self._not_before = float("-inf")
        self.caution = Caution()
        self.has_held: bool | None = None
        """Whether the table has messages of it; None: it may."""

    # ---- its life

    @property
    def is_held(self) -> bool:
        """The group has not taken it back."""
        return self.life.state in _HELD

    @property
    def is_busy(self) -> bool:
        return self.work.state is Work.IN_BATCH

    def loaded(self, position: Position, suspicion: Suspicion = NO_SUSPICION, batch: int = 0) -> None:
        """`batch`: so many messages are handled one by one if the owner before has died."""
        if self.position is not None and position.next != self.position.next:
            self._tries, self._not_before = Tries(), float("-inf")
            self._known.clear()
        if position.next >= self._alone.stop:
            self._alone = range(0)
        self.position, self._epoch, self.has_held = position, position.leader_epoch, None
        self.confirmed, self.doubted_at = position.next, None
        self.caution = Caution(max(batch, CAREFUL_MIN) if suspicion.is_careful else 0, suspicion.suspect)
        if suspicion.poison is not None:
            self._known[suspicion.poison] = MessageFailed(POISON_REASON, is_poison=True)
        self.life.on(Lives.LOADED)

    def started(self) -> None:
        """The client is told to read it."""
        self.life.on(Lives.STARTED)
        self.is_paused, self.reason = False, ""

    def toggle(self) -> bool:
        """The client is told to pause it, or to resume it. Whether it is paused now."""
        self.is_paused = not self.is_paused
        return self.is_paused

    def again(self, load_at: float = float("-inf")) -> bool:
        """Its position is to be loaded, not before this time. Whether that has changed anything."""
        if found := self._leave(Lives.AGAIN):
            self.load_at = load_at
        return found

    def stop(self, reason: str) -> bool:
        if found := self._leave(Lives.STOPS):
            self.reason = reason
        return found

    def out_of_bounds(self, reason: str, now: float) -> bool:
        if found := self._leave(Lives.OUT):
            self.reason, self.out_since = reason, now
        return found

    def failing(self, reason: str) -> bool:
        """The client reports an error of it, and tries again. Whether it is another one than before."""
        found, self.reason = reason != self.reason, reason
        return found

    def doubt(self, now: float) -> None:
        """The client does not know its topic."""
        self.doubted_at = now

    def confirm(self, next: int, asked_at: float) -> bool:
        """The topic has the position's id. It was asked for at this time, when the position was there. Whether that
        has ended a doubt."""
        self.confirmed = next
        if found := self.doubted_at is not None and self.doubted_at < asked_at:
            self.doubted_at = None
        return found

    def revoke(self) -> None:
        self.life.on(Lives.TAKEN_BACK_AT_WORK if self.is_busy else Lives.TAKEN_BACK)
        self.forget()

    def _leave(self, event: Lives) -> bool:
        if found := self.life.expects(event):
            self.life.on(event)
            self.forget()
        return found

    # ---- what was fetched

    def forget(self) -> None:
        """All that was fetched: it does not belong to the place where reading begins next."""
        if self._fetched:
            self._first = self._fetched[0].offset, self._fetched[0].timestamp_ms
        self._fetched.clear()
        self._end, self._next = None, 0
        self._epoch = -1 if self.position is None else self.position.leader_epoch

    @property
    def waiting(self) -> int:
        return len(self._fetched)

    @property
    def oldest_ms(self) -> int | None:
        """When the first message that is not handled was produced, since 1970. None: unknown, or there is none."""
        if self._fetched:
            offset, time_ms = self._fetched[0].offset, self._fetched[0].timestamp_ms
        else:
            offset, time_ms = self._first
        is_left = self.position is not None and offset >= self.position.next
        return time_ms if is_left and time_ms > 0 else None

    @property
    def is_ahead(self) -> bool:
        """The client reads it further on than its position."""
        return bool(self._fetched) or self.is_busy

    @property
    def waiting_bytes(self) -> int:
        """About."""
        return len(self._fetched) * self._bytes_each

    def received(self, messages: Sequence[Fetched]) -> Fetched | None:
        """In the order of their offsets. A message with a lower leader epoch than the one before it is returned: it
        and those behind it are not kept."""
        # A batch may have been committed after the client was told to begin again before it.
        expected = self._next if self.position is None else max(self._next, self.position.next)
        if messages[0].offset < expected:
            messages = [message for message in messages if message.offset >= expected]
        epoch, kept = self._epoch, len(messages)
        if not {epoch}.issuperset(map(_EPOCH, messages)):  # as a rule there is nothing to compare
            for at, message in enumerate(messages):
                if epoch != message.leader_epoch >= 0:
                    if message.leader_epoch < epoch:
                        kept = at
                        break
                    epoch = message.leader_epoch
        if kept:
            self.reason = ""
            self._fetched.extend(messages[:kept])
            self._next, self._epoch = messages[kept - 1].offset + 1, epoch
            self._bytes_each = sum(map(len, filter(None, map(_VALUE, messages)))) // len(messages)
        return messages[kept] if kept < len(messages) else None

    def read_to(self, end: int) -> None:
        """The client has read the end of the partition, at this offset."""
        self._end, self.reason = end, ""

    @property
    def epoch(self) -> int:
        """Of what was fetched last."""
        return self._epoch

    @property
    def copy(self) -> int | None:
        """What Kafka's own offset should be: behind marks of transactions at the end, which are no messages."""
        if self.position is None or self.life.state in (Life.ASSIGNED, Life.LOADING):
            return None
        if self._end is not None and not self._fetched and not self.is_busy:
            return max(self._end, self.position.next)
        return self.position.next

    def has_reached(self, end: int) -> bool:
        """Whether all before this offset is handled."""
        if self.life.state is not Life.READING or self.is_busy or self.copy is None:
            return False
        return self.copy >= end

    # ---- batches

    def head(self, limit: int, now: float) -> list[Fetched]:
        """What the next batch may take of it; nothing if that is to wait."""
        fetched = self._fetched
        if (
            not fetched
            or self.is_busy
            or self.doubted_at is not None
            or self.life.state is not Life.READING
            or now < self._not_before
        ):
            return []
        form = self.form
        if form in (Form.ALONE, Form.RECORDED, Form.KEPT):
            return [fetched[0]]
        messages = list(islice(fetched, min(limit, CAREFUL_MAX) if form is Form.CAREFUL else limit))
        if self._alone and messages[-1].offset >= self._alone.start:
            messages = [message for message in messages if message.offset < self._alone.start]
        for offset in self._known:
            if fetched[0].offset < offset <= messages[-1].offset:
                messages = [message for message in messages if message.offset < offset]
        return messages

    @property
    def form(self) -> Form:
        """Of the next batch."""
        if not self._fetched:
            return Form.PLAIN
        offset = self._fetched[0].offset
        if offset in self._known:
            return Form.KEPT
        if self.caution.is_careful:
            return Form.RECORDED
        if offset in self._alone:
            return Form.ALONE
        return Form.CAREFUL if offset <= self._careful_to else Form.PLAIN

    def handled(self, position: Position) -> None:
        """What lies before this position is committed."""
        before, self.position = 0 if self.position is None else self.position.next, position
        self._tries, self._not_before = Tries(), float("-inf")
        for offset in [offset for offset in self._known if before <= offset < position.next]:
            del self._known[offset]
        while self._fetched and self._fetched[0].offset < position.next:
            self._fetched.popleft()
        if position.next >= self._alone.stop:
            self._alone = range(0)

    def ended(self) -> None:
        """The batch, whatever became of it."""
        self.work.on(Works.ENDED)
        if self.life.expects(Lives.RELEASED):
            self.life.on(Lives.RELEASED)

    # ---- failures

    def alone(self, first: int, last: int) -> None:
        """The messages of these offsets go into transactions of their own."""
        self._alone = range(first, last + 1)

    def careful(self, last: int) -> None:
        """Those up to this offset get a savepoint each."""
        self._careful_to = max(self._careful_to, last)

    def known(self, offset: int, failed: MessageFailed) -> None:
        """The message of this offset, or the held one of this mark, has failed with its transaction. One that is
        forgotten is tried once more."""
        self._known[offset] = failed
        if len(self._known) > KNOWN_MAX:
            del self._known[next(offset for offset, one in self._known.items() if not one.is_poison)]

    def holds(self, known: bool | None) -> None:
        """Whether the table has messages of it; None: it may."""
        self.has_held = known

    def known_of(self, offset: int) -> MessageFailed | None:
        """Why the message of this offset, or the held one of this mark, has failed, if that is known."""
        return self._known.get(offset)

    def forget_known(self, offset: int) -> None:
        """Its row says so now."""
        self._known.pop(offset, None)

    @property
    def tries(self) -> Tries:
        """Of the first message, when the partition waits for it."""
        return self._tries

    def failed(self, offset: int, tries: tuple[int, int], now: float, not_before: float) -> None:
        """The first message, alone, at this offset. It stays alone, whatever is fetched behind it."""
        self._alone = range(offset, max(offset + 1, self._alone.stop))
        if self._tries == Tries():
            self._tried_since = now
        self._tries = Tries(*tries, now - self._tried_since)
        self._not_before = not_before

    @property
    def not_before(self) -> float:
        """When the first message may be tried; past: now."""
        return self._not_before
