"""A wall clock that is set back, and Kafka clients that wait by it.

The client computes by the wall clock when a wait of its own ends. A wait that is under way while the clock is set back
lasts as much longer, unless something arrives for the thread that waits. Waits that begin afterwards are right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

if TYPE_CHECKING:
    from confluent_kafka import Producer

NOTICED_S = 0.5  # waits that last so much longer do no harm
_NUDGE_S = 1.0


class WallClock:
    """Compares the wall clock with the one that nobody sets."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._difference: Callable[[], float] = lambda: wall() - monotonic()
        self._last = self._difference()

    def set_back_s(self) -> float:
        """By how much it was set back since the last call; 0 when it was not."""
        last, self._last = self._last, self._difference()
        back_s = last - self._last
        return back_s if back_s > NOTICED_S else 0.0


class Nudged(Protocol):
    def clients(self) -> list[Producer]:
        """Those in use. Thread-safe."""


_mutex = threading.Lock()
_in_use: WeakSet[Nudged] = WeakSet()


def nudged(owner: Nudged) -> None:
    """The owner's clients are nudged for as long as the owner is there."""
    with _mutex:
        _in_use.add(owner)


def nudge_all() -> None:
    """Give the threads of every producer something to do, so that they notice how late it is. Does not block."""
    with _mutex:
        owners = list(_in_use)
    for owner in owners:
        threading.Thread(target=_nudge, args=(owner,), name="outbox-nudge", daemon=True).start()


def _nudge(owner: Nudged) -> None:
    """The question makes the client connect where it waits to do so; the answer arrives in its main thread."""
    from confluent_kafka import KafkaException

    held = owner.clients()
    while held:
        client = held.pop()
        with suppress(KafkaException):  # the brokers do not answer: the attempt was enough
            client.list_topics(timeout=_NUDGE_S)
        del client
