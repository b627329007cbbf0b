"""`python -m outbox.spark.engine.driver`: the process that drives Spark while its harvester leads.

The harvester writes commands to its standard input, first the job. The driver reports events as JSON lines on what was
its standard output. It ends at once when the input ends: the harvester is gone, and another one may lead. The next
driver completes from the checkpoint any batch that this one left open.

    <- the job                      -> {"event": "ready", "ui": ...}      the JVM runs, no record was taken
    <- go                           -> {"event": "epoch", ...}            once per micro-batch that is in Kafka
                                    -> {"event": "log", ...}, {"event": "retry", ...}, {"event": "holds", ...}
    <- finish                       -> {"event": "finished"}              and ends with 0
                                    -> {"event": "failed", "kind": ..., "text": ...}   and ends with 1
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outbox.core.patience import Backoff
from outbox.exceptions import OutboxError
from outbox.failpoints import failpoint
from outbox.spark.engine.failure_kinds import FailureKind, Trouble, judge
from outbox.spark.engine.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from outbox.spark.sink.kafka_sink import KafkaSink

_TRIGGER = "100 milliseconds"  # an idle query asks the table ten times a second
_POLL_S = 0.1
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.5, 10.0
_FAILURES_MAX = 5  # failures of an unknown kind, one after the other
_TAKEN_WITHIN_S = 30.0
_RENEWED_S = 120.0
_STATEMENT_S = 10.0
_HOLDS_S = 2.0
_DEFAULTS = {
    "spark.log.level": "ERROR",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.shuffle.partitions": "4",
}


class Channel:
    """Lines from and to the harvester."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # a transformation may print: that goes to the log
        self._mutex = threading.Lock()
        self.going, self.finishing = threading.Event(), threading.Event()
        self.job = Job.decode(sys.stdin.readline())
        threading.Thread(target=self._listen, name="outbox-spark-listener", daemon=True).start()

    def say(self, event: str, **given: Any) -> None:
        with self._mutex:
            self._out.write(json.dumps({"event": event, **given}) + "\n")

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                self.going.set()
            elif line.strip() == "finish":
                self.finishing.set()
        _die()


def _die() -> None:
    """The harvester is gone. Kill Spark first: it would run on for a moment without its Python."""
    module = sys.modules.get("pyspark")
    gateway: Any = getattr(getattr(module, "SparkContext", None), "_gateway", None)
    with contextlib.suppress(Exception):
        gateway.proc.kill()
    os._exit(1)


class Forwarding(logging.Handler):
    """Sends log records to the harvester, whose settings decide which of them appear."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.say("log", name=record.name, level=record.levelno, text=record.getMessage())


class Driver:
    def __init__(self, job: Job, channel: Channel, session: Callable[[Job], SparkSession] | None = None) -> None:
        """Without `session` the driver starts one, and stops it at the end."""
        self.job, self._channel = job, channel
        self._given = session
        self._delivered = 0
        self._failures = 0
        self._away: tuple[float, float] | None = None
        """When the first and the last outage was seen since a batch was delivered."""
        self._has_taken = False
        self._told: tuple[Sequence[str], bool] = ([], False)
        """The holds, and whether all other records are delivered."""
        self._look_at = 0.0
        self._backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S, lambda: 0.5)

    def run(self) -> None:
        transform = resolve(self.job.transform)
        spark = self._given(self.job) if self._given else _session(self.job)
        try:
            self._channel.say("ready", ui=spark.sparkContext.uiWebUrl or "")
            while not (self._channel.going.wait(_POLL_S) or self._channel.finishing.is_set()):
                pass
            while not self._channel.finishing.is_set():
                self._query_once(spark, transform)
            self._channel.say("finished")
        finally:
            if self._given is None:
                spark.stop()

    # ---- one query, until it fails or is finished

    def _query_once(self, spark: SparkSession, transform: Callable[[DataFrame], DataFrame]) -> None:
        if not (self._has_taken or self._fits(spark)):
            return
        try:
            query = self._start(spark, transform)
        except OutboxError:
            raise
        except Exception as error:  # Spark analyses the transformation here
            raise QueryRefused(f"Spark cannot start the query: {type(error).__name__}: {_first_line(error)}") from error
        while query.isActive and not self._channel.finishing.is_set():
            self._channel.finishing.wait(_POLL_S)
            self._tell_holds(query)
        if self._channel.finishing.is_set() and query.isActive:
            self._finish(query)
            query.stop()
            return
        reason = query.exception()
        self._consider(
            judge(str(reason))
            if reason is not None
            else Trouble(FailureKind.UNKNOWN, "Spark ended the query without an error")
        )

    def _fits(self, spark: SparkSession) -> bool:
        """Whether a new checkpoint may begin. False: a server is unavailable, and the driver has waited a while."""
        try:
            if _is_new(spark, self.job.checkpoint):
                self._sink().refuse_new_query()
        except Exception as error:
            self._consider(judge(f"{type(error).__name__}: {error}"))
            return False
        return True

    def _start(self, spark: SparkSession, transform: Callable[[DataFrame], DataFrame]) -> StreamingQuery:
        job = self.job
        records = (
            spark.readStream.format("outbox")
            .options(url=job.url, table=job.table, slices=str(job.slices), maxRecords=str(job.max_records))
            .options(resend=str(job.resend and not self._delivered).lower(), owner=job.owner)
            .load()
        )
        writer = transform(records).writeStream.foreachBatch(self._telling(self._sink()))
        return (
            writer.option("checkpointLocation", job.checkpoint)
            .trigger(processingTime=_TRIGGER)
            .queryName(f"outbox {job.name}")
            .start()
        )

    def _sink(self) -> KafkaSink:
        from outbox.spark.sink.kafka_sink import KafkaSink

        job = self.job
        return KafkaSink(
            job.name,
            slices=job.slices,
            properties=job.properties,
            transaction_timeout_s=job.transaction_timeout_s,
            ledger_retention_s=job.ledger_retention_s,
            id_header=job.id_header,
            keep_empty_key=job.keep_empty_key,
            origin=job.origin,
        )

    def _telling(self, sink: KafkaSink) -> Callable[[DataFrame, int], None]:
        def deliver(frame: DataFrame, epoch: int) -> None:
            self._has_taken = True
            failpoint("epoch-begun")
            sink(frame, epoch)
            failpoint("epoch-delivered")
            written = sink.last_written
            assert written is not None
            self._delivered += written.count
            self._failures, self._away = 0, None
            self._backoff.worked()
            self._channel.say(
                "epoch", epoch=epoch, count=written.count, skipped=written.skipped, seconds=round(written.seconds, 3)
            )

        return deliver

    def _tell_holds(self, query: StreamingQuery) -> None:
        """Report the holds when they have changed, and whether the query idles beside them. Before it idles, records
        without a hold may still be on their way."""
        from outbox.spark.source import holds, statements

        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _HOLDS_S
        try:
            with contextlib.closing(statements.connect(self.job.url, _STATEMENT_S)) as connection:
                scopes = holds.Holding(self.job.table).scopes(connection)
                is_idle = bool(scopes) and _is_waiting(query) and statements.Stream(self.job.table).is_idle(connection)
        except (*statements.OUTAGES, OutboxError):
            return
        if (scopes, is_idle) != self._told:
            self._told = scopes, is_idle
            held_keys, shown = holds.rejected(scopes), holds.shown(scopes)
            self._channel.say("holds", count=len(scopes), held_keys=held_keys, shown=shown, is_idle=is_idle)

    def _finish(self, query: StreamingQuery) -> None:
        """Let the current batch end and be purged. The next driver completes a batch that cannot end."""
        from outbox.spark.source import statements

        table, give_up_at = statements.Stream(self.job.table), time.monotonic() + _TAKEN_WITHIN_S
        try:
            with contextlib.closing(statements.connect(self.job.url, _STATEMENT_S)) as connection:
                # A new query may be about to take the table and to mark its first batch.
                while not table.pause(connection, self.job.owner):
                    if not query.isActive or time.monotonic() > give_up_at:
                        return
                    time.sleep(_POLL_S)
                while query.isActive and not table.is_idle(connection):
                    time.sleep(_POLL_S)
        except statements.OUTAGES as error:
            self._channel.say(
                "retry", text=f"The driver leaves the batch unfinished: {' '.join(str(error).split())}", pause_s=0
            )

    def _consider(self, trouble: Trouble) -> None:
        if self._is_superseded():
            raise QueryRefused(f"Another driver has taken over the outbox table. {trouble.text}", FailureKind.FENCED)
        if trouble.kind in (FailureKind.REFUSED, FailureKind.FENCED):
            raise QueryRefused(trouble.text, trouble.kind)
        self._failures += trouble.kind is FailureKind.UNKNOWN
        if self._failures >= _FAILURES_MAX:
            raise QueryRefused(f"The query failed {self._failures} times and delivered no batch: {trouble.text}")
        if self._is_outage_long():
            raise QueryRefused(f"The driver restarts to read its secrets again: {trouble.text}", FailureKind.OUTAGE)
        pause_s = self._backoff.failed()
        self._told = self._told[0], False
        self._channel.say("retry", text=trouble.text, pause_s=round(pause_s, 1))
        self._channel.finishing.wait(pause_s)

    def _is_outage_long(self) -> bool:
        """A driver keeps the secrets that it got at its start. During a long outage somebody may have changed them."""
        begun, last = self._away or (0.0, float("-inf"))
        now = time.monotonic()
        self._away = (begun if now - last < _RENEWED_S else now, now)
        return now - self._away[0] >= _RENEWED_S

    def _is_superseded(self) -> bool:
        """Whether another driver has taken the table from this one. After a pause this driver may meet any error in
        the checkpoint, the ledger or the table. In each case it must not take the table again."""
        from outbox.spark.source import statements

        try:
            with contextlib.closing(statements.connect(self.job.url, _STATEMENT_S)) as connection:
                is_own = statements.Stream(self.job.table).state(connection).owner.startswith(self.job.owner)
        except (*statements.OUTAGES, OutboxError):
            return False
        self._has_taken = self._has_taken or is_own
        return self._has_taken and not is_own


def _session(job: Job) -> SparkSession:
    from outbox.spark import sessions
    from outbox.spark.source import datasource

    config = {**_DEFAULTS, **job.config}
    spark = sessions.session(f"outbox {job.name}", job.master, config, kafka=job.connector)
    datasource.register(spark)
    return spark


def _is_new(spark: SparkSession, place: str) -> bool:
    """Whether a checkpoint knows no query. Spark's own file system gives the answer."""
    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return not files.exists(jvm.org.apache.hadoop.fs.Path(path, "metadata"))


def _is_waiting(query: StreamingQuery) -> bool:
    """Whether the last trigger found no record. False before the first one."""
    status = query.status
    return not status["isDataAvailable"] and status["message"].startswith("Waiting for")


class QueryRefused(OutboxError):
    """Another attempt cannot help."""

    def __init__(self, text: str, kind: FailureKind = FailureKind.REFUSED) -> None:
        super().__init__(text)
        self.kind = kind


def resolve(path: str) -> Callable[[Any], Any]:
    """The function that a dotted path names. For an empty path, a function that changes nothing."""
    if not path:
        return lambda frame: frame
    from importlib import import_module

    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OutboxError(
            f"Python cannot import the transformation {path!r}: {error}. Give the dotted path of a function that "
            "takes a DataFrame and returns one, for instance shop.pipeline.large_orders."
        ) from error
    if not callable(found):
        raise OutboxError(
            f"The transformation {path!r} is {type(found).__name__}. Give the dotted path of a function of a DataFrame."
        )
    return found  # type: ignore[no-any-return]


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")


def _set_up_django() -> None:
    """A transformation may use the project's settings and models."""
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        import django

        django.setup()


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the harvester gets these signals too, and sends the command
    channel = Channel()
    logger = logging.getLogger("outbox")
    logger.addHandler(Forwarding(channel))
    logger.propagate = False
    try:
        _set_up_django()
        Driver(channel.job, channel).run()
    except QueryRefused as refused:
        channel.say("failed", kind=refused.kind, text=str(refused))
    except OutboxError as error:
        channel.say("failed", kind=FailureKind.REFUSED, text=str(error))
    except Exception as error:
        logger.exception("spark_driver_failed error=%r", str(error))
        channel.say("failed", kind=FailureKind.UNKNOWN, text=f"{type(error).__name__}: {_first_line(error)}")
    else:
        return 0
    return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # do not wait for Spark's own threads and sockets
