"""The sessions that block our advisory locks, for people.

Every role that may connect to the database may take such a lock: it needs no privilege, and only the application's name
shows whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

Connection = psycopg.Connection[Any]
LONG_S = 5.0
"""A lock of ours is held for the length of a statement or of a writer's transaction."""
_HERE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
_WHO = (
    "l.pid, coalesce(a.usename::text, '?'), coalesce(a.application_name, ''), "
    "extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.state_change))::float8"
)
_HOLDERS = (
    f"/* locks */ SELECT {_WHO}, l.objid::bigint FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a USING (pid) "
    f"WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.{_HERE} "
    "AND l.classid = (%s::bigint & 4294967295)::oid AND l.pid <> pg_backend_pid() ORDER BY l.pid"
)
_WAITING = (
    "/* locks */ SELECT count(*), max(extract(epoch FROM clock_timestamp() - l.waitstart))::float8, "
    "array_agg(DISTINCT b.pid) FROM pg_locks AS l CROSS JOIN LATERAL unnest(pg_blocking_pids(l.pid)) AS b(pid) "
    f"WHERE l.locktype = 'advisory' AND NOT l.granted AND l.objsubid = 2 AND l.{_HERE} "
    "AND l.classid = (%(space)s::bigint & 4294967295)::oid "
    "AND l.waitstart < clock_timestamp() - make_interval(secs => %(long_s)s)"
)
_SESSIONS = f"/* locks */ SELECT {_WHO}, 0 FROM unnest(%s::int[]) AS l(pid) LEFT JOIN pg_stat_activity AS a USING (pid)"


class Holder(NamedTuple):
    pid: int
    role: str
    application: str
    since_s: float | None
    """In its transaction, or idle, for so long; None: this role may not see it."""
    number: int
    """The second half of the lock."""

    def __str__(self) -> str:
        since = "" if self.since_s is None else f", for {self.since_s:,.0f} s"
        return f"pid {self.pid} (role {self.role!r}, application_name {self.application!r}{since})"


class WaitingSessions(NamedTuple):
    """Sessions that have waited for long."""

    sessions: int
    longest_s: float
    holders: Sequence[Holder]


def holders(connection: Connection, space: int) -> list[Holder]:
    """Of the locks of a space, without this session."""
    return [Holder(*row) for row in connection.execute(_HOLDERS, [space])]


def waiting(connection: Connection, space: int) -> WaitingSessions | None:
    row = connection.execute(_WAITING, {"space": space, "long_s": LONG_S}).fetchone()
    if row is None or not row[0]:
        return None
    return WaitingSessions(row[0], row[1], [Holder(*found) for found in connection.execute(_SESSIONS, [row[2]])])


def told(found: Sequence[Holder]) -> str:
    return ", ".join(map(str, found)) or "a session that has ended since"


def remedy(found: Sequence[Holder]) -> str:
    """Empty when no session is left to terminate."""
    if not found:
        return ""
    ends = ", ".join(f"pg_terminate_backend({holder.pid})" for holder in found)
    them = "it" if len(found) == 1 else "them"
    return (
        f"Unless this is a process of yours that is about to end, terminate {them}: SELECT {ends}. Every role that may "
        "connect can take such a lock."
    )
