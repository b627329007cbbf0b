"""The migration operation that creates the outbox table, or adopts one that other programs of its layout filled.

Every statement checks before it acts, so you can repeat an interrupted run. The operation changes a table in use under
a short lock timeout, with retries: writers queue behind a waiting lock, so it must not wait long.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
from django.db import DatabaseError, connections, migrations, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import CursorWrapper
from django.db.migrations.state import ProjectState
from django.db.utils import IntegrityError

from outbox.documents import page
from outbox.exceptions import OutboxError

LOCK_TIMEOUT_MS = 200
LOCK_ATTEMPTS = 150  # about a minute, with the pauses between them


def in_short_attempts(alias: str, table: str, change: Callable[[CursorWrapper], None]) -> None:
    """Change a table in use. Other transactions wait behind a waiting lock, so each attempt is short."""
    for _ in range(LOCK_ATTEMPTS):
        try:
            with transaction.atomic(alias), connections[alias].cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
                change(cursor)
            return
        except DatabaseError as error:
            if not is_lock(error):
                raise
            time.sleep(random.uniform(0.1, 0.3))
    raise OutboxError(
        f"The migration got no lock on the table {table} in {LOCK_ATTEMPTS} attempts of {LOCK_TIMEOUT_MS} ms: a long "
        "transaction holds it (see pg_stat_activity). Run migrate again when that transaction has ended."
    )


def is_lock(error: DatabaseError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) == "55P03"  # lock_not_available


# The types that columns may have. An adopted table must have the columns that ADDED lacks; the migration adds the
# others.
TYPES = {
    "id": r"bigint",
    "create_time": r"timestamp(\(\d\))? with time zone",
    "kafka_topic": r"text|character varying(\(\d+\))?",
    "kafka_key": r"text|character varying(\(\d+\))?",
    "kafka_value": r"text|character varying(\(\d+\))?",
    "kafka_header_keys": r"(text|character varying)\[\]",
    "kafka_header_values": r"(text|character varying)\[\]",
    "leader_id": r"uuid",
    "kafka_value_binary": r"bytea",
}
ADDED = {
    "create_time": "timestamp with time zone DEFAULT CURRENT_TIMESTAMP NOT NULL",
    "kafka_header_keys": "text[] DEFAULT '{}'::text[] NOT NULL",
    "kafka_header_values": "text[] DEFAULT '{}'::text[] NOT NULL",
    "leader_id": "uuid NULL",
    "kafka_value_binary": "bytea NULL",
}
DEFAULTS = {
    "create_time": "CURRENT_TIMESTAMP",
    "kafka_header_keys": "'{}'::text[]",
    "kafka_header_values": "'{}'::text[]",
}
WIDENED = ("kafka_key", "kafka_value")
TOPIC_MAX = 249
NOT_NULL = ("id", "kafka_topic", "kafka_key")
NULLABLE = ("kafka_value", "leader_id")


class CannotAdopt(OutboxError):
    """The existing table of this name is not an outbox, or has rows that break its rules."""


class CreateOrAdoptTable(migrations.CreateModel):
    """CreateModel that adopts an existing table."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.name)
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            return
        if not schema_editor.collect_sql and _exists(connection, model._meta.db_table):
            _Adoption(schema_editor, model).run()
            return
        with transaction.atomic(connection.alias):
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            table = connection.ops.quote_name(model._meta.db_table)
            schema_editor.execute(f'ALTER TABLE {table} ALTER COLUMN "id" DROP IDENTITY')
            for statement in _own_sequence(connection, model._meta.db_table):
                schema_editor.execute(statement)
            # Rows come and go fast, so vacuum runs after a fixed number of dead rows. It does not stop writers to
            # truncate the file, which grows again at once.
            schema_editor.execute(
                f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, "
                "vacuum_truncate = off)"
            )

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = from_state.apps.get_model(app_label, self.name)
        connection = schema_editor.connection
        if connection.vendor != "postgresql" or not self.allow_migrate_model(connection.alias, model):
            return
        table = model._meta.db_table
        if not schema_editor.collect_sql:
            refuse_to_drop_records(connection, table)
        super().database_backwards(app_label, schema_editor, from_state, to_state)


def _exists(connection: BaseDatabaseWrapper, table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [connection.ops.quote_name(table)])
        return bool(cursor.fetchone()[0])


def refuse_to_drop_records(connection: BaseDatabaseWrapper, table: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT FROM {connection.ops.quote_name(table)})")
        if cursor.fetchone()[0]:
            raise OutboxError(
                f"The table {table!r} still holds records that Kafka has not received. "
                "Harvest or delete them first, then migrate backwards."
            )


def sequence_of(table: str) -> str:
    return f"{table}_id_seq"


def guarded_default(quoted_sequence: str) -> str:
    """Return the id's default. A transaction gets its xid before it draws an id. Otherwise a reader could not know
    which lower ids may still appear."""
    literal = quoted_sequence.replace("'", "''")
    return f"CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{literal}'::regclass) END"


def _own_sequence(connection: BaseDatabaseWrapper, table: str) -> list[str]:
    name, sequence = map(connection.ops.quote_name, (table, sequence_of(table)))
    return [
        f'CREATE SEQUENCE {sequence} AS bigint CACHE 1 NO CYCLE OWNED BY {name}."id"',
        f'ALTER TABLE {name} ALTER COLUMN "id" SET DEFAULT {guarded_default(sequence)}',
    ]


class _Column(NamedTuple):
    kind: str
    not_null: bool
    has_default: bool
    identity: bool


def _problems_of_columns(columns: dict[str, _Column]) -> Iterator[str]:
    for name, kinds in TYPES.items():
        if name not in columns:
            if name not in ADDED:
                yield f"column {name} is missing"
        elif not re.fullmatch(kinds, columns[name].kind):
            yield f"column {name} is {columns[name].kind}"
        elif name in NOT_NULL and not columns[name].not_null:
            yield f"column {name} accepts NULL"
    for name, column in columns.items():
        if name not in TYPES and column.not_null and not (column.has_default or column.identity):
            yield f"column {name}, of your own, is NOT NULL without a default"


class _Adoption:
    def __init__(self, schema_editor: BaseDatabaseSchemaEditor, model: Any) -> None:
        self.schema_editor = schema_editor
        self.connection = connections[schema_editor.connection.alias]
        self.model = model
        self.table: str = model._meta.db_table
        self.quoted = self.connection.ops.quote_name(self.table)

    def run(self) -> None:
        self._refuse_strangers()
        try:
            in_short_attempts(self.connection.alias, repr(self.table), self._lock_and_change)
        except DatabaseError as error:
            if refused := self._refused(error):
                raise refused from error
            raise
        self._validate()

    def _lock_and_change(self, cursor: CursorWrapper) -> None:
        cursor.execute(f"LOCK TABLE {self.quoted} IN ACCESS EXCLUSIVE MODE")
        self._change(cursor)

    def _refused(self, error: DatabaseError) -> CannotAdopt | None:
        """Return the error of a change that PostgreSQL rejects, such as the type of a column that a view uses."""
        if not isinstance(error.__cause__, psycopg.Error):
            return None
        told = error.__cause__.diag
        if not told.sqlstate or told.sqlstate[:2] in ("08", "53", "57"):  # connection, resources, operator
            return None
        detail = f" ({told.message_detail})" if told.message_detail else ""
        return CannotAdopt(
            f"PostgreSQL refused to change the table {self.table!r}, which was left as it is: "
            f"{told.message_primary}{detail}. Drop the object that prevents the change (such as a view or a trigger), "
            "run migrate again, and create the object again."
        )

    def _columns(self, cursor: CursorWrapper) -> dict[str, _Column]:
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef, attidentity <> '' "
            "FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [self.quoted],
        )
        return {name: _Column(*about) for name, *about in cursor.fetchall()}

    def _refuse_strangers(self) -> None:
        with self.connection.cursor() as cursor:
            problems = [*self._problems_of_table(cursor), *_problems_of_columns(self._columns(cursor))]
        if problems:
            raise CannotAdopt(
                f"The table {self.table!r} exists and is not an outbox: {'; '.join(problems)}. "
                f'Choose another name with OUTBOX["TABLE"], or give the table the layout of {page("table")}.'
            )

    def _problems_of_table(self, cursor: CursorWrapper) -> Iterator[str]:
        cursor.execute(
            "SELECT relkind::text, relpersistence::text, EXISTS (SELECT FROM pg_index JOIN pg_attribute a "
            "ON a.attrelid = indrelid AND indnkeyatts = 1 AND a.attnum = indkey[0] WHERE indrelid = c.oid "
            "AND a.attname = 'id' AND indisunique AND indisvalid AND indpred IS NULL) "
            "FROM pg_class c WHERE oid = %s::regclass",
            [self.quoted],
        )
        kind, persistence, unique = cursor.fetchone()
        if kind != "r":
            yield "it is not an ordinary table"
            return
        if persistence != "p":
            yield "it is unlogged, so a crash of the server would empty it"
        if not unique:
            yield "column id has no primary key and no unique index"

    def _change(self, cursor: CursorWrapper) -> None:
        columns = self._columns(cursor)
        for name, definition in ADDED.items():
            if name not in columns:
                cursor.execute(f'ALTER TABLE {self.quoted} ADD COLUMN "{name}" {definition}')
        for name, default in DEFAULTS.items():
            if name in columns:
                cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "{name}" SET DEFAULT {default}')
        for name in WIDENED:
            if columns[name].kind != "text":  # varchar to text rewrites nothing
                cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "{name}" TYPE text')
        limit = re.fullmatch(r"character varying\((\d+)\)", columns["kafka_topic"].kind)
        if limit and int(limit[1]) < TOPIC_MAX:  # a narrower type would make PostgreSQL read every row
            cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "kafka_topic" TYPE varchar({TOPIC_MAX})')
        for name in NULLABLE:
            if name in columns and columns[name].not_null:
                cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "{name}" DROP NOT NULL')
        self._guard(cursor, identity=columns["id"].identity)
        present = self._constraints(cursor)
        for constraint in self.model._meta.constraints:
            if constraint.name not in present:
                cursor.execute(f"{constraint.create_sql(self.model, self.schema_editor)} NOT VALID".replace("%%", "%"))

    def _guard(self, cursor: CursorWrapper, *, identity: bool) -> None:
        """Let the id draw from its previous sequence or from a new one, always above the ids in the table."""
        cursor.execute(
            "SELECT pg_get_serial_sequence(%s, 'id'), format('%%I.%%I', nspname, %s::text) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s::regclass",
            [self.quoted, sequence_of(self.table), self.quoted],
        )
        sequence, own = cursor.fetchone()
        last = 0
        if sequence and identity:
            last = self._last_drawn(cursor, sequence)
            cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "id" DROP IDENTITY')
            sequence = None
        sequence = sequence or self._sequence_of_default(cursor) or own
        cursor.execute(f"CREATE SEQUENCE IF NOT EXISTS {sequence} AS bigint")
        cursor.execute(f'ALTER SEQUENCE {sequence} AS bigint CACHE 1 INCREMENT 1 NO CYCLE OWNED BY {self.quoted}."id"')
        cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "id" SET DEFAULT {guarded_default(sequence)}')
        cursor.execute(f'SELECT greatest(%s, (SELECT max("id") FROM {self.quoted}), 0)', [last])
        if (last := cursor.fetchone()[0]) > self._last_drawn(cursor, sequence):
            cursor.execute("SELECT setval(%s::regclass, %s)", [sequence, last])

    def _sequence_of_default(self, cursor: CursorWrapper) -> str | None:
        cursor.execute(
            "SELECT format('%%I.%%I', nspname, c.relname) FROM pg_attrdef d "
            "JOIN pg_attribute a ON a.attrelid = adrelid AND a.attnum = adnum "
            "JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = d.oid "
            "JOIN pg_class c ON refclassid = 'pg_class'::regclass AND c.oid = refobjid AND c.relkind = 'S' "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE adrelid = %s::regclass AND attname = 'id'",
            [self.quoted],
        )
        found = cursor.fetchone()
        return found and str(found[0])

    def _last_drawn(self, cursor: CursorWrapper, sequence: str) -> int:
        cursor.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}")
        return int(cursor.fetchone()[0])

    def _constraints(self, cursor: CursorWrapper) -> dict[str, bool]:
        cursor.execute("SELECT conname, convalidated FROM pg_constraint WHERE conrelid = %s::regclass", [self.quoted])
        return dict(cursor.fetchall())

    def _validate(self) -> None:
        """Validate the constraints. The lock stops neither writers nor harvesters."""
        with self.connection.cursor() as cursor:
            present = self._constraints(cursor)
            for constraint in self.model._meta.constraints:
                if present[constraint.name]:
                    continue
                name = self.connection.ops.quote_name(constraint.name)
                try:
                    cursor.execute(f"ALTER TABLE {self.quoted} VALIDATE CONSTRAINT {name}")
                except IntegrityError as error:
                    raise CannotAdopt(
                        f"The table {self.table!r} holds records that break {constraint.name}: "
                        f"{self._violations(constraint.name)}. Correct or delete them, then run migrate again."
                    ) from error

    def _violations(self, name: str) -> str:
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint "
                "WHERE conrelid = %s::regclass AND conname = %s",
                [self.quoted, name],
            )
            expression = cursor.fetchone()[0]
            cursor.execute(f'SELECT "id" FROM {self.quoted} WHERE NOT ({expression}) ORDER BY "id" LIMIT 5')
            return "ids " + ", ".join(str(row[0]) for row in cursor.fetchall())
