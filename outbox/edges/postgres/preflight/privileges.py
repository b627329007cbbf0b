"""The privileges that the database role of a harvester needs, checked with one statement. `outbox.schema.roles` says
which privileges a role is given."""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.edges.postgres.common.leases import PRIVILEGES, NoPrivileges
from outbox.edges.postgres.common.table import identifier

_OF_ALL = ("state", "lane", "hold", "dead")
_OF_EXACTLY_ONCE = ("purged", "watch")
_OF_CONSUMERS = ("position", "partition", "held")
_MISSING = (
    "/* privileges */ SELECT relation, granted FROM unnest(%s::text[], %s::text[]) AS r(relation, granted) "
    "WHERE to_regclass(relation) IS NOT NULL AND NOT CASE WHEN granted LIKE 'UPDATE (%%' "
    "THEN has_column_privilege(to_regclass(relation), 'leader_id', 'UPDATE') "
    "ELSE has_table_privilege(to_regclass(relation), granted) END"
)


def missing(connection: psycopg.Connection[Any], table: str, *, exactly_once: bool) -> dict[str, list[str]]:
    """By relation, as a GRANT names both; of relations that are there."""
    suffixes = (*_OF_ALL, *(_OF_EXACTLY_ONCE if exactly_once else ()))
    wanted = [(identifier(table), right) for right in ("SELECT", "DELETE")]
    if not exactly_once:
        wanted.append((identifier(table), "UPDATE (leader_id)"))
    wanted += [(identifier(f"{table}_{suffix}"), right) for suffix in suffixes for right in PRIVILEGES.split(", ")]
    names = [name.as_string(connection) for name, _ in wanted]
    found: dict[str, list[str]] = {}
    for relation, right in connection.execute(_MISSING, [names, [right for _, right in wanted]]):
        found.setdefault(relation, []).append(right)
    return found


def missing_of_consumers(connection: psycopg.Connection[Any], table: str) -> dict[str, list[str]]:
    """By table, what a role lacks that keeps and shows positions; of a table that is not there: nothing."""
    names = [identifier(f"{table}_{suffix}").as_string(connection) for suffix in _OF_CONSUMERS]
    asked = [(name, right) for name in names for right in PRIVILEGES.split(", ")]
    rows = connection.execute(
        "/* privileges */ SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL", [names]
    )
    found: dict[str, list[str]] = {name: [] for (name,) in rows}
    for relation, right in connection.execute(_MISSING, [[name for name, _ in asked], [right for _, right in asked]]):
        found.setdefault(relation, []).append(right)
    return found


def check(connection: psycopg.Connection[Any], table: str, *, exactly_once: bool) -> None:
    """Raises `NoPrivileges` with the statements that give what is missing."""
    if found := missing(connection, table, exactly_once=exactly_once):
        role = connection.execute("SELECT quote_ident(current_user)").fetchone()
        assert role is not None
        grants = "; ".join(f"GRANT {', '.join(rights)} ON {name} TO {role[0]}" for name, rights in found.items())
        raise NoPrivileges(
            f"The role {role[0]} lacks privileges that a harvester of {table!r} needs. Run, as the owner of the "
            f"tables: {grants}. Or grant it the role that manage.py outbox_roles --harvester creates."
        )
