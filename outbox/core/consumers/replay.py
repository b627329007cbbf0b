"""Which messages a consumer handles once more: a range of each partition, before the position. Pure.

A replay has positions of its own, under a name that no consumer can have. They are committed with its effects, so it
handles each message of the range once, however often its process ends. The consumer's own position stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outbox.core.consumers import log
from outbox.core.consumers.values import Partition, Position

MARK = "#"
"""Between the name of the consumer and the number of the replay."""
REMEDY = "Cancel the replay with --cancel, and begin another one"


@dataclass(frozen=True, slots=True)
class Replay:
    id: int
    consumer: str
    topic: str
    topic_id: str
    spans: Mapping[Partition, range]
    """The offsets of each partition."""
    stashes: bool
    """What the function stashes is inserted, as if the message had come for the first time."""
    request: str
    """The arguments of the command: who gives the same ones continues this replay."""

    @property
    def name(self) -> str:
        """Of its positions."""
        return f"{self.consumer}{MARK}{self.id}"

    @property
    def ends(self) -> dict[Partition, int]:
        return {partition: span.stop for partition, span in self.spans.items()}

    @property
    def begins(self) -> dict[Partition, Position]:
        return {partition: Position(span.start, self.topic_id) for partition, span in self.spans.items()}


class NoReplay(ValueError):
    """It cannot be done, for the reason in the text."""


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """Of one partition."""

    position: Position | None
    """Of the consumer. None: it has none."""
    topic_id: str
    """As Kafka has it now."""
    bounds: tuple[int, int]
    """The first offset of the topic and the last stable one."""


def span(partition: Partition, known: KnownPartition, start: int, end: int | None) -> range:
    """The offsets from `start` to before `end`; None: to the position. Messages that the consumer has not handled yet
    are refused: it would handle them too. Raises `NoReplay`."""
    named, position, (first, stable) = log.named(partition), known.position, known.bounds
    if position is None:
        raise NoReplay(f"The consumer has no position in {named}, so it has handled nothing there.")
    if position.topic_id and position.topic_id != known.topic_id:
        raise NoReplay(
            f"{named} was created again: the position {position.next} was written for the topic with id "
            f"{position.topic_id}, the topic now has the id {known.topic_id}. Set the position first. Run: python "
            "manage.py outbox_positions"
        )
    last = position.next if end is None else end
    if last > position.next:
        raise NoReplay(
            f"The consumer has handled {named} up to the offset {position.next}, and --to is {last}. It will handle "
            f"the messages behind that itself. Set --to {position.next}, or less."
        )
    if last > stable:
        raise NoReplay(f"{named} holds the offsets {first} to {stable}, and the replay would end at {last}.")
    if start < first:
        raise NoReplay(
            f"{named} holds the offsets {first} to {stable}, and --from is {start}: the messages before {first} have "
            f"expired. Set --from {first}, or more."
        )
    return range(start, max(start, last))
