"""System checks: they find mistakes in settings, database and table before a mistake costs a record.

Checks that need a connection run only where Django gives them an alias (``migrate``, ``check --database``). A fresh or
unreachable database is no error here, because ``migrate`` runs these checks before it creates the table.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections, router

from outbox import conf
from outbox.documents import page

MINIMUM_POSTGRES = 140000
NEWEST_TESTED_POSTGRES = 18

CHECKS = {
    "outbox.E001": "A setting in OUTBOX has an invalid value or name.",
    "outbox.E002": "The database of the outbox is not PostgreSQL, or DATABASES lacks its alias.",
    "outbox.E003": "The PostgreSQL server is too old.",
    "outbox.E004": "A router sends records to another database than OUTBOX['DATABASE'].",
    "outbox.E005": "A dotted path in OUTBOX cannot be imported.",
    "outbox.E006": "The outbox table does not exist.",
    "outbox.E007": "The table lacks a column, or a column has the wrong type.",
    "outbox.E008": "The sequence or default of the id does not keep ids in order.",
    "outbox.E009": "A consumer is declared wrongly, or the module inbox of an app cannot be imported.",
    "outbox.W001": "OUTBOX names no bootstrap servers.",
    "outbox.W002": "The harvester runs with DEBUG on.",
    "outbox.W003": "The PostgreSQL server is newer than every version that this release was tested with.",
    "outbox.W004": "The table lacks a CHECK constraint, or PostgreSQL has not validated it.",
    "outbox.W005": "Routers send every model of the project to another database than the records.",
    "outbox.W006": "The check could not read the table from the database.",
    "outbox.W007": "The column create_time accepts NULL or has no default.",
}

_COLUMN_TYPES = {
    "id": {"bigint"},
    "create_time": {"timestamp with time zone"},
    "kafka_topic": {"character varying", "text"},
    "kafka_key": {"text", "character varying"},
    "kafka_value": {"text"},
    "kafka_header_keys": {"text[]", "character varying[]"},
    "kafka_header_values": {"text[]", "character varying[]"},
    "leader_id": {"uuid"},
    "kafka_value_binary": {"bytea"},
}


def register_all() -> None:
    register(check_settings)
    register(check_debug)
    register(check_consumers)
    register(check_table, Tags.database)


def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    try:
        settings = conf.current()
    except conf.ConfErrors as errors:
        return [Error(error.text, hint=error.hint, id="outbox.E001") for error in errors.errors]
    return [*_check_bootstrap(settings), *_check_vendor(settings), *_check_paths(settings)]


def _check_bootstrap(settings: conf.Conf) -> Iterator[CheckMessage]:
    if not settings.kafka.bootstrap_servers:
        yield Warning(
            'OUTBOX["BOOTSTRAP_SERVERS"] is empty: you can stash records, but no harvester can send them.',
            hint='Set it to your brokers, e.g. "localhost:9092".',
            id="outbox.W001",
        )


def _check_vendor(settings: conf.Conf) -> Iterator[CheckMessage]:
    alias = settings.database
    if alias not in connections:
        yield Error(
            f'OUTBOX["DATABASE"] is {conf.seen(alias)}, but DATABASES has no such alias.',
            hint=f"Set one of: {', '.join(connections)}.",
            id="outbox.E002",
        )
        return
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        yield Error(
            f"The database {alias!r} is {vendor}; the outbox needs PostgreSQL.",
            hint='Use ENGINE "django.db.backends.postgresql", or name the alias of such a database in '
            'OUTBOX["DATABASE"].',
            id="outbox.E002",
        )
        return
    from outbox.models import OutboxRecord

    written = router.db_for_write(OutboxRecord)
    if written != alias:
        yield Error(
            f'Routers send records to {written!r}, but the harvester reads OUTBOX["DATABASE"], which is {alias!r}.',
            hint="Let the router return the database of the business rows for the app 'outbox' and name the same "
            'one in OUTBOX["DATABASE"]: a record is only safe in the transaction of the change that it describes.',
            id="outbox.E004",
        )
        return
    elsewhere = _business_elsewhere(alias)
    if elsewhere:
        yield Warning(
            f"Routers send records to {alias!r}, but every model of the project elsewhere: {elsewhere}.",
            hint="Let the router return the database of the business rows for the app 'outbox' too, and name it in "
            'OUTBOX["DATABASE"]: two databases cannot share a transaction.',
            id="outbox.W005",
        )


def _business_elsewhere(alias: str) -> str:
    """Return where routers send the project's own models, if none of them shares the records' database."""
    if len(list(connections)) < 2:
        return ""
    mine = [
        model
        for model in apps.get_models()
        if model._meta.managed and model._meta.app_label != "outbox" and not model.__module__.startswith("django.")
    ]
    written = {model._meta.label: router.db_for_write(model) for model in mine}
    if alias in written.values():
        return ""
    return ", ".join(f"{label} is written to {where!r}" for label, where in sorted(written.items())[:3])


def _check_paths(settings: conf.Conf) -> Iterator[CheckMessage]:
    for key, path in (("SERIALIZER", settings.stash.serializer), ("REDACTOR", settings.admin.redactor)):
        module, _, name = path.rpartition(".")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            yield Error(
                f'OUTBOX["{key}"] is {path!r}, which cannot be imported: {error}.',
                hint='Set the dotted path of a function, e.g. "shop.kafka.to_text".',
                id="outbox.E005",
            )
            continue
        if not callable(found):
            yield Error(
                f'OUTBOX["{key}"] is {path!r}, which is not callable.',
                hint='Set the dotted path of a function, e.g. "shop.kafka.to_text".',
                id="outbox.E005",
            )


def check_debug(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    from django.conf import settings

    if settings.DEBUG and "harvest" in sys.argv[1:2]:
        return [
            Warning(
                "The harvester runs with DEBUG on: Django then keeps every query in memory.",
                hint="Set DEBUG = False for the harvester's process.",
                id="outbox.W002",
            )
        ]
    return []


def check_consumers(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    from outbox.consumers.registry import registered, unfit

    try:
        found = registered()
    except Exception as error:  # of a module of the project
        return [
            Error(
                f"The consumers cannot be used: {type(error).__name__}: {error}",
                hint=f"Correct the module inbox that the error names; {page('inbox')} has the arguments.",
                id="outbox.E009",
            )
        ]
    return [
        Error(
            f"The consumer {consumer.name!r} uses the database {consumer.using!r}, which does not fit: {reason}.",
            hint="Set using= to the alias of a PostgreSQL database that has the tables of outbox.",
            id="outbox.E009",
        )
        for consumer in found.values()
        if consumer.using and (reason := unfit(consumer.using))
    ]


def check_table(
    app_configs: Sequence[AppConfig] | None = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    try:
        settings = conf.current()
    except conf.ConfErrors:
        return []  # check_settings reports this
    alias = settings.database
    if alias not in (databases or ()) or alias not in connections or connections[alias].vendor != "postgresql":
        return []
    try:
        return list(_inspect(alias, settings.table, migrating=_is_migrating()))
    except DatabaseError as error:
        return [
            Warning(
                f"The check could not read the table from the database {alias!r}: {str(error).strip()}",
                hint="Check the server and the connection's parameters.",
                id="outbox.W006",
            )
        ]


def _is_migrating() -> bool:
    """Return whether `migrate` runs these checks: it has not created or repaired the table yet. Django does not pass
    this on, so the function reads the call stack."""
    from django.core.management.commands.migrate import Command

    frame = inspect.currentframe()
    while frame is not None and not issubclass(type(frame.f_locals.get("self")), Command):
        frame = frame.f_back
    return frame is not None


def _inspect(alias: str, table: str, *, migrating: bool) -> Iterator[CheckMessage]:
    from outbox.edges.postgres.preflight import catalog

    connection = connections[alias]
    version = connection.pg_version  # type: ignore[attr-defined]
    if version < MINIMUM_POSTGRES:
        yield Error(
            f"PostgreSQL {version // 10000} on {alias!r} is too old.",
            hint="Use PostgreSQL 14 or newer.",
            id="outbox.E003",
        )
        return
    if version // 10000 > NEWEST_TESTED_POSTGRES:
        yield Warning(
            f"PostgreSQL {version // 10000} on {alias!r} is newer than {NEWEST_TESTED_POSTGRES}, the newest tested.",
            hint="Run the tests of your application against it, or upgrade outbox.",
            id="outbox.W003",
        )
    if migrating:
        return
    quoted = connection.ops.quote_name(table)
    with connection.cursor() as cursor:
        if not catalog.exists(cursor, quoted):
            yield Error(
                f"The table {table!r} does not exist on {alias!r}.",
                hint=f"Run: python manage.py migrate outbox --database {alias}",
                id="outbox.E006",
            )
            return
        yield from _inspect_columns(cursor, table, quoted)
        yield from _inspect_time(cursor, table, quoted)
        yield from _inspect_sequence(cursor, table, quoted)
        yield from _inspect_constraints(cursor, table, quoted)


def _inspect_columns(cursor: Any, table: str, quoted: str) -> Iterator[CheckMessage]:
    from outbox.edges.postgres.preflight import catalog

    found = catalog.columns(cursor, quoted)
    wrong = [f"{name} is missing" for name in _COLUMN_TYPES if name not in found]
    wrong += [
        f"{name} is {found[name]}"
        for name, kinds in _COLUMN_TYPES.items()
        if name in found and found[name] not in kinds
    ]
    if wrong:
        yield Error(
            f"The table {table!r} does not have the columns of an outbox: {', '.join(wrong)}.",
            hint=f"Compare it with {page('table')}. If another program created the table after the migration, run: "
            "manage.py migrate outbox zero --fake, then manage.py migrate outbox, which adopts it.",
            id="outbox.E007",
        )


def _inspect_time(cursor: Any, table: str, quoted: str) -> Iterator[CheckMessage]:
    from outbox.edges.postgres.preflight import catalog

    not_null, has_default = catalog.time_column(cursor, quoted) or (
        True,
        True,
    )  # _inspect_columns reports a missing one
    if not not_null:
        yield Warning(
            f"The column create_time of {table!r} accepts NULL.",
            hint="The harvester knows no age of a record without a time, and has one guard less if ids are used again. "
            f"Set the time of such records, then run: ALTER TABLE {quoted} ALTER create_time SET NOT NULL",
            id="outbox.W007",
        )
    if not has_default:
        yield Warning(
            f"The column create_time of {table!r} has no default, but stash() sets no time.",
            hint=f"Run: ALTER TABLE {quoted} ALTER create_time SET DEFAULT CURRENT_TIMESTAMP",
            id="outbox.W007",
        )


def _inspect_sequence(cursor: Any, table: str, quoted: str) -> Iterator[CheckMessage]:
    from outbox.edges.postgres.preflight import numbering

    hint = "The harvester can otherwise deliver records of one key out of order. Run: manage.py migrate outbox zero "
    hint += "--fake, then manage.py migrate outbox, which corrects the default and the sequence."
    for problem in numbering.look(cursor, quoted).problems:
        yield Error(problem, hint=hint, id="outbox.E008")


def _inspect_constraints(cursor: Any, table: str, quoted: str) -> Iterator[CheckMessage]:
    from outbox.edges.postgres.preflight import catalog
    from outbox.models import OutboxRecord

    found = catalog.valid_constraints(cursor, quoted)
    missing = [item.name for item in OutboxRecord._meta.constraints if item.name not in found]
    if missing:
        yield Warning(
            f"The table {table!r} lacks, or has not validated, {', '.join(missing)}.",
            hint="Without them, a program can insert a record that no harvester can send. Run: manage.py migrate "
            "outbox zero --fake, then manage.py migrate outbox.",
            id="outbox.W004",
        )
