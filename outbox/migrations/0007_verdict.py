"""What the last audit found, for those who look at the table."""

from importlib import import_module

from django.db import migrations

companions = import_module("outbox.migrations.0002_companions")

FORWARDS = f"ALTER TABLE {companions.STATE} ADD COLUMN IF NOT EXISTS audit jsonb NULL;"
BACKWARDS = f"ALTER TABLE {companions.STATE} DROP COLUMN IF EXISTS audit;"


class Migration(migrations.Migration):
    dependencies = [("outbox", "0006_formula")]

    operations = [
        companions.OnPostgres(FORWARDS, BACKWARDS, hints={"model_name": "outboxrecord"}, elidable=False),
    ]
