"""Whether PostgreSQL finds the rows of the hot statements by an index: asked once at the start, by EXPLAIN.

A plan that reads the whole table works on a small one and is a standstill on a large one, so it is refused while the
table is still small. What the statements are is said where they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import psycopg

from outbox.exceptions import OutboxError


class Example(NamedTuple):
    """A statement with values as it is used."""

    name: str
    text: str
    given: Any


class WholeTableRead(OutboxError):
    """A statement of every round would read the whole table."""


def check(connection: psycopg.Connection[Any], table: str, examples: Iterable[Example]) -> None:
    """`table` as PostgreSQL names it in plans: without its schema. The connection has the planner's settings of those
    that harvest."""
    for example in examples:
        for node in _nodes(_plan(connection, example)):
            if node.get("Relation Name") == table and node["Node Type"] == "Seq Scan":
                raise WholeTableRead(
                    f"PostgreSQL would read the whole table {table!r} for the statement /* {example.name} */, in every "
                    "round: it finds no usable index on id. Create one: "
                    f'ALTER TABLE "{table}" ADD PRIMARY KEY (id). If there is one that is not valid, REINDEX it.'
                )


def _plan(connection: psycopg.Connection[Any], example: Example) -> Any:
    row = connection.execute(f"EXPLAIN (FORMAT JSON) {example.text}", example.given, prepare=False).fetchone()
    assert row is not None
    return row[0][0]["Plan"]


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)
