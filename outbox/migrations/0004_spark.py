"""One row that says which batches of records the Spark source has marked, and who may mark the next."""

from importlib import import_module

from django.db import migrations

from outbox.conf import table_name

companions = import_module("outbox.migrations.0002_companions")
SPARK = companions._quoted(f"{table_name()}_spark")

FORWARDS = f"""
CREATE TABLE IF NOT EXISTS {SPARK} (
    id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    owner text NOT NULL DEFAULT '',
    paused boolean NOT NULL DEFAULT false,
    batch bigint NOT NULL DEFAULT 0,
    leader_id uuid NULL,
    lowest bigint NOT NULL DEFAULT 0,
    highest bigint NOT NULL DEFAULT 0,
    count bigint NOT NULL DEFAULT 0,
    planned boolean NOT NULL DEFAULT false,
    purged boolean NOT NULL DEFAULT true,
    prior_leader_id uuid NULL,
    prior_lowest bigint NOT NULL DEFAULT 0,
    prior_highest bigint NOT NULL DEFAULT 0,
    prior_count bigint NOT NULL DEFAULT 0,
    marked_at timestamptz NOT NULL DEFAULT '-infinity'
);
"""
BACKWARDS = f"DROP TABLE IF EXISTS {SPARK};"


class Migration(migrations.Migration):
    dependencies = [("outbox", "0003_lane_changes")]

    operations = [
        companions.OnPostgres(FORWARDS, BACKWARDS, hints={"model_name": "outboxrecord"}, elidable=False),
    ]
