"""The events of the harvester for Celery: signals in its own process, and tasks for workers in any process.

Signals: `leader_acquired` and the others are `celery.utils.dispatch.Signal` objects. Each fires in the harvest process
with the Django signal of the same name, and with the same arguments. Import this module to connect them.

Tasks: the setting CELERY_EVENTS names a task per event. A thread of its own sends them from a bounded queue. A Celery
broker that is down, slow or silent therefore neither delays nor breaks harvesting. Events that do not fit into the
queue are dropped and counted, and the harvester logs this once per outage.
"""

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, date, datetime
from importlib import import_module
from typing import Any

from outbox import signals
from outbox.conf import EVENTS, current
from outbox.exceptions import OutboxError, missing_extra

try:
    from celery.utils.dispatch import Signal
except ImportError as error:
    missing_extra("celery", error)

logger = logging.getLogger("outbox.celery")

# Arguments of Django's signals that have no meaning in another process.
_IN_PROCESS = ("signal", "sender", "harvester")
QUEUE_MAX = 1_000
# At its end, the process waits this long for the last events. It does not wait while the broker does not answer.
CLOSE_TIMEOUT_S = 2.0

_COMMON = {"harvester", "lane", "leader_id"}
leader_acquired = Signal(name="leader_acquired", providing_args={*_COMMON, "epoch"})
"""Repeats the Django signal `outbox.signals.leader_acquired`, with its arguments."""
leader_refreshed = Signal(name="leader_refreshed", providing_args={*_COMMON, "epoch"})
"""Repeats the Django signal `outbox.signals.leader_refreshed`, with its arguments."""
leader_revoked = Signal(name="leader_revoked", providing_args=_COMMON)
"""Repeats the Django signal `outbox.signals.leader_revoked`, with its arguments."""
leader_fenced = Signal(name="leader_fenced", providing_args={*_COMMON, "reason"})
"""Repeats the Django signal `outbox.signals.leader_fenced`, with its arguments."""
meter_read = Signal(
    name="meter_read",
    providing_args={*_COMMON, "delivered", "interval_s", "rate", "average_rate", "in_flight"},
)
"""Repeats the Django signal `outbox.signals.meter_read`, with its arguments."""
record_held = Signal(
    name="record_held", providing_args={"harvester", "lane", "record_id", "topic", "key", "attempts", "error"}
)
"""Repeats the Django signal `outbox.signals.record_held`, with its arguments."""
lane_stopped = Signal(name="lane_stopped", providing_args={"harvester", "lane", "reason"})
"""Repeats the Django signal `outbox.signals.lane_stopped`, with its arguments."""


def _repeat(celery_signal: Any) -> Callable[..., None]:
    def receiver(sender: Any, signal: Any, **named: Any) -> None:
        celery_signal.send(sender=sender, **named)  # it logs the error of a receiver and continues

    return receiver


for _event in EVENTS:
    getattr(signals, _event).connect(
        _repeat(globals()[_event]), weak=False, dispatch_uid=f"outbox.contrib.celery.{_event}"
    )


# --- tasks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskStatistics:
    """Counts of sent, dropped and waiting events since the process started."""

    sent: int
    dropped: int
    waiting: int


class TaskSender:
    """Sends events as tasks, from a bounded queue, in a thread that starts with the first one."""

    def __init__(self, queue_max: int = QUEUE_MAX) -> None:
        self._queue: queue.Queue[tuple[str, Mapping[str, Any], dict[str, Any]] | None] = queue.Queue(queue_max)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sent = self._dropped = self._dropped_before = 0
        self._failing = False

    def submit(self, event: str, task: Mapping[str, Any], named: Mapping[str, Any]) -> None:
        """Queue a task. It never blocks and never raises because of a task."""
        body = {"event": event, "at": datetime.now(UTC).isoformat()}
        body |= {name: plain(value) for name, value in named.items() if name not in _IN_PROCESS}
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # not alive: this is a fork
                self._thread = threading.Thread(target=self._run, name="outbox-celery-events", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait((event, task, body))
        except queue.Full:
            self._drop(event, f"{self._queue.maxsize} events wait already: the Celery broker is too slow")

    def statistics(self) -> TaskStatistics:
        with self._lock:
            return TaskStatistics(self._sent, self._dropped, self._queue.qsize())

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send the waiting events, within the timeout."""
        thread = self._thread
        if thread is None or not thread.is_alive() or self._failing:
            return
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            event, task, body = item
            try:
                options = {name: value for name, value in task.items() if name != "task"}
                celery_app().send_task(task["task"], kwargs=body, **{"retry": False, "ignore_result": True, **options})
            except Exception as error:
                self._drop(event, f"{type(error).__name__}: {error}")
                time.sleep(0.05)  # an immediate error must not cause a busy loop
            else:
                self._succeeded()

    def _drop(self, event: str, reason: str) -> None:
        with self._lock:
            self._dropped += 1
            first, self._failing = not self._failing, True
        if first:  # later events of this outage are only counted
            logger.warning("celery_event_dropped event=%s reason=%s", event, reason)

    def _succeeded(self) -> None:
        with self._lock:
            self._sent += 1
            recovered, self._failing = self._failing, False
            dropped, self._dropped_before = self._dropped - self._dropped_before, self._dropped
        if recovered:
            logger.info("celery_events_resumed dropped=%d", dropped)


def celery_app() -> Any:
    """Return the Celery application of the project.

    `celery.current_app` would not do: it belongs to a thread. In a thread that has made no application, it is one
    without settings, which would connect to a broker on localhost.
    """
    from django.conf import settings

    path = current().celery.celery_app
    if path:
        module, _, name = path.replace(":", ".").rpartition(".")
        return getattr(import_module(module), name)
    package = (getattr(settings, "SETTINGS_MODULE", None) or "").split(".")[0]
    for module, name in ((package, "celery_app"), (f"{package}.celery", "app")) if package else ():
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    project = package or "the project"
    raise OutboxError(
        f"The project has no Celery application: neither {project}.celery_app nor {project}.celery.app exists. "
        'Set OUTBOX["CELERY_APP"], e.g. "shop.celery.app".'
    )


def plain(value: Any) -> Any:
    """Convert a value into one that every serializer of Celery accepts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value.isoformat() if isinstance(value, date) else str(value)


tasks = TaskSender()
atexit.register(tasks.close)
