"""A runtime on a virtual clock: its threads are greenlets, of which one runs at a time and until it waits.

Each simulated process has one of its own. A process that is paused resumes no thread, one that has crashed never does:
nothing more of its code is run, not even a `finally`. With `switching`, a thread may also be stopped for a while
wherever it takes a lock or gives one up, as the seed has it.

A scenario runs in a thread of its own (`in_thread`). Threads that are left at its end are ended by an exception, when
nobody looks at what they do any more (`ended_with`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

SWITCHED_S = (0.0, 0.0, 0.001, 0.02, 0.2)
"""For how long a thread that is switched stands still."""
LONG_S = (0.0, 0.02, 0.3, 0.7)
_WALL_S = 1_700_000_000


def in_thread(job: Callable[[], Any]) -> Any:
    """The job's result or error; see above."""
    found: dict[str, Any] = {}

    def run() -> None:
        try:
            found["result"] = job()
        except BaseException as error:
            found["error"] = error

    thread = threading.Thread(target=run, name="simulation")
    thread.start()
    thread.join()
    if "error" in found:
        raise found["error"]
    return found["result"]


@contextmanager
def ended_with(world: Any) -> Iterator[None]:
    """The threads that are left at the end raise at once, wherever they wait, so that what they hold is freed: a
    worker of the tests runs thousands of scenarios. Nothing is made of what they do on their way out."""
    try:
        yield
    finally:
        for process in world.processes:
            process.runtime.is_over = True
        for task in world.tasks:
            with suppress(BaseException):
                task.throw()


class Task(greenlet):
    runtime: Simulated
    name = ""


class Waiter:
    __slots__ = ("is_woken", "task")

    def __init__(self, task: Any) -> None:
        self.task, self.is_woken = task, False


Waiters = list[Waiter]


class Simulated:
    """A `Runtime` over a world with `now`, `after(delay, action)`, `random` and a list of `tasks`."""

    def __init__(
        self,
        world: Any,
        *,
        origin: float = 0.0,
        switching: float = 0.0,
        switched_s: tuple[float, ...] = SWITCHED_S,
    ) -> None:
        self.world, self._origin = world, origin
        self.switching, self._switched_s = switching, switched_s
        self.is_alive, self.is_paused, self.is_over = True, False, False
        self.steady = ""
        """Threads with names that begin like this are not stopped at locks; empty: all are."""
        self._hub = getcurrent()
        self._frozen: list[Callable[[], None]] = []
        self.passed: Callable[[str], None] = lambda name: None
        """Called at failpoints."""
        self.switched: Callable[[float], None] = lambda seconds: None
        """Called when a thread is stopped at a lock."""
        self.waiting: Callable[[str], None] = lambda what: None
        """Called before a thread waits for a server."""

    # ---- what the product calls

    def monotonic(self) -> float:
        return float(self.world.now + self._origin)

    def time_ns(self) -> int:
        return int((_WALL_S + self.world.now) * 1e9)

    def sleep(self, seconds: float) -> None:
        self.world.after(max(0.0, seconds), partial(self._resume, getcurrent(), None))
        self._suspend()

    def random(self) -> float:
        return float(self.world.random.random())

    def lock(self, name: str) -> Lock:
        return Lock(self)

    def condition(self, name: str) -> Condition:
        return Condition(self)

    def event(self) -> Event:
        return Event(self)

    def queue(self) -> Queue:
        return Queue(self)

    def interrupt(self) -> Interrupt:
        return Interrupt(self)

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        return Thread(self, target, name)

    # ---- faults of the process

    def kill(self) -> None:
        self.is_alive = False
        self._frozen.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        frozen, self._frozen = self._frozen, []
        for action in frozen:
            self.world.after(self.world.random.choice((0.0, 0.002, 0.05)), partial(self.when_running, action))

    def when_running(self, action: Callable[[], None]) -> None:
        """Something that the process does: later while it is paused, and never when it is dead."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._frozen.append(action)
        else:
            action()

    # ---- waiting

    def spawn(self, target: Callable[[], None]) -> Task:
        task = Task(target, self._hub)
        task.runtime = self
        self.world.tasks.append(task)  # one that nobody knows any more would be ended by an exception
        self.world.after(0.0, partial(self._resume, task))
        return task

    def wait(self, timeout: float | None, *lists: Waiters) -> bool:
        """Until one of the lists is woken; False when the time is over first."""
        waiter = Waiter(getcurrent())
        assert waiter.task is not self._hub, "the world itself cannot wait"
        for waiters in lists:
            waiters.append(waiter)
        if timeout is not None:
            self.world.after(max(0.0, timeout), partial(self._expire, waiter, lists))
        return bool(self._suspend())

    def _suspend(self) -> Any:
        if self.is_over:
            raise GreenletExit
        return self._hub.switch()

    def wake(self, waiters: Waiters) -> None:
        for waiter in waiters:
            if not waiter.is_woken:
                waiter.is_woken = True
                self.world.after(0.0, partial(self._resume, waiter.task, True))
        waiters.clear()

    def _expire(self, waiter: Waiter, lists: tuple[Waiters, ...]) -> None:
        if not waiter.is_woken:
            waiter.is_woken = True
            for waiters in lists:
                if waiter in waiters:
                    waiters.remove(waiter)
            self._resume(waiter.task, False)

    def _resume(self, task: Any, *value: Any) -> None:
        if self.is_paused or not self.is_alive:
            self.when_running(partial(self._resume, task, *value))
        else:
            task.switch(*value)

    def may_switch(self) -> None:
        """At a lock."""
        if (
            self.is_over
            or not self.switching
            or (task := getcurrent()) is self._hub
            or self.world.random.random() >= self.switching
        ):
            return
        if not (self.steady and getattr(task, "name", "").startswith(self.steady)):
            self.stand_still(self.world.random.choice(self._switched_s))

    def stand_still(self, seconds: float) -> None:
        self.switched(seconds)
        self.sleep(seconds)


class Lock:
    def __init__(self, runtime: Simulated) -> None:
        self._runtime, self._waiters = runtime, Waiters()
        self._owner: Any = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        runtime = self._runtime
        runtime.may_switch()
        give_up_at = None if timeout < 0 else runtime.world.now + timeout
        while self._owner is not None:
            left_s = None if give_up_at is None else give_up_at - runtime.world.now
            if not blocking or (left_s is not None and left_s <= 0):
                return False
            runtime.wait(left_s, self._waiters)
        self._owner = getcurrent()
        return True

    def release(self) -> None:
        assert self._owner is not None
        self._owner = None
        if self._waiters:
            self._runtime.wake(self._waiters)
        self._runtime.may_switch()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *raised: Any) -> None:
        self.release()


class Condition:
    def __init__(self, runtime: Simulated) -> None:
        self._runtime, self._lock = runtime, Lock(runtime)
        self._waiters, self._depth = Waiters(), 0

    def __enter__(self) -> bool:
        if self._lock._owner is not getcurrent():
            self._lock.acquire()
        self._depth += 1
        return True

    def __exit__(self, *raised: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        assert self._lock._owner is getcurrent()
        depth, self._depth = self._depth, 0
        lock, self._lock._owner = self._lock, None
        if lock._waiters:
            self._runtime.wake(lock._waiters)
        found = self._runtime.wait(timeout, self._waiters)
        lock.acquire()
        self._depth = depth
        return found

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        give_up_at = None if timeout is None else self._runtime.world.now + timeout
        while not (found := predicate()):
            left_s = None if give_up_at is None else give_up_at - self._runtime.world.now
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return found

    def notify_all(self) -> None:
        assert self._lock._owner is getcurrent()
        self._runtime.wake(self._waiters)


class Event:
    def __init__(self, runtime: Simulated) -> None:
        self._runtime, self._waiters, self._is_set = runtime, Waiters(), False

    def set(self) -> None:
        self._is_set = True
        self._runtime.wake(self._waiters)

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._runtime.wait(timeout, self._waiters)
        return self._is_set


class Interrupt:
    def __init__(self, runtime: Simulated) -> None:
        self._runtime, self.waiters = runtime, Waiters()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._runtime.wake(self.waiters)

    def is_set(self) -> bool:
        return self._is_set

    def fileno(self) -> int:
        raise NotImplementedError("there is no descriptor: simulated connections ask `is_set`")

    def close(self) -> None:
        pass


class Queue:
    def __init__(self, runtime: Simulated) -> None:
        self._runtime, self._waiters = runtime, Waiters()
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._runtime.wake(self._waiters)

    def get(self, *, timeout: float | None = None) -> Any:
        give_up_at = None if timeout is None else self._runtime.world.now + timeout
        while not self._items:
            left_s = None if give_up_at is None else give_up_at - self._runtime.world.now
            if left_s is not None and left_s <= 0:
                raise Empty
            self._runtime.wait(left_s, self._waiters)
        return self._items.pop(0)

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.pop(0)

    def empty(self) -> bool:
        return not self._items


class Thread:
    def __init__(self, runtime: Simulated, target: Callable[[], None], name: str) -> None:
        self._runtime, self._target, self.name = runtime, target, name
        self._ended = Event(runtime)
        self.ident: int | None = None

    def start(self) -> None:
        self.ident = 1
        self._runtime.spawn(self._run).name = self.name

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self.ident is not None and not self._ended.is_set()


class Answer:
    """Of a server, or of a client, to one thread. The world settles it, once."""

    __slots__ = ("_of", "_runtime", "done", "error", "then", "value", "waiters")

    def __init__(self, runtime: Simulated, of: str) -> None:
        self._runtime, self._of = runtime, of
        self.done, self.value, self.error = False, None, None
        self.waiters = Waiters()
        self.then: Callable[[], None] | None = None

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        if not self.done:
            self.done, self.value, self.error = True, value, error
            if self.then is not None:
                self.then()
            self._runtime.wake(self.waiters)

    def wait(self, timeout: float | None, *others: Waiters) -> bool:
        """Whether it is settled."""
        self._runtime.waiting(self._of)
        if not self.done:
            self._runtime.wait(timeout, self.waiters, *others)
        return self.done
