"""What a transaction has raised, as a value for `core.exactly_once.blame`: for every lane that sends transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outbox.core import faults
from outbox.core.exactly_once import blame
from outbox.edges.kafka.exactly_once.transactional import ReportsMissing, TransactionalProducer, kafka_error
from outbox.exceptions import OutboxError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


class NotDelivered(OutboxError):
    """Reports of a batch whose records are told apart say that some have failed."""


class BatchDropped(OutboxError):
    """The batch must not be committed, through no fault of Kafka's."""


def failure_of(error: BaseException, producer: TransactionalProducer | None) -> blame.Failure:
    """The client is asked for the cause where it may know more than it has raised, so no exception may be handled
    meanwhile (see `edges.kafka.common.clients`)."""
    if isinstance(error, BatchDropped):
        return blame.Dropped(str(error))
    if isinstance(error, ReportsMissing):
        return blame.Unacknowledged(str(error))
    if isinstance(error, NotDelivered):
        return blame.Undelivered(_cause(producer))
    found = kafka_error(error)
    raised = blame.Raised("_STATE", str(error)) if found is None else _raised(found)
    if faults.kind_of(raised.name) is faults.Kind.PRODUCER:
        # Refused while the rest of the batch was handed over: the client tells the reason only when asked.
        return _cause(producer) or raised
    return raised


def reporter(failures: list[blame.Report], begin: int = 0) -> Callable[[int], Callable[[Any, Any], None]]:
    """For `TransactionalProducer.send`: the reports of what was not delivered are added to `failures`."""

    def report_of(index: int) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            if error is not None:
                failures.append((begin + index, error.name(), error.str()))

        return report

    return report_of


def _cause(producer: TransactionalProducer | None) -> blame.Raised | None:
    cause = producer.cause() if producer is not None else None
    return None if cause is None else _raised(cause)


def _raised(error: KafkaError) -> blame.Raised:
    return blame.Raised(error.name(), error.str())
