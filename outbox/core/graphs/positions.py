"""Where a lane begins: the group's offsets and the lane's last entry in the topic of positions, compared. Pure.

Both were committed by the same transactions. Kafka forgets the offsets of a group that nobody uses; the entry stays.
Whatever else differs was changed by somebody, and the lane stops with both sides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from outbox.core.graphs.attempts import UnreadableRecord
from outbox.core.graphs.values import Processor


@dataclass(frozen=True, slots=True)
class LaneEntry:
    """Of one lane, last in each of its transactions."""

    positions: Mapping[str, int]
    topic_ids: Mapping[str, str]
    """Another id is another topic of the same name."""

    def encode(self, processor: str) -> bytes:
        value = {"processor": processor, "positions": dict(self.positions), "topics": dict(self.topic_ids)}
        return json.dumps(value, separators=(",", ":")).encode()


def decode(value: bytes) -> LaneEntry:
    try:
        found = json.loads(value)
        return LaneEntry(
            {str(topic): int(at) for topic, at in found["positions"].items()},
            {str(topic): str(id_) for topic, id_ in found["topics"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRecord(f"{value[:200]!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class InputState:
    """One input of the lane, as the brokers show it."""

    committed: int | None
    """The group's offset."""
    topic_id: str
    first: int
    end: int
    """The first offset and the last stable one."""


@dataclass(frozen=True, slots=True)
class BeginLane:
    positions: Mapping[str, int]
    new: tuple[str, ...] = ()
    """Topics of which nothing was known. The positions are committed before anything is read."""


@dataclass(frozen=True, slots=True)
class StopLane:
    """Nothing the lane could do is right before somebody has decided."""

    reason: str
    is_doubtful: bool = False
    """A new leader of a partition may know too little for a while."""


def begin(
    processor: Processor, partition: int, entry: LaneEntry | None, found: Mapping[str, InputState]
) -> BeginLane | StopLane:
    known, positions, new = entry.positions if entry is not None else {}, {}, []
    for topic in processor.topics:
        one, where = found[topic], f"{topic}[{partition}]"
        recorded = known.get(topic)
        if recorded is None and one.committed is not None:
            return StopLane(
                f"The group has the offset {one.committed} of {where}, and the topic of positions has none. Restore "
                "that topic, or delete the group's offsets, and the processor begins as start= says."
            )
        if recorded is None:
            new.append(topic)
            positions[topic] = one.first if processor.start == "earliest" else one.end
            continue
        assert entry is not None
        if entry.topic_ids.get(topic, one.topic_id) != one.topic_id:
            return StopLane(
                f"The topic {topic!r} was deleted and created again: its id was {entry.topic_ids[topic]} and is "
                f"{one.topic_id}. The position {recorded} of {where} belongs to the old one. Name another processor."
            )
        if one.committed is not None and one.committed != recorded:
            return StopLane(
                f"The group has the offset {one.committed} of {where}, and the topic of positions has {recorded}. Set "
                f"the group's offset to {recorded}: kafka-consumer-groups.sh --reset-offsets --topic "
                f"{topic}:{partition} --to-offset {recorded}"
            )
        if not one.first <= recorded <= one.end:
            return StopLane(
                f"The position {recorded} of {where} is out of bounds: the topic has the offsets {one.first} to "
                f"{one.end}. Messages were lost. Restore the topic, or name another processor.",
                is_doubtful=True,
            )
        positions[topic] = recorded
    if processor.is_join and new and known:
        both = ", ".join(f"{topic}[{partition}] {at}" for topic, at in positions.items())
        return StopLane(
            f"The join has new inputs: {', '.join(new)}. Its pairs would be shifted: it stands at {both}. Name another "
            "processor."
        )
    if processor.is_join and new and processor.start == "earliest":
        gone = [f"{topic}[{partition}] {found[topic].first}" for topic in new if found[topic].first > 0]
        if gone:
            return StopLane(
                f"The join begins at the first message, and the first offsets are {', '.join(gone)}: earlier messages "
                'are gone, so pairs may be wrong. Set start="latest" to begin behind what is there.'
            )
    return BeginLane(positions, tuple(new))


def objection(processor: Processor, partitions: Mapping[str, int], policies: Mapping[str, str]) -> str:
    """Why a processor cannot have lanes over these topics; empty when it can. `policies`: of the topics whose
    cleanup.policy is known."""
    missing = sorted(topic for topic in processor.topics if not partitions.get(topic))
    if missing:
        return f"The topics {', '.join(missing)} do not exist. Create them, or allow the user DESCRIBE and READ."
    counts = {topic: partitions[topic] for topic in processor.topics}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{topic} has {count}" for topic, count in sorted(counts.items()))
        return f"Its inputs have different numbers of partitions: {shown}. Give them the same number."
    compacted = [topic for topic in processor.topics if "compact" in policies.get(topic, "")]
    if processor.is_join and compacted:
        return (
            f"It pairs messages by position, and {', '.join(compacted)} is compacted: Kafka removes messages there, "
            "and later pairs would be wrong. Set cleanup.policy=delete."
        )
    return ""
