"""By what a hold knows its record again when ids are drawn a second time, and an index of the dead letters.

The index is built beside whatever writes the table, and what needs a lock waits for it in short attempts, so that no
writer queues behind this migration. So it is no single transaction; run it again where it was broken off.
"""

from typing import Any

from django.db import DatabaseError, migrations, models

from outbox.conf import table_name
from outbox.exceptions import OutboxError
from outbox.schema.adoption import in_short_attempts, is_lock

_BUILD_S = 60


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


HOLD, DEAD = (_quoted(f"{table_name()}_{suffix}") for suffix in ("hold", "dead"))
INDEX = _quoted(f"{table_name()}_dead_record")
FORWARDS = f"ALTER TABLE {HOLD} ADD COLUMN IF NOT EXISTS stashed_at timestamptz NULL;"
BACKWARDS = f"ALTER TABLE {HOLD} DROP COLUMN IF EXISTS stashed_at;"
BUILD = f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {INDEX} ON {DEAD} (record_id)"
DROP = f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}"


def forwards(apps: Any, editor: Any) -> None:
    if editor.connection.vendor == "postgresql":
        in_short_attempts(editor.connection.alias, HOLD, lambda cursor: cursor.execute(FORWARDS))
        _build_index(editor.connection)


def backwards(apps: Any, editor: Any) -> None:
    if editor.connection.vendor == "postgresql":
        with editor.connection.cursor() as cursor:
            cursor.execute(DROP)
        in_short_attempts(editor.connection.alias, HOLD, lambda cursor: cursor.execute(BACKWARDS))


def _build_index(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(%s) AND NOT indisvalid)", [INDEX]
        )
        if cursor.fetchone()[0]:
            cursor.execute(DROP)  # an earlier attempt was broken off
        cursor.execute(f"SET lock_timeout = '{_BUILD_S}s'")
        try:
            cursor.execute(BUILD)
        except DatabaseError as error:
            if not is_lock(error):
                raise
            raise OutboxError(
                f"The index {INDEX} waited for {_BUILD_S} s for transactions that are older (see pg_stat_activity and "
                "pg_prepared_xacts). Nobody waits for it. Run migrate again when they have ended."
            ) from error
        finally:
            cursor.execute("RESET lock_timeout")


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("outbox", "0007_verdict")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(forwards, backwards, hints={"model_name": "outboxrecord"})],
            state_operations=[
                migrations.AddField("hold", "stashed_at", models.DateTimeField(blank=True, null=True)),
                migrations.AlterField("deadletter", "record_id", models.BigIntegerField(db_index=True)),
            ],
        )
    ]
