"""The companion tables of exactly-once delivery, named after the outbox table.

They have no models: the harvester alone reads and writes them, in statements of its own, and makes their rows.
"""

from collections.abc import Callable

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from outbox.conf import table_name
from outbox.schema.adoption import in_short_attempts


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


STATE, PURGED, LANE = (_quoted(f"{table_name()}_{suffix}") for suffix in ("state", "purged", "lane"))

FORWARDS = f"""
CREATE TABLE IF NOT EXISTS {STATE} (
    id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    database uuid NOT NULL DEFAULT gen_random_uuid(),
    lanes integer NOT NULL CHECK (lanes > 0),
    resize_to integer NULL CHECK (resize_to > 0),
    way text NOT NULL DEFAULT '',
    way_owner text NOT NULL DEFAULT '',
    way_time timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE TABLE IF NOT EXISTS {PURGED} (
    lane integer NOT NULL,
    batch bigint NOT NULL,
    PRIMARY KEY (lane, batch)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE IF NOT EXISTS {LANE} (
    lane integer PRIMARY KEY,
    owner uuid NOT NULL,
    owner_name text NOT NULL,
    heartbeat timestamptz NOT NULL
);
"""
BACKWARDS = f"DROP TABLE IF EXISTS {STATE}, {PURGED}, {LANE};"


class OnPostgres(migrations.RunSQL):
    """SQL on tables that harvesters use all the time. Other databases of a project have no outbox."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        _run(
            schema_editor,
            lambda: super(OnPostgres, self).database_forwards(app_label, schema_editor, from_state, to_state),
        )

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        _run(
            schema_editor,
            lambda: super(OnPostgres, self).database_backwards(app_label, schema_editor, from_state, to_state),
        )


def _run(editor: BaseDatabaseSchemaEditor, change: Callable[[], None]) -> None:
    if editor.connection.vendor != "postgresql":
        return
    if editor.collect_sql:  # only shown
        change()
    else:
        in_short_attempts(editor.connection.alias, f"{STATE} or another companion", lambda cursor: change())


class Migration(migrations.Migration):
    dependencies = [("outbox", "0001_initial")]

    operations = [
        OnPostgres(FORWARDS, BACKWARDS, hints={"model_name": "outboxrecord"}, elidable=False),
    ]
