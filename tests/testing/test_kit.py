"""The kit in plain test cases: what was stashed, how a failure reads, how time passes."""

import datetime
import decimal
import subprocess
import sys
import textwrap
from unittest import mock

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase

import outbox
from outbox.testing import ANYTHING, Clock, NotCommitted, OutboxTestMixin
from tests.support.databases import ROOT


class PlainTestCase(OutboxTestMixin, TestCase):
    """Its records are never committed, so a harvester could not see them; the kit does."""

    @classmethod
    def setUpTestData(cls):
        outbox.stash("setup", "once for the class")

    def test_what_was_stashed_is_seen_in_order_and_harvested(self):
        with transaction.atomic():
            outbox.stash("orders", {"total": 10}, key="42", headers={"kind": "paid"})
            outbox.stash("orders", None, key="42")
        assert [m.topic for m in self.stashed] == ["setup", "orders", "orders"]
        message = self.assert_stashed("orders", key="42", value={"total": 10}, headers={"kind": "paid"})
        assert message.json() == {"total": 10}
        assert message.header("message-id")
        delivered = self.harvest_all()
        assert [(m.topic, m.key) for m in delivered] == [("setup", None), ("orders", b"42"), ("orders", b"42")]
        assert self.broker.messages("orders") == delivered[1:]
        assert self.outbox.pending == []
        self.assert_stashed("orders", value=None, times=1)  # also what was harvested
        assert self.harvest_all() == []

    def test_each_test_has_its_own_kit(self):
        assert self.broker.messages() == []
        assert [m.topic for m in self.stashed] == ["setup"]

    def test_a_rolled_back_savepoint_leaves_nothing(self):
        with transaction.atomic():
            outbox.stash("orders", "never")
            transaction.set_rollback(True)
        self.assert_nothing_stashed("orders")

    def test_an_open_transaction_cannot_be_harvested(self):
        with transaction.atomic():
            outbox.stash("orders", "v")
            with pytest.raises(NotCommitted, match=r"Call harvest_all\(\) after the block\.$"):
                self.harvest_all()
        assert len(self.harvest_all()) == 2


class CommittingTestCase(OutboxTestMixin, TransactionTestCase):
    def test_it_works_with_real_transactions_too(self):
        with transaction.atomic():
            outbox.stash("orders", "v", key="k")
            with pytest.raises(NotCommitted):
                self.harvest_all()
        assert [m.value for m in self.harvest_all()] == [b"v"]


def test_the_fixtures_see_what_comes_later(stashed, assert_stashed, harvest_all, outbox_kit):
    assert stashed == []
    outbox.stash("t", "v", key="k")
    assert len(stashed) == 1
    assert stashed[0].value == "v"
    assert [m.key for m in stashed] == ["k"]
    assert_stashed("t", key="k", value="v")
    assert harvest_all() == outbox_kit.broker.messages("t")


def test_values_are_compared_as_they_are_sent(assert_stashed):
    day, price = datetime.date(2024, 2, 29), decimal.Decimal("9.90")
    outbox.stash("t", {"day": day, "price": price, "tags": ["a"]}, key="json")
    outbox.stash("t", b"\x00\xff", key="bytes")
    assert_stashed("t", value={"tags": ["a"], "day": day, "price": price})
    assert_stashed("t", value={"day": "2024-02-29", "price": "9.90", "tags": ANYTHING})
    assert_stashed("t", value=b"\x00\xff")
    for other in ({"day": day}, "a", None, b"\x00", 1, [], object()):
        with pytest.raises(AssertionError):
            assert_stashed("t", value=other)


def test_anything_fits_anywhere(assert_stashed):
    outbox.stash("t", "not JSON", key="k", headers=[("a", "1"), ("a", "2")])
    assert_stashed("t", key=mock.ANY, value=mock.ANY, headers={"a": ANYTHING, "message-id": mock.ANY})
    assert_stashed("t", headers=[("a", "1"), ("a", "2")])
    with pytest.raises(AssertionError, match="header 'a'"):
        assert_stashed("t", headers={"a": "3"})


def test_a_failure_prints_what_was_stashed_and_what_differs(assert_stashed):
    outbox.stash("orders", {"total": 11}, key="42", headers={"kind": "paid"}, message_id="m1")
    outbox.stash("mails", "hello", message_id="m2")
    with pytest.raises(AssertionError) as raised:
        assert_stashed("orders", key="42", value={"total": 10}, headers={"kind": "paid"})
    expected = """\
        No message was stashed with
          topic   'orders'
          key     '42'
          value   {'total': 10}
          header  kind: 'paid'
        2 stashed:
          1. topic 'orders', key '42', value '{"total":11}', headers [kind=paid, message-id=m1]   <- other value
          2. topic 'mails', key '', value 'hello', headers [message-id=m2]"""
    assert str(raised.value) == textwrap.dedent(expected)


def test_how_often_is_told_too(assert_stashed, stashed):
    with pytest.raises(AssertionError, match=r"Nothing was stashed\.$"):
        assert_stashed("t")
    outbox.stash("t", "v")
    outbox.stash("t", "v")
    assert_stashed("t", value="v", times=2)
    with pytest.raises(AssertionError, match=r"^2 messages instead of 1 were stashed with"):
        assert_stashed("t", value="v", times=1)
    assert repr(stashed).startswith("2 stashed:\n  1. topic 't'")


def test_a_large_value_does_not_hide_the_others(assert_stashed):
    for number in range(60):
        outbox.stash("t", "x" * 10_000, key=str(number))
    with pytest.raises(AssertionError) as raised:
        assert_stashed("other")
    assert len(str(raised.value)) < 50 * 700
    assert "… and 10 more" in str(raised.value)


def test_nothing_stashed_names_what_was(outbox_kit):
    outbox_kit.assert_nothing_stashed()
    outbox.stash("t", "v")
    outbox_kit.assert_nothing_stashed("other")
    with pytest.raises(
        AssertionError, match=r"^Nothing should be stashed for the topic 't'\. 1 stashed:\n  1\. topic 't'"
    ):
        outbox_kit.assert_nothing_stashed("t")


def test_an_outage_costs_no_attempt_and_ends_without_waiting(outbox_kit):
    outbox.stash("t", "v", key="k")
    outbox_kit.broker.stop()
    assert outbox_kit.harvest_all() == []
    assert outbox_kit.held == {}
    outbox_kit.broker.start()
    assert len(outbox_kit.harvest_all()) == 1


def test_time_makes_attempts_due_and_records_older(outbox_kit):
    broker = outbox_kit.broker
    broker.deny("t")
    outbox.stash("t", "v", key="k")
    before = outbox_kit.stashed[0].created
    assert outbox_kit.harvest_all() == []
    assert outbox_kit.held["t"].attempts == 1
    broker.allow("t")
    assert outbox_kit.harvest_all() == [], "the next attempt is not due"
    outbox_kit.advance(60)
    assert before - outbox_kit.stashed[0].created == datetime.timedelta(seconds=60)
    [message] = outbox_kit.harvest_all()
    assert message.timestamp == outbox_kit.clock.now
    assert outbox_kit.held == {}


def test_a_clock_does_not_go_back():
    clock = Clock(datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC))
    clock.advance(86_400)
    assert clock.now == datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC)
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(-1)


def test_importing_the_kit_touches_no_settings():
    code = """
    import sys, os
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)
    import outbox.testing, outbox.testing.pytest_plugin
    from django.conf import settings
    assert not settings.configured
    assert not {"outbox.models", "outbox.conf", "confluent_kafka", "psycopg"} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
