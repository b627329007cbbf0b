"""Once a minute the owner of lane 0 writes down how the table is, so that the admin can show the last hours.

While the brokers are away nobody owns a lane, and it is the last owner that goes on.

A thread of its own, on a connection of its own that lasts as long as the look: nothing here can hold up a lane, and a
look that fails is a gap in a chart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from outbox.edges.postgres.common import locks, table
from outbox.edges.postgres.counts import samples
from outbox.harvest.readings import Troubles
from outbox.messages.inserts import ORDER_LOCK

logger = logging.getLogger("outbox.harvest")

EVERY_S = 60.0
STATEMENT_TIMEOUT_S = 2.0


class SampleWriter:
    def __init__(
        self,
        conf: Any,
        leads: Callable[[], bool],
        rejected: Callable[[], int],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`leads`: whether this process is the one that samples; `rejected`: its count of rejected attempts."""
        self._conf, self._leads, self._rejected, self._clock = conf, leads, rejected, clock
        self._stopping = threading.Event()
        self._troubles = Troubles(0)
        self._thread = threading.Thread(target=self._run, name="outbox-samples", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: whatever it does is bounded, and nothing depends on it."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S - self._clock() % EVERY_S):
            if self._leads():
                self.take()

    def take(self) -> bool:
        """Whether this process has written the sample of this minute."""
        try:
            written = self._write()
        except psycopg.errors.UndefinedTable:
            return False  # a table without companions has no charts
        except Exception as error:
            self._troubles.seen("sampling", f"{type(error).__name__}: {' '.join(str(error).split())}")
            return False
        self._troubles.over("sampling")
        return written

    def _write(self) -> bool:
        with closing(
            table.connect_bounded(
                table.parameters(self._conf.database),
                statement_timeout_s=STATEMENT_TIMEOUT_S,
                application_name="outbox sample",
            )
        ) as connection:
            written = samples.take(connection, self._conf.table, self._rejected())
            if found := locks.waiting(connection, ORDER_LOCK):
                logger.warning(
                    "writers_wait count=%d longest_s=%.1f holders=%r remedy=%r",
                    found.sessions, found.longest_s, locks.told(found.holders), locks.remedy(found.holders),
                )  # fmt: skip
            return written
