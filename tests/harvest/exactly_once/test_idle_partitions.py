"""The look at the ledger's partitions that no lane has any more: after a large shrink there are many."""

import threading
import time
import uuid
from types import SimpleNamespace

import pytest

from outbox.core.exactly_once.decisions import Closed, StateRow
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerUnreachable
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.resize import IdleLanes
from outbox.runtime.threads import THREADS

HERE = uuid.uuid4()


class Ledger:
    """Every partition is empty; that of `late` answers at the second time."""

    def __init__(self, late):
        self.late, self.asked, self.left_s = {late}, [], []

    def partitions(self):
        return 60

    def last_entry(self, lane, give_up_at):
        self.asked.append(lane)
        self.left_s.append(give_up_at - time.monotonic())
        time.sleep(0.002)
        if lane in self.late:
            self.late.discard(lane)
            raise LedgerUnreachable("late")


def idle_lanes(ledger):
    connection = SimpleNamespace(opened_at=1.0)
    statements = SimpleNamespace(state=lambda c, lanes: (HERE, StateRow(2)), purged_of_all=lambda c: {})
    database = SimpleNamespace(statements=statements, state=StateRow(2))
    purges = SimpleNamespace(ask=lambda job, may_go_on: job(connection))
    return IdleLanes(Servers(THREADS, database, ledger), purges), connection


def test_what_was_found_good_is_remembered_and_each_partition_has_its_time():
    ledger = Ledger(late=40)
    idle, connection = idle_lanes(ledger)
    with pytest.raises(LedgerUnreachable):
        idle.examine(0.05, lambda: True)
    assert idle.examine(0.05, lambda: True) is None
    assert ledger.asked == [*range(2, 41), *range(40, 60)]
    assert min(ledger.left_s) > 0.03, "one deadline for all of them would be over before the last"
    assert idle.examine(0.05, lambda: True) is None
    assert len(ledger.asked) == 59, "all of them were good"
    connection.opened_at = 2.0  # perhaps another server
    assert idle.examine(0.05, lambda: True) is None
    assert len(ledger.asked) == 117


def test_a_lane_that_ends_does_not_look_at_the_rest_and_does_not_call_it_good():
    ledger = Ledger(late=None)
    idle, _ = idle_lanes(ledger)
    assert idle.examine(1.0, lambda: len(ledger.asked) < 5) == Closed(2)
    assert len(ledger.asked) == 5
    assert idle.examine(1.0, lambda: True) is None
    assert len(ledger.asked) == 58


def test_a_lane_that_looks_over_an_older_connection_spares_no_other_a_look():
    ledger = Ledger(late=None)
    idle, connection = idle_lanes(ledger)
    begun, ends = threading.Event(), threading.Event()

    def wait_after_five():
        if len(ledger.asked) == 5 and not begun.is_set():
            begun.set()
            assert ends.wait(5.0)
        return True

    older = threading.Thread(target=idle.examine, args=(1.0, wait_after_five))
    older.start()
    assert begun.wait(5.0)
    connection.opened_at = 2.0  # another lane's statement has found the connection lost
    ledger.late.add(2)
    with pytest.raises(LedgerUnreachable):
        idle.examine(1.0, lambda: True)
    ends.set()
    older.join(5.0)
    assert not older.is_alive()
    asked = len(ledger.asked)
    assert idle.examine(1.0, lambda: True) is None
    assert ledger.asked[asked:] == list(range(2, 60))
