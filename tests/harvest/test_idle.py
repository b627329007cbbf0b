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
LANES = 4


class Counted:
    """A process on a database of its own, whose statements the server counts."""

    def __init__(self, stack, folder, delivery):
        self.delivery = delivery
        url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
        with psycopg.connect(url, autocommit=True) as table:
            create_tables(table)
        self.database = urlsplit(url).path[1:]
        name = f"idle-{os.getpid()}-{delivery}"
        given = {"OUTBOX_DELIVERY": delivery, "OUTBOX_LANES": str(LANES), "OUTBOX_NAME": name}
        self.process = Harvest(folder, url, **given)
        stack.callback(self.process.discard)

    def wait_idle(self):
        event = "lane_taken" if self.delivery == EXACTLY_ONCE else "leader_acquired"
        for lane in range(LANES):
            self.process.says(f"{event} lane={lane} ", 60)

    def count(self, elsewhere):
        """Outside of transactions every statement is one."""
        asked = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
        return elsewhere.execute(asked, [self.database]).fetchone()[0]


@pytest.mark.slow
def test_an_idle_process_asks_at_most_20_times_a_second_however_many_lanes(postgres, bootstrap_servers, tmp_path):
    """In both delivery modes, beside each other."""
    with (
        psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as elsewhere,  # asking is not counted itself
        ExitStack() as stack,
    ):
        pair = [Counted(stack, tmp_path, delivery) for delivery in (AT_LEAST_ONCE, EXACTLY_ONCE)]
        for one in pair:
            one.wait_idle()
        time.sleep(3)  # the pauses have grown to their longest
        begun, before = time.monotonic(), [one.count(elsewhere) for one in pair]
        took_s = {}
        while len(took_s) < len(pair):
            for one, asked in zip(pair, before, strict=True):
                found = one.count(elsewhere) - asked
                if found >= COUNTED:
                    took_s.setdefault(one.delivery, time.monotonic() - begun)
                assert time.monotonic() - begun < 60, f"only {found} statements: does it still harvest?"
            time.sleep(0.05)
        for delivery, seconds in took_s.items():
            assert seconds >= COUNTED / QUERIES_PER_SECOND_MAX - REPORT_S, delivery
        for one in pair:
            one.process.ends(0)
