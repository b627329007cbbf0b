"""The look of the sweep: what one slice of the table's blocks shows below an id.

By blocks and not by ids: beside a pinned horizon an index is full of dead entries, and a slice of ids may be one of
millions that are gone. The connection's settings leave the planner no other plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outbox.core.names import LONG_KEY
from outbox.edges.postgres.common.int8_arrays import Ids
from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.exactly_once.reader import NOTHING, LeftOut, lane_of_row

Found = tuple[int, str, str, int]
"""id, topic, key, lane. A long key is left out: its record is read again, as if it had been missed."""


@dataclass(frozen=True, slots=True)
class Below:
    """What a slice is looked at for: rows up to `read_to` that nobody has in flight."""

    read_to: int
    lanes: Sequence[int]
    excluded: Sequence[int]
    """In flight."""
    left_out: LeftOut = NOTHING


class Sweeper:
    def __init__(self, table: str, lanes: int = 1, *, keep_empty_key: bool = False) -> None:
        self.lanes = lanes
        lane = lane_of_row(lanes, keep_empty_key=keep_empty_key) if lanes > 1 else sql.SQL("0")
        self._text = sql.SQL(
            "/* sweep */ SELECT pg_relation_size({relation}) / current_setting('block_size')::bigint AS id, "
            "NULL::text, NULL::text, NULL::int UNION ALL (SELECT id, kafka_topic, "
            f"CASE WHEN octet_length(kafka_key) <= {LONG_KEY} THEN kafka_key ELSE '' END, "
            "{lane} FROM {table} WHERE ctid >= %(first)s::tid AND ctid < %(last)s::tid AND id <= %(read_to)s "
            "AND id <> ALL(%(excluded)s) AND {lane} = ANY(%(wanted)s::int[]) "
            "AND kafka_topic <> ALL(%(topics)s::text[]))"
        ).format(table=identifier(table), relation=sql.Literal(identifier(table).as_string()), lane=lane)

    @staticmethod
    def prepare(connection: psycopg.Connection[Any]) -> None:
        """Of a connection that does nothing else."""
        connection.execute("/* sweep */ SET enable_indexscan = off")
        connection.execute("/* sweep */ SET enable_tidscan = on")

    def given(self, first_block: int, blocks: int, below: Below) -> dict[str, Any]:
        return {
            "first": f"({first_block},0)",
            "last": f"({first_block + blocks},0)",
            "read_to": below.read_to,
            "excluded": Ids(below.excluded),
            "wanted": [lane for lane in below.lanes if lane not in below.left_out.lanes],
            "topics": list(below.left_out.topics),
        }

    @property
    def text(self) -> str:
        return self._text.as_string()

    def look(
        self, connection: psycopg.Connection[Any], first_block: int, blocks: int, below: Below
    ) -> tuple[list[Found], int]:
        """What these blocks show, by ascending id, and how many blocks the table has."""
        rows: list[Any] = connection.execute(self._text, self.given(first_block, blocks, below)).fetchall()
        size = int(rows[0][0])
        return sorted(rows[1:]), size
