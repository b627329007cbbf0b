"""Slices of one epoch, written by an executor: fence, ledger, records, entry, commit.

Spark may run a task twice, end its input early when it kills it, and lose its result after the work is done. Therefore:
each slice has one stable transactional id, whose initialisation fences stragglers and speculative copies. The writer
reads the ledger after that. The transaction commits only when the writer has reached the slice's sentinel, which is
sorted last, and the entry is its last record. A producer stays in the Python worker: if it has committed the epoch
before, nobody else has written since (it would have been fenced), and neither fence nor ledger is needed again.

Any error of the client leaves the outcome unknown. The writer then starts the slice again, once: new producer, fence,
ledger, and the rows again if they are few enough to be in memory. After a second failure Spark repeats the task.

Everything here runs in executors. confluent-kafka is imported inside functions: its classes do not pickle.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outbox.core import faults
from outbox.edges.kafka.common.clients import let_go
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerUnreachable
from outbox.failpoints import failpoint
from outbox.spark.sink import producers, slice_ledger, sql_expressions
from outbox.spark.sink.plan import (
    CHECKSUM,
    PART,
    RecordUnfit,
    RejectedByKafka,
    SliceFailed,
    SlicePlan,
    Superseded,
    compare,
)

if TYPE_CHECKING:
    from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer

logger = logging.getLogger("outbox.spark")

_TOPICS_S = 10.0
_ROWS_AT_HAND_MAX = 200_000


def write(plan: SlicePlan, batches: Iterable[Any]) -> Iterator[Any]:
    """For `mapInArrow`: rows sorted by part and order, any number of whole slices; one row of counters for each."""
    import pyarrow as pa

    current: _Slice | None = None
    try:
        for part, rows in _runs(batches):
            slice_, is_sentinel = divmod(part, 2)
            if current is None or current.number != slice_:
                _refuse_unfinished(current)
                current = _Slice(plan, slice_)
            if not is_sentinel:
                current.take(rows)
                continue
            counters = current.finish()
            current = None
            yield pa.RecordBatch.from_pydict(counters, schema=_result_schema())
        _refuse_unfinished(current)
    except Exception as error:
        if current is not None and (refusal := current.refusal(error)) is not None:
            raise refusal from error
        raise
    finally:
        if current is not None:
            current.abandon()


def _refuse_unfinished(current: _Slice | None) -> None:
    if current is not None:
        raise SliceFailed(
            f"The input of slice {current.number} ended after {current.count} records without its sentinel: Spark "
            "killed the task, or gave it only a part of its rows. The sink committed none of them."
        )


def _runs(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Cut the batches where the part changes, with no Python step per row."""
    import pyarrow.compute as pc

    for batch in batches:
        start = 0
        if batch.num_rows:
            encoded = pc.run_end_encode(batch.column(PART))
            for part, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
                yield part, batch.slice(start, end - start)
                start = end


def _result_schema() -> Any:
    import pyarrow as pa

    numbers = [("slice", pa.int32()), ("count", pa.int64()), ("digest", pa.int64())]
    return pa.schema([*numbers, ("skipped", pa.bool_()), ("renewed", pa.bool_()), ("ended", pa.float64())])


class _Slice:
    """One slice that is being written. Its first row opens it, at the latest its sentinel."""

    def __init__(self, plan: SlicePlan, number: int) -> None:
        self.plan, self.number = plan, number
        self.count, self.digest = 0, 0
        self._ids = array("q")
        self._at_hand: list[Any] | None = []
        """All rows so far; None: they are too many, or the slice was started again already."""
        self._give_up_at = time.monotonic() + plan.transaction_timeout_s
        self._entry: slice_ledger.SliceEntry | None = None
        self._has_begun = self._is_renewed = False
        self._failed: list[_Failure] | None = None
        """Records that Kafka did not take. Collected only for a slice that is started again: it costs time."""
        self._held = producers.take(plan, number) or self._open()

    def _open(self) -> producers.HeldProducer:
        producer = producers.initialise(self.plan, self.number, self._give_up_at)
        self._is_renewed = True
        failpoint("after-init")
        try:
            self._entry = self._look_up()
        except BaseException:
            producer.drop_and_wait()
            raise
        return producers.HeldProducer(producer, self.plan)

    def _look_up(self) -> slice_ledger.SliceEntry | None:
        """The entry, if this slice is delivered. Raises if the ledger is at another epoch than the plan says."""
        plan, number = self.plan, self.number
        topic = producers.ledger_of(plan.properties, plan.ledger)
        last: slice_ledger.SliceEntry | None = topic.last_entry(number, self._give_up_at)
        now = (plan.name, plan.query, plan.epoch, plan.slices)
        if last is not None and (last.name, last.query, last.epoch, last.slices) == now:
            return last
        if (last and last.epoch) != plan.last.get(number) or (last and last.query != plan.query):
            raise Superseded(
                f"The last ledger entry of slice {number} of epoch {plan.epoch} of the Spark sink {plan.name!r} is "
                f"{_shown(last)}, but epoch {plan.last.get(number)} of query {plan.query} was expected. Another "
                "driver has continued, and this one must stop."
            )
        return None

    # ---- rows

    def take(self, rows: Any) -> None:
        """Send rows, in order. The rows of a delivered slice are only counted, to compare them with its entry."""
        import pyarrow.compute as pc

        self.count += rows.num_rows
        self.digest += pc.sum(rows.column(CHECKSUM)).as_py() or 0
        if self._at_hand is not None:
            self._at_hand = [*self._at_hand, rows] if self.count <= _ROWS_AT_HAND_MAX else None
        try:
            self._send(rows)
        except Exception as error:
            self._begin_again(error)

    def _send(self, rows: Any) -> None:
        import pyarrow.compute as pc

        if self._entry is not None:
            return
        if self.plan.has_ids:
            if rows.column("id").null_count:
                raise RecordUnfit("A record has no id: the column id is null. Correct or filter it in the query.")
            self._ids.extend(rows.column("id").to_pylist())
        self._check_topics(pc.unique(rows.column("topic")).to_pylist())
        self._begin()
        _produce(self._held.producer, rows, self.plan, self._give_up_at, self._failed)

    def _check_topics(self, topics: list[str | None]) -> None:
        """An unknown topic inside a transaction would stall it."""
        new = {topic for topic in topics if topic not in self._held.topics}
        if None in new:
            raise RecordUnfit("A record has no topic: the column topic is null. Correct or filter it in the query.")
        if new and (missing := self._held.producer.unknown_topics(filter(None, new), _TOPICS_S)):
            shown = ", ".join(f"{topic!r} ({why})" for topic, why in sorted(missing.items()))
            raise SliceFailed(f"The records need topics that Kafka does not have: {shown}. Create these topics.")
        self._held.topics.update(topic for topic in new if topic)

    def _begin(self) -> None:
        if not self._has_begun:
            self._held.producer.begin()
            self._has_begun = True

    def _begin_again(self, error: Exception) -> None:
        """After any error of the client only the ledger can say whether the transaction was committed."""
        rows = self._at_hand
        if rows is None or not _is_of_kafka(error):
            raise error
        let_go(error)  # the error keeps references to the client, which is used below
        logger.warning("slice_restarted slice=%d epoch=%d error=%r", self.number, self.plan.epoch, str(error))
        self._at_hand, self._has_begun, self._ids, self._failed = None, False, array("q"), []
        self._held.producer.drop_and_wait()
        self._give_up_at = time.monotonic() + self.plan.transaction_timeout_s
        self._held = self._open()
        for part in rows:
            self._send(part)

    # ---- the end

    def finish(self) -> dict[str, list[Any]]:
        """The sentinel was reached: the slice is complete."""
        try:
            self._commit()
        except Exception as error:
            self._begin_again(error)
            self._commit()
        producers.keep(self.plan, self.number, self._held)
        return {
            "slice": [self.number],
            "count": [self.count],
            "digest": [self.digest],
            "skipped": [self._entry is not None],
            "renewed": [self._is_renewed],
            "ended": [time.time()],
        }

    def _commit(self) -> None:
        plan, producer = self.plan, self._held.producer
        if self._entry is not None:
            compare(plan, self.number, (self._entry.count, self._entry.digest), (self.count, self.digest))
            return
        self._begin()
        producer.wait_reports(lambda: time.monotonic() > self._give_up_at)
        producer.send_entry(
            plan.ledger, self.number, slice_ledger.entry_key(self.number), slice_ledger.encode(self._new_entry())
        )
        failpoint("before-commit")
        producer.commit(max(1.0, self._give_up_at - time.monotonic()))
        failpoint("after-commit")

    def _new_entry(self) -> slice_ledger.SliceEntry:
        plan = self.plan
        return slice_ledger.SliceEntry(
            name=plan.name,
            query=plan.query,
            epoch=plan.epoch,
            slice=self.number,
            slices=plan.slices,
            slices_before=plan.slices_before,
            count=self.count,
            digest=self.digest,
            ids=tuple(self._ids),
            origin=plan.origin,
            order=plan.order,
        )

    def refusal(self, error: Exception) -> RejectedByKafka | None:
        """A text for `error` if Kafka rejects a record as it is; else None."""
        from outbox.edges.kafka.exactly_once.transactional import kafka_error

        if not _is_of_kafka(error):
            return None
        let_go(error)  # the error keeps references to the client, which is asked below
        names = [failure.code for failure in self._failed or ()]
        names += [found.name() for found in (self._held.producer.cause(), kafka_error(error)) if found is not None]
        code = next((name for name in names if faults.KINDS.get(name) in faults.REJECTIONS), None)
        if code is None:
            return None
        # Kafka rejects whole requests, with innocent records in them: the largest is the likeliest cause.
        failed = [failure for failure in self._failed or () if failure.code == code]
        cause = max(failed, key=lambda failure: failure.size, default=None)
        others = f", the largest of {len(failed)} that were rejected together," if len(failed) > 1 else ""
        what = f"the record {cause.shown}{others}" if cause else f"a record of slice {self.number}"
        happened, remedy = faults.in_plain_words(code)
        return RejectedByKafka(
            f"Kafka rejects {what} in epoch {self.plan.epoch}: {code}, {happened}. To continue, {remedy}; or filter "
            "the record out in the transformation. Until then the query repeats this epoch. No record is lost."
        )

    def abandon(self) -> None:
        """The next attempt fences this producer, which ends its open transaction."""
        self._held.producer.drop_and_wait()


def _is_of_kafka(error: Exception) -> bool:
    from outbox.edges.kafka.exactly_once.transactional import ReportsMissing, kafka_error

    return kafka_error(error) is not None or isinstance(error, ReportsMissing | LedgerUnreachable)


def _shown(entry: slice_ledger.SliceEntry | None) -> str:
    return f"epoch {entry.epoch} of query {entry.query}" if entry is not None else "none"


@dataclass(frozen=True, slots=True)
class _Failure:
    code: str
    shown: str
    size: int


def _reporting(failed: list[_Failure], id_: int | None, topic: str, size: int) -> Callable[[Any, Any], None]:
    shown = f"{f'with id {id_} ' if id_ is not None else ''}for topic {topic!r} ({size:,} bytes)"

    def report(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(_Failure(error.name(), shown, size))

    return report


def _produce(
    producer: TransactionalProducer, rows: Any, plan: SlicePlan, give_up_at: float, failed: list[_Failure] | None = None
) -> None:
    """Arguments are positional: by name each call costs half as much again."""
    from outbox.edges.kafka.exactly_once.transactional import kafka_error

    produce = producer.client.produce
    header, keep = plan.id_header, plan.keep_empty_key
    for id_, topic, key, value, headers in _python_rows(rows, plan):
        if header and id_ is not None:
            headers = [*headers, (header, b"%d" % id_)] if headers else [(header, b"%d" % id_)]
        report = _reporting(failed, id_, topic, len(value or b"") + len(key or "")) if failed is not None else None
        record = (topic, value, key if key or keep else None, -1, report, None, 0, headers)
        is_full = False
        try:
            produce(*record)
        except BufferError:
            is_full = True
        except Exception as error:
            if report is not None:
                report(kafka_error(error), None)
            raise
        if is_full:
            _produce_when_there_is_room(producer, record, give_up_at)


def _python_rows(rows: Any, plan: SlicePlan) -> Iterator[tuple[Any, ...]]:
    ids = rows.column("id").to_pylist() if plan.has_ids else [None] * rows.num_rows
    headers = _headers(rows.column("headers")) if "headers" in rows.schema.names else [None] * rows.num_rows
    topics, keys, values = (rows.column(name).to_pylist() for name in ("topic", "key", "value"))
    return zip(ids, topics, keys, values, headers, strict=True)


def _headers(column: Any) -> list[list[tuple[str, bytes | None]] | None]:
    """The headers, from the text that `sql_expressions.HEADERS` has made."""
    if column.null_count == len(column):
        return [None] * len(column)
    return [None if text is None else list(map(_header, text.split())) for text in column.to_pylist()]


def _header(text: str) -> tuple[str, bytes | None]:
    name, _, value = text.partition("=")
    if name == sql_expressions.NULL:
        raise SliceFailed("A record has a header without a name: its key is null. Correct or filter it in the query.")
    return bytes.fromhex(name).decode(), None if value == sql_expressions.NULL else bytes.fromhex(value)


def _produce_when_there_is_room(producer: TransactionalProducer, record: tuple[Any, ...], give_up_at: float) -> None:
    while True:
        if time.monotonic() > give_up_at:
            raise SliceFailed("The Kafka client's queue stayed full: the brokers take no records.")
        producer.client.poll(0.05)
        try:
            producer.client.produce(*record)
        except BufferError:
            continue
        return
