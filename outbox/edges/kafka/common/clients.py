"""Kafka clients built from the settings. Nothing here decides anything.

No client is called while an exception is being handled. An error that the client's C code raises then holds that
exception for ever: `KafkaError` of confluent-kafka 2.16 passes for an exception, so Python writes the one being handled
into it; but it does not give it up when it is freed, and the collector does not see it. With the exception its frames
stay, and all that they hold: the rows of a batch, or a client with its threads. So an `except` clause ends before the
client is asked anything, or `let_go` takes the frames from the exception first; also if it is kept beyond its clause.
"""

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from outbox.core.faults import KINDS
from outbox.exceptions import OutboxError, missing_extra

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger("outbox.kafka")

Made = TypeVar("Made")
Raised = TypeVar("Raised", bound=BaseException)
# What calls back.
_SERVING = (
    "poll", "flush", "consume", "close",
    "init_transactions", "begin_transaction", "commit_transaction", "abort_transaction",
)  # fmt: skip

# Java clients and Spark put a key on the same partition only with this partitioner.
PRODUCER_DEFAULTS: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "compression.type": "lz4",
}


def idempotent_producer(properties: Mapping[str, Any]) -> "Producer":
    """A producer that never reorders or doubles what it sends in its own lifetime."""
    require_bootstrap(properties)
    try:
        from confluent_kafka import Producer
    except ImportError as error:
        missing_extra("harvest", error)
    return make(Producer, {**PRODUCER_DEFAULTS, **properties, "enable.idempotence": True})


def make(kind: Callable[..., Made], properties: Mapping[str, Any], **options: Any) -> Made:
    """A client, or an error that names the property which the client does not take."""
    from confluent_kafka import KafkaException

    _warn_of_unknown_errors()
    try:
        return _catchable(kind)(dict(properties), **options)  # type: ignore[no-any-return]
    except KafkaException as error:
        raise OutboxError(
            f"The Kafka client rejects its configuration: {error.args[0].str()}. Correct KAFKA or PRODUCER in OUTBOX."
        ) from error


@cache
def _catchable(kind: Any) -> Any:
    """Before Python 3.12, confluent-kafka 2.16 may raise a `KafkaError`, which is no exception: after a fatal error, if
    another callback is served by the same call. No `except` but the bare one catches it, so it would end a thread
    without a word."""
    from confluent_kafka import cimpl

    if not isinstance(kind, type) or not issubclass(kind, cimpl.Producer | cimpl.Consumer):
        return kind
    found = {name: raising(getattr(kind, name)) for name in _SERVING if hasattr(kind, name)}
    return type(kind.__name__, (kind,), found)


def raising(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which raises nothing but exceptions. Their frames do not hold the client: whoever drops it ends it."""

    def call(*given: Any, **named: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return method(*given, **named)
        except BaseException:
            del given
            raise
        except:  # noqa: E722
            found = sys.exc_info()[1]
            del given
        raise KafkaException(found)  # out here, where it has no context

    return call


@cache
def _warn_of_unknown_errors() -> None:
    """A client newer than this release may report errors that nobody has classified."""
    from confluent_kafka import KafkaError, libversion

    named = {name for name in dir(KafkaError) if name.isupper() and isinstance(getattr(KafkaError, name), int)}
    if unknown := sorted(named - KINDS.keys()):
        logger.warning("client_errors_unknown librdkafka=%s names=%r", libversion()[0], unknown)


def let_go(error: Raised) -> Raised:
    """Without the frames that it came through, also those of its causes: it may be kept, and holds nothing else."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)
    return error


def require_bootstrap(properties: Mapping[str, Any]) -> None:
    if not properties.get("bootstrap.servers"):
        raise OutboxError('OUTBOX["BOOTSTRAP_SERVERS"] is empty. Set it to your brokers, e.g. "localhost:9092".')


def brokers_at_work(admin: "AdminClient", timeout_s: float) -> "Future[list[int]]":
    """The numbers of the brokers that take part now, at least one.

    Not by `describe_cluster`: its client aborts the whole process when a broker answers that none takes part yet, as
    brokers do for a moment while they start, or after their controller has missed them.
    """
    answer: Future[list[int]] = Future()
    held = [admin]  # let go before the answer is known, as the error's frames are: whoever has it can end the client

    def ask() -> None:
        from confluent_kafka import KafkaError, KafkaException

        nobody = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN, "no broker takes part yet"))
        try:
            found = sorted(held.pop().list_topics(timeout=timeout_s).brokers)
        except KafkaException as error:
            answer.set_exception(nobody if error.args[0].code() == KafkaError._PARTIAL else error.with_traceback(None))
        except BaseException as error:
            answer.set_exception(error.with_traceback(None))
        else:
            answer.set_result(found) if found else answer.set_exception(nobody)

    threading.Thread(target=ask, name="outbox-brokers", daemon=True).start()
    return answer
