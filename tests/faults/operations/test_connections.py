"""Other programs take every connection of PostgreSQL while the harvester must connect again."""

import time
from contextlib import ExitStack

import psycopg
import pytest

from outbox.devstack import Postgres
from tests.faults.conftest import open_scene
from tests.faults.exactly_once.conftest import GIVEN
from tests.faults.fleet import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
]  # time for the whole file; its own waits take longer than usual
ENDED = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE 'outbox %'"
)
THEIRS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outbox %'"


def take_all(operator, url, stack):
    """Wait until none is left, also none of the harvester's, which tries to connect again meanwhile."""
    were_none = False
    for _ in range(200):
        operator.execute(ENDED)
        try:
            while True:
                stack.enter_context(psycopg.connect(url, connect_timeout=5))
        except psycopg.OperationalError as error:
            if "too many clients" not in str(error):
                raise
        are_none = operator.execute(THEIRS).fetchone() == (0,)
        if are_none and were_none:
            return
        were_none = are_none
        time.sleep(0.1)  # a session that must end frees its place a little later
    raise AssertionError("the harvester kept its connections")


def test_every_connection_is_taken_and_given_back(tmp_path, bootstrap_servers):
    take_and_give_back(tmp_path, bootstrap_servers, "exactly-once")


@pytest.mark.torture
def test_every_connection_is_taken_from_at_least_once_delivery(tmp_path, bootstrap_servers):
    take_and_give_back(tmp_path, bootstrap_servers, "at-least-once")


def take_and_give_back(tmp_path, bootstrap_servers, delivery):
    with (
        Postgres(settings={"max_connections": "20"}) as server,
        open_scene(tmp_path, url=server.url, servers=bootstrap_servers, **{**GIVEN, "DELIVERY": delivery}) as scene,
        psycopg.connect(scene.url, autocommit=True) as operator,
    ):
        harvester = scene.fleet.start()
        writer = scene.write()
        scene.wait_delivered(50, timeout_s=90)
        writer.stop()
        with ExitStack() as others:
            take_all(operator, scene.url, others)
            wait_until(lambda: harvester.says("too many clients"), 60, "it is told that there is no room")
            assert operator.execute(THEIRS).fetchone() == (0,)
        scene.write()
        scene.wait_delivered(50, timeout_s=90)
        scene.settle(90).assert_kept(repeats_max=0 if delivery == "exactly-once" else None)
        assert harvester.is_running
