"""Which backend answers a connection, and whether the connection has it for itself: found out by trying.

A pooler in transaction mode gives each transaction to any of its backends. Session locks stay behind there, and a
connection to the pooler outlives a failover: rows read from one server would be deleted on another. So every
connection that works on the table is tested when it is opened, and statements that rely on its backend name it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from outbox.exceptions import OutboxError

BACKEND = (
    "(pg_backend_pid() || ' ' || (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || '/' || "
    "(SELECT oid FROM pg_database WHERE datname = current_database()))"
)
"""Process, start of the server and database: no other backend has these, on this server or another."""
_LOCK = (0x6F757462, 0x6F78)  # shared, and nobody asks for it otherwise
_BESIDE_S = 3.0
_REFUSALS = ("unsupported startup parameter", "unsupported options startup parameter", "statement pooling mode")
_REMEDY = "Connect to the server directly, or through a pooler in session mode that passes options on."
# All in one transaction, after which they are as before.
_DROPPED = (
    f"/* options */ SELECT {BACKEND}, ARRAY(SELECT name FROM unnest(%s::text[], %s::text[]) AS t(name, value) "
    "WHERE current_setting(name) <> set_config(name, value, true))"
)
_TAKE = f"/* session */ SELECT {BACKEND}, pg_try_advisory_lock_shared(%s, %s)"
_GIVE_BACK = f"/* session */ SELECT {BACKEND}, pg_advisory_unlock_shared(%s, %s)"
_ASK = f"/* session */ SELECT {BACKEND}"

Connection = psycopg.Connection[Any]


class Pooled(OutboxError):
    """A pooler stands between this process and PostgreSQL through which it cannot work."""


class OptionsIgnored(Pooled):
    """The pooler drops the options of a connection, or refuses them."""


class SessionShared(Pooled):
    """The pooler gives one connection several backends."""


class OtherBackend(psycopg.OperationalError):
    """Another backend answers than the one with which the connection began: the session is lost."""


def refusal(error: psycopg.OperationalError) -> OptionsIgnored | None:
    """What the error of a connection that could not be opened means, if a pooler has refused it."""
    said = " ".join(str(error).split())
    if not any(text in said for text in _REFUSALS):
        return None
    return OptionsIgnored(f"A pooler refuses the options of a connection to PostgreSQL ({said}). {_REMEDY}")


def note(connection: Connection, options: Mapping[str, object]) -> None:
    """Note the backend of a new connection. Raises `OptionsIgnored` unless it took over the options."""
    given = [list(options), [str(value) for value in options.values()]]
    backend, dropped = _asked(connection, _DROPPED, given)
    if dropped:
        raise OptionsIgnored(
            f"PostgreSQL did not apply the options of this connection ({', '.join(sorted(dropped))}): a pooler "
            f"drops them. {_REMEDY}"
        )
    connection.backend = backend  # type: ignore[attr-defined]


def of(connection: Connection) -> str:
    """The backend with which the connection began."""
    if not getattr(connection, "backend", ""):
        connection.backend = _asked(connection, _ASK)[0]  # type: ignore[attr-defined]
    return str(connection.backend)  # type: ignore[attr-defined]


def server_of(backend: str) -> str:
    """Which server and database it belongs to. A copy that takes over has another start; one on the same server, which
    may have the files of the tables as well, another database."""
    return backend.rpartition(" ")[2]


def require(connection: Connection, found: str | None = None) -> None:
    """Raises `OtherBackend` unless `found`, or who answers now, is the backend with which the connection began."""
    expected = of(connection)
    found = found or _asked(connection, _ASK)[0]
    if found != expected:
        raise OtherBackend(
            f"This connection began with the backend {expected} and now reaches {found} (pid, start of the server, "
            f"database): a pooler gives it another one. {_REMEDY}"
        )


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """One that ends without effect in any other session than the connection's own."""
    with connection.transaction():
        require(connection)
        yield


def require_own(connection: Connection, connect: Callable[[], Connection]) -> None:
    """Raises `SessionShared` unless the connection has a backend for itself: a lock of its session must be there in the
    next transaction, also when another connection, which `connect` makes, is in a transaction meanwhile."""
    first, is_taken = _asked(connection, _TAKE, _LOCK)  # not where somebody keeps it from us
    with _in_transaction(connect) as beside:
        second, is_held = _asked(connection, _GIVE_BACK, _LOCK) if beside != first else (beside, False)
    if beside == first or is_held is not is_taken or {first, second} != {of(connection)}:
        raise _shared("in the next transaction, the lock of its session was gone or belonged to another session")


@contextmanager
def _in_transaction(connect: Callable[[], Connection]) -> Iterator[str]:
    """The backend of another connection, in a transaction; empty when there is none to be had."""
    try:
        other = connect()
    except psycopg.OperationalError:
        yield ""  # there is no room for it
        return
    with closing(other):
        yield _begun(other)


def _begun(other: Connection) -> str:
    if hasattr(other, "give_up_at"):
        other.give_up_at = time.monotonic() + _BESIDE_S
    try:
        other.execute("/* session */ BEGIN")
        return str(_asked(other, _ASK)[0])
    except psycopg.errors.ProtocolViolation as error:
        raise _shared(str(error)) from error
    except psycopg.OperationalError:
        return ""


def _shared(what: str) -> SessionShared:
    return SessionShared(
        f"A pooler between this process and PostgreSQL does not keep a session for a connection: {what}. Harvesters "
        "would leave locks behind, and could delete rows on another server than the one from which they read them. "
        f"{_REMEDY}"
    )


def _asked(connection: Connection, statement: str, given: Any = None) -> tuple[Any, ...]:
    row = connection.execute(statement, given).fetchone()
    assert row is not None
    return tuple(row)
