"""One member of the group: carries the core's decisions to the brokers and theirs to the core. Decides nothing.

Three threads share the core under one lock, which is held for microseconds and never during I/O that waits:

- *group* polls the consumer that stands in the group. Its rebalance callback waits until what is in flight is finished,
  so this thread reads no heartbeats; else the lanes that stay would be fenced whenever one lane moves.
- *reader* reads the leader topic with a consumer of its own, from its end: see `reader`.
- *ticker* sleeps until the core wants to be woken or somebody commands something.

The listener is called under the lock and must not block. Workers never take the lock: `may_start` and `may_send` read a
snapshot, everything else is a command for the ticker, so no worker can hold up the election or wait for it.

No thread waits inside a client, unless that was denied: the client's waits end by the wall clock, so one that is under
way while the clock is set back lasts as much longer. The client's own threads wait like that too. An order wakes them,
so each consumer is given one every second: its assignment, which asks no broker. Without it a member would drop out of
the group unnoticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any
from uuid import UUID, uuid4

from outbox.conf import AT_LEAST_ONCE, Conf
from outbox.core.election import neli as core
from outbox.edges.kafka.common.wall_clock import nudged
from outbox.election.clients import DATABASE_HEADER
from outbox.election.errors import Denials, ElectionRefused, ElectionTroubles, Seldom, foreign_database, group_refusal
from outbox.election.ports import ElectionClients, GroupConsumer, HeartbeatProducer
from outbox.election.reader import NUDGE_S, LeaderTopicReader, asked, try_denied
from outbox.failpoints import failpoint
from outbox.runtime import Queue, Runtime, Thread
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.election")

MARGIN_SHARE = 0.1  # of the heartbeat timeout: what a check and the send after it may take
GROUP_POLL_S = 0.05  # part of the time that a rebalance takes
# In exactly-once delivery the database says which lanes are in use, and may say something else at any moment: their
# workers ask it. The owner of a partition above the count owns an idle lane.
EVERY_PARTITION = 1 << 31
METADATA_TIMEOUT_S = 5.0

Decision = Callable[[float], list[core.Effect]]


@dataclass(frozen=True, slots=True)
class Ownership:
    """A lane that this member leads, as of the last decision."""

    leader_id: UUID
    epoch: int
    trusted_until: float
    may_start: bool


class Member:
    def __init__(
        self,
        conf: Conf,
        listener: Callable[[core.Effect], None],
        on_fatal: Callable[[BaseException], None],
        *,
        clients: ElectionClients,
        partitions: int,
        name: str,
        database: UUID | None = None,
        new_id: Callable[[], UUID] = uuid4,
        runtime: Runtime = THREADS,
    ) -> None:
        """`partitions` of the leader topic are read from the start, so that nothing must be set up in a takeover.
        `database`: whose table is harvested, where it has a number."""
        self._conf = conf
        self._listener = listener
        self._on_fatal = on_fatal
        self._clients = clients
        self._topic = conf.election.leader_topic
        self._runtime, self._clock = runtime, runtime.monotonic
        self._changed = runtime.condition("election")
        self._neli = core.Neli(
            new_id,
            lanes=conf.election.lanes if conf.delivery == AT_LEAST_ONCE else EVERY_PARTITION,
            heartbeat_timeout_s=conf.election.heartbeat_timeout_s,
            margin_s=MARGIN_SHARE * conf.election.heartbeat_timeout_s,
            revoke_timeout_s=conf.election.revoke_timeout_s,
            name=name,
            database=database,
        )
        self._database = database
        self._tell_foreign = Seldom(self._clock)
        self._commands: Queue[Decision | None] = runtime.queue()
        self._ticker_wakes_at = 0.0
        self._questions: Queue[core.ConfirmMembership] = runtime.queue()
        self._owned: dict[int, Ownership] = {}
        self._partitions_added = runtime.event()
        self._leaving = runtime.event()
        self._left = runtime.event()
        self._troubles, self._denials = ElectionTroubles(), Denials(self._clock)
        self._reader = LeaderTopicReader(
            conf,
            self._seen,
            partitions=partitions,
            runtime=runtime,
            troubles=self._troubles,
            denials=self._denials,
        )
        self._threads: list[Thread] = []

    # ---- lifecycle

    def start(self) -> None:
        self._producer: HeartbeatProducer = self._clients.producer(partial(self._on_error, "heartbeat"))
        self._reader.start(self._clients.reader(partial(self._on_error, "reader")), self._producer)
        self._consumer: GroupConsumer = self._clients.member(partial(self._on_error, "group"), self._on_commit)
        roles = (self._read_heartbeats, self._tick, self._stand_in_group)
        self._running = len(roles)
        nudged(self)
        for role in roles:
            name = f"outbox-election-{role.__name__.strip('_')}"
            thread = self._runtime.thread(partial(self._guarded, role), name)
            self._threads.append(thread)
            thread.start()

    def clients(self) -> list[Any]:
        """The one that nobody here gives orders regularly."""
        with self._changed:
            return [self._producer] if self._running else []

    def stop(self) -> None:
        """Finish every lane, then leave the group. Does not wait; safe to call twice."""
        self._commands.put(self._neli.stop)

    def abandon(self) -> None:
        """Drop every lane at once and leave the group."""

        def drop(now: float) -> list[core.Effect]:
            everything = (*self._neli.assigned_partitions, *self._neli.revoking)
            return self._neli.stop(now) + self._neli.lost(everything, now)

        self._commands.put(drop)

    def join(self, timeout_s: float) -> bool:
        """Wait until the group is left and every thread has ended."""
        deadline = self._clock() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        return not any(thread.is_alive() for thread in self._threads)

    # ---- for workers and metrics: neither blocks nor takes the lock

    @property
    def owned(self) -> dict[int, Ownership]:
        """The lanes that this member leads or is giving back. A snapshot, never changed."""
        return self._owned

    @property
    def is_cut_off(self) -> bool:
        """Whether nobody's heartbeat was read for so long that the brokers must be away, or every leader."""
        return self._reader.is_silent

    @property
    def denied_s(self) -> float:
        """For how long the brokers have refused the credentials of one of its clients; 0: they do not."""
        return self._denials.lasting_s

    def led_last(self, lane: int) -> bool:
        return self._neli.led_last(lane)

    def may_start(self, lane: int) -> bool:
        found = self._owned.get(lane)
        return found is not None and found.may_start and self._clock() < found.trusted_until

    def may_send(self, lane: int) -> bool:
        found = self._owned.get(lane)
        return found is not None and self._clock() < found.trusted_until

    def refresh(self, lane: int) -> None:
        self._commands.put(lambda now: self._neli.refresh(lane, now))

    def doubt(self, lane: int) -> None:
        self._commands.put(lambda now: self._neli.doubt(lane, now))

    def step_down(self, lane: int) -> None:
        self._commands.put(lambda now: self._neli.step_down(lane, now))

    def release(self, lane: int) -> None:
        """Nothing of this lane is in flight any more."""
        self._commands.put(lambda now: self._neli.released(lane, now))

    def partitions_added(self) -> None:
        """The leader topic has grown: the group is to notice now, not within the minute that the client takes."""
        self._partitions_added.set()

    # ---- the core and its effects

    def _decide(self, decision: Decision) -> None:
        """Ask the core and carry out what it says. The lock is held."""
        for effect in decision(self._clock()):
            self._carry_out(effect)
        self._owned = self._snapshot()
        self._changed.notify_all()
        if self._neli.wake_at() < self._ticker_wakes_at:
            self._commands.put(None)

    def _snapshot(self) -> dict[int, Ownership]:
        found = {}
        for lane in (*self._neli.assigned_partitions, *self._neli.revoking):
            leader_id, epoch = self._neli.leader_id(lane), self._neli.epoch(lane)
            if leader_id is not None and epoch is not None:
                leads = self._neli.state(lane) is core.OwnerState.LEADER
                found[lane] = Ownership(leader_id, epoch, self._neli.trusted_until(lane), leads)
        return found

    def _carry_out(self, effect: core.Effect) -> None:
        if isinstance(effect, core.PublishHeartbeat):
            self._publish(effect)
        elif isinstance(effect, core.ConfirmMembership):
            self._confirm(effect)
        elif isinstance(effect, core.LeaveGroup):
            self._leaving.set()
        elif isinstance(effect, core.ForeignHeartbeat):
            self._meet(effect)
        else:
            self._owned = self._snapshot()  # the listener may ask
            self._listener(effect)

    def _publish(self, effect: core.PublishHeartbeat) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.produce(
                self._topic,
                core.encode_heartbeat(effect.beat),
                partition=effect.lane,
                headers=[(DATABASE_HEADER, str(self._database).encode())] if self._database else [],
                on_delivery=self._on_delivery,
            )
            if effect.beat.epoch in (None, -1):
                self._reader.expect()
        except (BufferError, KafkaException) as error:
            self._troubles.note("heartbeat", str(error))  # the core misses it in time

    def _meet(self, effect: core.ForeignHeartbeat) -> None:
        if not effect.is_rightful:
            self._on_fatal(foreign_database(self._conf, self._database, effect.name, effect.database))
        elif self._tell_foreign:
            logger.warning(
                "foreign_heartbeat lane=%d database=%s name=%s: give the other environment a NAME of its own",
                effect.lane,
                effect.database,
                effect.name,
            )

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._troubles.note("heartbeat", error.str())
        else:
            self._denials.over("heartbeat")

    def _confirm(self, effect: core.ConfirmMembership) -> None:
        """Asked by the thread that polls: a commit from any other waits for as long as that one goes on polling."""
        self._questions.put(effect)

    def _ask(self) -> None:
        """An offset commit is answered in the generation of the member. Nobody reads from the offset: it names the
        question, for when the coordinator moves some answers never come."""
        from confluent_kafka import KafkaException, TopicPartition

        while not self._questions.empty():
            question = self._questions.get()
            try:
                offset = TopicPartition(self._topic, question.lane, question.ticket)
                self._consumer.commit(offsets=[offset], asynchronous=True)
            except KafkaException as error:
                self._troubles.note("confirm", str(error))  # the core asks again with its next heartbeat

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        from confluent_kafka import KafkaError

        refusals = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.FENCED_INSTANCE_ID)
        with self._changed:
            for partition in partitions:
                found = error or partition.error
                if found is None or found.code() in refusals:
                    self._decide(partial(self._neli.confirmed, partition.partition, partition.offset, found is None))

    # ---- thread: ticker

    def _tick(self) -> None:
        while not self._left.is_set():
            with self._changed:
                self._ticker_wakes_at = min(self._neli.wake_at(), self._clock() + 1.0)
            self._turn(self._next_command())
            self._producer.poll(0)
            if not self._neli.assigned_partitions:
                self._denials.over("heartbeat")  # it has nothing to send

    def _next_command(self) -> Decision | None:
        try:
            return self._commands.get(timeout=max(0.001, self._ticker_wakes_at - self._clock()))
        except Empty:
            return None

    def _turn(self, command: Decision | None) -> None:
        with self._changed:
            self._decide(self._neli.tick)  # before a refresh, which needs trust that still holds
            while True:
                if command is not None:
                    self._decide(command)
                try:
                    command = self._commands.get_nowait()
                except Empty:
                    return

    # ---- thread: reader

    def _read_heartbeats(self) -> None:
        self._reader.run(self._left)

    def _seen(self, partition: int, offset: int, beat: core.Heartbeat | core.GoharvestHeartbeat) -> None:
        with self._changed:
            self._decide(lambda now: self._neli.heartbeat_seen(partition, offset, beat, now))

    # ---- thread: group

    def _stand_in_group(self) -> None:
        callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
        try:
            self._consumer.subscribe([self._topic], **callbacks)
            is_nudge_due = Seldom(self._clock, NUDGE_S)
            while not self._leaving.wait(GROUP_POLL_S):
                self._ask()
                if self._partitions_added.is_set():
                    self._look_at_every_topic()
                if is_nudge_due:
                    self._consumer.assignment()
                try_denied(self._denials, "group", self._consumer, self._topic)
                message = self._consumer.poll(0)
                if message is not None and message.error():
                    self._judge(message.error())
        except BaseException:
            self._on_failure()
            raise
        finally:
            failpoint("before-leave")
            try:
                self._consumer.close()
            finally:  # the other threads end whatever becomes of this one
                self._left.set()
                self._commands.put(None)

    def _look_at_every_topic(self) -> None:
        """Only an answer about all topics makes the client compare them with its subscription, and rejoin."""
        self._partitions_added.clear()
        if reason := asked(self._runtime, self._consumer.list_topics, METADATA_TIMEOUT_S):
            self._troubles.note("partitions", reason)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        from confluent_kafka import OFFSET_END, TopicPartition

        ours = [TopicPartition(self._topic, p.partition, OFFSET_END) for p in partitions]
        if self._conf.election.assignor == "cooperative-sticky":
            consumer.incremental_assign(ours)
        else:
            consumer.assign(ours)
        consumer.pause(ours)  # the reader reads
        numbers = [p.partition for p in ours]
        logger.info("partitions_assigned topic=%s partitions=%s", self._topic, numbers)
        failpoint("assigned")
        self._reader.read_also(numbers)
        with self._changed:
            self._decide(lambda now: self._neli.assigned(numbers, now))

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        """The client gives the partitions back when this returns."""
        numbers = [p.partition for p in partitions]
        with self._changed:
            self._decide(lambda now: self._neli.revoked(numbers, now))
            failpoint("revoking")
            limit = self._clock() + self._conf.election.revoke_timeout_s + 1.0
            while set(numbers) & set(self._neli.revoking) and self._clock() < limit:
                self._changed.wait(0.1)
        logger.info("partitions_revoked topic=%s partitions=%s", self._topic, numbers)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        numbers = [p.partition for p in partitions]
        with self._changed:
            self._decide(lambda now: self._neli.lost(numbers, now))
        logger.warning("partitions_lost topic=%s partitions=%s", self._topic, numbers)

    # ---- errors

    def _judge(self, error: Any) -> None:
        """What the group says; some of it can only be solved by an operator."""
        if refusal := group_refusal(error, self._conf):
            raise refusal
        self._on_error("group", error)

    def _on_error(self, client: str, error: Any) -> None:
        self._denials.note(client, error)
        if error.fatal():
            self._on_fatal(
                ElectionRefused(f"A Kafka client of the election failed: {error.str()}. Restart the harvester.")
            )
        else:
            self._troubles.note(error.name(), error.str())

    def _guarded(self, role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as error:
            self._on_fatal(error)
            if role == self._tick:
                self._leaving.set()  # nobody is left to carry out a stop
        finally:
            self._drop_clients()

    def _drop_clients(self) -> None:
        """The last thread breaks the cycle of clients and callbacks: the collector might run in a thread of librdkafka
        (AdminClient has one that calls Python), where the destruction of a client aborts the process."""
        with self._changed:
            self._running -= 1
            last = self._running == 0
        if last:
            self._reader.drop_clients()
            del self._consumer, self._producer

    def _on_failure(self) -> None:
        """The group's thread ends early: what is in flight is finished all the same, then the group is left."""
        self.stop()
        self._leaving.wait(self._conf.election.revoke_timeout_s + 1.0)
