"""The idempotent producers of one lane: records in, their fate out, nothing decided about retries.

All calls come from one thread, except `silence`. Reports are gathered in lists that the owner takes; a record is
reported once. Which errors mean "this record can never be sent" says `core.faults`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from outbox.core.faults import Kind, is_rejection, kind_of
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.edges.kafka.common.disposal import dispose
from outbox.edges.kafka.common.wall_clock import nudged
from outbox.edges.postgres.at_least_once.marks import MarkedRow
from outbox.edges.postgres.common.texts import check_names, not_utf8
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


_ALONE = -1
# The broker refuses a batch as a whole for the sake of one record: each is asked for alone.
_ASKED_ALONE = frozenset({Kind.BATCH, Kind.BYSTANDER})
_DISPOSAL_S = 5.0


class Client(Protocol):
    """What is asked of a producer of confluent-kafka, and nothing else."""

    def produce(self, topic: str, value: Any, key: Any, *, headers: Any, on_delivery: Any) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self, timeout: float) -> int: ...

    def purge(self, *, blocking: bool) -> None: ...

    def __len__(self) -> int: ...


MakeProducer = Callable[[Mapping[str, Any]], Client]


class UnequalHeaders(ValueError):
    """The two header arrays of a row do not belong together."""


class _Shard:
    """One client. `broken`: it has failed for good and takes no more records."""

    __slots__ = ("broken", "outstanding", "producer")

    def __init__(self, producer: Client) -> None:
        self.producer, self.outstanding, self.broken = producer, 0, False

    def handed_over(self) -> None:
        self.outstanding += 1

    def reported(self) -> None:
        self.outstanding -= 1

    def fail(self) -> None:
        self.broken = True


class Producers:
    """The clients of one generation. Made when opened or first used, thrown away as a whole."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        *,
        delivery_timeout_s: float,
        keep_empty_key: bool = False,
        make: MakeProducer = idempotent_producer,
        may_send: Callable[[], bool] = lambda: True,
        runtime: Runtime = THREADS,
    ) -> None:
        """`may_send` is asked before a record is sent that was handed over earlier. It does not block."""
        self._runtime = runtime
        timeout_ms = int(delivery_timeout_s * 1000)
        self._properties = {
            "linger.ms": 2,
            # A topic just created may be unknown to a broker for a moment; after that it is refused, not waited for.
            "topic.metadata.propagation.max.ms": max(1, timeout_ms // 2),
            **properties,
            "delivery.timeout.ms": timeout_ms,
            "logger": ClientLog(shown_from=logging.CRITICAL),
            "error_cb": self._note,
        }
        self._keep_empty_key, self._make, self._may_send = keep_empty_key, make, may_send
        self._shards: dict[int, _Shard] = {}
        self._silent = self._dropped = False
        self.last_error = ""  # of a connection; says why records time out
        self.acknowledged: list[int] = []
        self.undelivered: list[tuple[int, str]] = []
        self.refused: list[tuple[int, str]] = []
        nudged(self)

    def clients(self) -> list[Any]:
        return [shard.producer for shard in list(self._shards.values())]

    @property
    def outstanding(self) -> int:
        return sum(shard.outstanding for shard in self._shards.values())

    def open(self, count: int) -> None:
        """Make clients before there are records: one that is given a record within its first 10 ms, before it knows a
        broker, asks for its producer id again only half a second later."""
        for number in range(count):
            self._shard(number)

    def send(self, number: int, rows: Sequence[MarkedRow]) -> None:
        """Hand `rows` to client `number`, in order; each is reported, also when it could not be handed over."""
        shard = self._shard(number)
        for index, row in enumerate(rows):
            if self._silent or shard.broken:
                self.undelivered += [(left.id, "The Kafka client accepts no more records.") for left in rows[index:]]
                return
            self._produce(number, shard, row)

    def _produce(self, number: int, shard: _Shard, row: MarkedRow) -> None:
        from confluent_kafka import KafkaException

        failure: KafkaError | None = None
        try:
            headers = pair_headers(row) if row.names or row.values else []
            key = row.kafka_key if row.kafka_key or self._keep_empty_key else None
            report = partial(self._report, number, shard, row)
            shard.producer.produce(row.kafka_topic, row.value, key, headers=headers, on_delivery=report)
        except BufferError as error:
            self.undelivered.append((row.id, str(error)))
        except KafkaException as error:
            failure = error.args[0]
        except UnicodeError as error:
            self.refused.append((row.id, not_utf8(*row[1:6]) or str(error)))
        except (UnequalHeaders, TypeError) as error:
            self.refused.append((row.id, str(error)))
        else:
            shard.handed_over()
        if failure is not None:
            self._fail(shard, row, failure, number=_ALONE)

    def poll(self) -> None:
        """Take in all reports that are there."""
        for shard in list(self._shards.values()):
            if shard.outstanding:
                shard.producer.poll(0)
        self._discard_broken()

    def wait(self, timeout_s: float) -> None:
        """Until a report is there. Meanwhile the client need not linger: nothing follows at the moment."""
        waiting = [shard for shard in self._shards.values() if shard.outstanding]
        if len(waiting) == 1 and waiting[0].outstanding == 1:
            waiting[0].producer.flush(timeout_s)
        elif waiting:
            waiting[0].producer.poll(timeout_s)

    def silence(self) -> None:
        """Nothing that is still here may go out. May be called from any thread; does not block."""
        self._silent = True
        for shard in list(self._shards.values()):
            shard.producer.purge(blocking=False)

    def drop(self) -> None:
        """Silence, and let go of the clients; nothing is reported any more."""
        self._dropped = True
        self.silence()
        shards, self._shards = self._shards, {}
        self.acknowledged, self.undelivered, self.refused = [], [], []
        for shard in shards.values():
            self._dispose(shard)

    def _shard(self, number: int) -> _Shard:
        shard = self._shards.get(number)
        if shard is None:
            alone = {"batch.num.messages": 1, "linger.ms": 0} if number == _ALONE else {}
            shard = self._shards[number] = _Shard(self._make({**self._properties, **alone}))
            if self._silent:
                shard.producer.purge(blocking=False)
        return shard

    # ---- reports

    def take_acknowledged(self) -> list[int]:
        """Those that were not taken before."""
        taken, self.acknowledged = self.acknowledged, []
        return taken

    def take_undelivered(self) -> list[tuple[int, str]]:
        taken, self.undelivered = self.undelivered, []
        return taken

    def take_refused(self) -> list[tuple[int, str]]:
        taken, self.refused = self.refused, []
        return taken

    def _note(self, error: KafkaError) -> None:
        self.last_error = f"{error.name()}: {error.str()}"

    def _report(self, number: int, shard: _Shard, row: MarkedRow, error: KafkaError | None, message: Any) -> None:
        shard.reported()
        if self._dropped:
            return
        if error is None:
            self.acknowledged.append(row[0])
        else:
            self._fail(shard, row, error, number=number)

    def _fail(self, shard: _Shard, row: MarkedRow, error: KafkaError, *, number: int) -> None:
        name, text = error.name(), f"{error.name()}: {error.str()}"
        if error.fatal() or name == "_FATAL":
            shard.fail()
        if kind_of(name) in _ASKED_ALONE and number != _ALONE:
            if self._silent or not self._may_send():
                self.undelivered.append((row.id, text))
            else:
                self._produce(_ALONE, self._shard(_ALONE), row)
        elif is_rejection(name):
            self.refused.append((row.id, text))
        else:
            self.undelivered.append((row.id, text))

    def _discard_broken(self) -> None:
        """A client that failed for good is replaced when all its records are reported."""
        for number, shard in list(self._shards.items()):
            if shard.broken:
                if shard.outstanding:
                    shard.producer.purge(blocking=False)
                else:
                    del self._shards[number]
                    self._dispose(shard)

    def _dispose(self, shard: _Shard) -> None:
        dispose([shard.producer], partial(_empty, runtime=self._runtime), self._runtime)


def pair_headers(row: MarkedRow) -> list[tuple[str, str | bytes | None]]:
    names, values = row.names or [], row.values or []
    if len(names) != len(values):
        raise UnequalHeaders(f"The record has {len(names)} header keys, but {len(values)} header values.")
    if not all(isinstance(text, str) for text in (*names, *values)):
        raise UnequalHeaders("A header key or value of the record is NULL or not a text.")
    check_names(names)
    return list(zip(names, values, strict=True))


def _empty(producer: Client, runtime: Runtime) -> None:
    """Never for longer than it takes to purge."""
    give_up_at = runtime.monotonic() + _DISPOSAL_S
    while len(producer) and runtime.monotonic() < give_up_at:
        producer.purge(blocking=False)
        producer.poll(0.05)
