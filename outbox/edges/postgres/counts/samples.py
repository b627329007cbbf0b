"""One row a minute about the table as a whole, for the charts of the admin: ``<TABLE>_sample``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.counts.backlog import COUNT_MAX, backlog

KEEP = timedelta(hours=24)


def take(connection: psycopg.Connection[Any], table: str, rejected: int) -> bool:
    """Write the sample of this minute and forget those of yesterday; False when somebody else has written it.

    The minute is the key, so that harvesters that overlap write one row between them, whatever they believe. It is the
    nearest one by the database's clock: those who write wake at full minutes, each by its own.
    """
    found = backlog(connection, table)
    return bool(
        connection.execute(
            sql.SQL(
                "/* sample */ WITH old AS (DELETE FROM {sample} WHERE taken_at < clock_timestamp() - %(keep)s) "
                "INSERT INTO {sample} (taken_at, backlog, oldest_age_s, stashed, delivered, rejected, holds, dead) "
                "SELECT date_trunc('minute', clock_timestamp() + interval '30 s'), %(backlog)s, %(oldest_age_s)s, "
                "%(stashed)s, %(delivered)s, %(rejected)s, "
                "(SELECT count(*) FROM (SELECT FROM {hold} WHERE reason IN ('rejected', 'poison') "
                "LIMIT %(count_max)s) AS held), (SELECT count(*) FROM (SELECT FROM {dead} LIMIT %(count_max)s) AS d) "
                "ON CONFLICT (taken_at) DO NOTHING"
            ).format(**{name: identifier(f"{table}_{name}") for name in ("sample", "hold", "dead")}),
            {
                "keep": KEEP,
                "count_max": COUNT_MAX,
                "backlog": found.records,
                "oldest_age_s": found.oldest_age_s,
                "stashed": found.stashed_total,
                "delivered": found.deleted_total,
                "rejected": rejected,
            },
        ).rowcount
    )
