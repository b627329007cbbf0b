"""``harvest --once``: what moves, what is left, and what is said of it."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from outbox.edges.postgres.counts.overview import BACKLOG_MAX, DatabaseUnreachable
from outbox.harvest import once as module
from outbox.harvest.once import Drained, HeldBack, NotElected, drain, told


class Harvester:
    """One that leads lane 0 and does what the test says."""

    def __init__(self, **lane):
        self.conf = SimpleNamespace(database="default", table="outbox", name="test")
        self.waiting_for = ""
        self.leader_ids = {0: "leader"}
        self.lane = {"phase": "running", "held": 0, **lane}
        self.delivered = 0
        self.stopped = threading.Event()

    @property
    def statistics(self):
        return {0: SimpleNamespace(**self.lane)}

    @property
    def measured(self):
        return SimpleNamespace(delivered=self.delivered)

    def wait(self, timeout_s=None):
        return self.stopped.wait(timeout_s)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stopped.set()


class Overview:
    """Answers from a list; the last one again and again."""

    def __init__(self, answers):
        self.answers = list(answers)

    def newest(self):
        return 10

    def waiting(self, until):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def close(self):
        pass


@pytest.fixture
def answering(monkeypatch):
    """Makes the table answer, and what would take seconds take none."""
    monkeypatch.setattr(module, "_POLL_S", 0.001)
    monkeypatch.setattr(module, "_STUCK_S", 0.3)
    return lambda *answers: monkeypatch.setattr(module, "Overview", lambda *names: Overview(answers))


def test_more_than_can_be_counted_moves_as_long_as_records_are_delivered(answering):
    harvester, looks, shown = Harvester(held=1), [], []

    def waiting():
        looks.append(harvester.delivered)
        harvester.delivered += 1
        return BACKLOG_MAX if len(looks) < 600 else 0

    answering(waiting)
    assert drain(harvester, 1, shown.append) == Drained(600, 0)
    assert len(shown) == 599


def test_deliveries_of_later_records_keep_no_drain_from_ending(answering):
    harvester = Harvester(held=1)

    def waiting():
        harvester.delivered += 1
        return 5

    answering(waiting)
    with pytest.raises(HeldBack, match=r"^5 records stay in the table, because 1 keys, records or topics are held"):
        drain(harvester, 1)


def test_more_than_can_be_counted_is_told_as_such(answering):
    answering(BACKLOG_MAX)
    with pytest.raises(HeldBack, match=r"^100000\+ records stay"):
        drain(Harvester(held=1), 1)
    assert [told(left) for left in (None, 0, BACKLOG_MAX - 1)] == ["unknown", "0", "99999"]


def test_what_operators_pause_is_told_too(answering):
    answering(5)
    with pytest.raises(HeldBack, match=r"because 2 keys, records or topics are held: .* paused"):
        drain(Harvester(held=2), 1)


def test_stopped_before_a_lane_is_acquired_nothing_is_known(answering):
    answering(0)
    harvester = Harvester()
    harvester.leader_ids = {}
    harvester.stopped.set()
    assert str(drain(harvester, 1)) == "delivered=0 left=unknown"


def test_stopped_while_postgresql_is_away_nothing_is_known(answering):
    harvester = Harvester()

    def stop():
        harvester.stopped.set()
        raise DatabaseUnreachable("away")

    answering(5, stop)
    assert drain(harvester, 1) == Drained(0, None)


def test_stopped_in_the_middle_it_says_what_is_left(answering):
    harvester = Harvester()

    def stop():
        harvester.stopped.set()
        return 3

    answering(5, stop)
    assert drain(harvester, 1) == Drained(0, 3)


def test_without_a_lane_it_gives_up(answering):
    answering(0)
    harvester = Harvester()
    harvester.leader_ids = {}
    with pytest.raises(NotElected, match=r"This harvester got no lane within 0\.1 s"):
        drain(harvester, 0.1)
