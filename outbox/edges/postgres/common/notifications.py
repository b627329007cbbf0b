"""Notifications of new records: how a connection listens, and how it waits for them."""

from __future__ import annotations

import select
from typing import Any

import psycopg
from psycopg import sql

from outbox.runtime import Interrupt


def channel(table: str) -> str:
    """On which the trigger of `outbox.wakeups` notifies."""
    return table


def listen(connection: psycopg.Connection[Any], table: str) -> None:
    connection.execute(sql.SQL("/* wake */ LISTEN {}").format(sql.Identifier(channel(table))))


def wait_notified(connection: psycopg.Connection[Any], interrupt: Interrupt) -> bool:
    """Until something arrives, or the interrupt is set; whether there was a notification. All at hand are taken."""
    pgconn: Any = connection.pgconn
    poller = select.poll()  # select() takes no descriptor above 1023
    for descriptor in (pgconn.socket, interrupt.fileno()):
        poller.register(descriptor, select.POLLIN)
    poller.poll()
    pgconn.consume_input()
    found = False
    while pgconn.notifies() is not None:
        found = True
    return found
