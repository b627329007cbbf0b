"""Random faults for as long as wanted: OUTBOX_TEST_SOAK_S seconds, 60 by default, seed by --seed."""

import os
import random
import signal
import time

import pytest

from tests.harvest.exactly_once.bench import wait_until
from tests.support.proxy import ADD_PARTITIONS_TO_TXN, CLIENT, END_TXN, HOLD, INIT_PRODUCER_ID, PRODUCE

SOAK_S = float(os.environ.get("OUTBOX_TEST_SOAK_S", "60"))
FAILPOINTS = [
    "after-init", "before-settle", "before-send", "after-send", "after-ack", "before-commit", "after-commit",
    "before-purge", "after-purge",
]  # fmt: skip


@pytest.fixture
def chance(pytestconfig):
    seed = pytestconfig.getoption("seed") or random.randrange(1_000_000)
    print("seed", seed)
    return random.Random(seed)


@pytest.mark.torture
@pytest.mark.timeout(3 * SOAK_S + 200)
def test_random_kills_stops_and_second_owners(bench, chance):
    """Processes without an election, one or two at a time, killed or stopped at a random point or moment."""
    give_up_at, kills = time.monotonic() + SOAK_S, 0
    running = []
    with bench.writing(writers=4):
        while time.monotonic() < give_up_at:
            point = f"{chance.choice(FAILPOINTS)}={chance.choice(['kill', 'kill', 'stop'])}@{chance.randrange(1, 30)}"
            running.append(bench.spawn(point if chance.random() < 0.7 else ""))
            time.sleep(chance.uniform(0.5, 3))
            for process in running[:]:
                if process.poll() is not None or chance.random() < 0.5:
                    process.kill()
                    process.wait()
                    kills += 1
                    running.remove(process)
                else:
                    process.send_signal(signal.SIGCONT)
    for process in running:
        process.kill()
        process.wait()
    print(f"{kills} kills, {bench.stashed.count} records, {bench.purged} batches")
    with bench.working():
        bench.wait_empty(90)
    bench.check()


@pytest.mark.torture
@pytest.mark.timeout(3 * SOAK_S + 200)
@pytest.mark.parametrize("proxied_kafka", ["4.1", "3.9"], indirect=True)
def test_random_late_frames_and_cut_connections(proxied, chance):
    give_up_at, faults = time.monotonic() + SOAK_S, 0
    with proxied.working(COMMIT_TIMEOUT=3) as host, proxied.writing(writers=4):
        while time.monotonic() < give_up_at:
            kind = chance.choice(["late", "late", "cut", "lost", "sessions", "second"])
            faults += 1
            if kind in ("late", "lost"):
                api = chance.choice([PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN, END_TXN, INIT_PRODUCER_ID])
                add = proxied.proxy.on_request if kind == "late" else proxied.proxy.on_reply
                rule = add(api, HOLD)
                time.sleep(chance.uniform(0, 0.3))
                if rule.seen and chance.random() < 0.8:
                    proxied.proxy.cut(CLIENT)
                time.sleep(chance.uniform(0, 1.0))
                rule.release()
            elif kind == "cut":
                proxied.proxy.cut()
            elif kind == "sessions":
                proxied.db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name LIKE 'outbox %'"
                )
            else:
                with proxied.working():
                    time.sleep(chance.uniform(0.1, 1))
            before = host.worker.statistics().delivered
            wait_until(lambda before=before: host.worker.statistics().delivered > before, 60)
        assert host.errors == []
        print(f"{faults} faults, {proxied.stashed.count} records, {host.worker.statistics()}")
    with proxied.working():
        proxied.wait_empty(90)
    proxied.check()
