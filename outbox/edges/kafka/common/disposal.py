"""The end of a Kafka client. To destroy one joins its threads, whose waits last longer when the clock is set back: so
it is done in a thread of its own, where no exception is being handled (see `edges.kafka.common.clients`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from outbox.edges.kafka.common.clients import let_go
from outbox.runtime import Runtime, Thread
from outbox.runtime.threads import THREADS

logger = logging.getLogger("outbox.kafka")

Client = TypeVar("Client")


def dispose(
    held: list[Client], first: Callable[[Client], object] = lambda client: None, runtime: Runtime = THREADS
) -> Thread:
    """Destroy the client of this list, which is the only one to hold it; `first` is called with it."""

    def end() -> None:
        try:
            first(held[0])
        except Exception as error:  # of a client that is thrown away
            logger.debug("dropped_client error=%r", let_go(error))
        held.clear()

    thread = runtime.thread(end, "outbox-disposal")
    thread.start()
    return thread
