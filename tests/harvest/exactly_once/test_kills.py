"""Exactness under kill -9 at every point of the protocol, and with owners that nothing elects."""

import os
import signal
import time

import pytest

from outbox.core.exactly_once import ledger
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, properties_of
from outbox.edges.postgres.exactly_once.companions import Companions
from tests.harvest.exactly_once.bench import finish, wait_until

# The waits inside of one test may together take longer than a test may otherwise.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

# The N-th passage, so that something was delivered before; a batch is left to settle by the kill before it.
POINTS = [
    "after-init=kill",
    "before-send=kill@2",
    "after-send=kill@2",
    "after-ack=kill@2",
    "before-commit=kill@2",
    "after-commit=kill@2",
    "before-settle=kill",
    "before-purge=kill@2",
    "before-settle=kill",
    "after-purge=kill@2",
]


def wait_killed(process):
    try:
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_killed_at_every_point_and_exactly_once_all_the_same(bench):
    bench.stash([f"key-{n % 20}" for n in range(4000)])
    with bench.writing(writers=2, pause_s=0.02):
        for point in POINTS:
            wait_killed(bench.spawn(point))
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_a_restart_purges_the_batch_that_was_committed_and_not_purged(bench):
    ids = bench.stash([f"key-{n}" for n in range(10)])
    wait_killed(bench.spawn("after-commit=kill"))
    assert (bench.count, bench.purged, len(bench.read())) == (10, 0, 10)
    with bench.working() as host:
        bench.wait_empty()
        finish(host)
    assert bench.purged == 1
    assert [entry.ids for entry in bench.entries()] == [tuple(ids)]
    bench.check()


def test_a_restart_moves_the_number_when_the_rows_are_gone_already(bench):
    bench.stash(["a", "b"])
    wait_killed(bench.spawn("after-commit=kill"))
    bench.db.execute("DELETE FROM outbox")
    bench.stash(["a"])
    with bench.working():
        bench.wait_empty()
        wait_until(lambda: bench.purged == 2)
    bench.check()


def test_two_owners_that_fence_each_other_are_exact_and_get_on(bench):
    """Without an election, both always trusted: fencing alone keeps every record single."""
    bench.stash([f"key-{n % 20}" for n in range(1000)])
    with bench.working() as first, bench.working() as second, bench.writing():
        wait_until(lambda: bench.stashed.count > 2000, 60)
        wait_until(lambda: first.doubts + second.doubts > 3, 60)
    with bench.working():
        bench.wait_empty(60)
    bench.check()


def test_an_entry_that_its_owner_left_open_is_ended_by_the_successor_at_once(bench):
    """Only the successor's init ends it before the transaction's own time is over; nothing may wait for it before."""
    bench.stash(["a"])
    with bench.working():
        bench.wait_empty()
    conf = bench.conf()
    dead = TransactionalProducer(
        properties_of(
            conf.producer_properties, f"{conf.name}-0", transaction_timeout_s=conf.exactly_once.transaction_timeout_s
        )
    )
    dead.initialise(30)
    dead.begin()
    dead.send_entry(f"{conf.name}.ledger", 0, ledger.entry_key(0), b"of a transaction that nobody commits")
    dead.wait_reports(lambda: False)
    bench.stash(["a"])
    begun = time.monotonic()
    with bench.working():
        bench.wait_empty()
    assert time.monotonic() - begun < 0.8 * conf.exactly_once.transaction_timeout_s
    dead.drop()
    bench.check()


def test_two_processes_with_kills_between(bench):
    with bench.writing():
        for _ in range(2):
            processes = [bench.spawn() for _ in range(2)]
            bench.wait_batches()
            for process in processes:
                process.kill()
                process.wait()
    with bench.working():
        bench.wait_empty(60)
    bench.check()


@pytest.mark.parametrize("point", ["before-send", "after-ack", "after-commit"])
def test_stopped_while_a_successor_goes_on_and_resumed(bench, point):
    bench.stash([f"key-{n % 20}" for n in range(1000)])
    paused = bench.spawn(f"{point}=stop@2")
    try:
        wait_until(lambda: _is_stopped(paused.pid), 60)
        with bench.working() as host:
            wait_until(lambda: host.worker.statistics().delivered > 300)
            os.kill(paused.pid, signal.SIGCONT)
            bench.stash([f"key-{n % 20}" for n in range(500)])
            bench.wait_empty(60)
            time.sleep(0.5)  # what the resumed owner would still do
    finally:
        paused.kill()
        paused.wait()
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_a_process_that_stands_still_leaves_no_purge_of_one_batch_open(bench, monkeypatch):
    """One statement is its own transaction, and the server ends it whatever becomes of the process."""
    monkeypatch.delattr(Companions, "purge")
    with bench.working():
        bench.stash(["a"] * 5)
        bench.wait_empty()
    bench.check()


def _is_stopped(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_sigterm_under_load_repeats_nothing_even_for_uncommitted_readers(bench):
    from tests.support.topics import read_topic

    with bench.writing():
        for _ in range(2):
            process = bench.spawn()
            bench.wait_batches()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    with bench.working() as host:
        bench.wait_empty()
        finish(host)
    bench.check()
    values = [record.value for record in read_topic(bench.servers, bench.topic, committed=False)]
    assert len(values) == len(set(values))
