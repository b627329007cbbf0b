"""Topics made for one test, and an independent consumer that reads them as applications do."""

import time
import uuid
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


def create_topic(servers: str, partitions: int = 1, name: str | None = None, *, copies: int = 1, **config: str) -> str:
    """Kafka deletes a message whose timestamp is a week old when it checks next, so `retention.ms` is -1 here."""
    config = {"retention.ms": "-1", **config}
    topic = name or f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": servers})
    give_up_at = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, copies, config=config)])[topic].result(30)
        except KafkaException as error:
            # On a machine that is very busy a broker may be fenced for a moment.
            if error.args[0].name() != "INVALID_REPLICATION_FACTOR" or time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)
        else:
            break
    give_up_at = time.monotonic() + 30  # a broker may tell of it a moment later than it has made it
    while admin.list_topics(topic, timeout=30).topics[topic].error is not None:
        assert time.monotonic() < give_up_at, f"{topic} is not seen"
        time.sleep(0.05)
    return topic


@dataclass(frozen=True)
class Received:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    time_s: float = 0.0  # when its producer took it


def read_topic(servers: str, topic: str, *, committed: bool = True, timeout_s: float = 60) -> list[Received]:
    """Everything on the topic up to its present end, per partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout_s).topics[topic].partitions
        ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout_s)[1] for n in partitions}
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        return _until_every_end(consumer, ends, time.monotonic() + timeout_s)
    finally:
        consumer.close()


def _until_every_end(consumer: Consumer, ends: dict[int, int], deadline: float) -> list[Received]:
    """Beside a writer the client may never stand at an end: then what lies beyond it was reached."""
    received, unfinished = [], set(ends)
    while unfinished:
        assert time.monotonic() < deadline, f"partitions {unfinished} did not reach their end"
        for message in consumer.consume(5000, 0.05):  # which waits for 5000 or the time, whatever comes first
            error = message.error()
            if error is None:
                received.append(_received(message))
                if message.offset() >= ends[message.partition()] - 1:
                    unfinished.discard(message.partition())
            elif error.name() == "_PARTITION_EOF":
                unfinished.discard(message.partition())
            else:
                raise AssertionError(str(error))
    return received


def _received(message: Message) -> Received:
    return Received(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        message.key(),  # type: ignore[arg-type]
        message.value(),  # type: ignore[arg-type]
        message.headers() or [],  # type: ignore[arg-type]
        message.timestamp()[1] / 1000,
    )
