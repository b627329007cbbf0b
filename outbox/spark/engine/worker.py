"""Harvesting with Spark: the worker of the elected lane, with one process for each leadership.

The process, `driver.py`, starts the JVM; a standby has none. A harvester that loses the leadership kills its process.
Its successor completes from the checkpoint what the process had begun. If the process survives, the owner of the table
and Kafka's fences keep it from doing harm.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from outbox.core.contract import LaneHost
from outbox.core.meter import Meter
from outbox.core.patience import Backoff
from outbox.exceptions import OutboxError
from outbox.spark.engine.failure_kinds import FailureKind
from outbox.spark.engine.job import Job

logger = logging.getLogger("outbox.spark")

LANE = 0
_RESTARTS_MAX = 5  # one after the other, with no batch between them
_RESTART_MIN_S, _RESTART_MAX_S = 1.0, 30.0
_EXIT_S = 30.0
_DRAIN_S = 120.0


_FLAGS = {
    'set the option resend="true"': "pass --resend",
    "another sink name": "another sink name (--sink)",
    "a new checkpoint": "a new checkpoint (--checkpoint)",
    "set begin_at=": "start again under another name (--sink), or, with a sink of your own, set begin_at=",
}


class EngineFailed(OutboxError):
    """Spark cannot continue: an operator must act."""


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """The state of the lane at one moment."""

    phase: str
    delivered: int = 0
    batches: int = 0
    in_flight: int = 0
    in_flight_keys: tuple[Any, ...] = ()
    held: int = 0
    """The number of holds, once all other records are delivered."""
    held_keys: int = 0
    progress: str = ""
    """For a terminal."""


class Engine:
    """Makes the worker of a lane; one object serves a harvester through all its leaderships."""

    command: Sequence[str] = (sys.executable, "-m", "outbox.spark.engine.driver")

    def __init__(self, job: Callable[[], Job]) -> None:
        """The engine calls `job` when a leadership begins."""
        self._job = job
        self._worker: EngineWorker | None = None

    def __call__(self, conf: Any, lane: int, leader_id: UUID, epoch: int, host: LaneHost) -> EngineWorker:
        meter = Meter(lane, conf.metrics.metrics_interval_s, time.monotonic())
        self._worker = EngineWorker(self.command, self._job, lane, leader_id, host, meter)
        return self._worker

    def drain(self) -> None:
        """Wait until the current batch or the leadership has ended."""
        if self._worker is not None:
            self._worker.drain()


class EngineWorker:
    """One leadership. The thread follows the process; the other methods only set flags and send signals."""

    def __init__(
        self,
        command: Sequence[str],
        job: Callable[[], Job],
        lane: int,
        leader_id: UUID,
        host: LaneHost,
        meter: Meter,
    ) -> None:
        self._command, self._new_job = command, job
        self.lane, self._leader_id, self._host, self._meter = lane, leader_id, host, meter
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = self._is_finishing = self._is_abandoned = False
        self._is_draining = False
        self._wake, self._drained, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._failed: tuple[str, str] | None = None
        self._failures = 0
        self._holds_shown = ""
        self._statistics = EngineStatistics("starting")
        self._thread = threading.Thread(target=self._run, name=f"outbox-spark-{lane}", daemon=True)

    # ---- what the harvester asks

    def start(self) -> None:
        self._thread.start()

    def refreshed(self, leader_id: UUID) -> None:
        self._leader_id = leader_id

    def drain(self) -> None:
        """Let the current batch end and begin no other; keep the lane until `finish`. Returns when the batch has ended,
        or after a limit: a server that the batch needs may be unavailable."""
        with self._mutex:
            self._end_batch()
        self._drained.wait(_DRAIN_S)

    def finish(self, deadline: float) -> None:
        with self._mutex:
            self._is_finishing = True
            self._end_batch()
            self._ended.set()

    def abandon(self) -> None:
        with self._mutex:
            self._is_abandoned = self._is_draining = True
            self._wake.set()
            self._ended.set()
            self._kill()

    def join(self, timeout_s: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def statistics(self) -> EngineStatistics:
        return self._statistics

    # ---- the thread

    def _run(self) -> None:
        try:
            backoff = Backoff(_RESTART_MIN_S, _RESTART_MAX_S, lambda: 0.5)
            while not self._is_draining:
                before = self._statistics.batches
                self._follow(self._launch())
                if self._is_draining or not self._may_restart(before):
                    break
                if self._statistics.batches > before:
                    backoff.worked()  # a new failure need not last as long as the last one
                self._wake.wait(backoff.failed())
        except Exception as error:
            self._host.fatal(error)
        finally:
            self._note(phase="ended", progress="")
            self._drained.set()
            self._ended.wait()  # this process keeps the lane until the election wants it back
            if self._is_finishing and not self._is_abandoned:
                self._host.finished(self.lane)

    def _launch(self) -> subprocess.Popen[str]:
        job = replace(self._new_job(), owner=f"spark {os.getpid()} {uuid.uuid4().hex[:12]}")
        with self._mutex:
            self._is_ready, self._failed = False, None
            # A session of its own: Ctrl-C in a terminal reaches the harvester only, which lets the batch end.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_search_path())},
                start_new_session=True,
            )
            self._tell(job.encode())
            if self._is_draining:
                self._kill()
            return self._process

    def _follow(self, process: subprocess.Popen[str]) -> None:
        self._note(phase="starting", progress="Spark starts", held=0)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                with suppress(ValueError):  # a kill may cut the last line
                    self._hear(json.loads(line))
        finally:
            self._end(process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        with suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            pass
        with self._mutex:
            self._kill()  # the JVM, which is left of the process group
            self._process = None
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _may_restart(self, batches_before: int) -> bool:
        """After the process has ended by itself."""
        kind, text = self._failed or (
            FailureKind.UNKNOWN,
            "the process that drives Spark was killed, or ran out of memory",
        )
        if kind == FailureKind.OUTAGE:
            logger.warning("spark_driver_ended reason=%r", text)
            return True
        self._failures = 0 if self._statistics.batches > batches_before else self._failures + 1
        if kind == FailureKind.FENCED:
            logger.warning("spark_fenced reason=%r", text)
            self._host.step_down(self.lane)
            return False
        if kind == FailureKind.REFUSED or self._failures >= _RESTARTS_MAX:
            raise EngineFailed(f"Spark cannot continue: {with_flags(text)}")
        logger.warning("spark_driver_ended reason=%r", text)
        return True

    # ---- what the process says

    def _hear(self, said: dict[str, Any]) -> None:
        event = said["event"]
        if event == "ready":
            self._let_go(said["ui"])
        elif event == "epoch":
            self._count(said)
        elif event == "log":
            record = {"name": said["name"], "levelno": said["level"], "levelname": logging.getLevelName(said["level"])}
            logging.getLogger(said["name"]).handle(logging.makeLogRecord({**record, "msg": said["text"]}))
        elif event == "retry":
            self._note(progress=f"waits: {said['text'][:80]}", held=0)
            logger.warning("spark_retry pause_s=%s reason=%r", said["pause_s"], said["text"])
        elif event == "holds":
            self._tell_holds(said["count"], said["held_keys"], said["shown"], is_idle=said["is_idle"])
        elif event == "failed":
            self._failed = (said["kind"], said["text"])

    def _let_go(self, address: str) -> None:
        with self._mutex:
            self._is_ready = True
            if self._is_draining:
                self._kill()
                return
            self._tell("go")
        logger.info("spark_started ui=%s", address or "none")
        self._note(phase="running", progress=f"Spark's web interface: {address}" if address else "")

    def _count(self, said: dict[str, Any]) -> None:
        found = self._statistics
        count, seconds = said["count"], said["seconds"]
        if count:
            self._note(progress=f"batch {said['epoch']}: {count:,} in {seconds:.1f} s")
        self._note(phase="running", delivered=found.delivered + count, batches=found.batches + 1)
        if self._meter.is_due(now := time.monotonic()):
            reading = self._meter.read(self._statistics.delivered, self._leader_id, 0, now)
            if reading is not None:
                self._host.emit(reading)

    def _tell_holds(self, count: int, held_keys: int, shown: str, *, is_idle: bool) -> None:
        """Logged when it changes. `held` is what is left when all other records are delivered: `--once` gives up
        then."""
        self._note(held=count if is_idle else 0, held_keys=held_keys)
        if shown == self._holds_shown:
            return
        self._holds_shown = shown
        if count:
            logger.warning(
                "spark_holds count=%d scopes=%r remedy=%r", count, shown,
                "run manage.py outbox_resume for a paused or edited hold, outbox_retry for a rejected one",
            )  # fmt: skip
        else:
            logger.warning("spark_holds_over")

    def _note(self, **given: Any) -> None:
        self._statistics = replace(self._statistics, **given)

    # ---- with the mutex

    def _end_batch(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        self._wake.set()
        if self._process is not None and self._is_ready:
            self._tell("finish")
        else:
            self._kill()  # no record was taken yet

    def _tell(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def with_flags(text: str) -> str:
    """The remedy of the source or the sink, with the flags of the command line."""
    for words, flag in _FLAGS.items():
        text = text.replace(words, flag)
    return text


def _search_path() -> Sequence[str]:
    """Where this process finds the project: its Python workers must find the transformation there too."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return [path or os.getcwd() for path in sys.path if not path.endswith(".zip") and not _is_in(path, own)]


def _is_in(path: str, folders: set[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
