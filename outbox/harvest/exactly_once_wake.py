"""Listens for new records on a connection of its own, and wakes the reader. Only haste: the reader polls as well."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from outbox.exceptions import OutboxError
from outbox.harvest.exactly_once_database import Database

logger = logging.getLogger("outbox.harvest")

_RETRY_S = 2.0


class Ear:
    """A thread that calls `heard` after each notification of the channel. `close` ends it."""

    def __init__(self, database: Database, channel: str, heard: Callable[[], None]) -> None:
        self._database, self._channel, self._heard = database, channel, heard
        self._closing = threading.Event()
        self._end_r, self._end_w = os.pipe()
        self._thread = threading.Thread(target=self._run, name="outbox-ear", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Does not block."""
        os.write(self._end_w, b"x")
        self._closing.set()  # after the last use of the pipe, which the thread closes

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._listen()
                except (psycopg.Error, OutboxError) as error:
                    logger.debug("not_listening reason=%r", str(error))
                    self._closing.wait(_RETRY_S)
        finally:
            os.close(self._end_r)
            os.close(self._end_w)

    def _listen(self) -> None:
        connection = self._database.connect("wake")
        try:
            connection.execute(sql.SQL("/* wake */ LISTEN {}").format(sql.Identifier(self._channel)))
            self._heard()  # what was said before is not repeated
            pgconn: Any = connection.pgconn
            poller = select.poll()  # select() takes no descriptor above 1023
            for descriptor in (pgconn.socket, self._end_r):
                poller.register(descriptor, select.POLLIN)
            while not self._closing.is_set():
                poller.poll()
                pgconn.consume_input()
                if _drained(pgconn):
                    self._heard()
        finally:
            connection.close()


def _drained(pgconn: Any) -> bool:
    """Take all notifications at hand; whether there was any."""
    found = False
    while pgconn.notifies() is not None:
        found = True
    return found
