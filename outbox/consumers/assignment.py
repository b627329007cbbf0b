"""What the threads of one consumer share: the partitions that the group has assigned to this process.

The member's thread tells of assignments and of what it has fetched, and carries out orders for the client. Workers take
tasks, and tell what became of them. Everything is under one lock, and nothing else is waited for or logged under it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from outbox.consumers.counts import ConsumerCounts, Counted
from outbox.core.consumers import log
from outbox.core.consumers.batch import BatchSize, ConsumerBatch, take, take_held
from outbox.core.consumers.crashes import NO_SUSPICION, Suspicion
from outbox.core.consumers.failing import Failing
from outbox.core.consumers.partition import AssignedPartition, Life, Lives
from outbox.core.consumers.shown import FAILING, Observed
from outbox.core.consumers.values import ClientError, Fetched, Partition, Polled, Position
from outbox.runtime import Lock, Runtime

_PARTITION = itemgetter(0, 1)
"""Of what was fetched. One partition's messages come in long runs."""
PAUSED_AT = 2
"""How many times the following waits when the client is told to pause: it may have to fetch for other workers."""
QUEUE_MAX = 4_000
"""Messages that wait for one worker, or two batches if these are larger: it wants no more."""
QUEUE_BYTES_MAX = 32 * 2**20
NONE: Mapping[Partition, Suspicion] = {}
LOOK_S = 5.0
"""After so long without work a worker reads its positions: the database may have gone back."""
HELD_S = 0.5
"""How often a worker asks for held messages."""


@dataclass(frozen=True, slots=True)
class Load:
    """Find out where these are read from."""

    partitions: Sequence[AssignedPartition]


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the positions of these with the rows."""

    partitions: Sequence[AssignedPartition]


@dataclass(frozen=True, slots=True)
class Leave:
    """Write that this process has left these cleanly."""

    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class AskForHeld:
    """Find out which of these have held messages that are to be tried again."""

    partitions: Sequence[AssignedPartition]


Task = Load | Leave | Compare | AskForHeld | ConsumerBatch


@dataclass(frozen=True, slots=True)
class Orders:
    """For the client, in this order."""

    subscribe: Sequence[str] = ()
    stop: Sequence[Partition] = ()
    start: Mapping[Partition, Position] = field(default_factory=dict)
    pause: Sequence[Partition] = ()
    resume: Sequence[Partition] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    partition: Partition
    reason: str


@dataclass(frozen=True, slots=True)
class ClientFailing:
    """The client reports an error of a partition, and tries again."""

    error: ClientError


class WorkerShare:
    """The partitions of one worker."""

    def __init__(self, batch: int) -> None:
        self.partitions: list[AssignedPartition] = []
        self.size, self._batch = BatchSize(batch), batch
        self.not_before = float("-inf")
        """It pauses until then."""
        self.looked_at = self.asked_at = float("-inf")
        self.leaving: list[Partition] = []
        """Taken back."""
        self._due: list[AssignedPartition] = []
        self._is_turn_of_held = True

    def remove(self, one: AssignedPartition) -> None:
        if one in self.partitions:
            self.partitions.remove(one)
            if one.position is not None:
                self.leaving.append(one.partition)

    def stays(self, partition: Partition) -> None:
        """It is assigned again."""
        if partition in self.leaving:
            self.leaving.remove(partition)

    def leave(self) -> Leave | None:
        leaving, self.leaving = self.leaving, []
        return Leave(leaving) if leaving else None

    def held(self, now: float, *, may_record: bool) -> AskForHeld | ConsumerBatch | None:
        """Held messages take turns with those that were fetched."""
        self._due = [one for one in self._due if one in self.partitions and one.life.state is Life.READING]
        due = next((one for one in self._due if may_record or not one.caution.is_careful), None)
        if due is not None and self._is_turn_of_held:
            self._is_turn_of_held = False
            self._due.remove(due)
            return take_held(due)
        if now >= self.asked_at + HELD_S and (due is None or not self._due):
            self.asked_at = now
            if reading := [one for one in self.partitions if one.life.state is Life.READING]:
                return AskForHeld(reading)
        return None

    def due(self, partitions: Iterable[AssignedPartition]) -> None:
        self._due = [one for one in partitions if one in self.partitions]

    def ask_again(self) -> None:
        """At once: there may be more."""
        self.asked_at = float("-inf")

    def try_held(self, one: AssignedPartition) -> None:
        """Before anything else."""
        self._due, self._is_turn_of_held = [one, *self._due], True

    def tries(self, one: AssignedPartition) -> bool:
        """Whether held messages of it come next."""
        return one in self._due and one in self.partitions and one.life.state is Life.READING

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def batch(self, now: float, most: int, *, may_record: bool) -> ConsumerBatch | None:
        self._is_turn_of_held = True
        if (found := take(self.partitions, min(most, self.size.limit), now, may_record=may_record)) is not None:
            # Who was first is last in the next one.
            first = self.partitions.index(found.everything[0])
            self.partitions = [*self.partitions[first + 1 :], *self.partitions[: first + 1]]
            self.looked_at = now
        return found

    def comparison(self, now: float) -> Compare | None:
        if now < self.looked_at + LOOK_S:
            return None
        self.looked_at = now
        reading = [one for one in self.partitions if one.life.state is Life.READING]
        return Compare(reading) if reading else None

    def is_full(self, times: int = 1) -> bool:
        waiting = sum(one.waiting for one in self.partitions)
        if waiting >= times * max(QUEUE_MAX, 2 * self._batch):
            return True
        return sum(one.waiting_bytes for one in self.partitions) >= times * QUEUE_BYTES_MAX

    def pause(self, until: float) -> None:
        self.not_before = until

    def next_at(self, now: float, not_before: float) -> float:
        """When there may be something to do, if nothing happens until then. No message is tried before `not_before`."""
        waits = [one.not_before for one in self.partitions if one.waiting and one.not_before > now]
        loads = [one.load_at for one in self.partitions if one.life.state is Life.ASSIGNED]
        messages = max(not_before, min([self.asked_at + HELD_S, *waits]))
        return min([messages, self.looked_at + LOOK_S, *loads])


class Assignment:
    """A `GroupListener`."""

    def __init__(
        self, runtime: Runtime, *, workers: int, batch: int, remedy: str = "", recording: Lock | None = None
    ) -> None:
        """`remedy`: what an operator does about a partition that has stopped, in place of setting the position.
        `recording`: the consumers of a process share it; who has it may begin a message that may end the process."""
        self._runtime, self._remedy = runtime, remedy or log.REMEDY
        self._changed = runtime.condition("consumer")
        self._shares = [WorkerShare(batch) for _ in range(workers)]
        self._held: dict[Partition, AssignedPartition] = {}
        self._reading: set[Partition] = set()
        """What the client was told to read."""
        self._acknowledged: dict[Partition, Position] = {}
        self._copied: dict[Partition, int] = {}
        self._is_ending = self._is_abandoned = False
        self._counts = ConsumerCounts(workers)
        self._batch = batch
        self._subscribed: set[str] = set()
        self._to_subscribe: Sequence[str] = ()
        self._news: list[Stopped | ClientFailing] = []
        self._handled = 0
        self._failing = Failing()
        self._recording = recording or threading.Lock()  # nobody waits for it
        self._recorded: ConsumerBatch | AssignedPartition | None = None
        """With the one message that may end the process; no other such is begun beside it. Or the partition whose held
        message is recorded, and comes next."""

    # ---- the member's thread

    def assigned(self, partitions: Sequence[Partition]) -> None:
        with self._changed:
            for partition in partitions:
                self._drop(partition)
                for share in self._shares:
                    share.stays(partition)
                one = self._held[partition] = AssignedPartition(partition, self._acknowledged.get(partition))
                min(self._shares, key=lambda share: len(share.partitions)).partitions.append(one)
            self._changed.notify_all()

    def revoked(self, partitions: Sequence[Partition]) -> None:
        with self._changed:
            for partition in partitions:
                self._drop(partition)
            self._changed.notify_all()

    def _drop(self, partition: Partition) -> None:
        one = self._held.pop(partition, None)
        self._reading.discard(partition)
        self._copied.pop(partition, None)
        if one is not None:
            one.revoke()
            for share in self._shares:
                share.remove(one)

    def received(self, polled: Polled) -> None:
        fetched: dict[tuple[str, int], list[Fetched]] = {}
        for key, run in groupby(polled.messages, _PARTITION):
            fetched.setdefault(key, []).extend(run)
        with self._changed:
            for key, messages in fetched.items():
                self._receive(Partition(*key), messages)
            for error in polled.errors:
                self._hear(error)
            for partition, end in polled.ends.items():
                if (one := self._found(partition)) is not None:
                    one.read_to(end)
            if fetched or polled.errors or polled.ends:
                self._changed.notify_all()

    def _receive(self, partition: Partition, messages: list[Fetched]) -> None:
        one = self._found(partition)
        if one is None or one.position is None:
            return
        epoch = one.epoch
        if (other := one.received(messages)) is not None:
            self._stop(one, log.older_epoch(partition, one.position, max(epoch, one.epoch), other))

    def _hear(self, error: ClientError) -> None:
        one = None if error.partition is None else self._found(error.partition)
        if one is None or one.position is None:
            return
        if error.name in log.TRUNCATED:
            if one.is_ahead:
                one.again()  # perhaps only what was fetched is lost: the client compares the position when it begins
            else:
                self._stop(one, log.truncated(one.partition, one.position, error.text))
        elif error.name in log.OUT_OF_RANGE:
            one.out_of_bounds(f"{error.name}: {error.text}", self._runtime.monotonic())
        else:
            if error.name in log.UNKNOWN:
                one.doubt(self._runtime.monotonic())
            if one.failing(f"{error.name}: {error.text}"):
                self._news.append(ClientFailing(error))

    def _found(self, partition: Partition) -> AssignedPartition | None:
        """If it is being read."""
        one = self._held.get(partition)
        return one if one is not None and one.life.state is Life.READING else None

    def orders(self) -> Orders:
        """What the client is to do now; it is done when the member asks again."""
        with self._changed:
            stop = [one for one in self._reading if self._held[one].life.state is not Life.READING]
            start: dict[Partition, Position] = {}
            pause: list[Partition] = []
            for partition, one in self._held.items():
                if one.life.state is Life.PLACED and one.position is not None and not self._is_ending:
                    start[partition] = one.position
                    one.started()
            self._reading.difference_update(stop)
            self._reading.update(start)
            resume = list(start)  # they may have been paused when they were stopped or taken back
            for share in self._shares:
                may_pause, may_resume = share.is_full(PAUSED_AT), not share.is_full()
                for one in share.partitions:
                    if one.life.state is Life.READING and (may_resume if one.is_paused else may_pause):
                        (pause if one.toggle() else resume).append(one.partition)
            subscribe, self._to_subscribe = self._to_subscribe, ()
            return Orders(subscribe, stop, start, pause, resume)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Until a worker wants more messages, or there is none that could. False: none does yet."""
        with self._changed:
            return self._changed.wait_for(self._has_room, timeout_s)

    def _has_room(self) -> bool:
        shares = [share for share in self._shares if share.partitions]
        return self._is_ending or not shares or not all(share.is_full() for share in shares)

    def copies(self) -> dict[Partition, int]:
        """Kafka's own offsets, of partitions whose position has moved since they were asked for."""
        with self._changed:
            now = {partition: one.copy for partition, one in self._held.items()}
            moved = {p: at for p, at in now.items() if at is not None and self._copied.get(p) != at}
            self._copied.update(moved)
            return moved

    @property
    def is_busy(self) -> bool:
        """Whether something waits for a worker. Asked without the lock: it only says how long to poll."""
        return any(one.waiting for share in self._shares for one in share.partitions)

    # ---- workers

    def task(self, worker: int) -> Task | None:
        """What this worker does next; waits for it. None: the worker ends."""
        share = self._shares[worker]
        with self._changed:
            while not self._is_ending:
                now = self._runtime.monotonic()
                if now < share.not_before:
                    self._changed.wait(share.not_before - now)
                elif (found := self._find(share, now)) is not None:
                    self._counts.began(worker, now)
                    return found
                else:
                    self._changed.wait(max(0.0, share.next_at(now, self._failing.not_before) - now))
            return None

    def _find(self, share: WorkerShare, now: float) -> Task | None:
        if (leaving := share.leave()) is not None:
            return leaving
        if new := [one for one in share.partitions if one.life.state is Life.ASSIGNED and now >= one.load_at]:
            for one in new:
                one.life.on(Lives.LOADS)
            return Load(new)
        if now >= self._failing.not_before and (found := self._messages(share, now)) is not None:
            return found
        return share.comparison(now)

    def _messages(self, share: WorkerShare, now: float) -> AskForHeld | ConsumerBatch | None:
        may_record = self._may_record(share)
        most = 1 if self._failing.is_failing else self._batch
        found = share.held(now, may_record=may_record) or share.batch(now, most, may_record=may_record)
        if found is None and share.has_due:
            found = share.held(now, may_record=may_record)
        if isinstance(found, ConsumerBatch) and found.staying[0].caution.is_careful:
            self._recorded = found
        elif may_record and self._recorded is None:
            self._recording.release()
        return found

    def _may_record(self, share: WorkerShare) -> bool:
        """Whether this worker may begin a message that may end the process. It then has the lock."""
        one = self._recorded
        if isinstance(one, AssignedPartition):
            if one in share.partitions and share.tries(one):
                return True
            if not any(other.tries(one) for other in self._shares):
                self._record_ended()
        is_careful = any(one.caution.is_careful for one in share.partitions)
        return is_careful and self._recorded is None and self._recording.acquire(blocking=False)

    def _record_ended(self) -> None:
        self._recorded = None
        self._recording.release()

    def left(self, worker: int) -> list[Partition]:
        """What this worker leaves when it ends."""
        with self._changed:
            share = self._shares[worker]
            return [*share.leaving, *(one.partition for one in share.partitions if one.position is not None)]

    def pause(self, worker: int, seconds: float) -> None:
        """This worker begins nothing else for so long."""
        with self._changed:
            self._shares[worker].pause(self._runtime.monotonic() + seconds)

    def acknowledged(self, partitions: Sequence[AssignedPartition]) -> dict[Partition, Position]:
        with self._changed:
            return {one.partition: one.position for one in partitions if one.position is not None}

    def loaded(
        self,
        load: Load,
        found: Mapping[Partition, Position],
        stopped: Mapping[Partition, str],
        pause_s: float = 0.0,
        suspicions: Mapping[Partition, Suspicion] = NONE,
    ) -> None:
        """Those that are in neither are loaded again, after this pause."""
        with self._changed:
            for one in load.partitions:
                if one.life.state is not Life.LOADING:
                    continue  # the group has taken it back
                if (position := found.get(one.partition)) is not None:
                    one.loaded(position, suspicions.get(one.partition, NO_SUSPICION), self._batch)
                    self._acknowledged[one.partition] = position
                elif (reason := stopped.get(one.partition)) is not None:
                    self._stop(one, reason)
                else:
                    one.again(self._runtime.monotonic() + pause_s)

    def moved(self, partitions: Sequence[AssignedPartition]) -> None:
        """Their rows are not as expected: they are loaded again."""
        with self._changed:
            for one in partitions:
                one.again()

    def looked(self, partitions: Sequence[AssignedPartition], rows: Mapping[Partition, Position]) -> None:
        with self._changed:
            for one in partitions:
                if one.life.state is Life.READING and rows.get(one.partition) != one.position:
                    one.again()

    def locked(self, batch: ConsumerBatch, found: Mapping[Partition, Position], xid: int) -> None:
        """Compares. Partitions that were moved leave the batch and are loaded again."""
        with self._changed:
            for one in batch.locked(found, xid):
                one.again()

    def committed(self, worker: int, batch: ConsumerBatch, kept: Sequence[int], given_back: Sequence[int] = ()) -> int:
        """`kept` are the ids of rows that it has written for held messages, `given_back` those of which it has given
        the last attempt back."""
        with self._changed:
            handled = batch.committed()
            self._acknowledged.update({one.partition: one.position for one in batch.everything if one.position})
            share = self._shares[worker]
            share.size.worked()
            if batch.release is not None and batch.release.is_full:
                share.ask_again()
            if batch.release is not None and batch.release.to_record is not None and self._recorded is batch:
                self._recorded = batch.everything[0]
                share.try_held(batch.everything[0])
            self._failing.kept(list(kept))
            self._failing.given_back(list(given_back))
            self._handled += handled
            self._ended(batch)
            self._counts.committed(worker, batch.counts, self._runtime.monotonic())
            return handled

    def dropped(self, batch: ConsumerBatch) -> None:
        with self._changed:
            batch.dropped()
            self._ended(batch)

    def _ended(self, batch: ConsumerBatch) -> None:
        if self._recorded is batch:
            self._record_ended()
        for one in batch.everything:
            one.ended()
        self._changed.notify_all()

    def smaller(self, worker: int, batch: ConsumerBatch) -> None:
        with self._changed:
            self._shares[worker].size.smaller(batch.messages)

    def failed(self, batch: ConsumerBatch, attempts: int, delays: int, pause_s: float) -> None:
        """The one message of it, for which its partition waits."""
        with self._changed:
            now = self._runtime.monotonic()
            one, message = batch.first
            one.failed(message.offset, (attempts, delays), now, now + pause_s)

    def stopped(self, batch: ConsumerBatch, reason: str) -> None:
        """The partition of the one message of it."""
        with self._changed:
            for one in batch.staying:
                self._stop(one, reason)

    def attempt_failed(self, worker: int) -> None:
        """Of a message, whatever becomes of it. Does not wait for the lock."""
        self._counts.failed(worker)

    # ---- held messages

    def asked_for_held(self, held: Mapping[AssignedPartition, bool], due: Sequence[AssignedPartition]) -> None:
        """Which partitions have held messages, and which of these are to be tried again."""
        with self._changed:
            for one, has_held in held.items():
                one.holds(has_held)
            for share in self._shares:
                if set(share.partitions).intersection(held):
                    share.due(due)

    def message_handled(self) -> bool:
        """Whether the consumer was failing, and is not any more."""
        with self._changed:
            if found := self._failing.handled():
                self._changed.notify_all()
            return found

    def message_failed(self, partition: Partition, key: bytes | None, reason: str) -> bool:
        """Whether the consumer is failing, and not the message."""
        with self._changed:
            return self._failing.failed(partition, key, reason)

    def tried_in_vain(self) -> None:
        """While the consumer is failing."""
        with self._changed:
            self._failing.probed(self._runtime.monotonic(), self._runtime.random())

    def to_give_back(self) -> list[int]:
        """Rows whose last attempt does not count. They may be of partitions of other workers."""
        with self._changed:
            return list(self._failing.to_give_back)

    @property
    def failing(self) -> str:
        """Why the consumer is failing; empty: it is not."""
        return self._failing.reason if self._failing.is_failing else ""

    def _stop(self, one: AssignedPartition, reason: str) -> None:
        reason = reason.replace(log.REMEDY, self._remedy)
        if one.stop(reason):
            self._news.append(Stopped(one.partition, reason))

    # ---- whoever asks for the topics

    def found(self, topics: Iterable[str]) -> None:
        """Topics that match the consumer's patterns. One that is not found any more is not given up: it is deleted, or
        a broker does not know it yet."""
        with self._changed:
            if new := set(topics) - self._subscribed:
                self._subscribed |= new
                self._to_subscribe = sorted(self._subscribed)

    def held(self) -> dict[Partition, Position]:
        """Those with a position that are not stopped."""
        with self._changed:
            return {
                partition: one.position
                for partition, one in self._held.items()
                if one.position is not None and one.life.state is not Life.STOPPED
            }

    @property
    def is_in_doubt(self) -> bool:
        """Whether partitions wait until the ids of their topics are asked for."""
        with self._changed:
            return any(one.doubted_at is not None for one in self._held.values())

    def topic_ids(self, ids: Mapping[str, str], held: Mapping[Partition, Position], asked_at: float) -> None:
        """As Kafka has them. `held` and the time are those before it was asked."""
        with self._changed:
            for partition, before in held.items():
                one, topic_id = self._held.get(partition), ids.get(partition.topic)
                if one is None or one.position is None or not topic_id:
                    continue
                if reason := log.other_topic(partition, one.position, topic_id, one.confirmed):
                    self._stop(one, reason)
                elif one.confirm(before.next, asked_at):
                    self._changed.notify_all()

    def out_of_bounds(self) -> list[Partition]:
        with self._changed:
            return [partition for partition, one in self._held.items() if one.life.state is Life.OUT_OF_BOUNDS]

    def bounds(self, partition: Partition, found: tuple[int, int]) -> None:
        """Of one that was out of bounds."""
        with self._changed:
            one = self._held.get(partition)
            if one is None or one.position is None or one.life.state is not Life.OUT_OF_BOUNDS:
                return
            answer = log.bounds(one.position, found, self._runtime.monotonic() - one.out_since)
            if answer is log.Bounds.INSIDE:
                one.life.on(Lives.BACK)
            elif answer is log.Bounds.OUTSIDE:
                self._stop(one, log.out_of_bounds(partition, one.position, found))

    # ---- for whoever runs it

    def end(self) -> None:
        """No task is begun any more."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Nothing is waited for any more, a COMMIT in doubt neither."""
        with self._changed:
            self._is_ending = self._is_abandoned = True
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Until it is abandoned, at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_abandoned, seconds)

    @property
    def is_abandoned(self) -> bool:
        return self._is_abandoned

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    def news(self) -> list[Stopped | ClientFailing]:
        """Partitions that were stopped since the last time, and errors of others."""
        with self._changed:
            news, self._news = self._news, []
            return news

    def has(self, partition: Partition) -> bool:
        """Whether the group has assigned it to this process."""
        with self._changed:
            return partition in self._held

    def reached(self, ends: Mapping[Partition, int]) -> dict[Partition, bool]:
        """Whether all before these offsets is handled, of those that this process has."""
        with self._changed:
            return {
                partition: one.has_reached(ends[partition])
                for partition, one in self._held.items()
                if partition in ends
            }

    @property
    def stopped_partitions(self) -> set[Partition]:
        """Those that wait for an operator."""
        with self._changed:
            return {p for p, one in self._held.items() if one.life.state is Life.STOPPED and not one.is_busy}

    @property
    def knows_held(self) -> bool:
        """Whether it is known of each partition that it reads."""
        with self._changed:
            return all(one.has_held is not None for one in self._held.values() if one.life.state is Life.READING)

    @property
    def partitions_with_held(self) -> list[Partition]:
        """Those of which messages are held."""
        with self._changed:
            return sorted(p for p, one in self._held.items() if one.has_held)

    @property
    def handled(self) -> int:
        return self._handled

    @property
    def states(self) -> dict[Partition, tuple[Life, str]]:
        """Of each partition, and why it is stopped or out of bounds."""
        with self._changed:
            return {partition: (one.life.state, one.reason) for partition, one in self._held.items()}

    @property
    def counted(self) -> Counted:
        with self._changed:
            return self._counts.read()

    @property
    def observed(self) -> list[Observed]:
        """Each partition, as it is shown to people."""
        with self._changed:
            return [self._observed(one) for one in self._held.values()]

    def _observed(self, one: AssignedPartition) -> Observed:
        state, reason = one.life.state.value, one.reason
        if one.life.state is Life.READING and self._failing.is_failing:
            state, reason = FAILING, self._failing.reason
        return Observed(one.partition, state, reason, one.copy, one.oldest_ms, self._counts.of(one.partition))
