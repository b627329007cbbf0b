"""Under which NAME the processes at work share the table: those of another one would not see their batches."""

from importlib import import_module

from django.db import migrations

companions = import_module("outbox.migrations.0002_companions")

FORWARDS = f"ALTER TABLE {companions.STATE} ADD COLUMN IF NOT EXISTS name text NOT NULL DEFAULT '';"
BACKWARDS = f"ALTER TABLE {companions.STATE} DROP COLUMN IF EXISTS name;"


class Migration(migrations.Migration):
    dependencies = [("outbox", "0008_content")]

    operations = [
        companions.OnPostgres(FORWARDS, BACKWARDS, hints={"model_name": "outboxrecord"}, elidable=False),
    ]
