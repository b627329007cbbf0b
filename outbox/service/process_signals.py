"""SIGTERM and SIGINT of a process that runs a daemon: the first stops it, the second forces the stop, the third ends
a process that hangs all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

FORCED = 5
"""The exit code of a process whose stop was forced."""
_NUMBERS = (signal.SIGTERM, signal.SIGINT)

Stop = Callable[[bool], None]
"""Called in the main thread with whether what is in flight is to be dropped. Does not block."""


class ProcessSignals:
    """As a context manager it gives back the handlers that were there before."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._count = 0
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        self._before = {number: signal.signal(number, self._receive) for number in _NUMBERS}

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def is_forced(self) -> bool:
        """Whether a second signal came."""
        return self._count > 1

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 2:
            os._exit(FORCED)
        self._stop(self.is_forced)
