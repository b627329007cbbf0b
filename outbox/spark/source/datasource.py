"""The DataSource `outbox`: the records of the table as a DataFrame, streaming or batch. `register()` adds it to Spark.

    spark.readStream.format("outbox").option("url", "postgresql://...").load()

Columns: id (bigint), create_time (timestamp), topic, key (string), value (binary; null is a tombstone), headers
(array<struct<key: string, value: binary>>). Options, all of them strings: those of `Options`, in camel case.

**Streaming** harvests: a micro-batch marks its records, and the offset names the mark. So the same offset gives the
same rows again. The source deletes them when Spark has finished the batch, also in a query that then idles. While a
full batch runs, the source deletes the one before and marks the next one. A table has one query; the last one started
wins. Spark uses this object in two places. In a process beside the driver, one per query, it marks, plans and purges;
in executors it reads. `OutboxStreamReader` says how the driver's side knows which batches Spark has finished. To stop
with no record left behind, call `stream.finish` before `query.stop()`.

**MarkedBatch** only reads the records that are in the table, marked or not, and changes nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from outbox.edges.postgres.common.session import BoundedConnection, close_quietly
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint
from outbox.spark.source import statements
from outbox.spark.source.arrow import Range, read
from outbox.spark.source.background import Beside
from outbox.spark.source.holds import Holding
from outbox.spark.source.options import Options
from outbox.spark.source.statements import CheckpointLost, Connection, MarkedBatch, QueryState, Stream

logger = logging.getLogger("outbox.spark")

SCHEMA = (
    "id bigint, create_time timestamp, topic string, key string, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_BEAT_S = 1.0
_OUTAGE_MAX_S = 120.0
_OUTAGE_PAUSE_S = 0.5
_GRACE_S = 5.0
_HELD_PAUSE_S, _HELD_SHARE = 1.0, 20.0  # before the next query of a table in which every record is held


def register(spark: SparkSession) -> None:
    """Add the format `outbox` to the session."""
    from outbox.spark.sessions import check_extra

    check_extra()
    spark.dataSource.register(OutboxSource)


class OutboxSource(DataSource):
    """The object that Spark makes for `format("outbox")`."""

    @classmethod
    def name(cls) -> str:
        return "outbox"

    def schema(self) -> str:
        Options.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return OutboxReader(Options.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OutboxStreamReader(Options.parse(self.options))


class OutboxReader(DataSourceReader):
    """Batch: reads and changes nothing."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        with statements.connect(self.options.url, self.options.statement_timeout) as connection:
            return [Range(*range_) for range_ in statements.ranges(connection, self.options.table, self.options.slices)]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return read(self.options, partition) if isinstance(partition, Range) else iter(())


class OutboxStreamReader(DataSourceStreamReader):
    """Streaming. Marked batches are numbered, and at most two are not purged. Spark has finished a batch

    - when it reports so by `commit()`, which it does only when it plans the next batch;
    - when it has asked this process for a batch's partitions and now asks for the latest offset: batches come one
      after the other, so that one has succeeded;
    - when its checkpoint holds a later one;
    - when the checkpoint held it at the start of this process, Spark never asked for its partitions, and Spark asks
      for the latest offset a second time. One question proves nothing: with the trigger `availableNow` Spark asks once
      before it repeats an unfinished batch, and never again.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        name = options.owner or f"spark {socket.gethostname()} {os.getpid()}"
        self.owner = f"{name} {uuid.uuid4().hex[:12]}"
        self._stream, self._holding = Stream(options.table), Holding(options.table)
        self._is_any_held = False
        self._mark_at = float("-inf")
        self._connection: BoundedConnection | None = None
        self._is_taken = False
        self._must_look = False
        """The outcome of a statement is unknown."""
        self._last = MarkedBatch(0)
        """The newest batch marked. Spark gets this one as the latest offset."""
        self._is_offered = False
        """Spark knows this batch and has not asked for its partitions."""
        self._unpurged: list[MarkedBatch] = []
        self._finished = -1
        """The number up to which Spark has finished."""
        self._running: MarkedBatch | None = None
        self._seen: MarkedBatch | None = None
        """The newest batch in the checkpoint when this process began."""
        self._asked = 0
        self._first: MarkedBatch | None = None
        self._beaten_at = self._up_at = float("-inf")
        self._cut: tuple[MarkedBatch, list[tuple[int, int, int]]] = (MarkedBatch(0), [])
        """A batch that was marked while another one ran, and where its slices begin."""
        self._beside = Beside()
        """The job that runs beside a batch. Every question of Spark waits for it: there is one connection."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    # ---- Spark's questions

    def initialOffset(self) -> dict[str, Any]:
        """The place before the first batch of a new checkpoint. Spark also asks for it when it repeats the first
        batch."""
        self._beside.wait()
        if self._first is None:
            self._persistently(self._begin_anew if self._seen is None else self._look)
            following = self._seen or (self._last if self._is_offered else None)
            self._first = MarkedBatch(following.number - 1) if following is not None else self._last
        return self._first.offset()

    def latestOffset(self) -> dict[str, Any]:
        self._beside.wait()
        if self._running is not None:
            self._finished, self._running = self._running.number, None
        elif self._seen is not None:
            self._asked += 1
            if self._asked > 1:
                self._finished = max(self._finished, self._seen.number)
        if not self._is_taken:
            self._persistently(self._advance)
        else:
            is_ahead = self._is_offered and self._cut[0] == self._last and not self._must_look
            self._once(self._beat if is_ahead else self._advance)
        return self._last.offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._beside.wait()
        if start == end:  # at a start: the newest batch of the checkpoint
            if self._seen is None and self._first is None:
                self._persistently(lambda connection: self._resume(connection, MarkedBatch.of(end)))
            return []
        batch = MarkedBatch.of(end)
        found: list[InputPartition] = self._persistently(lambda connection: self._plan(connection, batch))
        self._running = batch
        self._beside.begin(lambda: self._once(self._advance if self._is_full(batch) else self._purge))
        return found

    def _is_full(self, batch: MarkedBatch) -> bool:
        """Whether there is probably another batch, which the source may mark while this one runs."""
        return batch == self._last and batch.count >= self.options.max_records

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Range)
        return read(self.options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        # `_advance` purges it, at the latest while the batch that is being planned runs.
        self._finished = max(self._finished, MarkedBatch.of(end).number)

    def stop(self) -> None:
        with suppress(OutboxError, psycopg.Error):  # the table is almost empty
            self._beside.wait()
        if self._is_taken:
            self._once(lambda connection: self._stream.release(connection, self.owner))
        self._drop()

    # ---- what follows

    def _look(self, connection: Connection) -> QueryState:
        """Take the lease on the table once, and learn which records are marked."""
        table = self._stream
        state = table.state(connection) if self._is_taken else table.take(connection, self.owner)
        failpoint("after-take")
        if state.owner != self.owner:
            raise self._stream.fenced(self.owner)
        self._is_any_held = self._holding.look(connection)
        last = state.last
        self._last, self._is_taken, self._must_look = last, True, False
        # If Spark never asked for the partitions of a mark, nobody has read its records: offer it again.
        self._is_offered = not state.is_purged and not state.is_planned
        self._unpurged = [batch for batch in (state.prior, None if state.is_purged else last) if batch is not None]
        return state

    def _begin_anew(self, connection: Connection) -> None:
        """The checkpoint is new."""
        state = self._look(connection)
        unknown = state.prior or (None if state.is_purged or not state.is_planned else state.last)
        if unknown is None:
            return
        if not self.options.resend:
            raise CheckpointLost(
                f"The checkpoint is new, but {unknown.count} records of batch {unknown.number} (leader_id "
                f"{unknown.leader}) may be in Kafka already: a query with another checkpoint had planned them. Start "
                'with that checkpoint again. If it is lost, set the option resend="true" to send those records again.'
            )
        logger.warning("resent batch=%d leader_id=%s count=%d", unknown.number, unknown.leader, unknown.count)
        self._unpurged = [self._last] if self._is_offered else []

    def _resume(self, connection: Connection, seen: MarkedBatch) -> None:
        state = self._look(connection)
        is_next = seen.number == state.last.number - 1 and state.prior is None and not state.is_purged
        if is_next and state.is_planned and self.options.resend:
            logger.warning("resent batch=%d count=%d", state.last.number, state.last.count)
            self._is_offered = True
        if seen not in (state.last, state.prior) and not (is_next and self._is_offered):
            hint = ' If its query has delivered no record, set the option resend="true" to send it again.'
            raise CheckpointLost(
                f"The checkpoint is at batch {seen.number} (leader_id {seen.leader}), but the table is at batch "
                f"{state.last.number} (leader_id {state.last.leader}): one of them is an old copy, or belongs to "
                "another query. Restore the newest checkpoint and the database that belongs to it."
                + (hint if is_next else "")
            )
        if seen == state.last:
            self._is_offered = False
        self._seen, self._finished = seen, seen.number - 1

    def _advance(self, connection: Connection) -> None:
        if self._must_look or not self._is_taken:
            seen = self._seen
            self._look(connection)
            self._is_offered = self._is_offered and self._last != seen
        self._beat(connection)
        self._purge(connection)
        if not (self._is_offered or len(self._unpurged) > 1):
            self._mark(connection)

    def _beat(self, connection: Connection) -> None:
        if time.monotonic() - self._beaten_at > _BEAT_S:
            self._stream.beat(connection, self.owner)
            self._beaten_at = time.monotonic()
            self._is_any_held = self._holding.look(connection)
            if self._is_any_held:
                self._holding.settle(connection, self.owner)

    def _mark(self, connection: Connection) -> None:
        begun = time.monotonic()
        if self._is_any_held and begun < self._mark_at:
            return
        prior = self._unpurged[0] if self._unpurged else None
        found = self._stream.mark(
            connection, self.owner, self._last.number, uuid.uuid4(), self.options.max_records, prior,
            self.options.slices, is_any_held=self._is_any_held,
        )  # fmt: skip
        if found is not None:
            failpoint("after-mark")
            self._last, self._is_offered = found[0], True
            self._unpurged.append(found[0])
            if self._running is not None:  # no other process can have marked in between
                self._cut = found
        elif self._is_any_held:
            now = time.monotonic()
            self._mark_at = now + max(_HELD_PAUSE_S, _HELD_SHARE * (now - begun))

    def _plan(self, connection: Connection, batch: MarkedBatch) -> list[InputPartition]:
        if not self._is_taken:
            self._look(connection)
        self._stream.plan(connection, self.owner, batch)
        if batch == self._last:
            self._is_offered = False
        cut, starts = self._cut
        if cut != batch:
            starts = self._stream.starts(connection, batch, self.options.slices)
        return [Range(*found, batch.leader) for found in starts]

    def _purge(self, connection: Connection) -> None:
        for batch in [batch for batch in self._unpurged if batch.number <= self._finished]:
            failpoint("before-purge")
            gone = self._stream.purge(connection, self.owner, batch)
            self._unpurged.remove(batch)
            if gone is None and self._stream.state(connection).owner != self.owner:
                raise self._stream.fenced(self.owner)
            if gone is not None and gone != batch.count:
                logger.warning("not_purged batch=%d count=%d purged=%d", batch.number, batch.count, gone)
            failpoint("after-purge")

    # ---- the connection

    def _connected(self) -> BoundedConnection:
        if self._connection is None or self._connection.closed:
            self._connection = statements.connect(self.options.url, self.options.statement_timeout, own_session=True)
        self._connection.give_up_at = time.monotonic() + self.options.statement_timeout + _GRACE_S
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        close_quietly(connection)

    def _once(self, job: Callable[[Connection], Any]) -> None:
        """At the end the source gives up. Spark repeats the question."""
        try:
            job(self._connected())
        except statements.OUTAGES as error:
            self._give_way(error)
        else:
            self._up_at = time.monotonic()

    def _persistently(self, job: Callable[[Connection], Any]) -> Any:
        """Spark needs an answer."""
        self._up_at = max(self._up_at, time.monotonic())
        while True:
            try:
                return job(self._connected())
            except statements.OUTAGES as error:
                self._give_way(error)

    def _give_way(self, error: psycopg.Error) -> None:
        self._drop()
        self._must_look = True
        down_s = time.monotonic() - self._up_at
        if down_s > _OUTAGE_MAX_S:
            raise error
        logger.warning("database_unavailable seconds=%.0f error=%r", down_s, str(error))
        time.sleep(_OUTAGE_PAUSE_S)
