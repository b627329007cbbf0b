"""One batch: the messages that one transaction handles, and what is checked before it is committed. Pure.

The worker locks the rows of the positions first. Partitions with another position than expected leave the batch; the
others go on. The positions that were really reached are written last, by the transaction that holds the locks.

A message that leaves the partition unhandled is *kept*: its row is written by the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from outbox.core.consumers.crashes import RELEASED
from outbox.core.consumers.holding import CAREFUL_MAX, FAILED, Blocked, Fate, Kept, Release, Tries
from outbox.core.consumers.partition import AssignedPartition, Form, Works
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
    def __init__(
        self,
        taken: Mapping[AssignedPartition, Sequence[Fetched]],
        form: Form = Form.PLAIN,
        release: Release | None = None,
    ) -> None:
        """`release`: held messages of the one partition are handled, none that was fetched."""
        self.stage = Region(STAGE)
        self.form, self.release = form, release
        self._has_raised = self._is_many = False
        self._taken = dict(taken)
        self.everything = tuple(taken)
        """Also those that have left."""
        self._expected = {one.partition: one.position for one in taken if one.position is not None}
        self._handled = dict.fromkeys(taken, 0)
        self._xid = 0
        self._blocked: set[tuple[Partition, bytes]] = set()
        self._kept: list[Kept] = []
        self._left_out: set[tuple[Partition, int]] = set()
        for one in taken:
            one.work.on(Works.TAKEN)

    @property
    def staying(self) -> tuple[AssignedPartition, ...]:
        return tuple(self._taken)

    @property
    def counts(self) -> dict[Partition, int]:
        """How many messages of each partition are handled; none of those that are kept."""
        kept = Counter(Partition(*one.message[:2]) for one in self._kept)
        released = 0 if self.release is None else len(self.release.changes.gone)
        return {one.partition: self._handled[one] - kept[one.partition] + released for one in self._taken}

    @property
    def partitions(self) -> list[Partition]:
        return [one.partition for one in self._taken]

    @property
    def messages(self) -> int:
        return sum(map(len, self._taken.values()))

    @property
    def first(self) -> tuple[AssignedPartition, Fetched]:
        one, messages = next(iter(self._taken.items()))
        return one, messages[0]

    @property
    def tries(self) -> Tries:
        """Of the first message, before."""
        return max((one.tries for one in self._taken), default=Tries())

    @property
    def xid(self) -> int:
        """Of the transaction that has locked the positions; 0: none has."""
        return self._xid

    # ---- what is held

    @property
    def asks(self) -> Mapping[Partition, Sequence[bytes]]:
        """Keys of which messages may be held already."""
        asking = {one.partition: found for one, found in self._taken.items() if one.has_held is not False}
        keys = {partition: {one.key for one in found if one.key is not None} for partition, found in asking.items()}
        return {partition: sorted(found) for partition, found in keys.items() if found}

    def blocked(self, found: Blocked) -> None:
        self._blocked = {(partition, key) for partition, keys in found.items() for key in keys}

    @property
    def kept(self) -> Sequence[Kept]:
        """Rows to be written."""
        return self._kept

    def keep(self, one: AssignedPartition, message: Fetched, fate: Fate, *, is_left_out: bool) -> None:
        """It has failed, and leaves the partition. `is_left_out`: its key goes on without it."""
        self._handled[one] += 1
        self._keep(one, message, fate)
        if message.key is not None and not is_left_out:
            self._blocked.add((one.partition, message.key))

    def _keep(self, one: AssignedPartition, message: Fetched, fate: Fate | None) -> None:
        self._kept.append(Kept(message, self._expected[one.partition].topic_id, fate))

    def give_back(self, pause_s: float) -> None:
        """It was not the fault of the messages that have failed."""
        self._kept = [
            kept._replace(fate=replace(kept.fate, attempts=kept.fate.attempts - 1, pause_s=pause_s))
            if kept.fate is not None and kept.fate.reason == FAILED
            else kept
            for kept in self._kept
        ]

    @property
    def is_empty(self) -> bool:
        """Nothing was handled, and nothing is kept."""
        return self.release is None and not any(self._handled.values())

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
            yield from self._call_with_all()
            return
        for one, messages in self._taken.items():
            count = {one: 1}
            for message in messages:
                if self._blocked and (one.partition, message.key) in self._blocked:
                    self._handled[one] += 1
                    self._keep(one, message, None)
                elif self._left_out and self._is_left_out(one, message):
                    self._handled[one] += 1
                else:
                    yield count, (message,)

    @property
    def left(self) -> Iterator[Fetched]:
        """Messages that the function has yet to be called with."""
        for one, messages in self._taken.items():
            for message in messages[self._handled[one] :]:
                if (one.partition, message.key) not in self._blocked and not self._is_left_out(one, message):
                    yield message

    def leave_out(self, messages: Iterable[Fetched]) -> None:
        """They are held, or were handled before, or another one of the batch has the same id."""
        self._left_out |= {(Partition(*message[:2]), message.offset) for message in messages}

    def _is_left_out(self, one: AssignedPartition, message: Fetched) -> bool:
        return (one.partition, message.offset) in self._left_out

    def _call_with_all(self) -> Iterator[tuple[Mapping[AssignedPartition, int], Sequence[Fetched]]]:
        counts, found = {}, []
        for one, messages in self._taken.items():
            for message in messages:
                if self._blocked and (one.partition, message.key) in self._blocked:
                    self._keep(one, message, None)
                elif not self._is_left_out(one, message):
                    found.append(message)
            counts[one] = len(messages)
        if found:
            yield counts, found
        else:
            self.handled(counts)

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
        failed = {kept.message[:2] for kept in self._kept if kept.fate is not None}
        for one in self._taken:
            if self._kept:
                one.holds(True)
            if one.partition in failed and self.form is Form.CAREFUL:
                one.careful(self._taken[one][-1].offset + CAREFUL_MAX)  # where some fail, more do
        if self.passes is not None:
            one, offset = self.passes
            one.caution.passed(offset)
        if self.release is not None:
            for row in self.release.rows:
                if row.id in self.release.changes.failed:
                    self.everything[0].forget_known(row.mark)
            self.everything[0].holds(None)  # it may be the last one
        return sum(self.counts.values())

    def dropped(self) -> None:
        if self.stage.expects(BatchStep.DROPPED):
            self.stage.on(BatchStep.DROPPED)

    @property
    def has_raised(self) -> bool:
        return self._has_raised

    def raised(self) -> None:
        """The function, for what is to be handled next."""
        self._has_raised = True

    @property
    def offset_to_record(self) -> int | None:
        """Of the message that is to be recorded before it is begun; `RELEASED`: of several, which are held."""
        if self.release is not None:
            return None if self.staying[0].caution.is_careful else RELEASED
        return self.first[1].offset if self.form is Form.RECORDED else None

    @property
    def passes(self) -> tuple[AssignedPartition, int] | None:
        """The partition whose messages are handled one by one, and the offset of the one that was."""
        (one, *others) = self._taken
        if others or not one.caution.is_careful:
            return None
        if self.release is not None:
            return (one, self.release.rows[0].mark) if self.release.rows else None
        return (one, self._taken[one][0].offset) if self._handled[one] else None

    @property
    def at_fault(self) -> tuple[AssignedPartition, Fetched] | None:
        """The message that has failed, if that is known."""
        if self.messages == 1:
            return self.first
        if not self._has_raised or self._is_many:
            return None
        for one, messages in self._taken.items():
            if (handled := self._handled[one]) < len(messages):
                return one, messages[handled]
        return None

    def alone(self) -> None:
        """A message has failed. If it is known which, that one goes alone, else each of them does."""
        if (found := self.at_fault) is not None:
            one, message = found
            one.alone(message.offset, message.offset)
        else:
            for one, messages in self._taken.items():
                one.alone(messages[0].offset, messages[-1].offset)

    def careful(self) -> None:
        """A message has failed, and others may: each of them gets a savepoint."""
        for one, messages in self._taken.items():
            one.careful(messages[-1].offset)


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


def take(
    partitions: Iterable[AssignedPartition], limit: int, now: float, *, may_record: bool = True
) -> ConsumerBatch | None:
    """From these partitions in turn, in the order of offsets; None when none has something to handle. Messages that do
    not go plainly are a batch of their partition's own. Without `may_record` none is taken that may end the process."""
    taken: dict[AssignedPartition, Sequence[Fetched]] = {}
    for one in partitions:
        if one.caution.is_careful and not may_record:
            continue
        if not (messages := one.head(limit, now)):
            continue
        if one.form is not Form.PLAIN:
            if taken:
                continue
            return ConsumerBatch({one: messages}, one.form)
        taken[one] = messages
        limit -= len(messages)
        if not limit:
            break
    return ConsumerBatch(taken) if taken else None


def take_held(one: AssignedPartition) -> ConsumerBatch:
    """Held messages of this partition are to be tried again."""
    return ConsumerBatch({one: ()}, Form.CAREFUL, Release())
