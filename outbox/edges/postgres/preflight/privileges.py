"""What the database role of a harvester must be allowed, asked at once. What a role is given says
`outbox.schema.roles`."""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.common.leases import RIGHTS, NoRights
from outbox.edges.postgres.common.table import identifier

_OF_ALL = ("state", "lane", "hold", "dead")
_OF_EXACTLY_ONCE = ("purged", "watch")
_MISSING = (
    "/* rights */ SELECT relation, granted FROM unnest(%s::text[], %s::text[]) AS r(relation, granted) "
    "WHERE to_regclass(relation) IS NOT NULL AND NOT CASE WHEN granted LIKE 'UPDATE (%%' "
    "THEN has_column_privilege(to_regclass(relation), 'leader_id', 'UPDATE') "
    "ELSE has_table_privilege(to_regclass(relation), granted) END"
)
_IS_OLD = (
    "/* rights */ SELECT to_regclass(%(hold)s) IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute "
    "WHERE attrelid = to_regclass(%(hold)s) AND attname = 'stashed_at' AND NOT attisdropped)"
)


def missing(connection: psycopg.Connection[Any], table: str, *, exactly_once: bool) -> dict[str, list[str]]:
    """By relation, as a GRANT names both; of relations that are there."""
    suffixes = (*_OF_ALL, *(_OF_EXACTLY_ONCE if exactly_once else ()))
    wanted = [(identifier(table), right) for right in ("SELECT", "DELETE")]
    if not exactly_once:
        wanted.append((identifier(table), "UPDATE (leader_id)"))
    wanted += [(identifier(f"{table}_{suffix}"), right) for suffix in suffixes for right in RIGHTS.split(", ")]
    names = [name.as_string(connection) for name, _ in wanted]
    found: dict[str, list[str]] = {}
    for relation, right in connection.execute(_MISSING, [names, [right for _, right in wanted]]):
        found.setdefault(relation, []).append(right)
    return found


def require_migrated(connection: psycopg.Connection[Any], table: str) -> None:
    """Raises `WrongTable`."""
    row = connection.execute(_IS_OLD, {"hold": identifier(f"{table}_hold").as_string(connection)}).fetchone()
    if row is not None and row[0]:
        raise WrongTable(
            f"{identifier(f'{table}_hold').as_string(connection)} is that of an older release: it lacks stashed_at. "
            "Run: python manage.py migrate outbox"
        )


def check(connection: psycopg.Connection[Any], table: str, *, exactly_once: bool) -> None:
    """Raises `WrongTable` where a migration is missing, `NoRights` with the statements that give what is missing."""
    require_migrated(connection, table)
    if found := missing(connection, table, exactly_once=exactly_once):
        role = connection.execute("SELECT quote_ident(current_user)").fetchone()
        assert role is not None
        grants = "; ".join(f"GRANT {', '.join(rights)} ON {name} TO {role[0]}" for name, rights in found.items())
        raise NoRights(
            f"The role {role[0]} may not use all that a harvester of {table!r} needs. Run, as the owner of the tables: "
            f"{grants}. Or give it the role that manage.py outbox_roles --harvester makes."
        )
