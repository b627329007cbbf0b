"""The watch for records that end processes, without PostgreSQL."""

import logging
from types import SimpleNamespace

import pytest

from outbox.core.holds.book import Holds
from outbox.core.holds.crashes import Watch
from outbox.harvest.exactly_once.crashes import CrashWatch
from outbox.harvest.exactly_once.values import MayNotGoOn


class Table:
    """Of one lane."""

    def __init__(self, found):
        self.found, self.left = found, []

    def watch(self, connection, lane):
        return self.found

    def own(self, connection, lane, owner, care):
        self.found = Watch(owner, False, care.crashes, (), care.suspects)

    def calm(self, connection, lane, owner):
        self.found = Watch(owner, False, 0, ())

    def leave(self, connection, lane, owner):
        self.left.append(owner)


def watch_of(table):
    lane = SimpleNamespace(number=0, holds=Holds())
    purges = SimpleNamespace(ask=lambda job, may_go_on: job(None), tell=lambda job: job(None))
    rounds = SimpleNamespace(owner="b", purges=purges, database=SimpleNamespace(holds=table))
    return CrashWatch(lane, rounds, lambda: True, lambda lane: True), lane.holds


@pytest.mark.parametrize(("is_clean", "told"), [(False, ["unclean_takeover"]), (True, [])])
def test_only_an_owner_that_ended_without_a_clean_release_is_told_of(caplog, is_clean, told):
    watch, holds = watch_of(Table(Watch("a", is_clean, 1, (), (4, 5))))
    with caplog.at_level(logging.INFO, "outbox.harvest"):
        watch.take_care(is_first=True)
    assert [record.getMessage().split()[0] for record in caplog.records] == told
    assert (holds.is_careful, holds.is_narrow) == (True, True), "the search goes on either way"


def test_who_has_no_time_left_leaves_no_clean_release_in_the_name_of_its_successor():
    table = Table(None)
    watch, _ = watch_of(table)
    watch.take_care(is_first=True)
    with pytest.raises(MayNotGoOn):
        watch.leave(lambda: False)
    assert table.left == []
    watch.leave(lambda: True)
    assert table.left == ["b"]


def test_a_batch_that_only_removes_a_dead_letter_leaves_its_owner_careful():
    table = Table(Watch("a", False, 5, ()))
    watch, holds = watch_of(table)
    watch.take_care(is_first=True)
    watch.calm_down(0)
    assert (holds.is_careful, table.found.crashes) == (True, 5), "the next batch may hold the second poison record"
    watch.calm_down(1)
    assert (holds.is_careful, table.found.crashes) == (False, 0)
