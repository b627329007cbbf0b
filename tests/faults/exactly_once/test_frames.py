"""Frames that arrive late, replies that are lost, connections that are cut, and entries that hide: Kafka's side."""

import time

import pytest

from tests.faults.exactly_once import without_guards
from tests.faults.exactly_once.acts import terminate
from tests.faults.exactly_once.conftest import LINES
from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.exactly_once.test_faults import drained, late_commits
from tests.support.proxy import ADD_PARTITIONS_TO_TXN, CLIENT, END_TXN, HOLD, INIT_PRODUCER_ID, PASS, PRODUCE, TO_SERVER

# The waits of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)

APIS = (PRODUCE, ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID)


def repeats(bench):
    values = [record.value for record in bench.read()]
    return len(values) - len(set(values))


def lost(bench):
    return bench.stashed.count - len({record.value for record in bench.read()})


@pytest.mark.parametrize("lane_of_its_own", [True, False])
def test_a_neighbour_that_stands_still_hides_no_entry(bench, monkeypatch, lane_of_its_own):
    """If lanes shared a partition, its open transaction would hide the entries above: none of them counts as
    committed."""
    if not lane_of_its_own:
        without_guards.one_partition_for_all_lanes(monkeypatch)
    bench.stash([f"key-{n % 10}" for n in range(100)])
    with without_guards.stalled_neighbour(bench):
        with without_guards.never_purging(monkeypatch), bench.working(LANES=2):
            wait_until(bench.read)
        sent = len(bench.read())
        with bench.working(LANES=2) as host:
            wait_until(lambda: host.worker.statistics().takeovers)
            wait_until(lambda: bench.count == 100 - sent)
        assert repeats(bench) == (0 if lane_of_its_own else sent)


def test_owners_that_do_not_fence_each_other_repeat_records(bench, monkeypatch):
    """The control: both believe that they lead, and each has a transactional id of its own."""
    without_guards.fence_nobody(monkeypatch)
    with bench.working(), bench.working():
        wait_until(lambda: bench.stash([f"key-{n}" for n in range(300)]) and repeats(bench), 60)


@pytest.mark.parametrize("entry", ["last", "first"])
def test_a_torn_transaction_can_repeat_records_and_lose_none(proxied, monkeypatch, entry):
    """A late commit ends a transaction in the middle, and its owner dies. Only the entry shows which records were
    committed. As the last record it is not there yet; as the first it lists records that never came."""
    without_guards.keep_the_producer(monkeypatch)
    if entry == "first":
        without_guards.entry_first(monkeypatch)
    proxied.stash([f"key-{n % 20}" for n in range(2000)])
    with proxied.working(BATCH_MAX=200, COMMIT_TIMEOUT=9) as host:
        wait_until(lambda: host.worker.statistics().delivered)
        end = proxied.proxy.on_request(END_TXN, HOLD)
        end.wait()
        proxied.proxy.cut(CLIENT)
        replies = proxied.proxy.on_reply(PRODUCE, HOLD, times=None)  # a half of the next one is written
        replies.wait()
        ended = proxied.proxy.on_reply(END_TXN, PASS)
        end.release()
        ended.wait()  # the owner dies when the broker has taken the late commit for that of the next transaction
        host.worker.abandon()
        replies.drop()
    with proxied.working():
        proxied.wait_empty(60)
    assert (lost(proxied) > 0) == (entry == "first")


def kill_the_broker_during_commits(bench, moments):
    """Before a commit reaches it, or after it has carried the commit out and before its reply has left."""
    bench.stash([f"key-{n % 20}" for n in range(3000)])
    with bench.working() as host, bench.writing():
        for on in moments:
            before = host.worker.statistics().delivered
            wait_until(lambda before=before: host.worker.statistics().delivered > before)
            end = on(END_TXN, HOLD)
            end.wait()
            bench.kafka.kill()
            end.release()
            bench.kafka.start()
            before = host.worker.statistics().delivered
            wait_until(lambda before=before: host.worker.statistics().delivered > before + 100)
        assert host.errors == []
    drained(bench, 120)


@pytest.mark.slow
def test_a_broker_is_killed_in_the_middle_of_a_commit(breakable):
    kill_the_broker_during_commits(breakable, [breakable.proxy.on_request])


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("breakable", LINES, indirect=True)
def test_a_broker_is_killed_in_the_middle_of_commits_again_and_again(breakable):
    kill_the_broker_during_commits(breakable, [breakable.proxy.on_request, breakable.proxy.on_reply] * 4)


def race(bench, rounds, chance):
    """A commit and a successor's init reach the broker at about the same time, one of them first."""
    bench.stash([f"key-{n % 20}" for n in range(3000)])
    with bench.working() as host, bench.writing():
        for number in range(rounds):
            before = host.worker.statistics()
            wait_until(lambda before=before: host.worker.statistics().delivered > before.delivered)
            end = bench.proxy.on_request(END_TXN, HOLD)
            end.wait()
            init = bench.proxy.on_request(INIT_PRODUCER_ID, HOLD)
            with bench.working():
                init.wait()
                for rule in (end, init) if number % 2 else (init, end):
                    rule.release()
                    time.sleep(chance.uniform(0, 0.01))
                # The producer is not used again: the lane is taken over, and the ledger read.
                wait_until(lambda before=before: host.worker.statistics().takeovers > before.takeovers)
        assert host.errors == []
    drained(bench)


def test_a_commit_races_with_the_init_of_a_successor(proxied, chance):
    race(proxied, 2, chance)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("proxied_kafka", LINES, indirect=True)
def test_commits_race_with_the_inits_of_successors(proxied, chance):
    race(proxied, 60, chance)


@pytest.mark.torture
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("proxied_kafka", LINES, indirect=True)
def test_a_request_that_is_delayed_by_half_a_minute(proxied, api):
    proxied.stash([f"key-{n % 20}" for n in range(3000)])
    with proxied.working() as host, proxied.writing():
        wait_until(lambda: host.worker.statistics().delivered > 200)
        rule = proxied.proxy.on_request(api, HOLD)
        if api == INIT_PRODUCER_ID:
            proxied.proxy.cut()
        rule.wait()
        time.sleep(30)
        rule.release()
        before = host.worker.statistics().delivered
        wait_until(lambda: host.worker.statistics().delivered > before + 100, 60)
    drained(proxied, 120)


@pytest.mark.torture
@pytest.mark.parametrize("proxied_kafka", LINES, indirect=True)
def test_every_connection_is_delayed_by_half_a_minute(proxied):
    with proxied.working() as host, proxied.writing():
        wait_until(lambda: host.worker.statistics().delivered > 200)
        proxied.proxy.hold(TO_SERVER)
        time.sleep(30)
        proxied.proxy.release(TO_SERVER)
        before = host.worker.statistics().delivered
        wait_until(lambda: host.worker.statistics().delivered > before + 100, 60)
    drained(proxied, 120)


# ---- a soak of everything at once


def strike(bench, chance, kinds):
    """One fault of one kind, and its end."""
    kind, proxy = chance.choice(kinds), bench.proxy
    if kind in APIS:
        rule = (proxy.on_request if chance.random() < 0.7 else proxy.on_reply)(kind, HOLD)
        try:
            rule.wait(timeout_s=chance.uniform(0.05, 1))
        except AssertionError:
            pass  # that request did not come meanwhile
        if chance.random() < 0.8:
            proxy.cut(CLIENT)
        time.sleep(chance.uniform(0, 1))
        rule.release()
    elif kind == "cut":
        proxy.cut()
    elif kind == "sessions":
        terminate(bench.url)
    else:
        with bench.working():
            time.sleep(chance.uniform(0.1, 1))


def soak(bench, chance, faults, kinds, *, until=lambda: False):
    """This many faults under load; the lane continues after each."""
    struck = 0
    with bench.writing(writers=4, pause_s=0.005), bench.working(COMMIT_TIMEOUT=3) as host:
        while struck < faults and not until():
            before = host.worker.statistics().delivered
            wait_until(lambda before=before: host.worker.statistics().delivered > before, 60)
            strike(bench, chance, kinds)
            struck += 1
        assert host.errors == []
    print(f"{struck} faults, {bench.stashed.count} records, {host.worker.statistics()}")


MIXED = (*APIS, END_TXN, "cut", "sessions", "second owner")


def test_a_few_mixed_faults(proxied, chance):
    soak(proxied, chance, 4, MIXED)
    drained(proxied)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("proxied_kafka", LINES, indirect=True)
def test_a_hundred_mixed_faults(proxied, chance):
    soak(proxied, chance, 120, MIXED)
    drained(proxied, 180)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("proxied_kafka", LINES, indirect=True)
def test_mixed_faults_without_renewal_repeat_records(proxied, chance, monkeypatch):
    """The comparison: among the same faults, late commits do the harm if a producer is kept after an error."""
    without_guards.keep_the_producer(monkeypatch)
    for _ in range(5):
        if not repeats(proxied):
            late_commits(proxied, rounds=3)
            soak(proxied, chance, 20, (*MIXED, END_TXN, END_TXN, END_TXN))
    with proxied.working():
        proxied.wait_empty(180)
    assert repeats(proxied) > 0
