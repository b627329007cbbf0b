"""Random faults for as long as wanted: OUTBOX_TEST_SOAK_S seconds, 60 by default, seed by --seed."""

import logging
import os
import re
import signal
import time
from collections import Counter

import pytest

from tests.faults.exactly_once.test_hidden_ends import PASSWORDS, USER, proxied_cluster
from tests.harvest.exactly_once.bench import Bench, wait_until
from tests.support.databases import fresh_database
from tests.support.proxy import (
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    CLIENT,
    CUT,
    END_TXN,
    HOLD,
    INIT_PRODUCER_ID,
    PRODUCE,
)

SOAK_S = float(os.environ.get("OUTBOX_TEST_SOAK_S", "60"))
REAUTH_MS = 2000
FAILPOINTS = [
    "after-init", "before-settle", "before-send", "after-send", "after-ack", "before-commit", "after-commit",
    "before-purge", "after-purge",
]  # fmt: skip


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


class Brokers:
    """A proxy before each, and the same rule at all of them."""

    def __init__(self, proxies):
        self.proxies = proxies
        self.address = ",".join(proxy.address for proxy in proxies)

    def on_request(self, api, action, **given):
        return [proxy.on_request(api, action, **given) for proxy in self.proxies]

    def on_reply(self, api, action, **given):
        return [proxy.on_reply(api, action, **given) for proxy in self.proxies]

    def cut(self, *side):
        for proxy in self.proxies:
            proxy.cut(*side)


@pytest.fixture(params=["4.1", "3.9"])
def brokers(own_servers, request, pytestconfig):
    """Clients authenticate themselves anew every two seconds. More than one broker, so that a client hides lines. Of
    the line that `--kafka-version` names, or of each."""
    given = pytestconfig.getoption("kafka_version")
    if given not in (None, request.param):
        pytest.skip(f"--kafka-version {given}")
    again = {"listener.name.client.plain.connections.max.reauth.ms": str(REAUTH_MS)}
    with proxied_cluster(request.param, brokers=3, properties={**PASSWORDS, **again}) as (cluster, proxies):
        made = Brokers(proxies)
        made.inside = ",".join(f"127.0.0.1:{int(broker.internal_port)}" for broker in cluster.brokers)
        yield made
        for proxy in proxies:
            proxy.heal()


@pytest.fixture
def bench_behind(postgres, brokers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, brokers.inside)
        yield made
        made.close()


def delay(brokers, chance, *, lost):
    """A request that arrives late, or its reply: mostly on a connection that is cut meanwhile."""
    api = chance.choice([PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN, END_TXN, INIT_PRODUCER_ID])
    rules = (brokers.on_reply if lost else brokers.on_request)(api, HOLD)
    time.sleep(chance.uniform(0, 0.3))
    if any(rule.seen for rule in rules) and chance.random() < 0.8:
        brokers.cut(CLIENT)
    time.sleep(chance.uniform(0, 1.0))
    for rule in rules:
        rule.release()


def lose_an_end(brokers, chance, during):
    """An EndTxn that arrives late on a connection that was cut, while its client does something else."""
    rules = brokers.on_request(END_TXN, HOLD)
    give_up_at = time.monotonic() + 5
    while not any(rule.seen for rule in rules) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    during()
    brokers.cut(CLIENT)
    time.sleep(chance.uniform(0, 1.0))
    for rule in rules:
        rule.release()


def hide_lines(brokers, chance):
    """Connections are closed before they are up: the client does not repeat the line when the next one is cut."""
    closing = brokers.on_request(API_VERSIONS, CUT, times=None)
    brokers.cut()
    time.sleep(chance.uniform(0.1, 0.6))
    for rule in closing:
        rule.release()
    lose_an_end(brokers, chance, lambda: time.sleep(chance.uniform(0, 0.2)))


@pytest.mark.torture
@pytest.mark.timeout(3 * SOAK_S + 300)
def test_random_late_frames_and_cut_connections(brokers, bench_behind, chance, caplog):
    caplog.set_level(logging.DEBUG, "outbox.kafka")
    bench, counts, give_up_at = bench_behind, Counter(), time.monotonic() + SOAK_S
    given = {"servers": brokers.address, "KAFKA": USER}
    with bench.working(COMMIT_TIMEOUT=3, **given) as host, bench.writing(writers=4):
        while time.monotonic() < give_up_at:
            kind = chance.choice(
                ["late", "late", "cut", "lost", "sessions", "second", "authentication", "authentication", "hidden"]
            )
            counts[kind] += 1
            if kind in ("late", "lost"):
                delay(brokers, chance, lost=kind == "lost")
            elif kind == "authentication":
                lose_an_end(brokers, chance, lambda: time.sleep(chance.uniform(0, 0.95 * REAUTH_MS / 1000)))
            elif kind == "hidden":
                hide_lines(brokers, chance)
            elif kind == "cut":
                brokers.cut()
            elif kind == "sessions":
                bench.db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name LIKE 'outbox %'"
                )
            else:
                with bench.working(**given):
                    time.sleep(chance.uniform(0.1, 1))
            before = host.worker.statistics().delivered
            wait_until(lambda before=before: host.worker.statistics().delivered > before, 60)
        assert host.errors == []
        lines = [record.getMessage() for record in caplog.records if record.name == "outbox.kafka"]
        states = Counter(re.findall(r"FAIL.*TxnCoordinator.*in state (\w+)", "\n".join(lines)))
        found = host.worker.statistics()
        print(f"faults {dict(counts)}, the coordinator's connection lost in the states {dict(states)}")
        print(
            f"{bench.stashed.count} records, {found.batches} batches, {found.takeovers} takeovers, {found.renewals} new"
        )
    with bench.working(**given):
        bench.wait_empty(90)
    bench.check()
