"""By which formula the processes at work divide records into lanes: two formulas at once would send records twice."""

from importlib import import_module

from django.db import migrations

companions = import_module("outbox.migrations.0002_companions")

FORWARDS = f"ALTER TABLE {companions.STATE} ADD COLUMN IF NOT EXISTS keep_empty_key boolean NULL;"
BACKWARDS = f"ALTER TABLE {companions.STATE} DROP COLUMN IF EXISTS keep_empty_key;"


class Migration(migrations.Migration):
    dependencies = [("outbox", "0005_holds")]

    operations = [
        companions.OnPostgres(FORWARDS, BACKWARDS, hints={"model_name": "outboxrecord"}, elidable=False),
    ]
