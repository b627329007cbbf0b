"""Waits until servers answer: one log line when the wait begins, one when it is over, and pauses with jitter."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from outbox.core.patience import Backoff
from outbox.exceptions import NotAvailable

Found = TypeVar("Found")

_BACKOFF_MIN_S = 0.2
_BACKOFF_MAX_S = 5.0


def until_available(
    attempt: Callable[[], Found],
    stopping: Event,
    logger: logging.Logger,
    *,
    fail_fast: bool = False,
    note: Callable[[str], None] = lambda reason: None,
) -> Found | None:
    """The result of `attempt`, repeated for as long as it raises `NotAvailable`; None when `stopping` was set before it
    succeeded. `note` hears what is waited for, and an empty text when it is over."""
    backoff, told = Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S, random.random), ""
    while not stopping.is_set():
        try:
            found = attempt()
        except NotAvailable as error:
            if fail_fast:
                raise
            note(str(error))
            if type(error).__name__ != told and not stopping.is_set():
                told = type(error).__name__
                logger.warning("waiting reason=%r", str(error))
        else:
            note("")
            if told:
                logger.info("waiting_over")
            return found
        stopping.wait(backoff.failed())
    return None
