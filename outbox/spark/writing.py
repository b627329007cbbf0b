"""One slice of one epoch, written by an executor: fence, ledger, records, entry, commit.

Spark may run a task twice, end its input early when it kills it, and lose its result after it has done its work. So:
each slice has one stable transactional id, whose initialisation fences stragglers and speculative copies; the ledger is
read after that; the transaction commits only when the slice's sentinel was reached, which is sorted last; and the entry
is its last record. A producer lives on in the Python worker: if it has committed the epoch before, nobody else has
written since (it would have been fenced), and neither fence nor ledger is needed again.

Everything here runs in executors. confluent-kafka is imported inside functions: its classes do not pickle.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox.edges.kafka import require_bootstrap
from outbox.edges.ledger_topic import LedgerTopic
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint
from outbox.spark import entries

if TYPE_CHECKING:
    from outbox.edges.transactions import TransactionalProducer

PART, CHECKSUM = "_part", "_checksum"
"""Columns that the sink adds: 2 × slice, plus 1 on the slice's sentinel; the record's checksum."""
RESULT = "slice int, count bigint, digest bigint, skipped boolean, renewed boolean"
_ENTRY_BYTES_MAX = 16_000_000
_TOPICS_S = 10.0


class SliceFailed(OutboxError):
    """The slice was not delivered; nothing of it is visible. Another attempt may succeed."""


class Superseded(SliceFailed):
    """Somebody else is at work on this slice."""


@dataclass(frozen=True)
class Plan:
    """What an executor must know to write slices of one epoch. Pickles."""

    name: str
    query: str
    epoch: int
    slices: int
    slices_before: int
    ledger: str
    properties: Mapping[str, Any]
    last: Mapping[int, int]
    """Slice → the epoch that its last entry must have; absent: it must have none."""
    done: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Slice → (count, digest): delivered before the driver started."""
    transaction_timeout_s: float = 60.0
    id_header: str = ""
    keep_empty_key: bool = False
    has_ids: bool = False
    origin: str = ""

    def transactional_id(self, slice_: int) -> str:
        return f"outbox-spark-{self.name}-{slice_}"

    def write(self, batches: Iterable[Any]) -> Iterable[Any]:
        """For `mapInArrow`: rows sorted by part and order, any number of whole slices; one row of counters for each."""
        import pyarrow as pa

        current: _Slice | None = None
        try:
            for part, rows in _runs(batches):
                slice_, is_sentinel = divmod(part, 2)
                if current is None or current.number != slice_:
                    _refuse_unfinished(current)
                    current = _Slice(self, slice_)
                if not is_sentinel:
                    current.take(rows)
                    continue
                counters = current.finish()
                current = None
                yield pa.RecordBatch.from_pydict(counters, schema=_result_schema())
            _refuse_unfinished(current)
        finally:
            if current is not None:
                current.abandon()


def _refuse_unfinished(current: _Slice | None) -> None:
    if current is not None:
        raise SliceFailed(
            f"The input of slice {current.number} ended after {current.count} records without its sentinel: the task "
            "was killed, or Spark gave it half of its rows. Nothing of it was committed."
        )


def _runs(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Cut the batches where the part changes; without a Python step per row."""
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
    return pa.schema([*numbers, ("skipped", pa.bool_()), ("renewed", pa.bool_())])


# ---- producers that live as long as the Python worker


@dataclass
class _Held:
    producer: TransactionalProducer
    plan: Plan
    topics: set[str] = field(default_factory=set)

    def fits(self, plan: Plan) -> bool:
        """Whether it has committed the epoch before this one, of this query, and nothing casts doubt on it."""
        before = self.plan
        self.producer.poll()
        return (
            (before.query, before.epoch, before.ledger, before.properties, before.transaction_timeout_s)
            == (plan.query, plan.epoch - 1, plan.ledger, plan.properties, plan.transaction_timeout_s)
        ) and not self.producer.trouble


_held: dict[str, _Held] = {}
_ledgers: dict[tuple[str, str], SliceLedger] = {}


class SliceLedger(LedgerTopic):
    """The ledger topic of a sink: one partition per slice."""

    decode = staticmethod(entries.decode)
    topic_config: Mapping[str, str] = {"max.message.bytes": str(_ENTRY_BYTES_MAX)}

    def prepare_slices(self, slices: int, audit_window_s: float) -> int:
        """Create the topic if it is absent, give it more partitions if it has too few; how many it has."""
        self.grow(self.name, slices)
        self.prepare(slices, audit_window_s)
        return self.partitions()


def ledger_of(properties: Mapping[str, Any], name: str) -> SliceLedger:
    """One per process: its clients are kept."""
    require_bootstrap(properties)
    key = (repr(sorted(properties.items())), name)
    if key not in _ledgers:
        _ledgers[key] = SliceLedger(properties, name)
    return _ledgers[key]


def initialise(plan: Plan, slice_: int, give_up_at: float) -> TransactionalProducer:
    """A producer that has fenced every older one of the slice."""
    from outbox.edges.transactions import TransactionalProducer, initialised, properties_of

    name = plan.transactional_id(slice_)
    properties = {
        "message.max.bytes": _ENTRY_BYTES_MAX,  # of the client; what a record may have is the topic's to say
        **properties_of(plan.properties, name, transaction_timeout_s=plan.transaction_timeout_s),
    }
    found = initialised(lambda: TransactionalProducer(properties), name, give_up_at, lambda: True)
    assert found is not None
    return found


class _Slice:
    """One slice being written: opened by its first row, at the latest by its sentinel."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.count, self.digest = 0, 0
        self._ids = array("q")
        self._give_up_at = time.monotonic() + plan.transaction_timeout_s
        self._entry: entries.Entry | None = None
        self._has_begun = self._is_renewed = False
        self._held = self._open()

    def _open(self) -> _Held:
        name = self.plan.transactional_id(self.number)
        held = _held.pop(name, None)
        if held is not None:
            if held.fits(self.plan):
                return held
            held.producer.drop_and_wait()
        producer = initialise(self.plan, self.number, self._give_up_at)
        self._is_renewed = True
        failpoint("after-init")
        try:
            self._entry = self._look_up()
        except BaseException:
            producer.drop_and_wait()
            raise
        return _Held(producer, self.plan)

    def _look_up(self) -> entries.Entry | None:
        """The entry, if this slice is delivered; raises if the ledger is not where it must be."""
        plan, number = self.plan, self.number
        last: entries.Entry | None = ledger_of(plan.properties, plan.ledger).last_entry(number, self._give_up_at)
        if last is not None and (last.name, last.query, last.epoch, last.slices) == (
            plan.name, plan.query, plan.epoch, plan.slices,
        ):  # fmt: skip
            return last
        if (last and last.epoch) != plan.last.get(number) or (last and last.query != plan.query):
            raise Superseded(
                f"Slice {number} of epoch {plan.epoch} of the Spark sink {plan.name!r}: its last ledger entry is "
                f"{_shown(last)}, expected was epoch {plan.last.get(number)} of query {plan.query}. Another driver "
                "has gone on; this one must stop."
            )
        return None

    def take(self, rows: Any) -> None:
        """Send rows, in order. A slice that is delivered is only counted, to compare it with its entry."""
        import pyarrow.compute as pc

        self.count += rows.num_rows
        self.digest += pc.sum(rows.column(CHECKSUM)).as_py() or 0
        if self._entry is not None:
            return
        if self.plan.has_ids:
            self._ids.extend(rows.column("id").to_pylist())
        self._check_topics(pc.unique(rows.column("topic")).to_pylist())
        self._begin()
        _produce(self._held.producer, rows, self.plan, self._give_up_at)

    def _check_topics(self, topics: list[str | None]) -> None:
        """An unknown topic inside a transaction would stall it."""
        new = {topic for topic in topics if topic not in self._held.topics}
        if None in new:
            raise SliceFailed("A record has no topic (the column topic is null).")
        if new and (missing := self._held.producer.unknown_topics(filter(None, new), _TOPICS_S)):
            shown = ", ".join(f"{topic!r} ({why})" for topic, why in sorted(missing.items()))
            raise SliceFailed(f"Records go to topics that the brokers do not have: {shown}. Create them.")
        self._held.topics |= {topic for topic in new if topic}

    def _begin(self) -> None:
        if not self._has_begun:
            self._held.producer.begin()
            self._has_begun = True

    def finish(self) -> dict[str, list[Any]]:
        """The sentinel was reached: the slice is complete."""
        if self._entry is not None:
            delivered = (self._entry.count, self._entry.digest)
            compare(self.plan, self.number, delivered, (self.count, self.digest))
        else:
            self._commit()
        skipped = self._entry is not None
        self._keep()
        return {
            "slice": [self.number],
            "count": [self.count],
            "digest": [self.digest],
            "skipped": [skipped],
            "renewed": [self._is_renewed],
        }

    def _commit(self) -> None:
        plan, producer = self.plan, self._held.producer
        self._begin()
        producer.wait_reports(lambda: time.monotonic() > self._give_up_at)
        producer.send_entry(plan.ledger, self.number, entries.entry_key(self.number), entries.encode(self._new_entry()))
        failpoint("before-commit")
        producer.commit(max(1.0, self._give_up_at - time.monotonic()))
        failpoint("after-commit")

    def _new_entry(self) -> entries.Entry:
        plan = self.plan
        return entries.Entry(
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
        )

    def _keep(self) -> None:
        self._held.producer.poll()
        if self._held.producer.trouble:
            self._held.producer.drop_and_wait()
        else:
            _held[self.plan.transactional_id(self.number)] = _Held(self._held.producer, self.plan, self._held.topics)

    def abandon(self) -> None:
        """Whatever is open ends when the next attempt fences it."""
        self._held.producer.drop_and_wait()


def compare(plan: Plan, slice_: int, delivered: tuple[int, int], now: tuple[int, int]) -> None:
    if delivered != now:
        raise entries.ReplayDiffers(
            f"Epoch {plan.epoch} of the Spark sink {plan.name!r} was computed again, and slice {slice_} has other "
            f"records than those delivered: {now[0]} (digest {now[1]}) instead of {delivered[0]} (digest "
            f"{delivered[1]}). The query must give the same result for the same input: no rand(), now(), uuid() or "
            "unordered limit, and the source must still hold its data. Nothing of it was sent again."
        )


def _shown(entry: entries.Entry | None) -> str:
    return f"epoch {entry.epoch} of query {entry.query}" if entry is not None else "none"


def _produce(producer: TransactionalProducer, rows: Any, plan: Plan, give_up_at: float) -> None:
    produce = producer.client.produce
    header, keep = plan.id_header, plan.keep_empty_key
    for id_, topic, key, value, headers in _python_rows(rows, plan):
        if not key and not keep:
            key = None
        if header and id_ is not None:
            headers = [*(headers or ()), (header, str(id_))]
        try:
            produce(topic, value, key, headers=headers)
        except BufferError:
            _produce_when_there_is_room(
                producer, {"topic": topic, "value": value, "key": key, "headers": headers}, give_up_at
            )


def _python_rows(rows: Any, plan: Plan) -> Iterator[tuple[Any, ...]]:
    ids = rows.column("id").to_pylist() if plan.has_ids else [None] * rows.num_rows
    headers: list[Any] = [None] * rows.num_rows
    if "headers" in rows.schema.names and rows.column("headers").null_count < rows.num_rows:
        headers = [found and [(pair["key"], pair["value"]) for pair in found] for found in _lists(rows)]
    topics, keys, values = (rows.column(name).to_pylist() for name in ("topic", "key", "value"))
    return zip(ids, topics, keys, values, headers, strict=True)


def _lists(rows: Any) -> list[Any]:
    found: list[Any] = rows.column("headers").to_pylist()
    return found


def _produce_when_there_is_room(producer: TransactionalProducer, record: dict[str, Any], give_up_at: float) -> None:
    while True:
        if time.monotonic() > give_up_at:
            raise SliceFailed("The client's queue stayed full: the brokers take no records.")
        producer.client.poll(0.05)
        try:
            producer.client.produce(**record)
        except BufferError:
            continue
        return
