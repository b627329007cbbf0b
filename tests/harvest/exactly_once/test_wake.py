"""Woken by a notification instead of a poll."""

import os

import pytest

from outbox import wakeups
from outbox.core.exactly_once import pages
from tests.harvest.hosts import wait_until

NEVER_S = 600


def is_listening(bench):
    return bench.db.execute(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '/* wake */%' AND state = 'idle' "
        "AND datname = current_database())"
    ).fetchone()[0]


@pytest.fixture(params=[0, 1100])
def descriptors(request):
    """So many are open already: select() would take none above 1023."""
    held = []
    try:
        held.extend(os.dup(0) for _ in range(request.param))
        yield
    except OSError:
        pytest.skip("this process may not have so many descriptors")
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_a_notification_wakes_the_reader(bench, monkeypatch, descriptors):
    monkeypatch.setattr(pages, "IDLE_MIN_S", NEVER_S)
    bench.db.execute(wakeups.install("outbox"))
    with bench.working(NOTIFY=True, MARK_BACKOFF=NEVER_S):
        wait_until(lambda: is_listening(bench), 60)
        for _ in range(3):
            bench.stash(["a"])
            bench.wait_empty()
    bench.check()
    bench.db.execute(wakeups.remove("outbox"))
    assert bench.db.execute("SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_wake'").fetchone() == (0,)
