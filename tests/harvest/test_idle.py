"""What a harvester at rest asks of PostgreSQL, counted by the server."""

import os
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import psycopg
import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.harvest.exactly_once.bench import create_tables
from tests.harvest.processes import Harvest
from tests.support.databases import fresh_database

QUERIES_PER_SECOND_MAX = 20
COUNTED = 160
REPORT_S = 2.5  # backends tell the server what they did at most once a second, so the ends of a count are blurred


@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE, EXACTLY_ONCE])
def test_an_idle_process_asks_at_most_20_times_a_second_however_many_lanes(
    postgres, bootstrap_servers, tmp_path, delivery
):
    lanes = 4
    with (
        fresh_database(os.environ["DATABASE_URL"]) as url,
        psycopg.connect(url, autocommit=True) as table,
        psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as elsewhere,  # asking is not counted itself
        ExitStack() as stack,
    ):
        create_tables(table)

        def counted():
            """Outside of transactions every statement is one."""
            row = elsewhere.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [urlsplit(url).path[1:]]
            ).fetchone()
            return row[0]

        process = Harvest(
            tmp_path,
            url,
            OUTBOX_DELIVERY=delivery,
            OUTBOX_LANES=str(lanes),
            OUTBOX_NAME=f"idle-{os.getpid()}-{delivery}",
        )
        stack.callback(process.discard)
        for lane in range(lanes):
            process.says(f"{'lane_taken' if delivery == EXACTLY_ONCE else 'leader_acquired'} lane={lane} ", 60)
        time.sleep(3)  # the pauses have grown to their longest
        begun, before = time.monotonic(), counted()
        while counted() - before < COUNTED:
            assert time.monotonic() - begun < 60, f"only {counted() - before} statements: does it still harvest?"
            time.sleep(0.05)
        assert time.monotonic() - begun >= COUNTED / QUERIES_PER_SECOND_MAX - REPORT_S
        process.ends(0)
