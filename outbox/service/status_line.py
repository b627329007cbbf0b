"""One line about a running harvester for a terminal, rewritten every second. Logs and metrics are for machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from outbox.edges.postgres.counts.overview import BACKLOG_MAX, DatabaseUnreachable, Overview
from outbox.harvest.harvester import Harvester

_ERASE = "\r\033[K"


class StatusLine:
    """`write` gets text without line ends. The backlog is only asked for while a lane is owned."""

    def __init__(self, harvester: Harvester, write: Callable[[str], Any]) -> None:
        self._harvester = harvester
        self._write = write
        self._overview = Overview(harvester.conf.database, harvester.conf.table)
        self._before = (time.monotonic(), 0)

    def show(self) -> None:
        self._write(_ERASE + self.line())

    def close(self) -> None:
        self._overview.close()
        self._write(_ERASE)

    def line(self) -> str:
        harvester = self._harvester
        lanes = sorted(harvester.leader_ids)
        if not lanes:
            self._overview.close()
            return f"{harvester.state}, standing by"
        delivered = sum(found.delivered for found in harvester.statistics.values())
        text = f"{harvester.state}, lanes {','.join(map(str, lanes))}, delivered {delivered:,}"
        text = f"{text}, {self._rate(delivered):,.0f}/s, in flight {harvester.in_flight:,}{self._backlog()}"
        # What an engine of its own kind says about its batches.
        said = [found.progress for found in harvester.statistics.values() if getattr(found, "progress", "")]
        return ", ".join([text, *said])

    def _rate(self, delivered: int) -> float:
        (then, before), now = self._before, time.monotonic()
        self._before = (now, delivered)
        return max(0, delivered - before) / max(0.001, now - then)

    def _backlog(self) -> str:
        with suppress(DatabaseUnreachable):
            waiting = self._overview.waiting()
            return f", backlog {waiting:,}{'+' if waiting == BACKLOG_MAX else ''}"
        return ", backlog unknown"
