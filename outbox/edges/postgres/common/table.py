"""Connections to the outbox's database, and the name of its table."""

import re
import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg import sql

from outbox.edges.postgres.common import backends
from outbox.edges.postgres.common.session import BoundedConnection
from outbox.edges.postgres.common.texts import has_encoding, take_bytes

BESIDE = "outbox look"
"""What a connection is called that is there for a moment."""

# What a role or a database may set otherwise, and what values that are read as text depend on.
FORMATS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}

# The planner never reads a whole queue: statistics gathered while the table was empty make it believe it should.
PLANNER = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}

_ROLE = re.compile(r"(?:^|\s)-c role=((?:\\.|[^\s\\])*)")


class RoleIgnored(backends.OptionsIgnored):
    """Something between this process and PostgreSQL drops the option that assumes a role."""

    def __init__(self, role: str) -> None:
        super().__init__(
            f"PostgreSQL did not assume the role {role!r} of OPTIONS['assume_role']: a pooler drops the options of "
            "connections. Connect to the server directly, or through a pooler in session mode that passes options on. "
            "Or log in as a role that has the privileges itself."
        )


def parameters(alias: str) -> dict[str, Any]:
    """The parameters of Django's alias: the daemon opens its own connections and never shares Django's."""
    from django.db import connections

    found = connections[alias].get_connection_params()
    for django_only in ("context", "cursor_factory", "prepare_threshold"):
        found.pop(django_only, None)
    return assuming(found, connections[alias].settings_dict["OPTIONS"].get("assume_role"))


def assuming(source: Mapping[str, Any], role: str | None) -> dict[str, Any]:
    """The parameters of a connection that assumes the role, which Django does only for connections of its own. As an
    option it goes wherever the parameters go, and RESET leads back to it."""
    if not role:
        return dict(source)
    escaped = re.sub(r"([\s\\])", r"\\\1", role)  # as the server reads its command line
    return {**source, "options": f"{source.get('options') or ''} -c role={escaped}".strip()}


def formatted(source: Mapping[str, Any], **settings: object) -> dict[str, Any]:
    """The parameters of a connection with settings of ours, which come last and win."""
    options = " ".join(f"-c {name}={value}" for name, value in {**FORMATS, **settings}.items())
    return {**source, "client_encoding": "UTF8", "options": f"{source.get('options') or ''} {options}".strip()}


def connect_plainly(source: Mapping[str, Any], *, autocommit: bool) -> psycopg.Connection[Any]:
    given = formatted(source)
    try:
        connection = psycopg.connect(**given, autocommit=autocommit)
    except psycopg.OperationalError as error:
        raise backends.refusal(error) or error from None
    _with_role(connection, given["options"])
    return connection


def _with_role(connection: psycopg.Connection[Any], options: str) -> None:
    """Raises `RoleIgnored`."""
    if found := _ROLE.findall(options):
        role = re.sub(r"\\(.)", r"\1", found[-1])
        row = connection.execute("/* role */ SELECT current_setting('role')").fetchone()
        if row is None or row[0] != role:
            connection.close()
            raise RoleIgnored(role)
        connection.commit()


def connect_bounded(
    source: Mapping[str, Any],
    *,
    statement_timeout_s: float,
    application_name: str = "outbox harvest",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> BoundedConnection:
    """An autocommit connection whose every wait is bounded, on the server and here. Raises `OptionsIgnored` where the
    server does not have all the settings."""
    timeout_ms = max(1, int(statement_timeout_s * 1000))
    limits = {"statement_timeout": timeout_ms, "lock_timeout": max(1, timeout_ms // 2)}
    options = {**FORMATS, **PLANNER, **limits, **settings}
    given = {
        "connect_timeout": 4,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
        **formatted(source, **options),
        "application_name": application_name,
    }
    try:
        connection = BoundedConnection.connect(**given, autocommit=True)
    except psycopg.OperationalError as error:
        raise backends.refusal(error) or error from None
    connection.prepare_threshold = None  # plans follow the statistics, and poolers see plain statements
    connection.give_up_at = time.monotonic() + statement_timeout_s
    try:
        _with_role(connection, given["options"])
        backends.note(connection, options)
        if not has_encoding(connection):
            take_bytes(connection)
    except BaseException:
        connection.close()
        raise
    connection.give_up_at = float("inf")
    return connection


def connect_session(source: Mapping[str, Any], **given: Any) -> BoundedConnection:
    """The same for whoever works on the table: refused unless the connection has a backend for itself."""
    connection = connect_bounded(source, **given)
    try:
        connection.give_up_at = time.monotonic() + given["statement_timeout_s"]
        backends.require_own(connection, partial(connect_bounded, source, **{**given, "application_name": BESIDE}))
    except BaseException:
        connection.close()
        raise
    connection.give_up_at = float("inf")
    return connection


def identifier(name: str) -> sql.Identifier:
    """`name` or `schema.name`, quoted."""
    return sql.Identifier(*name.split(".", 1))
