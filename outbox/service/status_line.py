"""One line about a running daemon for a terminal, rewritten every second. Logs and metrics are for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Protocol

from outbox.exceptions import NotAvailable
from outbox.service.lifecycle import State

_ERASE = "\r\033[K"


class OwnerOfLanes(Protocol):
    """A daemon whose work is divided into lanes."""

    @property
    def state(self) -> State: ...

    @property
    def leader_ids(self) -> Collection[int]:
        """The lanes that it owns."""

    @property
    def statistics(self) -> Mapping[int, Any]:
        """One snapshot per lane in work."""

    @property
    def in_flight(self) -> int: ...


class BacklogCount(Protocol):
    """What waits to be done. Its questions may raise `NotAvailable`."""

    most: int
    """It is counted no further."""

    def waiting(self) -> int: ...

    def close(self) -> None: ...


class TerminalLine:
    """`write` gets text without line ends."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._before = (time.monotonic(), 0)

    def line(self) -> str:
        raise NotImplementedError

    def show(self) -> None:
        self._write(_ERASE + self.line())

    def close(self) -> None:
        self._write(_ERASE)

    def rate(self, count: int) -> str:
        """Since it was asked for before."""
        (then, before), now = self._before, time.monotonic()
        self._before = (now, count)
        return f"{max(0, count - before) / max(0.001, now - then):,.0f}/s"


class StatusLine(TerminalLine):
    """The backlog is only asked for while a lane is owned."""

    def __init__(self, daemon: OwnerOfLanes, backlog: BacklogCount, write: Callable[[str], Any]) -> None:
        super().__init__(write)
        self._daemon = daemon
        self._backlog = backlog

    def close(self) -> None:
        self._backlog.close()
        super().close()

    def line(self) -> str:
        daemon = self._daemon
        lanes = sorted(daemon.leader_ids)
        if not lanes:
            self._backlog.close()
            return f"{daemon.state}, standing by"
        delivered = sum(found.delivered for found in daemon.statistics.values())
        text = f"{daemon.state}, lanes {','.join(map(str, lanes))}, delivered {delivered:,}"
        text = f"{text}, {self.rate(delivered)}, in flight {daemon.in_flight:,}, backlog {self._waiting()}"
        # What an engine of its own kind says about its batches.
        said = [found.progress for found in daemon.statistics.values() if getattr(found, "progress", "")]
        return ", ".join([text, *said])

    def _waiting(self) -> str:
        with suppress(NotAvailable):
            waiting = self._backlog.waiting()
            return f"{waiting:,}{'+' if waiting == self._backlog.most else ''}"
        return "unknown"
