"""What waits in the table does not outgrow the memory of a harvester: its address space is limited once it leads."""

import os
import re
import resource
from pathlib import Path

import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.harvest.exactly_once.bench import Bench, wait_until
from tests.harvest.processes import Harvest
from tests.support.databases import fresh_database

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's"),
]
# At least as many bytes as the memory that is left, on pages of 4 MB.
HEADERS = {
    AT_LEAST_ONCE: ("repeat('x', 900000)", 150),
    EXACTLY_ONCE: ("repeat('x', 80000)", 2600),  # on disk less than a thousand bytes
}
KEYS, KEY_BYTES = 10, 12_000_000
LEFT = 120_000_000


@pytest.fixture
def bench(postgres, bootstrap_servers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.close()


def limited(tmp_path, bench, delivery):
    """A harvester that leads and may take so much more memory."""
    harvest = Harvest(
        tmp_path,
        bench.url,
        OUTBOX_NAME=bench.name,
        OUTBOX_DELIVERY=delivery,
        OUTBOX_BATCH_BYTES_MAX="4000000",
        OUTBOX_MARK_BYTES_MAX="4000000",
        MALLOC_ARENA_MAX="2",
    )
    try:
        harvest.leads()
        bench.stash(["warm"] * 100)
        bench.wait_empty()
        status = Path(f"/proc/{harvest.process.pid}/status").read_text()
        most = int(re.search(r"VmPeak:\s+(\d+) kB", status)[1]) * 1024 + LEFT
        resource.prlimit(harvest.process.pid, resource.RLIMIT_AS, (most, most))
    except BaseException:
        harvest.discard()
        raise
    return harvest


@pytest.mark.parametrize("delivery", HEADERS)
def test_large_headers_fit_into_little_memory(bench, tmp_path, delivery):
    harvest = limited(tmp_path, bench, delivery)
    try:
        text, count = HEADERS[delivery]
        bench.db.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
            f"SELECT %s, n::text, 'x', '{{h}}', ARRAY[{text}] FROM generate_series(1, %s) n",
            [bench.topic, count],
        )
        bench.wait_empty(60)
        harvest.ends()
    finally:
        harvest.discard()


@pytest.mark.torture
@pytest.mark.parametrize("delivery", HEADERS)
def test_keys_that_no_broker_takes_fit_into_little_memory(bench, tmp_path, delivery):
    """Each is refused and held, and another key goes on."""
    harvest = limited(tmp_path, bench, delivery)
    try:
        bench.db.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
            "SELECT %s, n || repeat('k', %s), 'x' FROM generate_series(1, %s) n",
            [bench.topic, KEY_BYTES, KEYS],
        )
        bench.stash(["behind"])
        held = "SELECT count(*) FROM outbox_hold WHERE error_code = 'MSG_SIZE_TOO_LARGE' AND length(key) > 1000000"
        wait_until(lambda: bench.db.execute(held).fetchone()[0] == KEYS and bench.count == KEYS)
        harvest.ends()
    finally:
        harvest.discard()
    bench.check()
