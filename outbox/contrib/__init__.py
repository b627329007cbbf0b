"""One module per optional dependency; each imports the app, and nothing of the app imports them.

The exceptions are `connect_task_events` and `connect_tracing`, called when Django is ready: they cost nothing until an
event happens for which the settings name a Celery task, or a batch is committed in a process that uses OpenTelemetry.
"""

import logging
from functools import cache, partial
from typing import Any

from outbox.conf import EVENTS, ConfErrors, current

logger = logging.getLogger("outbox.celery")


def connect_task_events() -> None:
    """Let the events named in CELERY_EVENTS become Celery tasks, whoever runs the harvester in this process."""
    from outbox import signals

    for event in EVENTS:
        signal = getattr(signals, event)
        signal.connect(partial(_to_task, event), weak=False, dispatch_uid=f"outbox.contrib.{event}")


def connect_tracing() -> None:
    """Let committed batches become spans, in a process that uses OpenTelemetry; in others the signal is not sent."""
    from outbox import signals

    signals.batch_delivered.connect(_to_spans, weak=False, dispatch_uid="outbox.contrib.opentelemetry")


def _to_spans(**named: Any) -> None:
    from outbox.contrib import opentelemetry

    opentelemetry.tell(**named)


@cache
def _tell_once(event: str, reason: str) -> None:
    logger.error("celery_event_dropped event=%s reason=%s", event, reason)


def _to_task(event: str, **named: Any) -> None:
    try:
        task = current().celery.celery_events.get(event)
    except ConfErrors:
        return  # told by the checks and by the harvester's own start
    if task is None:
        return
    try:
        from outbox.contrib import celery
    except ImportError as error:
        _tell_once(event, str(error))
        return
    celery.tasks.submit(event, task, named)
