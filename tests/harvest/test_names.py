"""One NAME for one table: two that differ would each elect an owner, and both would send every record."""

import itertools
import os
import signal

import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.harvest.exactly_once.bench import Bench
from tests.harvest.processes import Harvest
from tests.support.databases import fresh_database

RECORDS = 20_000


@pytest.fixture
def bench(postgres, bootstrap_servers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.close()


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_of_two_names_started_together_one_is_refused_by_name_and_nothing_is_sent_twice(bench, tmp_path, delivery):
    bench.stash([f"key-{n % 100}" for n in range(RECORDS)])
    given = {"OUTBOX_DELIVERY": delivery, "OUTBOX_SESSION_TIMEOUT": "30"}
    names = [f"{bench.name}.web", f"{bench.name}.worker"]
    both = [Harvest(tmp_path, bench.url, **given, OUTBOX_NAME=name) for name in names]
    try:
        bench.wait_empty()
        [refused] = [
            (mine, other)
            for (mine, name), (other, _) in itertools.permutations(zip(both, names, strict=True))
            if f"this process has NAME='{name}'" in mine.log
        ]
        mine, other = refused
        assert f"NAME='{names[both.index(other)]}'" in mine.log
        assert "Give every process of this table the same NAME" in mine.log
        assert other.process.poll() is None, "the one at work is not disturbed"
        other.ends(0)
        bench.stash(["key-0"] * 5)
        mine.process.send_signal(signal.SIGTERM)
        assert mine.process.wait(60) in (0, 1)
    finally:
        for process in both:
            process.discard()
    values = [record.value for record in bench.read()]
    assert len(values) == len(set(values)) == RECORDS
