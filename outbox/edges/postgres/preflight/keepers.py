"""Row-level security, triggers and rules that make a DELETE or an UPDATE leave rows as they are, without an error.

A record that is in Kafka and survives its DELETE is read again and again. Most of these can be found before anything is
sent; a trigger that keeps only some rows is found by the count after a purge.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import psycopg

from outbox.edges.postgres.common.table import identifier
from outbox.exceptions import OutboxError

Connection = psycopg.Connection[Any]

_TRIGGERS = (
    "/* keepers */ SELECT tgname, tgtype & 8 <> 0, tgtype & 16 <> 0 AND (cardinality(tgattr::int2[]) = 0 OR "
    "(SELECT attnum FROM pg_attribute WHERE attrelid = tgrelid AND attname = 'leader_id') = ANY(tgattr)), "
    "tgqual IS NOT NULL, CASE WHEN lanname = 'plpgsql' THEN prosrc END "
    "FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid JOIN pg_language l ON l.oid = prolang "
    "WHERE tgrelid = to_regclass(%s) AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 3 = 3 ORDER BY 1"
)
_RULES = (
    "/* keepers */ SELECT rulename, CASE ev_type WHEN '2' THEN 'UPDATE' ELSE 'DELETE' END FROM pg_rewrite "
    "WHERE ev_class = to_regclass(%s) AND ev_type IN ('2', '4') AND ev_enabled IN ('O', 'A') ORDER BY 1"
)
_POLICIES = (
    "/* keepers */ SELECT polcmd::text, polpermissive, coalesce(pg_get_expr(polqual, polrelid), 'true'), "
    "coalesce(pg_get_expr(polwithcheck, polrelid), pg_get_expr(polqual, polrelid), 'true') "
    "FROM pg_policy WHERE polrelid = to_regclass(%s) "
    "AND (0 = ANY(polroles) OR EXISTS (SELECT FROM unnest(polroles) AS r(role) WHERE pg_has_role(role, 'USAGE')))"
)
_IS_SECURED = "/* keepers */ SELECT coalesce(row_security_active(to_regclass(%s)), false), quote_ident(current_user)"
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)
_RETURNS = re.compile(r"\breturn\b\s*(\w*)", re.IGNORECASE)


class RowsKept(OutboxError):
    """Something about the table keeps rows from being deleted, or marked."""


class KeepersFound(NamedTuple):
    """What keeps all rows, and what may keep some."""

    certain: list[str]
    possible: list[str]


def look(connection: Connection, table: str, *, marks: bool) -> KeepersFound:
    """`marks`: the delivery mode updates rows as well."""
    name = identifier(table).as_string(connection)
    found = KeepersFound([], [])
    for text in _rules(connection, name, marks=marks):
        found.certain.append(text)
    _judge_triggers(connection, name, found, marks=marks)
    _judge_policies(connection, name, found, marks=marks)
    return found


def check(connection: Connection, table: str, *, marks: bool) -> list[str]:
    """What is worth a warning. Raises `RowsKept` for what keeps every row."""
    found = look(connection, table, marks=marks)
    if found.certain:
        raise RowsKept(
            f"The harvester could not delete delivered records of {table!r}, and would send them again and again: "
            f"{'; '.join(found.certain)}."
        )
    return found.possible


def told(connection: Connection, table: str, *, marks: bool) -> str:
    """What has kept rows, as far as can be seen."""
    found = look(connection, table, marks=marks)
    return "; ".join([*found.certain, *found.possible]) or (
        "no policy, trigger or rule explains it; find out what else acts on the table"
    )


def kept(connection: Connection, table: str, count: int, *, marks: bool) -> RowsKept:
    """After a DELETE that has left so many rows."""
    return RowsKept(
        f"{count} rows of {table!r} that are in Kafka survived their DELETE: {told(connection, table, marks=marks)}. "
        "The harvester would send them twice, so it sends nothing until they are deleted. Remove what keeps them."
    )


def _rules(connection: Connection, name: str, *, marks: bool) -> Iterator[str]:
    for rule, command in connection.execute(_RULES, [name]):
        if command == "DELETE" or marks:
            yield f"the rule {rule!r} acts on each {command}: DROP RULE {_quoted(rule)} ON {name}"


def _judge_triggers(connection: Connection, name: str, found: KeepersFound, *, marks: bool) -> None:
    for trigger, on_delete, on_update, is_conditional, source in connection.execute(_TRIGGERS, [name]):
        commands = {"DELETE": {"null", "new"}} if on_delete else {}
        commands |= {"UPDATE": {"null", "old"}} if on_update and marks else {}
        for command, skipping in commands.items():
            returns = {text.lower() for text in _RETURNS.findall(_COMMENTS.sub(" ", source or ""))}
            remedy = f"let it return {'OLD' if command == 'DELETE' else 'NEW'}, or drop it"
            if returns and returns <= skipping and not is_conditional:
                found.certain.append(f"the trigger {trigger!r} skips each {command}: {remedy}")
            elif "null" in returns or (command == "DELETE" and returns != {"old"}):
                found.possible.append(f"the trigger {trigger!r} may skip a {command}: {remedy}")


def _judge_policies(connection: Connection, name: str, found: KeepersFound, *, marks: bool) -> None:
    row = connection.execute(_IS_SECURED, [name]).fetchone()
    assert row is not None
    is_secured, role = row
    if not is_secured:
        return
    policies = connection.execute(_POLICIES, [name]).fetchall()

    def of(command: str, *, permissive: bool, new: bool = False) -> set[str]:
        found = [policy for policy in policies if policy[0] in (command, "*") and policy[1] is permissive]
        return {policy[3 if new else 2] for policy in found}

    seen, narrowed = of("r", permissive=True), of("r", permissive=False)

    def is_free(command: str, *, new: bool = False) -> bool:
        """`new`: as the row is afterwards. One permissive policy that takes it is enough."""
        allowed, refused = (of(command, permissive=permissive, new=new) for permissive in (True, False))
        return bool(seen) and _covers(allowed, seen) and refused <= narrowed | {"true"}

    wanted = {"d": "DELETE", **({"w": "UPDATE"} if marks else {})}
    remedy = f"run, as a superuser: ALTER ROLE {role} BYPASSRLS"
    for command, shown in wanted.items():
        if not is_free(command) or (command == "w" and not is_free(command, new=True)):
            found.certain.append(
                f"row-level security lets {role} see rows that the role may not {shown}, or no rows: {remedy}"
            )
    if not found.certain and ("true" not in seen or not narrowed <= {"true"}):
        found.possible.append(f"row-level security hides rows from {role}, and these are never delivered: {remedy}")


def _covers(allowed: Collection[str], seen: Collection[str]) -> bool:
    return "true" in allowed or set(seen) <= set(allowed)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
