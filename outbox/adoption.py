"""The migration operation that creates the outbox table, or adopts one that other programs of its layout filled.

Every statement looks before it acts, so an interrupted run is simply started again. A table in use is changed under
a short lock time-out with retries: writers queue behind a waiting lock, so it must not wait long.
"""

import random
import time
from typing import Any

from django.db import OperationalError, connections, migrations, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.utils import CursorWrapper
from django.db.migrations.state import ProjectState
from django.db.utils import IntegrityError

from outbox.exceptions import OutboxError

LOCK_TIMEOUT_MS = 200
LOCK_ATTEMPTS = 150  # with the pauses between them about a minute

# Columns without which a table is not an outbox, with the types they may have. The others are added when missing.
REQUIRED = {
    "id": ("bigint",),
    "kafka_topic": ("character varying", "text"),
    "kafka_key": ("character varying", "text"),
    "kafka_value": ("character varying", "text"),
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


class CannotAdopt(OutboxError):
    """The table that stands under our name is no outbox, or holds rows that break its rules."""


class CreateOrAdoptTable(migrations.CreateModel):
    """CreateModel that looks first."""

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
            # Rows come and go fast: vacuum by a fixed number of dead rows, and never stop writers to give a
            # truncated tail of the file back that is needed again at once.
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
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT EXISTS (SELECT FROM {connection.ops.quote_name(table)})")
                if cursor.fetchone()[0]:
                    raise OutboxError(
                        f"The table {table!r} still holds records that Kafka has not received. "
                        "Harvest or delete them first, then migrate backwards."
                    )
        super().database_backwards(app_label, schema_editor, from_state, to_state)


def _exists(connection: BaseDatabaseWrapper, table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [connection.ops.quote_name(table)])
        return bool(cursor.fetchone()[0])


def sequence_of(table: str) -> str:
    return f"{table}_id_seq"


def guarded_default(quoted_sequence: str) -> str:
    """The id's default. A transaction has its xid before it draws an id: only so can a reader know what may still
    appear below an id that it has seen."""
    literal = quoted_sequence.replace("'", "''")
    return f"CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('{literal}'::regclass) END"


def _own_sequence(connection: BaseDatabaseWrapper, table: str) -> list[str]:
    name, sequence = map(connection.ops.quote_name, (table, sequence_of(table)))
    return [
        f'CREATE SEQUENCE {sequence} AS bigint CACHE 1 NO CYCLE OWNED BY {name}."id"',
        f'ALTER TABLE {name} ALTER COLUMN "id" SET DEFAULT {guarded_default(sequence)}',
    ]


class _Adoption:
    def __init__(self, schema_editor: BaseDatabaseSchemaEditor, model: Any) -> None:
        self.schema_editor = schema_editor
        self.connection = connections[schema_editor.connection.alias]
        self.model = model
        self.table: str = model._meta.db_table
        self.quoted = self.connection.ops.quote_name(self.table)

    def run(self) -> None:
        self._refuse_strangers()
        for attempt in range(LOCK_ATTEMPTS):
            try:
                with transaction.atomic(self.connection.alias), self.connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
                    cursor.execute(f"LOCK TABLE {self.quoted} IN ACCESS EXCLUSIVE MODE")
                    self._change(cursor)
                break
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", None) != "55P03":  # lock_not_available
                    raise
                if attempt == LOCK_ATTEMPTS - 1:
                    raise OutboxError(
                        f"No lock on the table {self.table!r} within {LOCK_ATTEMPTS} attempts of {LOCK_TIMEOUT_MS} ms: "
                        "a long transaction holds it (see pg_stat_activity). Run migrate again when it has ended."
                    ) from error
                time.sleep(random.uniform(0.1, 0.3))
        self._validate()

    def _columns(self, cursor: CursorWrapper) -> dict[str, tuple[str, bool, bool]]:
        """Per column: type, has a default, is an identity."""
        cursor.execute(
            "SELECT attname, atttypid::regtype::text, atthasdef, attidentity <> '' FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [self.quoted],
        )
        return {name: (kind, default, identity) for name, kind, default, identity in cursor.fetchall()}

    def _refuse_strangers(self) -> None:
        with self.connection.cursor() as cursor:
            columns = self._columns(cursor)
            cursor.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [self.quoted])
            kind = cursor.fetchone()[0]
        problems = [] if kind in ("r", b"r") else ["it is not an ordinary table"]
        for name, kinds in REQUIRED.items():
            if name not in columns:
                problems.append(f"column {name} is missing")
            elif columns[name][0] not in kinds:
                problems.append(f"column {name} is {columns[name][0]}, not {kinds[0]}")
        if problems:
            raise CannotAdopt(
                f"The table {self.table!r} exists and is not an outbox: {'; '.join(problems)}. "
                'Choose another name with OUTBOX["TABLE"], or bring the table to the layout in docs/table.md.'
            )

    def _change(self, cursor: CursorWrapper) -> None:
        columns = self._columns(cursor)
        for name, definition in ADDED.items():
            if name not in columns:
                cursor.execute(f'ALTER TABLE {self.quoted} ADD COLUMN "{name}" {definition}')
        for name, default in DEFAULTS.items():
            if name in columns:
                cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "{name}" SET DEFAULT {default}')
        for name in WIDENED:
            if columns[name][0] != "text":  # varchar to text rewrites nothing
                cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "{name}" TYPE text')
        self._guard(cursor, identity=columns["id"][2])
        present = self._constraints(cursor)
        for constraint in self.model._meta.constraints:
            if constraint.name not in present:
                cursor.execute(f"{constraint.create_sql(self.model, self.schema_editor)} NOT VALID".replace("%%", "%"))

    def _guard(self, cursor: CursorWrapper, *, identity: bool) -> None:
        cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [self.quoted])
        sequence: str | None = cursor.fetchone()[0]
        if sequence and not identity:
            cursor.execute(f"ALTER SEQUENCE {sequence} CACHE 1 INCREMENT 1 NO CYCLE")
            cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "id" SET DEFAULT {guarded_default(sequence)}')
            return
        last = 0
        if sequence:
            cursor.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}")
            last = cursor.fetchone()[0]
            cursor.execute(f'ALTER TABLE {self.quoted} ALTER COLUMN "id" DROP IDENTITY')
        for statement in _own_sequence(self.connection, self.table):
            cursor.execute(statement)
        cursor.execute(f'SELECT greatest(%s, (SELECT max("id") FROM {self.quoted}), 0)', [last])
        last = cursor.fetchone()[0]
        own = self.connection.ops.quote_name(sequence_of(self.table))
        cursor.execute("SELECT setval(%s::regclass, greatest(%s, 1), %s)", [own, last, last > 0])

    def _constraints(self, cursor: CursorWrapper) -> dict[str, bool]:
        cursor.execute("SELECT conname, convalidated FROM pg_constraint WHERE conrelid = %s::regclass", [self.quoted])
        return dict(cursor.fetchall())

    def _validate(self) -> None:
        """Reads the table beside its writers: this lock stops neither them nor harvesters."""
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
                        f"{self._culprits(constraint.name)}. Correct or delete them, then run migrate again."
                    ) from error

    def _culprits(self, name: str) -> str:
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint "
                "WHERE conrelid = %s::regclass AND conname = %s",
                [self.quoted, name],
            )
            expression = cursor.fetchone()[0]
            cursor.execute(f'SELECT "id" FROM {self.quoted} WHERE NOT ({expression}) ORDER BY "id" LIMIT 5')
            return "ids " + ", ".join(str(row[0]) for row in cursor.fetchall())
