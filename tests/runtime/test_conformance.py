"""What every runtime promises to whoever is given it."""

import heapq
import select
from itertools import count
from queue import Empty
from random import Random
from types import SimpleNamespace

import pytest

from outbox.runtime.threads import Threads
from tests.simulation.runtime import Simulated, ended_with, in_thread
from tests.support.watched import Watched

SOON_S, LONG_S = 0.05, 20.0
THREADS = Threads()
_COUNT = count()


class World:
    """Time that goes on when nothing else is to be done."""

    def __init__(self):
        self.now, self.random, self.tasks, self.events = 0.0, Random(1), [], []

    def after(self, delay, action):
        heapq.heappush(self.events, (self.now + delay, next(_COUNT), action))

    def run(self):
        while self.events:
            self.now, *_, action = heapq.heappop(self.events)
            action()


def simulated(job, switching=0.0, watch=lambda runtime: runtime):
    def run():
        world, found = World(), []
        runtime = Simulated(world, switching=switching)
        runtime.spawn(lambda: found.append(job(watch(runtime))))
        world.run()
        return found[0]

    return in_thread(run)


RUNNERS = {
    "threads": lambda job: job(THREADS),
    "simulated": simulated,
    "simulated, switching": lambda job: simulated(job, switching=0.5),
    "threads, watched": lambda job: job(Watched(THREADS)),
    "simulated, watched": lambda job: simulated(job, switching=0.5, watch=Watched),
}


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs a function in a thread of a runtime, which is its argument."""
    return RUNNERS[request.param]


def started(runtime, target):
    thread = runtime.thread(target, "test")
    thread.start()
    return thread


def test_time_goes_on_while_a_thread_sleeps(run):
    def job(runtime):
        before, wall = runtime.monotonic(), runtime.time_ns()
        runtime.sleep(SOON_S)
        return runtime.monotonic() - before, runtime.time_ns() - wall

    slept_s, wall_ns = run(job)
    assert slept_s >= SOON_S
    assert wall_ns > 0


def test_random_numbers_differ_and_are_below_one(run):
    numbers = run(lambda runtime: [runtime.random() for _ in range(20)])
    assert all(0 <= number < 1 for number in numbers)
    assert len(set(numbers)) > 1


def test_a_lock_has_one_holder(run):
    def job(runtime):
        lock, found = runtime.lock("state row"), []

        def other():
            found.append((lock.acquire(blocking=False), lock.acquire(timeout=SOON_S)))
            with lock:
                found.append("had")

        with lock:
            thread = started(runtime, other)
            runtime.sleep(4 * SOON_S)
        thread.join(LONG_S)
        return found

    assert run(job) == [(False, False), "had"]


def test_the_lock_of_a_condition_may_be_taken_again_and_is_given_up_as_a_whole_while_waiting(run):
    def job(runtime):
        condition, said = runtime.condition("round"), []

        def other():
            with condition:
                said.append("here")
                condition.notify_all()

        with condition, condition:
            thread = started(runtime, other)
            said.append("first")
            found = condition.wait(LONG_S)
        thread.join(LONG_S)
        return found, said

    assert run(job) == (True, ["first", "here"])


def test_a_wait_for_a_condition_ends_with_its_time(run):
    def job(runtime):
        condition = runtime.condition("round")
        with condition:
            return condition.wait(SOON_S), condition.wait_for(lambda: False, SOON_S), condition.wait_for(lambda: True)

    assert run(job) == (False, False, True)


def test_a_condition_wakes_everybody_who_waits(run):
    def job(runtime):
        condition, seen, told = runtime.condition("round"), [], []

        def wait(number):
            with condition:
                if condition.wait_for(lambda: bool(told), LONG_S):
                    seen.append(number)

        threads = [started(runtime, lambda number=number: wait(number)) for number in range(3)]
        runtime.sleep(SOON_S)
        with condition:
            told.append(True)
            condition.notify_all()
        for thread in threads:
            thread.join(LONG_S)
        return sorted(seen)

    assert run(job) == [0, 1, 2]


def test_an_event_lasts(run):
    def job(runtime):
        event = runtime.event()
        before = event.is_set(), event.wait(SOON_S)
        thread = started(runtime, event.set)
        after = event.wait(LONG_S), event.is_set(), event.wait(0)
        thread.join(LONG_S)
        return before, after

    assert run(job) == ((False, False), (True, True, True))


def test_an_event_may_be_taken_back(run):
    def job(runtime):
        event = runtime.event()
        event.set()
        event.clear()
        return event.is_set(), event.wait(SOON_S)

    assert run(job) == (False, False)


def test_a_queue_is_asked_without_waiting(run):
    def job(runtime):
        queue, found = runtime.queue(), []
        found.append(queue.empty())
        queue.put(1)
        found += [queue.empty(), queue.get_nowait()]
        with pytest.raises(Empty):
            queue.get_nowait()
        return found

    assert run(job) == [True, False, 1]


def test_a_queue_keeps_the_order_and_ends_a_wait_with_its_time(run):
    def job(runtime):
        queue = runtime.queue()
        with pytest.raises(Empty):
            queue.get(timeout=SOON_S)
        queue.put(1)
        queue.put(None)
        thread = started(runtime, lambda: (runtime.sleep(SOON_S), queue.put(3)))
        found = [queue.get() for _ in range(3)]
        thread.join(LONG_S)
        return found

    assert run(job) == [1, None, 3]


def test_a_thread_runs_once_it_is_started_and_is_waited_for(run):
    def job(runtime):
        gate, done = runtime.event(), []
        thread = runtime.thread(lambda: (gate.wait(LONG_S), done.append(True)), "test")
        states = [(thread.ident is None, thread.is_alive())]
        thread.start()
        thread.join(SOON_S)
        states.append((thread.ident is None, thread.is_alive()))
        gate.set()
        thread.join()
        return [*states, (thread.ident is None, thread.is_alive())], done

    assert run(job) == ([(True, False), (False, True), (False, False)], [True])


def test_an_interrupt_lasts_and_does_nothing_once_it_is_closed(run):
    def job(runtime):
        interrupt, other = runtime.interrupt(), runtime.interrupt()
        before = interrupt.is_set()
        interrupt.set()
        interrupt.set()
        set_once = interrupt.is_set()
        interrupt.close()
        other.close()
        other.close()
        other.set()
        return before, set_once

    assert run(job) == (False, True)


def test_an_interrupt_is_readable_when_it_is_set():
    interrupt = THREADS.interrupt()
    assert select.select([interrupt], [], [], 0) == ([], [], [])
    interrupt.set()
    assert select.select([interrupt], [], [], LONG_S) == ([interrupt], [], [])
    interrupt.close()


def a_process():
    world, said = World(), []
    runtime = Simulated(world)

    def run():
        try:
            while True:
                runtime.sleep(1.0)
                said.append(world.now)
        finally:
            said.append("ended")

    runtime.spawn(run)
    return world, runtime, said


def test_a_simulated_process_that_crashes_runs_nothing_more():
    said = in_thread(lambda: crashed())
    assert said == [1.0, 2.0]


def crashed():
    world, runtime, said = a_process()
    world.after(2.5, runtime.kill)
    world.run()
    return said


def test_threads_that_are_left_of_a_scenario_are_ended():
    assert in_thread(lambda: left_over()) == [1.0, 2.0, "ended"]


def left_over():
    world, runtime, said = a_process()
    runtime.spawn(runtime.event().wait)
    world.processes = [SimpleNamespace(runtime=runtime)]
    world.after(2.5, runtime.pause)
    with ended_with(world):
        world.run()
    assert all(task.dead for task in world.tasks)
    return said


def test_a_simulated_process_that_is_paused_goes_on_later():
    assert in_thread(lambda: paused())[:2] == [1.0, pytest.approx(7.5, abs=0.1)]


def paused():
    world, runtime, said = a_process()
    world.after(1.5, runtime.pause)
    world.after(7.5, runtime.resume)
    world.after(9.0, runtime.kill)
    world.run()
    return said


def test_a_switching_lock_lets_others_run():
    orders = {tuple(simulated(two_in_turn, switching=0.5)) for _ in range(1)}
    assert orders != {(0, 0, 0, 1, 1, 1)}


def two_in_turn(runtime):
    lock, said = runtime.lock("round"), []

    def take(number):
        for _ in range(3):
            with lock:
                said.append(number)

    threads = [started(runtime, lambda number=number: take(number)) for number in range(2)]
    for thread in threads:
        thread.join()
    return said
