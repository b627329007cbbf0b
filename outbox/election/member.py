"""One member of the group: carries the core's decisions to the brokers and theirs to the core. Decides nothing.

Three threads share the core under one lock, which is held for microseconds and never during I/O that waits:

- *group* polls the consumer that stands in the group. Its rebalance callback waits until what is in hand is finished,
  so this thread reads no heartbeats; else the lanes that stay would be fenced whenever one lane moves.
- *reader* reads the leader topic with a consumer of its own, from its end, a bounded number of messages per turn.
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
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any
from uuid import UUID, uuid4

from outbox.conf import AT_LEAST_ONCE, Conf
from outbox.core.election import neli as core
from outbox.edges.kafka.common.wall_clock import nudged
from outbox.election.clients import DATABASE_HEADER, heartbeat_of
from outbox.election.errors import Denials, ElectionRefused, Seldom, Troubles, foreign_database, group_refusal
from outbox.election.ports import ElectionClients, GroupConsumer, HeartbeatProducer, HeartbeatReader
from outbox.failpoints import failpoint
from outbox.runtime import Queue, Runtime, Thread
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.election")

MARGIN_SHARE = 0.1  # of the heartbeat time-out: what a check and the send after it may take
SILENCE_SHARE = 4  # of the heartbeat time-out: without any heartbeat, the reader begins anew
GROUP_POLL_S = 0.05  # part of the time that a rebalance takes
READ_POLL_S, AWAITED_POLL_S = 0.1, 0.002  # the latter while a heartbeat is awaited that makes a leader
AWAITED_S = 0.1  # a heartbeat comes back within milliseconds, or the brokers are slow
NUDGE_S = 1.0
DENIED_TIMEOUT_S = 0.5
READ_MAX = 500  # messages per turn of the reader
# In exactly-once delivery the database says which lanes are in use, and may say something else at any moment: their
# workers ask it. The owner of a partition above the count owns an idle lane.
EVERY_PARTITION = 1 << 31
METADATA_TIMEOUT_S, LEADERS_TIMEOUT_S = 5.0, 1.0
ANSWER_S = 0.05  # usually it takes a few milliseconds

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
        self._headers: list[tuple[str, str | bytes | None]] = (
            [(DATABASE_HEADER, str(database).encode())] if database else []
        )
        self._tell_unknown, self._tell_foreign = Seldom(self._clock), Seldom(self._clock)
        self._commands: Queue[Decision | None] = runtime.queue()
        self._ticker_wakes_at = 0.0
        self._questions: Queue[core.ConfirmMembership] = runtime.queue()
        self._readable = set(range(partitions))
        self._owned: dict[int, Ownership] = {}
        self._partitions_added = runtime.event()
        self._leaving = runtime.event()
        self._left = runtime.event()
        self._troubles, self._denials = Troubles(), Denials(self._clock)
        self._heard_at = float("inf")
        self._awaited = runtime.event()
        self._threads: list[Thread] = []

    # ---- lifecycle

    def start(self) -> None:
        self._heard_at = self._clock()
        self._producer: HeartbeatProducer = self._clients.producer(partial(self._on_error, "heartbeat"))
        self._reader: HeartbeatReader = self._clients.reader(partial(self._on_error, "reader"))
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
        return self._clock() - self._heard_at > self._conf.election.heartbeat_timeout_s

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
        """Nothing of this lane is in hand any more."""
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
                leads = self._neli.state(lane) is core.State.LEADER
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
                headers=self._headers,
                on_delivery=self._on_delivery,
            )
            if effect.beat.epoch in (None, -1):
                self._awaited.set()
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
        from confluent_kafka import OFFSET_END, TopicPartition

        reading: set[int] = set()
        silent_since = self._clock()
        awaited_until = 0.0
        is_nudge_due = Seldom(self._clock, NUDGE_S)
        try:
            while not self._left.is_set():
                # Somebody always beats: after such a silence the client is made to look for the partitions anew.
                is_silent = self._clock() - silent_since > SILENCE_SHARE * self._conf.election.heartbeat_timeout_s
                if reading != self._readable or is_silent:
                    if is_silent:
                        self._troubles.note(
                            "silence", f"no heartbeat was read from {self._topic!r}: reading begins anew"
                        )
                    silent_since = self._clock()
                    self._learn_leaders()
                    reading = set(self._readable)
                    self._reader.assign([TopicPartition(self._topic, p, OFFSET_END) for p in sorted(reading)])
                if is_nudge_due:
                    self._reader.assignment()
                self._try_denied("reader", self._reader)
                messages = self._reader.consume(READ_MAX, timeout=0)
                for message in messages:
                    self._read(message)
                now = self._clock()
                if any(not message.error() for message in messages):
                    silent_since, awaited_until = now, 0.0
                if self._awaited.is_set():
                    self._awaited.clear()
                    awaited_until = now + AWAITED_S
                if now < awaited_until:
                    self._runtime.sleep(AWAITED_POLL_S)
                elif len(messages) < READ_MAX:
                    self._awaited.wait(READ_POLL_S)
        finally:
            self._reader.close()

    def _learn_leaders(self) -> None:
        """Without knowing them the reader would wait half a second before it looks for the end of a partition, and the
        producer would not write to one that was added."""
        for client in (self._reader, self._producer):
            if reason := self._asked(partial(client.list_topics, self._topic), LEADERS_TIMEOUT_S):
                self._troubles.note("reader", reason)
        self._runtime.sleep(ANSWER_S)

    def _read(self, message: Any) -> None:
        if message.error():
            self._troubles.note("reader", message.error().str())
            return
        try:
            beat = heartbeat_of(message)
        except core.UnknownHeartbeat as error:
            if self._tell_unknown:
                logger.warning("heartbeat_unknown offset=%d reason=%r", message.offset(), str(error))
            return
        self._heard_at = self._clock()
        self._troubles.over()
        with self._changed:
            seen = message.partition(), message.offset(), beat
            self._decide(lambda now: self._neli.heartbeat_seen(*seen, now))

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
                self._try_denied("group", self._consumer)
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
        if reason := self._asked(self._consumer.list_topics, METADATA_TIMEOUT_S):
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
        self._readable = self._readable | set(numbers)
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

    def _asked(self, list_topics: Callable[..., Any], timeout_s: float) -> str:
        """Ask a broker as soon as one is connected; why that was not possible. The client's own threads take in the
        answer: nobody waits for it."""
        from confluent_kafka import KafkaError, KafkaException

        give_up_at = self._clock() + timeout_s
        while True:
            try:
                list_topics(timeout=0)
            except KafkaException as error:
                found = error.args[0]
            else:
                return ""
            if found.code() == KafkaError._TIMED_OUT:
                return ""  # for the answer, not for a broker
            if self._clock() > give_up_at:
                return str(found.str())
            self._runtime.sleep(AWAITED_POLL_S)

    # ---- errors

    def _try_denied(self, client: str, consumer: GroupConsumer | HeartbeatReader) -> None:
        """The coordinator answers, and it has the same users as the other brokers. Only its answer tells, so this
        thread waits inside the client. Where that takes long for the clock's sake, the denial lasts on and the election
        is renewed."""
        from confluent_kafka import KafkaException, TopicPartition

        if self._denials.is_due(client):
            with suppress(KafkaException):
                consumer.committed([TopicPartition(self._topic, 0)], timeout=DENIED_TIMEOUT_S)
                self._denials.over(client)

    def _judge(self, error: Any) -> None:
        """What the group says; some of it can only be solved by an operator."""
        if refusal := group_refusal(error, self._conf):
            raise refusal
        self._on_error("group", error)

    def _on_error(self, client: str, error: Any) -> None:
        self._denials.note(client, error)
        if error.fatal():
            self._on_fatal(ElectionRefused(f"A Kafka client of the election gave up: {error.str()}. Restart."))
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
            del self._consumer, self._reader, self._producer

    def _on_failure(self) -> None:
        """The group's thread ends early: what is in hand is finished all the same, then the group is left."""
        self.stop()
        self._leaving.wait(self._conf.election.revoke_timeout_s + 1.0)
