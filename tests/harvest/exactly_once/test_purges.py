"""What the lanes ask on the connection of the purges."""

import threading
from types import SimpleNamespace

import pytest

from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.database import PurgeSession
from outbox.harvest.exactly_once.values import MayNotGoOn
from outbox.runtime.threads import THREADS


@pytest.fixture
def purges():
    connection = SimpleNamespace(closed=False, broken=False, opened_at=1.0, close=lambda: None)
    database = SimpleNamespace(connect=lambda name: connection)
    purges = PurgeSession(Servers(THREADS, database, None), lambda ticket: None, 5.0)
    yield purges
    purges.close()
    assert purges.join(5.0)


def test_who_may_not_go_on_has_no_answer_even_when_it_is_trusted_again_at_once(purges):
    answered, told = threading.Event(), iter([True, False])
    try:
        with pytest.raises(MayNotGoOn):
            purges.ask(lambda connection: answered.wait(5.0), lambda: next(told, True))
    finally:
        answered.set()


def test_an_answer_of_none_is_an_answer(purges):
    assert purges.ask(lambda connection: None) is None
