"""What the sweep finds, while the reading thread asks for it."""

import threading
from types import SimpleNamespace

from outbox.conf import parse
from outbox.edges.postgres.exactly_once.sweeper import Below
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.sweep import TableSweep
from outbox.runtime.threads import THREADS
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
        wait_until(lambda: not sweep._is_under_way, 5.0)

    try:
        sweep.look(BELOW, 1)
        sweep.meanwhile = finds
        taken = sweep.take()
        sweep.meanwhile = None
        finds()
        assert taken + sweep.take() == FOUND
    finally:
        sweep.close()
