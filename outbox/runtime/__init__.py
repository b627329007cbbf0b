"""What threads take from the machine: time, random numbers, each other and what they wait for.

Who is given a `Runtime` takes none of it from elsewhere, but for what touches a real connection: the simulation of the
tests replaces that. Production has one, `outbox.runtime.threads`; the simulation has another, on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Lock(Protocol):
    """Not to be taken again by its holder."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *raised: Any) -> None: ...


class Condition(Protocol):
    """Its lock may be taken again by its holder."""

    def __enter__(self) -> bool: ...

    def __exit__(self, *raised: Any) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Event(Protocol):
    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Queue(Protocol[T]):
    def put(self, item: T) -> None: ...

    def get(self, *, timeout: float | None = None) -> T:
        """Raises `queue.Empty` when the time is over."""

    def get_nowait(self) -> T:
        """Raises `queue.Empty`."""

    def empty(self) -> bool: ...


class Interrupt(Protocol):
    """Ends the wait of a thread for a connection, once and for good."""

    def set(self) -> None:
        """Does not block; does nothing after `close`."""

    def is_set(self) -> bool: ...

    def fileno(self) -> int:
        """Readable once it is set."""

    def close(self) -> None: ...


class Thread(Protocol):
    @property
    def ident(self) -> int | None:
        """None before it is started."""

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Runtime(Protocol):
    def monotonic(self) -> float: ...

    def time_ns(self) -> int:
        """On the wall clock, since 1970."""

    def sleep(self, seconds: float) -> None: ...

    def random(self) -> float:
        """From 0 to less than 1."""

    def lock(self, name: str) -> Lock:
        """`name` is one of `outbox.runtime.locks.LOCKS`, and so the next."""

    def condition(self, name: str) -> Condition: ...

    def event(self) -> Event: ...

    def queue(self) -> Queue[Any]: ...

    def interrupt(self) -> Interrupt: ...

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """Not started. The process does not wait for it when it ends."""
