import subprocess
import sys
from queue import Empty

import pytest

import outbox.harvest.exactly_once.lane
from outbox.runtime.threads import Threads
from tests.support.watched import LockRule, Watched, held, waits_for

OUTER, LATER, LEAF = "preparing", "state row", "round"


@pytest.fixture
def watched():
    yield Watched(Threads())
    assert held() == ()


def test_locks_may_be_taken_in_the_order_of_the_list(watched):
    with watched.lock(OUTER), watched.lock(LATER), watched.condition(LEAF):
        assert held() == (OUTER, LATER, LEAF)


def test_the_other_order_is_refused_before_anybody_waits(watched):
    with watched.lock(LATER), pytest.raises(LockRule, match="'preparing' is taken under 'state row'"):
        watched.lock(OUTER).acquire()


def test_a_lock_is_refused_under_another_one_of_its_name(watched):
    with watched.lock(LATER), pytest.raises(LockRule):
        watched.lock(LATER).acquire()


def test_a_lock_that_nobody_has_listed_is_refused(watched):
    with pytest.raises(LockRule, match="does not list"):
        watched.lock("another").acquire()


@pytest.mark.parametrize(
    "wait",
    [
        lambda watched: watched.sleep(0),
        lambda watched: watched.event().wait(0.01),
        lambda watched: watched.queue().get(timeout=0.01),
        lambda watched: waits_for("PostgreSQL"),
        lambda watched: watched.lock("ledger client").acquire(),
    ],
)
def test_nothing_is_waited_for_under_the_lock_of_the_round(watched, wait):
    with watched.condition(LEAF), pytest.raises(LockRule):
        wait(watched)


def test_a_condition_is_waited_for_under_its_own_lock_alone(watched):
    with watched.condition(LEAF) as _, pytest.raises(LockRule):
        watched.sleep(0)
    changed = watched.condition(LEAF)
    with changed:
        assert not changed.wait(0.01)
    with watched.lock(OUTER), changed:
        changed.wait(0.01)
    assert watched.seen.waits == {(OUTER, "a change of 'round'")}


def test_what_was_waited_for_is_noted(watched):
    with watched.lock(LATER), pytest.raises(Empty):
        watched.queue().get(timeout=0.01)
    assert watched.seen.waits == {(LATER, "another thread")}


def test_threads_are_noted_without_their_numbers(watched):
    def work():
        with watched.lock(LATER):
            pass

    threads = [watched.thread(work, f"outbox-lane-{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watched.seen.taken == {(LATER, "outbox-lane")}


def test_harvesters_of_this_process_are_watched():
    assert isinstance(outbox.harvest.exactly_once.lane.THREADS, Watched)


@pytest.mark.parametrize("first", ["tests.settings", "tests.harvest.exactly_once.runner", "tests.cli.goharvest"])
def test_harvesters_of_processes_that_tests_start_are_watched(first):
    look = f"import {first}, outbox.harvest.exactly_once.lane as it; print(type(it.THREADS).__name__)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Watched\n", done.stderr


def test_a_process_that_has_imported_modules_of_harvesters_before_goes_on_unwatched():
    look = "import outbox.edges.postgres.common.session as it; import tests; print(type(it.THREADS).__name__)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60)
    assert done.stdout == "Threads\n", done.stderr
