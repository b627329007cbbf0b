"""A host for one worker: trusted until told otherwise, as the election would be."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from outbox.conf import Conf, parse
from outbox.edges.postgres.common.table import connect_bounded
from outbox.harvest.at_least_once.lane import AtLeastOnce

_epochs = itertools.count(1)


class Host:
    def __init__(self) -> None:
        self.trusted = True
        self.events: list[Any] = []
        self.errors: list[BaseException] = []
        self.doubts = self.refreshes = self.step_downs = 0
        self.ended = threading.Event()
        self.worker: Any = None

    def may_start(self, lane: int) -> bool:
        return self.trusted

    def may_send(self, lane: int) -> bool:
        return self.trusted

    def lanes_owned(self) -> int:
        return 1

    def refresh(self, lane: int) -> None:
        self.refreshes += 1
        self.worker.refreshed(uuid.uuid4())

    def doubt(self, lane: int) -> None:
        self.doubts += 1

    def step_down(self, lane: int) -> None:
        self.step_downs += 1

    def partitions_added(self) -> None:
        pass

    def finished(self, lane: int) -> None:
        self.ended.set()

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def fatal(self, error: BaseException) -> None:
        self.errors.append(error)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def connector(url: str, statement_timeout_s: float = 5.0, **options: Any) -> Callable[[], Any]:
    source = {"conninfo": url, "connect_timeout": 2, **options}
    return partial(connect_bounded, source, statement_timeout_s=statement_timeout_s)


def settings(**changes: Any) -> Conf:
    from django.conf import settings as django_settings

    return parse({**django_settings.OUTBOX, "DELIVERY": "at-least-once", **changes})


@contextmanager
def working(
    conf: Conf, *, epoch: int | None = None, lane: int = 0, host: Host | None = None, **seams: Any
) -> Iterator[Host]:
    """A host with a started worker, which is abandoned at the end."""
    host = host or Host()
    worker = AtLeastOnce(conf, lane, uuid.uuid4(), next(_epochs) if epoch is None else epoch, host, **seams)
    host.worker = worker
    worker.start()
    try:
        yield host
    finally:
        worker.abandon()
        assert worker.join(10)


def finish(host: Host, within_s: float = 10.0) -> None:
    """A busy machine may take ten seconds more; tests of the bound let its absence take longer still."""
    host.worker.finish(time.monotonic() + within_s)
    assert host.ended.wait(within_s + 10)
    assert host.worker.join(10)


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up_at, "the awaited condition did not come true in time"
        time.sleep(0.005)
    return found
