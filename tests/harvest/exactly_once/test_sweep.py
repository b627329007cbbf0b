"""What the sweep finds, while the reading thread asks for it."""

import threading
from types import SimpleNamespace

import pytest

from outbox.conf import parse
from outbox.edges.postgres.exactly_once.sweeper import Below
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.sweep import TableSweep
from outbox.runtime.threads import THREADS, Threads
from tests.harvest.exactly_once.bench import wait_until

BELOW = Below(9, (0,), (), None)
FOUND = [(1, "topic", "key", 0)]


class Interrupted(TableSweep):
    """The thread that takes what was found is stopped between having read it and having emptied it."""

    meanwhile = None

    @property
    def _found(self):
        value, meanwhile, self.meanwhile = self._value, self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return value

    @_found.setter
    def _found(self, value):
        self._value = value


def test_what_is_found_while_it_is_asked_for_is_not_lost():
    ends = threading.Event()
    connection = SimpleNamespace(closed=False, broken=False, close=lambda: None)
    sweeper = SimpleNamespace(
        lanes=1, prepare=lambda connection: None, look=lambda *given: (FOUND, 1) if ends.wait(5.0) else None
    )
    database = SimpleNamespace(connect=lambda name: connection, sweeper=lambda lanes: sweeper)
    sweep = Interrupted(parse({"SWEEP_INTERVAL": 60, "STATEMENT_TIMEOUT": 5}), Servers(THREADS, database, None))

    def finds():
        ends.set()
        wait_until(lambda: not sweep._slices.is_under_way, 5.0)

    try:
        sweep.look(BELOW, 1)
        sweep.meanwhile = finds
        taken = sweep.take()
        sweep.meanwhile = None
        finds()
        assert taken + sweep.take() == FOUND
    finally:
        sweep.close()


class Clocked(Threads):
    now = 1000.0

    def monotonic(self):
        return self.now


class Table:
    """Of a hundred thousand blocks. It answers after `takes_s`, of the clock."""

    lanes = 1

    def __init__(self, clock, takes_s):
        self.clock, self.takes_s, self.looks = clock, takes_s, []

    def prepare(self, connection):
        pass

    def look(self, connection, first_block, blocks, below):
        self.looks.append(blocks)
        self.clock.now += self.takes_s(blocks)
        return [], 100_000


def pauses(takes_s, slices):
    """Before each slice after the first, and the blocks of each."""
    clock = Clocked()
    table = Table(clock, takes_s)
    connection = SimpleNamespace(closed=False, broken=False, close=lambda: None)
    database = SimpleNamespace(connect=lambda name: connection, sweeper=lambda lanes: table)
    sweep, waited = TableSweep(parse({"SWEEP_INTERVAL": 30}), Servers(clock, database, None)), []
    try:
        for _ in range(slices):
            ended = clock.now
            while not sweep.is_due(clock.now):
                clock.now += 0.5
            waited.append(clock.now - ended)
            sweep.look(BELOW, 1)
            wait_until(lambda: not sweep._slices.is_under_way, 5.0)
    finally:
        sweep.close()
    return waited[1:], table.looks


@pytest.mark.parametrize("stopped_s", [1.777, 3600.0])
def test_a_slice_that_took_long_delays_the_next_one_by_a_minute_at_most(stopped_s):
    """The answer was late, or the process was stopped meanwhile: a record that breaks the rules waits that long."""
    late = iter([stopped_s])
    waited, _ = pauses(lambda blocks: next(late, 0.001), 4)
    assert waited == [60.0, 5.0, 5.0]


def test_slices_of_a_table_that_has_become_slow_take_a_hundredth_of_the_time():
    answers = iter([0.001] * 3)
    waited, looks = pauses(lambda blocks: next(answers, blocks / 1000), 40)
    assert looks[:4] == [256, 1024, 4096, 4096]
    took_s = sum(blocks / 1000 for blocks in looks[10:-1])
    assert took_s <= sum(waited[10:]) / 100
    assert max(looks[10:]) < 600
