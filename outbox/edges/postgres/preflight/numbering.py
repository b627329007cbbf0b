"""How PostgreSQL draws the ids of an outbox table. Readers rely on two rules: the ids of a key have the order of its
commits, and the transaction that drew an id has a known number. So the default is guarded, and no session draws ids in
advance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from outbox.edges.postgres.common.table import identifier
from outbox.exceptions import OutboxError

_DEFAULT = (
    "/* ids */ SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid "
    "AND attnum = adnum WHERE adrelid = to_regclass(%s) AND attname = 'id'"
)
# Owned by the column, or at least used by its default.
_SEQUENCE = (
    "/* ids */ SELECT own IS NOT NULL, seqrelid::regclass::text, seqcache, seqincrement, seqcycle "
    "FROM (SELECT pg_get_serial_sequence(%(table)s, 'id')::regclass::oid, (SELECT min(refobjid::bigint)::oid "
    "FROM pg_attrdef AS d JOIN pg_attribute AS a ON a.attrelid = adrelid AND a.attnum = adnum "
    "JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = d.oid AND refclassid = 'pg_class'::regclass "
    "WHERE adrelid = to_regclass(%(table)s) AND attname = 'id' AND refobjid IN (SELECT seqrelid FROM pg_sequence))) "
    "AS found(own, used) JOIN pg_sequence ON seqrelid = coalesce(own, used)"
)
_REMEDY = "To repair both, run: python manage.py migrate outbox zero --fake, and then: python manage.py migrate outbox"


class UnorderedIds(OutboxError):
    """Ids are drawn in a way that does not keep the order of a key."""


class NumberingFound(NamedTuple):
    """What is wrong; empty: nothing."""

    default: str
    owner: str
    sequence: str

    @property
    def problems(self) -> list[str]:
        return [text for text in self if text]


def look(cursor: Any, quoted: str) -> NumberingFound:
    """Of a table by its quoted name. `cursor`: of psycopg, or of Django."""
    cursor.execute(_DEFAULT, [quoted])
    default = cursor.fetchone()
    is_guarded = default is not None and "pg_current_xact_id()" in default[0]
    cursor.execute(_SEQUENCE, {"table": quoted})
    is_own, name, cache, increment, cycles = cursor.fetchone() or (False, "", 1, 1, False)
    is_plain = (cache, increment, cycles) == (1, 1, False)
    return NumberingFound(
        "" if is_guarded else f"The default of {quoted}.id is not guarded by pg_current_xact_id().",
        "" if is_own else f"No sequence belongs to {quoted}.id.",
        ""
        if is_plain
        else f"The sequence of {quoted}.id has CACHE {cache}, INCREMENT {increment}{', CYCLE' if cycles else ''}; it "
        f"must have CACHE 1, INCREMENT 1 and no CYCLE: ALTER SEQUENCE {name} CACHE 1 INCREMENT 1 NO CYCLE.",
    )


def check(connection: psycopg.Connection[Any], table: str, *, exactly_once: bool) -> list[str]:
    """What is worth a warning; raises `UnorderedIds` for what breaks a promise.

    Exactly-once delivery finds late records by the guard. The other modes take what is visible: they need a sequence
    that gives no session ids in advance, and a table of others, without companion tables, may have what it has.
    """
    name = identifier(table).as_string(connection)
    found = look(connection.cursor(), name)
    row = connection.execute(
        "/* ids */ SELECT to_regclass(%s) IS NOT NULL", [identifier(f"{table}_state").as_string(connection)]
    ).fetchone()
    is_own = row is not None and row[0]
    errors = found.problems if exactly_once else [found.sequence] if is_own and found.sequence else []
    if errors:
        raise UnorderedIds(
            f"The harvester could deliver records of one key out of order, and find some late: {' '.join(errors)} "
            f"{_REMEDY}"
        )
    notes = found.problems if is_own else [found.sequence] if found.sequence else []
    return [
        f"The harvester may deliver records of one key out of order: {text} {_REMEDY if is_own else ''}".strip()
        for text in notes
    ]
