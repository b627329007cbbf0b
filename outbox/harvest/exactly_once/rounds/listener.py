"""Listens for new records on a connection of its own, and wakes the reader. Only haste: the reader polls as well."""

from __future__ import annotations

import logging
from collections.abc import Callable

import psycopg

from outbox.exceptions import OutboxError
from outbox.harvest.exactly_once.ports import Servers

logger = logging.getLogger("outbox.harvest")

_RETRY_S = 2.0


class Ear:
    """A thread that calls `heard` after each notification. `close` ends it."""

    def __init__(self, servers: Servers, heard: Callable[[], None]) -> None:
        self._database, self._heard = servers.database, heard
        self._closing = servers.runtime.event()
        self._end = servers.runtime.interrupt()
        self._thread = servers.runtime.thread(self._run, "outbox-ear")
        self._thread.start()

    def close(self) -> None:
        """Does not block."""
        self._closing.set()
        self._end.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._listen()
                except (psycopg.Error, OutboxError) as error:
                    logger.debug("not_listening reason=%r", str(error))
                    self._closing.wait(_RETRY_S)
        finally:
            self._end.close()

    def _listen(self) -> None:
        connection = self._database.connect("wake")
        try:
            self._database.listen(connection)
            self._heard()  # what was said before is not repeated
            while not self._closing.is_set():
                if self._database.wait_notified(connection, self._end):
                    self._heard()
        finally:
            connection.close()
