"""What a process with consumers says about itself: a line for a terminal, and values for JSON."""

from types import SimpleNamespace

import pytest

from outbox.consumers.status import ConsumersLine, state_of
from outbox.core.consumers.partition import Life
from outbox.core.consumers.shown import COUNT_MAX, MessageCounts, ShownPartition
from outbox.core.consumers.values import Partition

ONE, TWO = Partition("orders", 0), Partition("orders", 1)


def row(partition, lag, age_s):
    return ShownPartition(partition, "reading", "", 100, lag, age_s, 0, None)


def process(*seen, life=Life.READING, held=None):
    return SimpleNamespace(
        state="running",
        waiting_for="",
        handled={"shop.pay": 1500},
        partitions={"shop.pay": {ONE: (Life.READING, ""), TWO: (life, "")}},
        failing={"shop.pay": ""},
        held={"shop.pay": held} if held else {},
        with_held={"shop.pay": [TWO] if held else []},
        seen={"shop.pay": list(seen)},
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([], ""),
        ([row(ONE, 0, 0.0), row(TWO, 0, 0.0)], "behind by 0 messages and 0 s"),
        ([row(ONE, 1000, 12.4), row(TWO, 234, 3.0)], "behind by 1,234 messages and 12 s"),
        ([row(ONE, 1000, 12.4), row(TWO, None, None)], "behind by 1,000+ messages and 12 s"),
        ([row(ONE, 7, None)], "behind by 7 messages and an unknown time"),
        ([row(ONE, None, None)], "behind by an unknown number of messages"),
    ],
)
def test_the_line_says_how_far_behind_it_is(seen, expected):
    line = ConsumersLine(process(*seen), print)
    line.line()
    assert line.line() == f"running, 1 consumers, 2 partitions, handled 1,500, 0/s{expected and f', {expected}'}"


def test_the_line_names_stopped_partitions_and_what_is_waited_for():
    stopped = process(row(ONE, 0, 0.0), life=Life.STOPPED)
    assert ConsumersLine(stopped, print).line().endswith("behind by 0 messages and 0 s, 1 stopped: see the log")
    stopped.failing["shop.pay"] = "no answer"
    assert ConsumersLine(stopped, print).line().endswith(", 1 stopped: see the log, shop.pay failing: see the log")
    assert state_of(stopped)["consumers"]["shop.pay"]["failing"] == "no answer"
    stopped.waiting_for = "Kafka"
    assert ConsumersLine(stopped, print).line() == "running, waiting: Kafka"


def test_the_values_have_the_lag_of_each_partition_that_was_observed():
    (found,) = state_of(process(row(ONE, 5, 1.5)))["consumers"].values()
    assert [(one["partition"], one["lag"], one["lag_s"]) for one in found["partitions"]] == [
        (0, 5, 1.5),
        (1, None, None),
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (MessageCounts(0, 0, 0), ""),
        (MessageCounts(1, 0, 0), ", 1 message held"),
        (MessageCounts(1200, 3, 1), ", 1,200 messages held (3 for an operator), 1 dead letter"),
        (MessageCounts(0, 0, COUNT_MAX), ", 10,000+ dead letters"),
    ],
)
def test_held_messages_are_counted(counts, expected):
    assert ConsumersLine(process(held=counts), print).line().partition("/s")[2] == expected


def test_the_values_have_the_counts_and_the_partitions_of_held_messages():
    (found,) = state_of(process(held=MessageCounts(5, 2, 1)))["consumers"].values()
    assert (found["held"], found["undecided"], found["dead_letters"]) == (5, 2, 1)
    assert [one["has_held"] for one in found["partitions"]] == [False, True]
    (unknown,) = state_of(process())["consumers"].values()
    assert (unknown["held"], unknown["undecided"], unknown["dead_letters"]) == (None, None, None)
