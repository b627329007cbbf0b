"""Rows of journals and fragments as values, and the names of the tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from psycopg import sql

from outbox.core.journal.values import Fragment, JournalState, Placed
from outbox.edges.postgres.common.table import identifier

JOURNAL = "j.name, j.head, j.chain, j.registers, j.replicas, j.stores, j.fragment_bytes, j.is_read_only, j.suspect"
FRAGMENT = (
    'f.append::text, f.part, f.path, f.length, f.sha256, f.blocks, f.replicas, f.zones, f.begin, f."end", f.chain'
)
_JOURNAL_COLUMNS = 9


def build(table: str, text: str) -> str:
    """The tables of the outbox put into a statement. Braces of SQL are doubled."""
    names = {suffix: identifier(f"{table}_{suffix}") for suffix in ("journal", "stage", "fragment")}
    return sql.SQL(text).format(**names, j=sql.SQL(JOURNAL), f=sql.SQL(FRAGMENT)).as_string()


def state_of(row: Sequence[Any]) -> JournalState:
    name, head, chain, registers, replicas, stores, fragment_bytes, is_read_only, suspect = row[:_JOURNAL_COLUMNS]
    if isinstance(registers, str):  # Django does not decode jsonb
        registers = json.loads(registers)
    return JournalState(
        name, head, bytes(chain), registers, replicas, tuple(stores), fragment_bytes, is_read_only, suspect
    )


def placed_of(row: Sequence[Any]) -> Placed:
    append, part, path, length, content, blocks, replicas, zones, begin, end, chain = row
    fragment = Fragment(part, path, length, bytes(content), bytes(blocks), tuple(replicas), zones)
    return Placed(append, fragment, begin, end, bytes(chain))


def both_of(row: Sequence[Any]) -> tuple[JournalState, Placed]:
    return state_of(row), placed_of(row[_JOURNAL_COLUMNS:])
