"""Woken by a notification instead of a poll."""

from outbox import wakeups
from outbox.harvest import exactly_once_rounds
from tests.harvest.hosts import wait_until

NEVER_S = 600


def is_listening(bench):
    return bench.db.execute(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '/* wake */%' AND state = 'idle' "
        "AND datname = current_database())"
    ).fetchone()[0]


def test_a_notification_wakes_the_reader(bench, monkeypatch):
    monkeypatch.setattr(exactly_once_rounds, "_IDLE_MIN_S", NEVER_S)
    bench.db.execute(wakeups.install("outbox"))
    with bench.working(NOTIFY=True, MARK_BACKOFF=NEVER_S):
        wait_until(lambda: is_listening(bench), 60)
        for _ in range(3):
            bench.stash(["a"])
            bench.wait_empty()
    bench.check()
    bench.db.execute(wakeups.remove("outbox"))
    assert bench.db.execute("SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_wake'").fetchone() == (0,)
