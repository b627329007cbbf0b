"""What a lane has fetched and not consumed yet: which steps come next, and from where. Pure.

A step of a join takes the next message of each input, all or none. A step of an alts takes the next message of one
input; a *choice* says which, step by step, so that an attempt after a crash takes the same messages in the same order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from outbox.core.consumers.values import Fetched
from outbox.core.graphs.steps import Step
from outbox.core.graphs.values import Processor, ProcessorKind

Choice = tuple[tuple[str, int], ...]
"""Topics in the order in which they were chosen, each with the number of messages that were taken in succession."""

FULL = 2
"""So many batches of one input are enough."""
BYTES_MAX = 32 * 2**20


@dataclass(frozen=True, slots=True)
class TakenSteps:
    """Steps of one batch, in order."""

    steps: tuple[Step, ...]
    choice: Choice = ()
    """Of an alts."""

    def reached(self, positions: Mapping[str, int]) -> dict[str, int]:
        """The positions behind all of these steps."""
        return {**positions, **{message.topic: message.offset + 1 for step in self.steps for message in step}}


class LaneInputs:
    """Of one lane. Of each topic, every message from `begin` up to `next` waits here."""

    def __init__(self, processor: Processor) -> None:
        self._is_join, self._is_alts = processor.is_join, processor.kind is ProcessorKind.ALTS
        self._topics, self._batch = processor.topics, processor.batch
        self._waiting: dict[str, deque[Fetched]] = {topic: deque() for topic in self._topics}
        self._begin: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._bytes = 0
        self._last = self._topics[-1]
        """The input that was chosen last: the others have their turn first."""

    # ---- from the client

    def place(self, positions: Mapping[str, int]) -> bool:
        """Steps begin at these positions. True: what was fetched reaches from there, and reading goes on; False: the
        topics have to be read from the positions on."""
        reaches = all(
            topic in self._next and self._begin[topic] <= at <= self._next[topic] for topic, at in positions.items()
        )
        for topic, at in positions.items():
            waiting = self._waiting[topic]
            while waiting and (not reaches or waiting[0].offset < at):
                self._bytes -= _size(waiting.popleft())
        self._begin = dict(positions)
        if not reaches:
            self._next = dict(positions)
        return reaches

    def received(self, messages: Sequence[Fetched]) -> None:
        """Of one topic, in order. What is there already is left out."""
        for message in messages:
            topic = message.topic
            if message.offset >= self._next.get(topic, message.offset + 1):
                self._waiting[topic].append(message)
                self._next[topic] = message.offset + 1
                self._bytes += _size(message)

    @property
    def full(self) -> frozenset[str]:
        """Topics of which no more is wanted for now."""
        most = FULL * self._batch
        if self._bytes > BYTES_MAX:
            # A join waits for what is missing on one side, however much the other side has.
            return frozenset(topic for topic, waiting in self._waiting.items() if waiting)
        return frozenset(topic for topic, waiting in self._waiting.items() if len(waiting) >= most)

    def forget(self) -> None:
        """The topics have to be read again, wherever the lane begins."""
        self._next.clear()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    # ---- steps

    def take(self, most: int, choice: Choice = ()) -> TakenSteps | None:
        """None: there is no complete step, or of the steps of a choice not every message is there yet."""
        if choice:
            return self._take_again([topic for topic, count in choice for _ in range(count)][:most])
        if self._is_join:
            count = min(most, *map(len, self._waiting.values()))
            order: list[Sequence[str]] = [self._topics] * count
        elif self._is_alts:
            order = [(topic,) for topic in self._choose(most)]
        else:
            (topic,) = self._topics
            order = [(topic,)] * min(most, len(self._waiting[topic]))
        if not order:
            return None
        return self._taken(order)

    def _choose(self, most: int) -> list[str]:
        """The inputs that have messages take turns."""
        left = {topic: len(self._waiting[topic]) for topic in self._topics}
        at = self._topics.index(self._last)
        found: list[str] = []
        while len(found) < most and any(left.values()):
            at = (at + 1) % len(self._topics)
            topic = self._topics[at]
            if left[topic]:
                left[topic] -= 1
                found.append(topic)
        return found

    def _take_again(self, order: Sequence[str]) -> TakenSteps | None:
        if any(len(self._waiting.get(topic, ())) < count for topic, count in Counter(order).items()):
            return None
        return self._taken([(topic,) for topic in order])

    def _taken(self, order: Sequence[Sequence[str]]) -> TakenSteps:
        steps = tuple(tuple(self._pop(topic) for topic in topics) for topics in order)
        if not self._is_alts:
            return TakenSteps(steps)
        self._last = order[-1][0]
        return TakenSteps(
            steps, tuple((topic, len(list(run))) for topic, run in groupby(step[0].topic for step in steps))
        )

    def _pop(self, topic: str) -> Fetched:
        message = self._waiting[topic].popleft()
        self._bytes -= _size(message)
        self._begin[topic] = message.offset + 1
        return message

    def give_back(self, steps: Sequence[Step], positions: Mapping[str, int]) -> None:
        """They are the next ones again, all inputs together; the first of them begins at `positions`."""
        for step in reversed(steps):
            for message in step:
                self._waiting[message.topic].appendleft(message)
                self._bytes += _size(message)
        self._begin = dict(positions)


def _size(message: Fetched) -> int:
    return len(message.key or b"") + len(message.value or b"") + 64
