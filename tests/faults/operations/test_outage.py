"""Kafka is unavailable while writers continue and a bulk is stashed: memory stays flat, every record arrives once."""

import re
import time
from pathlib import Path

import pytest

from tests.harvest.exactly_once.bench import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
]  # time for the whole file; its own waits take longer than usual
GROWTH_MAX_MB = 60  # a million records, or only their ids, would take more


def resident_mb(process):
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def test_a_backlog_grows_while_kafka_is_unavailable(proxied):
    """Its connections are cut and refused, like those of a broker that has ended."""

    def stop():
        proxied.proxy.refuse()
        proxied.proxy.cut()

    stay_away(proxied, stop, proxied.proxy.accept, 20_000, 3)


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_million_records_wait_while_kafka_is_unavailable_for_minutes(bench_on, kafka_factory):
    kafka = kafka_factory()
    with bench_on(kafka.bootstrap_servers) as bench:
        stay_away(bench, kafka.stop, kafka.start, 1_000_000, 180)


def stay_away(bench, stop, start, count, away_s):
    process = bench.spawn(BATCH_MAX=1_000)
    try:
        bench.stash([f"key-{n % 1_000}" for n in range(10_000)])
        bench.wait_empty(90)
        before = resident_mb(process)
        with bench.writing(writers=2, pause_s=0.05):
            stop()
            for _ in range(0, count, 10_000):
                bench.stash([f"key-{n % 1_000}" for n in range(10_000)])
            back_at = time.monotonic() + away_s
            while time.monotonic() < back_at:
                assert process.poll() is None
                assert resident_mb(process) < before + GROWTH_MAX_MB
                time.sleep(0.2)
            assert bench.count >= count
            start()
        wait_until(lambda: bench.count == 0, 120 + count / 2_000)
        assert resident_mb(process) < before + GROWTH_MAX_MB
        assert bench.db.execute("SELECT count(*) FROM outbox_hold").fetchone() == (0,), "no record is to blame"
        bench.check()
    finally:
        process.kill()
        process.wait()
