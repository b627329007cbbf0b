"""Changes to records that operators ask for, each in one statement, on Django's cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox.edges.postgres.common.table import identifier


def put_back(cursor: Any, table: str, dead: str, ids: Sequence[int]) -> int:
    """Move dead letters into the outbox: in one statement, so that a letter is in one of the two tables."""
    cursor.execute(
        f"WITH gone AS (DELETE FROM {identifier(dead).as_string()} WHERE id = ANY(%s) RETURNING *) "
        f"INSERT INTO {identifier(table).as_string()} (kafka_topic, kafka_key, kafka_value, kafka_value_binary, "
        "kafka_header_keys, kafka_header_values) SELECT topic, key, value, value_binary, header_keys, header_values "
        "FROM gone ORDER BY record_id, id",
        [list(ids)],
    )
    return int(cursor.rowcount)


def pause_keys(cursor: Any, table: str, holds: str, reason: str, ids: Sequence[int]) -> list[int]:
    """Place a hold on the key of each record that has one, in an order of its own: two of these statements do not wait
    for each other. The ids of the new holds."""
    cursor.execute(
        f"INSERT INTO {identifier(holds).as_string()} (topic, key, reason) SELECT kafka_topic, kafka_key, %s "
        f"FROM {identifier(table).as_string()} WHERE id = ANY(%s) AND kafka_key <> '' GROUP BY 1, 2 ORDER BY 1, 2 "
        "ON CONFLICT DO NOTHING RETURNING id",
        [reason, list(ids)],
    )
    return [row[0] for row in cursor.fetchall()]
