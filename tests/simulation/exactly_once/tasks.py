"""Threads of simulated processes: generators that yield what they wait for. A paused process resumes none of them, a
crashed one never does."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

Steps = Generator[Any, Any, Any]
"""Yields seconds to sleep, a `Future` to wait for, or a pair of it and a time-out (the answer: whether it is done)."""


class Future:
    """Settled once, with a value or an error."""

    __slots__ = ("_watchers", "done", "error", "value")

    def __init__(self) -> None:
        self.done, self.value, self.error = False, None, None
        self._watchers: list[Callable[[], None]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        if self.done:
            watcher()
        else:
            self._watchers.append(watcher)


class Signal:
    """What several threads wait for together."""

    def __init__(self) -> None:
        self._next = Future()

    def wait(self) -> Future:
        return self._next

    def notify(self) -> None:
        told, self._next = self._next, Future()
        told.settle()


class Task:
    """One thread of a process."""

    def __init__(self, process: Any, steps: Steps) -> None:
        self._process, self._steps = process, steps
        self._turn = 0
        self._wake(0, None, None)

    def _wake(self, turn: int, value: Any, error: BaseException | None, delay: float = 0.0) -> None:
        self._process.world.after(delay, lambda: self._go_on(turn, value, error))

    def _go_on(self, turn: int, value: Any, error: BaseException | None) -> None:
        process = self._process
        if turn != self._turn or not process.alive:
            return
        if process.paused:
            process.frozen.append(lambda: self._wake(turn, value, error))
            return
        self._turn += 1
        try:
            awaited = self._steps.throw(error) if error is not None else self._steps.send(value)
        except StopIteration:
            return
        self._await(self._turn, awaited)

    def _await(self, turn: int, awaited: Any) -> None:
        if isinstance(awaited, Future):
            awaited.watch(lambda: self._wake(turn, awaited.value, awaited.error))
        elif isinstance(awaited, tuple):
            future, timeout_s = awaited
            future.watch(lambda: self._wake(turn, True, None))
            if not future.done:
                self._wake(turn, False, None, timeout_s)
        else:
            self._wake(turn, None, None, awaited)
