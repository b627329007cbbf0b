"""Every statement on the outbox table that a harvester runs. Each is named by its first comment."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

Row = tuple[Any, ...]


def connect(alias: str) -> psycopg.Connection[Any]:
    """An own connection with the parameters of Django's alias: the daemon never shares Django's."""
    from django.db import connections

    parameters = connections[alias].get_connection_params()
    for django_only in ("context", "cursor_factory", "prepare_threshold"):
        parameters.pop(django_only, None)
    parameters["application_name"] = "outbox harvest"
    return psycopg.connect(**parameters, autocommit=True)


class Table:
    def __init__(self, connection: psycopg.Connection[Any], name: str) -> None:
        self.connection = connection
        table = sql.Identifier(name)
        self._read = sql.SQL(
            "/* read */ SELECT id, kafka_topic, kafka_key, kafka_value, "
            "kafka_header_keys, kafka_header_values, kafka_value_binary "
            "FROM {} WHERE id > %s AND id <= %s ORDER BY id LIMIT %s"
        ).format(table)
        self._purge = sql.SQL("/* purge */ DELETE FROM {} WHERE id = ANY(%s::bigint[])").format(table)
        self._newest = sql.SQL("/* newest */ SELECT max(id) FROM {}").format(table)

    def newest(self) -> int:
        row = self.connection.execute(self._newest).fetchone()
        return int(row[0] or 0) if row else 0

    def read(self, after: int, until: int, limit: int) -> list[Row]:
        return self.connection.execute(self._read, [after, until, limit], binary=True).fetchall()

    def purge(self, ids: Sequence[int]) -> int:
        return self.connection.execute(self._purge, [list(ids)]).rowcount
