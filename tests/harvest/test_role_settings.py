"""What a role or a database sets of its own must not reach the values that a harvester reads."""

import os

import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.edges.postgres.common import table
from outbox.edges.postgres.counts import samples
from tests.harvest.exactly_once.bench import Bench
from tests.harvest.processes import Harvest
from tests.support.databases import django, fresh_database

SETTINGS = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "America/St_Johns",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_encoding": "LATIN1",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
}


@pytest.fixture
def bench(postgres, bootstrap_servers):
    """On a database where the role has all of these settings."""
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        for name, value in SETTINGS.items():
            database = url.rpartition("/")[2]
            made.db.execute(f'ALTER ROLE CURRENT_USER IN DATABASE {database} SET {name} = "{value}"')
        yield made
        made.close()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_settings_of_the_role_change_nothing(bench, tmp_path, delivery):
    given = {"OUTBOX_NAME": bench.name, "OUTBOX_DELIVERY": delivery}
    harvest = Harvest(tmp_path, bench.url, "--metrics-port", "127.0.0.1:0", **given)
    try:
        harvest.leads()
        bench.stash(["ключ", "key", "ключ"])
        bench.wait_empty()
        bench.stash(["later"] * 3)
        bench.wait_empty()
        source = {"conninfo": bench.url}
        with table.connect_bounded(source, statement_timeout_s=10) as connection:
            samples.take(connection, "outbox", 0)  # as the harvester does once a minute, and perhaps just now
            assert connection.execute("SELECT FROM outbox_sample").rowcount
        shown = django("outbox_stats", "--json", url=bench.url, **given)
        assert shown.returncode == 0, shown.stderr
        harvest.ends(0)
    finally:
        harvest.discard()
    assert " WARNING " not in harvest.log, harvest.log
    assert " ERROR " not in harvest.log, harvest.log
    bench.check()
