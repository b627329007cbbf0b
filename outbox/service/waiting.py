"""Waiting for a server that is not there yet, or for another way of delivery to end: one line when it begins, one when
it is over, jitter between."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from outbox.core.patience import Backoff
from outbox.edges.postgres.common.leases import OtherWay
from outbox.edges.postgres.counts.overview import DatabaseUnreachable
from outbox.election.errors import KafkaUnreachable

Found = TypeVar("Found")

_BACKOFF_MIN_S = 0.2
_BACKOFF_MAX_S = 5.0


def until_reachable(
    attempt: Callable[[], Found],
    stopping: Event,
    logger: logging.Logger,
    *,
    fail_fast: bool = False,
    note: Callable[[str], None] = lambda reason: None,
) -> Found | None:
    """The result of `attempt`, repeated through outages and while the table is harvested in another way; None when
    `stopping` was set before it succeeded. `note` hears what is waited for, and an empty text when it is over."""
    backoff, told = Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S, random.random), ""
    while not stopping.is_set():
        try:
            found = attempt()
        except (KafkaUnreachable, DatabaseUnreachable, OtherWay) as error:
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
