"""One batch: the messages that one transaction handles, and what is checked before it is committed. Pure.

The worker locks the rows of the positions first. Partitions with another position than expected leave the batch; the
others go on. The positions that were really reached are written last, by the transaction that holds the locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from outbox.core.consumers.partition import AssignedPartition, Works
from outbox.core.consumers.values import Fetched, Partition, Position
from outbox.core.region import Region, Transitions

XID = 2**32
"""Rows have the id of their transaction without its epoch."""


class Stage(Enum):
    TAKEN = "taken"
    LOCKED = "locked"
    """This transaction holds the positions, and they are the expected ones."""
    WRITTEN = "written"
    """The positions that were reached are written, by the same transaction."""
    COMMITTING = "committing"
    IN_DOUBT = "in doubt"
    """The connection was lost during COMMIT: only the rows tell what became of it."""
    COMMITTED = "committed"
    DROPPED = "dropped"


class BatchStep(Enum):
    LOCKED = "the positions are locked and compared"
    WRITTEN = "the positions that were reached are written, and nothing speaks against COMMIT"
    COMMITS = "COMMIT begins"
    COMMITTED = "it has taken effect"
    LOST = "its answer is lost"
    DROPPED = "nothing of it has taken effect, or others have moved on"


STAGE = Transitions(
    "batch of a consumer",
    Stage.TAKEN,
    {
        (Stage.TAKEN, BatchStep.LOCKED): Stage.LOCKED,
        (Stage.LOCKED, BatchStep.WRITTEN): Stage.WRITTEN,
        (Stage.WRITTEN, BatchStep.COMMITS): Stage.COMMITTING,
        (Stage.COMMITTING, BatchStep.COMMITTED): Stage.COMMITTED,
        (Stage.COMMITTING, BatchStep.LOST): Stage.IN_DOUBT,
        (Stage.IN_DOUBT, BatchStep.COMMITTED): Stage.COMMITTED,
        **{
            (stage, BatchStep.DROPPED): Stage.DROPPED
            for stage in Stage
            if stage not in (Stage.COMMITTED, Stage.DROPPED)
        },
    },
)


class ConsumerBatch:
    def __init__(self, taken: Mapping[AssignedPartition, Sequence[Fetched]]) -> None:
        self.stage = Region(STAGE)
        self._has_raised = self._is_many = False
        self._taken = dict(taken)
        self.everything = tuple(taken)
        """Also those that have left."""
        self._expected = {one.partition: one.position for one in taken if one.position is not None}
        self._handled = dict.fromkeys(taken, 0)
        self._xid = 0
        for one in taken:
            one.work.on(Works.TAKEN)

    @property
    def staying(self) -> tuple[AssignedPartition, ...]:
        return tuple(self._taken)

    @property
    def counts(self) -> dict[Partition, int]:
        """How many messages of each partition are through."""
        return {one.partition: self._handled[one] for one in self._taken}

    @property
    def partitions(self) -> list[Partition]:
        return [one.partition for one in self._taken]

    @property
    def messages(self) -> int:
        return sum(map(len, self._taken.values()))

    @property
    def first(self) -> tuple[Partition, int]:
        """The partition and the offset of the first message."""
        one, messages = next(iter(self._taken.items()))
        return one.partition, messages[0].offset

    @property
    def failures(self) -> int:
        """Of the one message, when it was alone."""
        return max((one.failures for one in self._taken), default=0)

    @property
    def xid(self) -> int:
        """Of the transaction that has locked the positions; 0: none has."""
        return self._xid

    # ---- from the locks to COMMIT

    def locked(self, found: Mapping[Partition, Position], xid: int) -> list[AssignedPartition]:
        """Those that leave: somebody else has moved them, or the group has taken them back."""
        self._xid = xid
        left = [one for one in self._taken if not (one.is_held and self._is_expected(one, found))]
        for one in left:
            del self._taken[one]
        self.stage.on(BatchStep.LOCKED)
        return left

    def _is_expected(self, one: AssignedPartition, found: Mapping[Partition, Position]) -> bool:
        position = found.get(one.partition)
        expected = self._expected[one.partition]
        return position is not None and (position.next, position.topic_id) == (expected.next, expected.topic_id)

    def calls(self, *, many: bool) -> Iterator[tuple[Mapping[AssignedPartition, int], Sequence[Fetched]]]:
        """What the function is called with, one after another, and how many of each partition these are."""
        self._is_many = many
        if many:
            if counts := {one: len(messages) for one, messages in self._taken.items()}:
                yield counts, [message for messages in self._taken.values() for message in messages]
            return
        for one, messages in self._taken.items():
            count = {one: 1}
            for message in messages:
                yield count, (message,)

    def handled(self, counts: Mapping[AssignedPartition, int]) -> None:
        """The function has returned."""
        for one, count in counts.items():
            self._handled[one] += count

    @property
    def reached(self) -> dict[Partition, tuple[int, Position]]:
        """`next` as it is now, and the position behind what was handled."""
        return {one.partition: (self._expected[one.partition].next, at) for one, at in self._reached()}

    def _reached(self) -> Iterator[tuple[AssignedPartition, Position]]:
        for one, messages in self._taken.items():
            if count := self._handled[one]:
                last, before = messages[count - 1], self._expected[one.partition]
                yield one, Position(last.offset + 1, before.topic_id, max(last.leader_epoch, before.leader_epoch))

    def objection(self, moved: int, xid: int) -> str:
        """Why it must not be committed, by the answer to the last statement; empty when it may."""
        if xid != self._xid:
            return self.replaced(f"is {xid} now")
        if moved != len(self.reached):
            return (
                f"{moved} of {len(self.reached)} positions could be written, although they were locked: the function "
                f"has changed them or ended the transaction itself. The positions are {self._written()}"
            )
        return ""

    def replaced(self, then: str) -> str:
        """Another transaction has taken the place of the one that holds the positions."""
        return (
            f"the function has ended the transaction itself: it began as {self._xid} and {then}. The positions are "
            f"{self._written()}"
        )

    def _written(self) -> str:
        return ", ".join(
            f"{partition.topic}[{partition.number}] {self._expected[partition].next}" for partition in self.partitions
        )

    # ---- its end

    def settled(self, found: Mapping[Partition, tuple[Position, int]]) -> bool | None:
        """After a COMMIT in doubt: whether it has taken effect, by the positions and who has written them. None: others
        have moved every position since. One that begins where this batch began comes to the same end."""
        reached = {partition: at for partition, (_, at) in self.reached.items()}
        ours = {found.get(partition) == (at, self._xid % XID) for partition, at in reached.items()}
        if True in ours:
            return True
        is_behind = any(partition in found and found[partition][0].next <= at.next for partition, at in reached.items())
        return False if is_behind else None

    def committed(self) -> int:
        """How many messages are handled for good."""
        self.stage.on(BatchStep.COMMITTED)
        for one, position in self._reached():
            one.handled(position)
        return sum(self._handled.values())

    def dropped(self) -> None:
        if self.stage.expects(BatchStep.DROPPED):
            self.stage.on(BatchStep.DROPPED)

    @property
    def has_raised(self) -> bool:
        return self._has_raised

    def raised(self) -> None:
        """The function, for what is to be handled next."""
        self._has_raised = True

    def split(self) -> None:
        """A message has failed. If it is known which, that one goes alone, else each of them does."""
        is_known = self._has_raised and not self._is_many
        for one, messages in self._taken.items():
            handled = self._handled[one]
            if not is_known:
                one.alone(messages[0].offset, messages[-1].offset)
            elif handled < len(messages):
                one.alone(messages[handled].offset, messages[handled].offset)
                return


class BatchSize:
    """How many messages the next batch has: half as many after a conflict, an eighth of the most more after each that
    is committed."""

    def __init__(self, most: int) -> None:
        self._most = self.limit = most

    def smaller(self, messages: int) -> None:
        self.limit = max(1, min(self.limit, messages) // 2)

    def worked(self) -> None:
        if self.limit < self._most:
            self.limit = min(self._most, self.limit + max(1, self._most // 8))


def take(partitions: Iterable[AssignedPartition], limit: int, now: float) -> ConsumerBatch | None:
    """From these partitions in turn, in the order of offsets; None when none has something to handle. A message that
    goes alone is a batch of its own."""
    taken: dict[AssignedPartition, Sequence[Fetched]] = {}
    for one in partitions:
        if not (messages := one.head(limit, now)):
            continue
        if one.is_alone:
            if taken:
                continue
            return ConsumerBatch({one: messages})
        taken[one] = messages
        limit -= len(messages)
        if not limit:
            break
    return ConsumerBatch(taken) if taken else None
