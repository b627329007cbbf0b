"""A runtime that watches over its locks: in which order threads take them, and what is waited for under them.

`install()` puts it into every process of the tests that harvests. Something forbidden ends the thread that does it with
`LockRule`, and so the test.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from outbox.runtime import Condition, Event, Lock, Queue, Thread
from outbox.runtime.locks import LEAVES, LOCKS

RANKS = {name: rank for rank, name in enumerate(LOCKS)}

# A thread, and a greenlet, has a context of its own.
_HELD: ContextVar[tuple[str, ...]] = ContextVar("held", default=())
_THREAD: ContextVar[str] = ContextVar("thread", default="")


class LockRule(AssertionError):
    pass


def held() -> tuple[str, ...]:
    """The locks of the thread that asks, in the order in which it took them."""
    return _HELD.get()


class Seen:
    """Which threads took which lock, and for what they waited while they held it."""

    def __init__(self) -> None:
        self.taken: set[tuple[str, str]] = set()
        self.waits: set[tuple[str, str]] = set()

    def took(self, lock: str) -> None:
        self.taken.add((lock, re.sub(r"-\d+$", "", _THREAD.get())))


def waits_for(what: str, seen: Seen | None = None, *, but: str = "") -> None:
    """To be called before something blocks. `but`: the condition that is given up meanwhile."""
    locks = [lock for lock in held() if lock != but]
    if found := LEAVES.intersection(locks):
        raise LockRule(f"{what} is waited for while the lock {min(found)!r} is held")
    if seen is not None:
        seen.waits.update((lock, what) for lock in locks)


class Watched:
    """A `Runtime` around another one."""

    def __init__(self, runtime: Any, seen: Seen | None = None) -> None:
        self._runtime, self.seen = runtime, seen or Seen()
        if hasattr(runtime, "waiting"):
            runtime.waiting = lambda what: waits_for(what, self.seen)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def sleep(self, seconds: float) -> None:
        waits_for("a pause", self.seen)
        self._runtime.sleep(seconds)

    def lock(self, name: str) -> Lock:
        return WatchedLock(self, name, self._runtime.lock(name))

    def condition(self, name: str) -> Condition:
        return WatchedCondition(self, name, self._runtime.condition(name))

    def event(self) -> Event:
        return WatchedEvent(self, self._runtime.event())

    def queue(self) -> Queue[Any]:
        return WatchedQueue(self, self._runtime.queue())

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        def run() -> None:
            _THREAD.set(name)
            target()

        return self._runtime.thread(run, name)

    def take(self, name: str) -> None:
        """Before a lock is taken."""
        if name not in RANKS:
            raise LockRule(f"outbox.runtime.locks does not list the lock {name!r}")
        if outer := [lock for lock in held() if RANKS[lock] >= RANKS[name]]:
            raise LockRule(f"the lock {name!r} is taken under {outer[-1]!r}, which comes after it")
        if name not in LEAVES and (found := LEAVES.intersection(held())):
            raise LockRule(f"the lock {name!r}, whose holder may wait, is taken under {min(found)!r}")

    def taken(self, name: str) -> None:
        _HELD.set((*held(), name))
        self.seen.took(name)

    @staticmethod
    def given_up(name: str) -> None:
        locks = list(held())
        locks.remove(name)
        _HELD.set(tuple(locks))


class WatchedLock:
    def __init__(self, watched: Watched, name: str, lock: Lock) -> None:
        self._watched, self._name, self._lock = watched, name, lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and timeout != 0:
            self._watched.take(self._name)
        if found := self._lock.acquire(blocking, timeout):
            self._watched.taken(self._name)
        return found

    def release(self) -> None:
        self._watched.given_up(self._name)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: Any) -> None:
        self.release()


class WatchedCondition:
    def __init__(self, watched: Watched, name: str, condition: Condition) -> None:
        self._watched, self._name, self._condition = watched, name, condition

    def __enter__(self) -> bool:
        if self._name not in held():
            self._watched.take(self._name)
        self._condition.__enter__()
        self._watched.taken(self._name)
        return True

    def __exit__(self, *raised: Any) -> None:
        self._watched.given_up(self._name)
        self._condition.__exit__(*raised)

    def wait(self, timeout: float | None = None) -> bool:
        waits_for(f"a change of {self._name!r}", self._watched.seen, but=self._name)
        return self._condition.wait(timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waits_for(f"a change of {self._name!r}", self._watched.seen, but=self._name)
        return self._condition.wait_for(predicate, timeout)

    def notify_all(self) -> None:
        self._condition.notify_all()


class WatchedEvent:
    def __init__(self, watched: Watched, event: Event) -> None:
        self._watched, self._event = watched, event

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or timeout > 0:
            waits_for("another thread", self._watched.seen)
        return self._event.wait(timeout)


class WatchedQueue:
    def __init__(self, watched: Watched, queue: Queue[Any]) -> None:
        self._watched, self._queue = watched, queue

    def put(self, item: Any) -> None:
        self._queue.put(item)

    def get(self, *, timeout: float | None = None) -> Any:
        waits_for("another thread", self._watched.seen)
        return self._queue.get(timeout=timeout)

    def get_nowait(self) -> Any:
        return self._queue.get_nowait()

    def empty(self) -> bool:
        return self._queue.empty()


def install() -> None:
    """Harvesters of this process run on it from now on. A process that has imported modules of them before does not
    harvest: one of Spark, which unpickles a function of a test. `test_watched` knows those that do."""
    from outbox.runtime import threads

    plain = threads.THREADS
    others = [module for name, module in list(sys.modules.items()) if name != threads.__name__]
    if isinstance(plain, Watched) or any(getattr(module, "THREADS", None) is plain for module in others):
        return
    threads.THREADS = Watched(plain)

    from outbox.edges.postgres.common.session import BoundedConnection

    wait, make_record = BoundedConnection.wait, logging.getLogRecordFactory()

    def watched_wait(connection: Any, *given: Any, **named: Any) -> Any:
        waits_for("PostgreSQL")
        return wait(connection, *given, **named)

    def watched_record(*given: Any, **named: Any) -> logging.LogRecord:
        waits_for("a log handler")
        return make_record(*given, **named)

    BoundedConnection.wait = watched_wait  # type: ignore[method-assign]
    logging.setLogRecordFactory(watched_record)
