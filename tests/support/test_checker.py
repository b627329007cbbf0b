"""The judge finds every kind of fault, and a writer logs what it did."""

import os
from dataclasses import dataclass

import psycopg
import pytest

from tests.support.checker import Log, Writer, judge
from tests.support.databases import fresh_database
from tests.support.tables import create_table


@dataclass
class Arrived:
    key: bytes
    value: bytes


def arrived(*sequences, key=b"k"):
    return [Arrived(key, str(number).encode()) for number in sequences]


LOG = Log(committed=[("k", 1), ("k", 2), ("k", 3)], rolled_back=[("k", 4)], unknown=[("k", 5)])


@pytest.mark.parametrize(
    ("sequences", "error"),
    [
        ((1, 3), "1 of 3 records are lost"),
        ((1, 2, 3, 4), "1 records were never committed"),
        ((1, 2, 1, 2, 3), "1 times a key went back"),
        ((1, 1, 1, 2, 3), "2 repeats, at most 1"),
    ],
)
def test_each_fault_is_found(sequences, error):
    with pytest.raises(AssertionError, match=error):
        judge([LOG], arrived(*sequences)).assert_kept(repeats_max=1)


@pytest.mark.parametrize("sequences", [(1, 2, 3), (1, 2, 2, 3), (1, 2, 3, 5)])
def test_what_is_promised_passes(sequences):
    judge([LOG], arrived(*sequences)).assert_kept(repeats_max=1)


def test_repeats_that_follow_a_regression_are_not_hidden():
    result = judge([LOG], arrived(1, 2, 3, 2, 3))
    assert result.regressions == [("k", 3, 2)]


def test_an_empty_run_shows_nothing():
    with pytest.raises(AssertionError, match="the test shows nothing"):
        judge([Log()], []).assert_kept()


def test_a_writer_logs_what_it_committed_and_rolled_back(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url, psycopg.connect(url, autocommit=True) as connection:
        create_table(connection)
        log = Writer(url, "t", rollbacks=0.5, keys=3).write(20)
        rows = connection.execute("SELECT kafka_key, kafka_value::int FROM outbox ORDER BY id").fetchall()
        assert rows == log.committed
        assert log.rolled_back
        assert not set(log.committed) & set(log.rolled_back)
