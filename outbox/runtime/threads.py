"""The runtime of production: the standard library."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from outbox.runtime import Condition, Event, Interrupt, Lock, Queue, Runtime, Thread


class Pipe:
    """An `Interrupt`."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._read, self._write = os.pipe()
        self._is_set = self._is_closed = False

    def set(self) -> None:
        with self._mutex:
            if not (self._is_set or self._is_closed):
                os.write(self._write, b"x")
            self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        with self._mutex:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._read)
                os.close(self._write)


class Threads:
    def monotonic(self) -> float:
        return time.monotonic()

    def time_ns(self) -> int:
        return time.time_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def random(self) -> float:
        return random.random()

    def lock(self, name: str) -> Lock:
        return threading.Lock()

    def condition(self, name: str) -> Condition:
        return threading.Condition()

    def event(self) -> Event:
        return threading.Event()

    def queue(self) -> Queue[Any]:
        return SimpleQueue()

    def interrupt(self) -> Interrupt:
        return Pipe()

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=target, name=name, daemon=True)


THREADS: Runtime = Threads()
