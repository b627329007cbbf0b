"""The life of a daemon: started once, stopped by anybody, ended by its first failure.

One supervising thread does what the subclass says in `_work` until `_stopping` is set, and then `_tear_down`.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from outbox.core.life import DaemonLife, LifeEvent
from outbox.core.life import State as State
from outbox.exceptions import OutboxError
from outbox.service.waiting import Found, until_available


class StopOutOfTime(OutboxError):
    """What was in flight could not be finished before the process had to end."""


class Daemon(ABC):
    """Works in the background between `start` and `stop`. Every method is thread-safe."""

    def __init__(self, kind: str, *, thread: str, logger: logging.Logger, fail_fast: bool = False) -> None:
        """`kind` is what errors call it; with `fail_fast` an outage at the start is an error."""
        self._kind, self._thread_name = kind, thread
        self._logger = logger
        self._fail_fast = fail_fast
        self._mutex = threading.RLock()  # `stop` is called from handlers of system signals too
        self._life = DaemonLife()
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self.waiting_for = ""
        """What it waits for before it begins its work; empty: nothing."""

    # ---- for whoever runs it

    def start(self) -> Self:
        """Begin, and return at once. After `stop` this does nothing."""
        with self._mutex:
            if not self._life.may_start:
                raise OutboxError(
                    f"This {self._kind} is {self._state}. It can be started only once: create another one."
                )
            if not self._life.on(LifeEvent.START):
                return self
        self._log_state(State.RUNNING)
        threading.Thread(target=self._run, name=self._thread_name, daemon=True).start()
        return self

    def stop(self, *, force: bool = False) -> None:
        """Finish what is in flight and stop; with `force` drop what is in flight. Does not wait."""
        with self._mutex:
            if self._life.on(LifeEvent.STOP):
                if self._state is State.STOPPED:
                    self._stopped.set()
                else:
                    self._log_state(self._state)
            if force:
                self._life.force()
        if force:
            self._abandon()
        self._stopping.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; False when it has not in time. Raises what it stopped for."""
        if not self._stopped.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.stop()
        if error is None:
            self.wait()
        else:
            self._stopped.wait()  # the error of the block tells more

    @property
    def state(self) -> State:
        return self._state

    @property
    def _state(self) -> State:
        return self._life.state

    @property
    def _is_forced(self) -> bool:
        return self._life.is_forced

    def fail(self, error: BaseException) -> None:
        """Stop for this error, which `wait` raises; the first one counts."""
        with self._mutex:
            first, self._error = self._error is None, self._error or error
        if first:
            self._log_failure(error)
        self.stop()

    # ---- for the subclass

    def _fail_unless_forced(self, error: StopOutOfTime) -> None:
        """`wait` raises it after a stop that was not forced, unless something else has failed."""
        with self._mutex:
            if self._life.is_late(has_failed=self._error is not None):
                self._error = error

    def _until_available(self, attempt: Callable[[], Found]) -> Found | None:
        """The result of `attempt`, repeated while what it needs is not there; None when stopped meanwhile."""
        return until_available(attempt, self._stopping, self._logger, fail_fast=self._fail_fast, note=self._note)

    def _note(self, reason: str) -> None:
        self.waiting_for = reason

    @abstractmethod
    def _work(self) -> None:
        """Work until `_stopping` is set, in the supervising thread. What it raises is what the daemon fails for."""

    @abstractmethod
    def _tear_down(self) -> None:
        """Let go of everything, in bounded time also while servers do not answer. In the supervising thread."""

    @abstractmethod
    def _abandon(self) -> None:
        """Drop what is in flight: the stop is forced. Does not block."""

    @abstractmethod
    def _log_state(self, state: State) -> None:
        """It has entered this state; not called for CREATED, nor for STOPPED without a start."""

    @abstractmethod
    def _log_failure(self, error: BaseException) -> None:
        """It stops for this error."""

    # ---- the supervising thread

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.fail(error)
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._tear_down()
        except BaseException as error:
            self.fail(error)
        finally:
            with self._mutex:
                self._life.on(LifeEvent.ENDED)
            self._log_state(State.STOPPED)
            self._stopped.set()
