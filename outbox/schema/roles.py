"""Least-privilege roles as SQL, for writers, consumers, harvesters, keepers, operators and readers.

`manage.py outbox_roles` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

COMPANIONS = (
    *("state", "purged", "lane", "spark", "hold", "dead", "audit_log", "sample", "watch"),
    *("position", "partition", "owner", "seen", "held", "replay"),
    *("journal", "stage", "fragment"),
)
"""Suffixes of the companion tables. The harvester writes them, but for those of consumers and journals. Operators also
write holds, dead letters and the audit log, by the commands and the admin."""
OPERATED = ("hold", "dead", "audit_log")
CONSUMED = ("position", "partition", "owner", "seen", "held", "replay")
JOURNALS = ("journal", "stage", "fragment")
REQUESTED = ("held",)
"""Operators write requests into it, and edits. The consumers carry them out."""

HELP: Mapping[str, str] = {
    "writer": "stashes: inserts records and reads their ids; reads no other column, and changes no record",
    "consumer": "consumes: keeps and shows the positions of consumers, and may stash as a writer does; reads no record",
    "harvester": "moves records: reads, marks and deletes them, and writes the companion tables; inserts no record",
    "keeper": "keeps journals: removes what was not committed, repairs replicas; reads and changes no record",
    "operator": "decides: reads, adds and changes records, holds and dead letters, and requests what becomes of held "
    "messages; deletes no record",
    "reader": "reads records and the companion tables, as the admin and the metrics do; changes nothing",
}


@dataclass(frozen=True, slots=True)
class Relations:
    """The tables and the sequence of an outbox in the database."""

    schema: str
    table: str
    sequence: str
    """Qualified and quoted, as PostgreSQL returns it."""
    companions: tuple[str, ...]


def statements(found: Relations, names: Mapping[str, str]) -> list[tuple[str, sql.Composed]]:
    """Return pairs of comment and statement. Each run sets the privileges of a role on these tables to exactly these.
    `names` has the role name of each purpose; a purpose without a name is left out."""
    result = []
    for purpose in HELP:
        if purpose in names:
            result += _role(found, purpose, names[purpose])
    return result


def _role(found: Relations, purpose: str, name: str) -> list[tuple[str, sql.Composed]]:
    role, schema = sql.Identifier(name), sql.Identifier(found.schema)
    tables = [sql.Identifier(found.schema, table) for table in (found.table, *found.companions)]
    parts = {
        "role": role,
        "literal": sql.Literal(name),
        "schema": schema,
        "table": tables[0],
        "tables": sql.SQL(", ").join(tables),
        "companions": sql.SQL(", ").join(tables[1:]),
        "harvested": _named(found, [suffix for suffix in COMPANIONS if suffix not in (*CONSUMED, *JOURNALS)]),
        "operated": _named(found, OPERATED),
        "consumed": _named(found, CONSUMED),
        "requested": _named(found, REQUESTED),
        **{suffix: _named(found, [suffix]) for suffix in JOURNALS},
        "sequence": sql.SQL(found.sequence),
    }
    texts = [
        f"DO {_CREATE}".replace("$$", _fence(name)),
        "GRANT USAGE ON SCHEMA {schema} TO {role}",
        "REVOKE ALL ON {tables} FROM {role}",
        "REVOKE ALL ON SEQUENCE {sequence} FROM {role}",
        *_GRANTS[purpose],
    ]
    groups = ("companions", "harvested", "operated", "consumed", "requested", *JOURNALS)
    empty = [f"{{{name}}}" for name in groups if not parts[name].as_string()]
    texts = [text for text in texts if not any(name in text for name in empty)]
    composed = [sql.SQL(text).format(**parts) for text in texts]
    return [(f"{purpose} {HELP[purpose]}" if not at else "", statement) for at, statement in enumerate(composed)]


def _named(found: Relations, suffixes: Sequence[str]) -> sql.Composed:
    """Those companions that there are."""
    wanted = {f"{found.table}_{suffix}" for suffix in suffixes}
    return sql.SQL(", ").join(sql.Identifier(found.schema, table) for table in found.companions if table in wanted)


_CREATE = (
    "$$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN CREATE ROLE {role} NOLOGIN; "
    "END IF; END $$"
)


def _fence(name: str) -> str:
    """Return a dollar quote that the role's name does not contain."""
    tag = "role"
    while f"${tag}$" in name:
        tag += "_"
    return f"${tag}$"


_APPEND = (
    "GRANT SELECT ON {journal} TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON {stage} TO {role}",
    "GRANT SELECT, INSERT ON {fragment} TO {role}",
)
_GRANTS: Mapping[str, tuple[str, ...]] = {
    "writer": (
        "GRANT INSERT, SELECT (id) ON {table} TO {role}",
        "GRANT USAGE ON SEQUENCE {sequence} TO {role}",
        *_APPEND,
    ),
    # UPDATE, because a lock of a row asks for it.
    "consumer": (
        "GRANT INSERT, SELECT (id) ON {table} TO {role}",
        "GRANT USAGE ON SEQUENCE {sequence} TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {consumed} TO {role}",
        *_APPEND,
    ),
    "keeper": (
        "GRANT SELECT, UPDATE ON {journal} TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {stage} TO {role}",
        "GRANT SELECT, UPDATE, DELETE ON {fragment} TO {role}",
    ),
    # The value of leader_id is the mark of at-least-once delivery and of Spark.
    "harvester": (
        "GRANT SELECT, DELETE, UPDATE (leader_id) ON {table} TO {role}",
        "GRANT SELECT ON SEQUENCE {sequence} TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {harvested} TO {role}",
    ),
    # It inserts requeued dead letters.
    "operator": (
        "GRANT SELECT, INSERT, UPDATE ON {table} TO {role}",
        "GRANT USAGE, SELECT ON SEQUENCE {sequence} TO {role}",
        "GRANT SELECT ON {companions} TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {operated} TO {role}",
        "GRANT UPDATE (wanted, value, header_names, header_values) ON {requested} TO {role}",
    ),
    "reader": (
        "GRANT SELECT ON {tables} TO {role}",
        "GRANT SELECT ON SEQUENCE {sequence} TO {role}",
    ),
}
