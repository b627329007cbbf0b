"""What a change of the lane count needs in the state row: the wish, a number that tells changes apart, the outcome."""

from importlib import import_module

from django.db import migrations

companions = import_module("outbox.migrations.0002_companions")

FORWARDS = f"""
ALTER TABLE {companions.STATE}
    ADD COLUMN IF NOT EXISTS lanes_wanted integer NULL CHECK (lanes_wanted > 0),
    ADD COLUMN IF NOT EXISTS resize_no bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS resize_note text NOT NULL DEFAULT '';
"""
BACKWARDS = f"""
ALTER TABLE {companions.STATE}
    DROP COLUMN IF EXISTS lanes_wanted, DROP COLUMN IF EXISTS resize_no, DROP COLUMN IF EXISTS resize_note;
"""


class Migration(migrations.Migration):
    dependencies = [("outbox", "0002_companions")]

    operations = [
        companions.OnPostgres(FORWARDS, BACKWARDS, hints={"model_name": "outboxrecord"}, elidable=False),
    ]
