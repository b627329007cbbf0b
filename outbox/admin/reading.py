"""How pages read the database: in one transaction that is rolled back, with a time limit on every statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import connections, transaction

from outbox.edges.postgres.common.table import PLANNER
from outbox.edges.postgres.operations import server

STATEMENT_TIMEOUT_S = 5


@contextmanager
def bounded(alias: str) -> Iterator[Any]:
    """Django's connection for reading, with a planner set for a queue and a time limit on every statement. The rollback
    resets both; inside a transaction of the caller it goes back to a savepoint."""
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            server.set_locally(cursor, {**PLANNER, "statement_timeout": f"{STATEMENT_TIMEOUT_S}s"})
        try:
            yield connections[alias].connection
        finally:
            transaction.set_rollback(True, using=alias)


def now_of(alias: str) -> datetime:
    """The time of the database, whose clock gives all times on the page."""
    with connections[alias].cursor() as cursor:
        return server.now(cursor)
