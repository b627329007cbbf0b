"""One module per optional dependency; each imports the app, and nothing of the app imports them.

The exceptions are `connect_task_events` and `connect_tracing`, which the app calls when Django is ready. They cost
nothing until an event occurs for which the settings name a Celery task, or until a process that uses OpenTelemetry
commits a batch.
"""

import logging
from functools import cache, partial
from typing import Any

from outbox.conf import EVENTS, ConfErrors, current

logger = logging.getLogger("outbox.celery")


def connect_task_events() -> None:
    """Turn the events named in CELERY_EVENTS into Celery tasks, however this process runs the harvester."""
    from outbox import signals

    for event in EVENTS:
        signal = getattr(signals, event)
        signal.connect(partial(_to_task, event), weak=False, dispatch_uid=f"outbox.contrib.{event}")


def connect_tracing() -> None:
    """Turn committed batches into spans. In a process without OpenTelemetry, the harvester does not send the signal."""
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
        return  # the checks and the start of the harvester report this
    if task is None:
        return
    try:
        from outbox.contrib import celery
    except ImportError as error:
        _tell_once(event, str(error))
        return
    celery.tasks.submit(event, task, named)
