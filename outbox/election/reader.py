"""One member's reading of the leader topic, with a consumer of its own, from its end. Decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from outbox.conf import Conf
from outbox.core.election import neli as core
from outbox.election.clients import heartbeat_of
from outbox.election.errors import Denials, ElectionTroubles, Seldom
from outbox.election.ports import GroupConsumer, HeartbeatProducer, HeartbeatReader
from outbox.runtime import Event, Runtime

logger = logging.getLogger("outbox.election")

SILENCE_SHARE = 4  # of the heartbeat timeout: without any heartbeat, the reader begins anew
READ_POLL_S, AWAITED_POLL_S = 0.1, 0.002  # the latter while a heartbeat is awaited that makes a leader
AWAITED_S = 0.1  # a heartbeat comes back within milliseconds, or the brokers are slow
NUDGE_S = 1.0
DENIED_TIMEOUT_S = 0.5
READ_MAX = 500  # messages per turn of the reader
LEADERS_TIMEOUT_S = 1.0
ANSWER_S = 0.05  # usually it takes a few milliseconds


class LeaderTopicReader:
    """`seen` is given each heartbeat, with its partition and offset."""

    def __init__(
        self,
        conf: Conf,
        seen: Callable[[int, int, core.Heartbeat | core.GoharvestHeartbeat], None],
        *,
        partitions: int,
        runtime: Runtime,
        troubles: ElectionTroubles,
        denials: Denials,
    ) -> None:
        self._conf = conf
        self._seen = seen
        self._readable = set(range(partitions))
        self._runtime, self._clock = runtime, runtime.monotonic
        self._troubles, self._denials = troubles, denials
        self._tell_unknown = Seldom(self._clock)
        self._awaited = runtime.event()
        self._heard_at = float("inf")

    def start(self, consumer: HeartbeatReader, producer: HeartbeatProducer) -> None:
        """`producer`: writes to the topic, and has to know its leaders too."""
        self._heard_at = self._clock()
        self._consumer, self._producer = consumer, producer

    def drop_clients(self) -> None:
        del self._consumer, self._producer

    @property
    def is_silent(self) -> bool:
        """Whether nobody's heartbeat was read within the heartbeat timeout."""
        return self._clock() - self._heard_at > self._conf.election.heartbeat_timeout_s

    def read_also(self, partitions: Iterable[int]) -> None:
        self._readable = self._readable | set(partitions)

    def expect(self) -> None:
        """A heartbeat is under way that makes a leader."""
        self._awaited.set()

    def run(self, left: Event) -> None:
        """Until the group is left."""
        from confluent_kafka import OFFSET_END, TopicPartition

        topic = self._conf.election.leader_topic
        reading: set[int] = set()
        silent_since = self._clock()
        awaited_until = 0.0
        is_nudge_due = Seldom(self._clock, NUDGE_S)
        try:
            while not left.is_set():
                # Somebody always beats: after such a silence the client is made to look for the partitions anew.
                is_silent = self._clock() - silent_since > SILENCE_SHARE * self._conf.election.heartbeat_timeout_s
                if reading != self._readable or is_silent:
                    if is_silent:
                        self._troubles.note(
                            "silence",
                            f"The harvester received no heartbeat from {topic!r} and starts reading it again.",
                        )
                    silent_since = self._clock()
                    self._learn_leaders()
                    reading = set(self._readable)
                    self._consumer.assign([TopicPartition(topic, p, OFFSET_END) for p in sorted(reading)])
                if is_nudge_due:
                    self._consumer.assignment()
                try_denied(self._denials, "reader", self._consumer, topic)
                messages = self._consumer.consume(READ_MAX, timeout=0)
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
            self._consumer.close()

    def _learn_leaders(self) -> None:
        """Without knowing them the reader would wait half a second before it looks for the end of a partition, and the
        producer would not write to one that was added."""
        for client in (self._consumer, self._producer):
            if reason := asked(
                self._runtime, partial(client.list_topics, self._conf.election.leader_topic), LEADERS_TIMEOUT_S
            ):
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
        self._seen(message.partition(), message.offset(), beat)


def asked(runtime: Runtime, list_topics: Callable[..., Any], timeout_s: float) -> str:
    """Ask a broker as soon as one is connected; why that was not possible. The client's own threads take in the
    answer: nobody waits for it."""
    from confluent_kafka import KafkaError, KafkaException

    give_up_at = runtime.monotonic() + timeout_s
    while True:
        try:
            list_topics(timeout=0)
        except KafkaException as error:
            found = error.args[0]
        else:
            return ""
        if found.code() == KafkaError._TIMED_OUT:
            return ""  # for the answer, not for a broker
        if runtime.monotonic() > give_up_at:
            return str(found.str())
        runtime.sleep(AWAITED_POLL_S)


def try_denied(denials: Denials, client: str, consumer: GroupConsumer | HeartbeatReader, topic: str) -> None:
    """The coordinator answers, and it has the same users as the other brokers. Only its answer tells, so this
    thread waits inside the client. Where that takes long for the clock's sake, the denial lasts on and the election
    is renewed."""
    from confluent_kafka import KafkaException, TopicPartition

    if denials.is_due(client):
        with suppress(KafkaException):
            consumer.committed([TopicPartition(topic, 0)], timeout=DENIED_TIMEOUT_S)
            denials.over(client)
