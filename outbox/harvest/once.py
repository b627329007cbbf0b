"""The plain drain behind ``harvest --once``: read in order, send, delete what is acknowledged.

At-least-once: a process that dies between acknowledgement and deletion sends the batch again. It never loses a record,
because a row is deleted only after Kafka has acknowledged it. Run one at a time.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox.conf import Conf
from outbox.edges import kafka
from outbox.edges.table import Row, Table
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint

if TYPE_CHECKING:
    from confluent_kafka import Producer

logger = logging.getLogger("outbox.harvest")

BATCH_SIZE_MAX = 5_000


@dataclass(frozen=True)
class Drained:
    delivered: int
    batches: int


class NotDelivered(OutboxError):
    """Kafka did not take a record; it and all later ones of the batch that were not acknowledged stay in the table."""


def drain(table: Table, conf: Conf, progress: Callable[[int], None] = lambda delivered: None) -> Drained:
    """Move everything that is visible when the drain begins."""
    producer = kafka.idempotent_producer(conf.producer_properties)
    until, after, delivered, batches = table.newest(), 0, 0, 0
    while rows := table.read(after, until, BATCH_SIZE_MAX):
        failpoint("before-send")
        acknowledged, refused = _send(producer, rows, conf.flush_timeout_s)
        failpoint("after-ack")
        table.purge(acknowledged)
        failpoint("after-purge")
        delivered, batches, after = delivered + len(acknowledged), batches + 1, rows[-1][0]
        progress(delivered)
        if len(acknowledged) < len(rows):
            raise NotDelivered(_explain(rows, acknowledged, refused, conf.flush_timeout_s))
    logger.info("drained delivered=%d batches=%d", delivered, batches)
    return Drained(delivered, batches)


def _send(producer: "Producer", rows: list[Row], flush_timeout_s: float) -> tuple[list[int], dict[int, str]]:
    acknowledged: list[int] = []
    refused: dict[int, str] = {}

    def report(record_id: int) -> Callable[[Any, Any], None]:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                acknowledged.append(record_id)
            else:
                refused[record_id] = str(error)

        return on_delivery

    from confluent_kafka import KafkaException

    for row in rows:
        try:
            kafka.produce(producer, row, report(row[0]))
        except KafkaException as error:
            refused[row[0]] = str(error)
            break  # a later record of the same key must not overtake this one
    producer.flush(flush_timeout_s)
    return acknowledged, refused


def _explain(rows: list[Row], acknowledged: list[int], refused: dict[int, str], flush_timeout_s: float) -> str:
    left = len(rows) - len(acknowledged)
    if not refused:
        return (
            f"{left} records were not acknowledged within {flush_timeout_s:g} s; they stay in the table. Is Kafka up?"
        )
    first = min(refused)
    topic = next(row[1] for row in rows if row[0] == first)
    return (
        f"{left} records were not delivered and stay in the table. The first is id {first} for topic {topic!r}: "
        f"{refused[first]}"
    )
