"""Consumers in plain test cases: what is delivered, what a chain hands over, what a refusal leaves behind."""

import datetime
import decimal
import os
import re

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase

import outbox
from outbox.consumers import registry
from outbox.exceptions import OutboxError
from outbox.testing import (
    ConsumerStopped,
    EndlessChain,
    MemoryBroker,
    NotCommitted,
    OutboxKit,
    OutboxTestMixin,
    TransactionRefused,
)
from tests.support.databases import fresh_database, leading


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    registry.registered()  # those of installed apps stay registered
    monkeypatch.setattr(registry, "_consumers", {})


def declare(*topics, **options):
    """A consumer that notes its messages."""
    seen = []
    options = {"name": "shop.record", **options}
    outbox.consumer(*topics, **options)(lambda message: seen.append(message))
    return seen


def pay(message):
    Group.objects.create(name=message.json()["name"])
    outbox.stash("receipts", {"of": message.key}, key=message.key)


class PlainTestCase(OutboxTestMixin, TestCase):
    def test_a_message_is_handled_in_a_savepoint(self):
        outbox.consumer("orders", name="shop.pay")(pay)
        outbox.stash("orders", "of the test")
        for wanted in (pay, "shop.pay"):
            handled = self.deliver(wanted, {"name": str(wanted)}, key="42")
            assert handled.consumer == "shop.pay"
            assert handled.message.json() == {"name": str(wanted)}
            assert [one.topic for one in handled.stashed] == ["receipts"]
            self.assert_stashed("receipts", key="42", value={"of": "42"})
        assert (handled.offset, handled.position) == (1, 2)
        replayed = self.deliver(pay, {"name": "replayed"}, is_replay=True)
        assert (replayed.message.is_replay, replayed.stashed) == (True, ())
        Group.objects.get(name="replayed").delete()
        assert Group.objects.count() == 2
        with pytest.raises(KeyError):
            self.deliver(pay, {})
        assert Group.objects.count() == 2

    def test_the_chain_ends(self):
        outbox.consumer("orders", name="shop.pay")(pay)
        outbox.stash("orders", {"name": "a"}, key="1")
        found = self.run_chain()
        assert [one.message.key for one in found["shop.pay"]] == ["1"]
        assert self.run_chain() == {"shop.pay": []}
        assert self.broker.messages("receipts")

    def test_hooks_of_the_test_stay_for_the_test(self):
        def record(message):
            transaction.on_commit(lambda: seen.append("message"))

        seen = []
        outbox.consumer("orders", name="shop.record")(record)
        with self.captureOnCommitCallbacks(execute=True) as captured:
            transaction.on_commit(lambda: seen.append("test"))
            self.deliver(record)
        assert seen == ["message", "test"]
        assert len(captured) == 1


class CommittingTestCase(OutboxTestMixin, TransactionTestCase):
    def test_it_commits(self):
        outbox.consumer("orders", name="shop.pay")(pay)
        self.deliver(pay, {"name": "a"}, key="1")
        with pytest.raises(KeyError):
            self.deliver(pay, {}, key="2")
        assert not connection.in_atomic_block
        assert Group.objects.count() == 1
        assert {name: len(found) for name, found in self.run_chain().items()} == {"shop.pay": 0}

    def test_a_commit_behind_the_back_of_django_is_found(self):
        outbox.consumer("orders", name="shop.record")(lambda message: connection.connection.commit())
        with pytest.raises(ConsumerStopped, match=r"the function has ended the transaction itself: .* is \d+ now\."):
            self.deliver("shop.record")
        assert not connection.in_atomic_block


def test_what_is_left_out_has_a_default(deliver, outbox_kit):
    seen = declare("orders", "others")
    for value in ("text", b"\x00", {"day": datetime.date(2024, 2, 29), "price": decimal.Decimal("9.90")}, [], None):
        deliver("shop.record", value)
    assert [one.raw.value for one in seen] == [b"text", b"\x00", b'{"day":"2024-02-29","price":"9.90"}', b"[]", None]
    assert [(one.topic, one.partition, one.offset) for one in seen] == [("orders", 0, offset) for offset in range(5)]
    now = outbox_kit.clock.now
    assert {(one.key, one.headers, one.attempt) for one in seen} == {(None, (), 1)}
    assert all(abs(one.time - now) < datetime.timedelta(milliseconds=1) for one in seen)


def test_all_of_it_can_be_given(deliver):
    seen = declare("orders", "others")
    time = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
    given = {"key": b"k", "headers": {"outbox-id": "7"}, "partition": 3, "offset": 10, "time": time, "attempt": 2}
    handled = deliver("shop.record", "v", topic="others", **given)
    [message] = seen
    assert (message.topic, message.partition, message.offset) == ("others", 3, 10)
    assert (message.key, message.value, message.time, message.attempt) == ("k", "v", time, 2)
    assert message.identity.id == 7
    assert handled.position == 11
    assert deliver("shop.record", topic="others", partition=3).offset == 11


def test_a_function_of_lists_gets_a_list(deliver):
    seen = declare("orders", many=True)
    deliver("shop.record", "v")
    assert [[message.value for message in messages] for messages in seen] == [["v"]]


def test_what_cannot_be_delivered_is_refused_with_the_choices(deliver):
    declare("orders", re.compile(r"eu\..*"))
    declare(re.compile(r"us\..*"), name="shop.pattern")
    with pytest.raises(ValueError, match=r"'shop.other' is no consumer\. .* of one: shop\.pattern, shop\.record\.$"):
        deliver("shop.other")
    with pytest.raises(ValueError, match="is no consumer"):
        deliver(print)
    with pytest.raises(
        ValueError, match=r"does not handle the topic 'x'\. .*: orders, re\.compile\('eu\\\\\.\.\*'\)\.$"
    ):
        deliver("shop.record", topic="x")
    with pytest.raises(ValueError, match=r"'shop\.pattern' names patterns alone: .* Pass topic="):
        deliver("shop.pattern")
    assert deliver("shop.pattern", topic="us.orders").message.topic == "us.orders"
    with pytest.raises(TypeError, match="key: 42 is int"):
        deliver("shop.record", key=42)
    with pytest.raises(TypeError, match="header 'a': 1 is int"):
        deliver("shop.record", headers={"a": 1})
    outbox.consumer("a", name="shop.a")(outbox.consumer("b", name="shop.b")(pay))
    with pytest.raises(ValueError, match=r"function of several consumers\. .*: shop\.a, shop\.b\.$"):
        deliver(pay)


def test_an_alias_that_does_not_exist_is_refused_as_by_the_command(deliver):
    declare("orders", using="nowhere")
    with pytest.raises(OutboxError, match=r"'shop\.record' uses the database 'nowhere', which does not fit: DATABASES"):
        deliver("shop.record")


def test_an_open_transaction_cannot_be_consumed(deliver, run_chain):
    declare("orders")
    with transaction.atomic():
        with pytest.raises(NotCommitted, match=r"^deliver\(\) was called inside .* so no consumer would see them"):
            deliver("shop.record")
        with pytest.raises(NotCommitted, match=r"^run_chain\(\) was called"):
            run_chain()


def end(statement):
    def function(message):
        with connection.cursor() as cursor:
            cursor.execute(statement)

    return function


def closes(message):
    transaction.on_commit(lambda: None)
    connection.close()


@pytest.mark.parametrize(
    "function",
    [closes, *map(end, ("COMMIT", " /* now */ Commit Work", "END", "ABORT", "ROLLBACK", "PREPARE TRANSACTION 'a'"))],
)
def test_what_would_end_the_transaction_of_the_test_does_not(deliver, function):
    outbox.consumer("orders", name="shop.record")(function)
    Group.objects.create(name="of the test")
    hooks = list(connection.run_on_commit)
    with pytest.raises((ConsumerStopped, TransactionRefused)):
        deliver("shop.record")
    assert Group.objects.count() == 1
    assert connection.run_on_commit == hooks
    with transaction.atomic():
        Group.objects.create(name="later")
        transaction.set_rollback(True)
    assert Group.objects.count() == 1


def test_a_savepoint_of_the_function_is_its_own_affair(deliver):
    def record(message):
        Group.objects.create(name="kept")
        with connection.cursor() as cursor:
            cursor.execute("SAVEPOINT s")
            Group.objects.create(name="dropped")
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute("RELEASE SAVEPOINT s")

    outbox.consumer("orders", name="shop.record")(record)
    deliver("shop.record")
    assert list(Group.objects.values_list("name", flat=True)) == ["kept"]


def test_constraints_stay_deferred_after_a_message(deliver):
    def record(message):
        through.objects.create(group_id=1_000_000, permission_id=1_000_000)
        through.objects.all().delete()

    through = Group.permissions.through
    outbox.consumer("orders", name="shop.record")(record)
    deliver("shop.record")
    deliver("shop.record")


def test_errors_of_hooks_are_in_the_result(deliver):
    def record(message):
        transaction.on_commit(lambda: {}["missing"])

    outbox.consumer("orders", name="shop.record")(record)
    [error] = deliver("shop.record").hook_errors
    assert isinstance(error, KeyError)


def test_what_is_harvested_is_consumed_later_and_once(run_chain, harvest_all):
    seen = declare("orders")
    outbox.stash("orders", "1")
    harvest_all()
    outbox.stash("orders", "2")
    run_chain()
    outbox.stash("orders", "3")
    run_chain()
    assert [message.value for message in seen] == ["1", "2", "3"]


def test_a_message_that_was_delivered_has_an_offset_of_its_own(deliver, run_chain):
    seen = declare("orders")
    deliver("shop.record", "0")
    outbox.stash("orders", "1")
    deliver("shop.record", "2", offset=5)
    run_chain()
    assert [(message.value, message.offset) for message in seen] == [("0", 0), ("2", 5), ("1", 6)]
    assert len({message.step for message in seen}) == 3


def test_a_topic_that_was_created_again_begins_at_its_first_offset(outbox_kit):
    seen = declare("orders")
    for _ in range(2):
        outbox.stash("orders", "v")
        outbox_kit.run_chain()
        outbox_kit.broker.delete_topic("orders")
    assert [message.offset for message in seen] == [0, 0]
    assert outbox_kit.broker.messages() == []


def test_lists_are_no_longer_than_batch(run_chain):
    seen = declare("orders", many=True, batch=2)
    for number in range(5):
        outbox.stash("orders", str(number))
    found = run_chain()
    assert [[message.value for message in messages] for messages in seen] == [["0", "1"], ["2", "3"], ["4"]]
    assert [len(one.messages) for one in found["shop.record"]] == [2, 2, 1]


def test_a_chain_continues_after_an_error(run_chain):
    def record(message):
        if message.value == fails:
            raise ValueError("no such order")
        seen.append(message.value)

    seen, fails = [], "2"
    outbox.consumer("orders", name="shop.record")(record)
    for number in range(4):
        outbox.stash("orders", str(number))
    with pytest.raises(ValueError, match="no such order"):
        run_chain()
    assert seen == ["0", "1"]
    fails = ""
    run_chain()
    assert seen == ["0", "1", "2", "3"]


def test_a_rejected_record_ends_no_chain(outbox_kit):
    seen = declare("orders")
    outbox_kit.broker.deny("orders")
    outbox.stash("orders", "v", key="k")
    assert outbox_kit.run_chain() == {"shop.record": []}
    outbox_kit.broker.allow("orders")
    outbox_kit.advance(60)
    outbox_kit.run_chain()
    assert len(seen) == 1


def test_a_chain_without_an_end_is_named(run_chain):
    outbox.consumer("a", name="shop.a")(lambda message: outbox.stash("b", "v"))
    outbox.consumer("b", name="shop.b")(lambda message: outbox.stash("a", "v"))
    outbox.stash("a", "v")
    with pytest.raises(EndlessChain, match=r"^Messages are left after 50 rounds of run_chain\(\): shop\.a: 1 of a\. "):
        run_chain()
    countdown = iter(range(3))
    outbox.consumer("c", name="shop.c")(lambda message: next(countdown) < 2 and outbox.stash("c", "v"))
    registry._consumers.pop("shop.a")
    outbox.stash("c", "v")
    run_chain(rounds=3)


@pytest.fixture
def payments(migrated_template, django_db_setup, django_db_blocker):
    """The alias of a second database. This test has no transaction."""
    default = connections["default"].settings_dict
    server = os.environ["DATABASE_URL"]
    with fresh_database(server, migrated_template) as first, fresh_database(server, migrated_template) as second:
        connections.settings["payments"] = {**default, "NAME": second.rpartition("/")[2]}
        with leading(first, django_db_blocker):
            yield "payments"
            connections["payments"].close()
        del connections["payments"]
        del connections.settings["payments"]


def test_each_consumer_uses_its_own_database(payments):
    def settle(message):
        Group.objects.using(payments).create(name=f"settled {message.value}")
        outbox.stash("receipts", message.value, key=message.key)

    kit, receipts = OutboxKit(), declare("receipts")
    outbox.consumer("orders", name="shop.settle", using=payments)(settle)
    for alias in ("default", payments):
        with transaction.atomic(using=alias):
            outbox.stash("orders", f"of {alias}", key="k", using=alias)
    found = kit.run_chain()
    values = ["of default", "of payments"]
    assert [[one.value for one in handled.stashed] for handled in found["shop.settle"]] == [[one] for one in values]
    assert [message.value for message in receipts] == values
    assert Group.objects.using(payments).count() == 2
    assert not Group.objects.exists()
    handled = kit.deliver(settle, "3", key="k")
    assert [one.topic for one in handled.stashed] == ["receipts"]
    assert OutboxKit(using=payments, broker=MemoryBroker()).pending == list(handled.stashed)


@pytest.fixture
def forbidden(django_db_setup):
    """The alias of a database that is not among those of the test."""
    connections.settings["payments"] = dict(connections["default"].settings_dict)
    yield "payments"
    del connections["payments"]
    del connections.settings["payments"]


def test_a_database_that_the_test_may_not_use_is_left_out(forbidden, outbox_kit):
    declare("orders", using=forbidden)
    outbox.stash("others", "v")
    assert outbox_kit.run_chain() == {"shop.record": []}
    assert len(outbox_kit.broker.messages()) == 1
    with pytest.raises(AssertionError, match=r"Database .*'payments' are not allowed"):
        OutboxKit(using=forbidden).run_chain()
