"""What operators ask for about held messages of consumers, in a real PostgreSQL. The owner's own statements carry it
out."""

import json
import uuid
from datetime import timedelta
from io import StringIO

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from outbox.core.consumers.holding import FAILED, Fate, Kept
from outbox.core.consumers.shown import MessageCounts
from outbox.core.consumers.values import DEAD_LETTER, ConsumerOptions, Fetched, Partition
from outbox.edges.postgres.common import table
from outbox.edges.postgres.consumers.held import HeldMessages
from outbox.edges.postgres.operations import messages
from outbox.models import AuditLogEntry, ConsumerHold
from outbox.operations import held
from outbox.operations.held import MessageSelector
from outbox.operations.selection import NothingSelected, OperationRefused

HELD = HeldMessages("outbox")
WHO = {"actor": "ann", "reason": "told to"}


class Messages:
    """Of one consumer, in orders[0]."""

    def __init__(self):
        self.name = f"shop.{uuid.uuid4().hex[:8]}"
        self.options = ConsumerOptions(self.name)

    def fail(self, offset, key=b"k", *, partition=0, topic="orders", pause_s=None, dead=False, value=b"v", headers=()):
        options = ConsumerOptions(self.name, on_error=DEAD_LETTER) if dead else self.options
        message = Fetched(topic, partition, offset, 3, key, value, headers, 1_700_000_000_000)
        return self._keep(options, message, Fate(FAILED, 5, 0, f"it failed at {offset}", pause_s))

    def wait(self, offset, key=b"k", **given):
        message = Fetched("orders", 0, offset, 3, key, b"v", (), 1_700_000_000_000)
        return self._keep(self.options, message, None)

    def _keep(self, options, message, fate):
        with transaction.atomic():
            (id_,) = HELD.keep(connection, options, [Kept(message, "id", fate)])
        return id_

    def selector(self, **given):
        return MessageSelector(self.name, **given)

    def rows(self):
        return ConsumerHold.objects.filter(consumer=self.name)

    def requests(self):
        return {row.offset: row.wanted for row in self.rows() if row.wanted}

    def take(self, partition=0):
        """What the owner of the partition does: it carries out the requests, and returns what it tries."""
        with transaction.atomic():
            return HELD.take(connection, self.name, Partition("orders", partition), 50)


@pytest.fixture
def shop(transactional_db):
    yield (made := Messages())
    made.rows().delete()


def latest_entry():
    found = AuditLogEntry.objects.latest("id")
    return found.who, found.what, found.why, found.details


# ---- requests


def test_nothing_is_not_everything(shop):
    shop.fail(1)
    for operation in (held.retry, held.requeue, held.skip, held.discard, held.discard_dead_letters):
        with pytest.raises(NothingSelected, match="--all"):
            operation(shop.selector(), "ann")
    for given, said in (({"key": "k"}, "Name the topic"), ({"topic": "orders", "offsets": [1]}, "and the partition")):
        with pytest.raises(OperationRefused, match=said):
            held.skip(shop.selector(**given), "ann")
    assert shop.requests() == {}


def test_a_retry_is_for_those_that_are_tried_and_the_owner_carries_it_out(shop):
    shop.fail(1)
    shop.wait(2)
    shop.fail(3, b"x", dead=True)
    id_ = shop.fail(4, None, pause_s=60.0)
    other = Messages()
    other.fail(1)
    outcome = held.retry(shop.selector(all=True), **WHO)
    assert (outcome.what, outcome.matched, outcome.changed, outcome.pending, outcome.left_out) == ("retry", 2, 0, 2, 0)
    assert shop.requests() == {1: "retry", 4: "retry"}
    assert other.requests() == {}
    who, what, why, details = latest_entry()
    assert (who, what, why) == ("ann", "retry", "told to")
    assert details["selector"] == {"consumer": shop.name, "all": True}
    assert details["messages"] == 2
    assert id_ in details["ids"]
    assert [row.message.offset for row in shop.take()] == [4, 1, 2]
    other.rows().delete()


def test_a_skipped_message_is_a_dead_letter_that_can_be_requeued(shop):
    shop.fail(1)
    shop.wait(2)
    assert held.skip(shop.selector(topic="orders", partition=0, offsets=[1]), **WHO).pending == 1
    assert [row.message.offset for row in shop.take()] == [2]
    assert held.skip(shop.selector(topic="orders", partition=0, offsets=[1]), **WHO).matched == 0
    assert held.requeue(shop.selector(all=True), **WHO).pending == 1
    assert latest_entry()[1] == "requeue"
    assert [row.message.offset for row in shop.take()] == [1, 2]


def test_a_discard_deletes_held_messages_or_dead_letters(shop):
    shop.fail(1)
    shop.wait(2)
    shop.fail(3, b"x", dead=True)
    assert held.discard(shop.selector(topic="orders", key="k"), **WHO).pending == 2
    assert shop.take() == []
    assert [row.offset for row in shop.rows()] == [3]
    assert held.discard_dead_letters(shop.selector(all=True, older_than=timedelta(days=1)), **WHO).pending == 0
    assert held.discard_dead_letters(shop.selector(all=True), **WHO).pending == 1
    shop.take()
    assert not shop.rows().exists()


def test_a_request_that_comes_while_the_message_dies_does_not_stay(shop):
    shop.fail(1, dead=True)
    shop.rows().update(wanted="skip")
    shop.take()
    assert shop.requests() == {}
    assert shop.rows().get().died_at is not None


def test_a_dry_run_writes_nothing(shop):
    shop.fail(1)
    before = AuditLogEntry.objects.count()
    for operation in (held.retry, held.skip, held.discard):
        assert operation(shop.selector(all=True), "ann", dry_run=True).matched == 1
    assert held.edit(shop.rows().get().pk, {"value": "new"}, actor="ann", dry_run=True).matched == 1
    assert shop.requests() == {}
    assert bytes(shop.rows().get().value) == b"v"
    assert AuditLogEntry.objects.count() == before


def test_what_the_consumer_is_handling_is_left_out_and_said(shop):
    """A wait for its lock would end in deadlocks."""
    first, second = shop.fail(1, b"a"), shop.fail(2, b"b")
    with psycopg.connect(**table.parameters("default")) as owner:
        owner.execute("SELECT FROM outbox_held WHERE id = %s FOR UPDATE", [first])
        outcome = held.discard(shop.selector(all=True), **WHO)
        assert (outcome.matched, outcome.pending, outcome.left_out) == (2, 1, 1)
        assert outcome.details["ids"] == [second]
        with pytest.raises(OperationRefused, match=f"handling message {first}.*Repeat"):
            held.edit(first, {"value": "new"}, **WHO)
    assert shop.requests() == {2: "discard"}


def test_selectors_are_joined(shop):
    shop.fail(1, b"a")
    shop.fail(1, b"a", partition=1)
    shop.fail(2, b"\xff", topic="others")
    chosen = [
        ({"topic": "orders"}, 2),
        ({"topic": "orders", "partition": 1}, 1),
        ({"topic": "orders", "partition": 1, "offsets": [2]}, 0),
        ({"topic": "others", "key": "\udcff"}, 1),
        ({"topic": "others", "key": "a"}, 0),
        ({"ids": [shop.rows().get(topic="others").pk]}, 1),
        ({"older_than": timedelta(hours=1)}, 0),
    ]
    for given, count in chosen:
        assert held.retry(shop.selector(**given), **WHO).matched == count, given
    held.retry(shop.selector(topic="others", key="\udcff", partition=0), **WHO)
    assert latest_entry()[3]["selector"] == {
        "consumer": shop.name, "topic": "others", "key": "\\xff", "partition": 0,
    }  # fmt: skip


# ---- edits


def test_an_edit_changes_value_and_headers_and_is_tried(shop):
    id_ = shop.fail(1, headers=(("h", b"\xff"),))
    outcome = held.edit(id_, {"value": "né", "headers": [("a", "b"), ("n", None), ("r", b"\xfe")]}, **WHO)
    assert (outcome.changed, outcome.pending) == (1, 1)
    (found,) = shop.take()
    assert found.message.value == "né".encode()
    assert found.message.headers == (("a", b"b"), ("n", None), ("r", b"\xfe"))
    assert found.message.key == b"k"
    assert latest_entry() == ("ann", "edit", "told to", {"id": id_, "fields": ["headers", "value"], "message": True})
    held.edit(id_, {"value": None}, **WHO)
    assert shop.take()[0].message.value is None


def test_an_edited_dead_letter_is_tried_again(shop):
    id_ = shop.fail(1, dead=True)
    held.edit(id_, {"value": b"\x00\xff"}, consumer=shop.name, **WHO)
    (found,) = shop.take()
    assert found.message.value == b"\x00\xff"


def test_an_edit_that_cannot_be_is_refused(shop):
    id_ = shop.fail(1)
    refused = [
        ((id_, {"key": "other"}), "can change value and headers. You gave: key"),
        ((id_, {}), "You gave: none"),
        ((id_, {"value": "\ud800"}), "not valid text"),
        ((id_, {"headers": [("a\0", "b")]}), "NUL"),
        ((0, {"value": "v"}), "neither held nor a dead letter"),
    ]
    for (which, changes), said in refused:
        with pytest.raises(OperationRefused, match=said):
            held.edit(which, changes, **WHO)
    with pytest.raises(OperationRefused, match="neither held"):
        held.edit(id_, {"value": "v"}, consumer="shop.other", **WHO)
    assert shop.requests() == {}


# ---- what there is


def test_the_list_has_those_that_failed_with_the_number_behind_each(shop):
    shop.fail(1)
    for offset in (2, 3):
        shop.wait(offset)
    shop.fail(4, b"\xff", pause_s=60.0)
    shop.fail(5, None)
    shop.fail(6, b"dead", dead=True)
    found = held.listed(shop.selector())
    assert [(one.offset, one.key, one.behind, one.next_try is None) for one in found] == [
        (1, "k", 2, True), (4, "\\xff", 0, False), (5, None, 0, True),
    ]  # fmt: skip
    assert found[0].error == "it failed at 1"
    (letter,) = held.listed(shop.selector(), dead=True)
    assert (letter.offset, letter.died_at is not None) == (6, True)
    assert len(held.listed(shop.selector(), limit=2)) == 2


def test_counts_end_at_a_limit(shop, monkeypatch):
    shop.fail(1)
    shop.wait(2)
    shop.fail(3, b"soon", pause_s=60.0)
    shop.fail(4, b"dead", dead=True)
    with connection.cursor() as cursor:
        assert messages.counts(cursor, "outbox", [shop.name, "shop.none"]) == {
            shop.name: MessageCounts(held=3, undecided=1, dead=1),
            "shop.none": MessageCounts(0, 0, 0),
        }
        held.retry(shop.selector(all=True), **WHO)
        assert messages.counts(cursor, "outbox", [shop.name])[shop.name].undecided == 0
        monkeypatch.setattr(messages, "COUNT_MAX", 2)
        assert messages.counts(cursor, "outbox", [shop.name])[shop.name].held == 2


# ---- commands


def run(name, *arguments):
    out = StringIO()
    call_command(name, *arguments, stdout=out)
    return out.getvalue().strip()


def test_commands_write_requests_and_say_who_carries_them_out(shop):
    id_ = shop.fail(1)
    shop.wait(2)
    shop.fail(3, b"x", dead=True)
    of = ("--consumer", shop.name)
    assert run("outbox_retry", *of, "--all", "--dry-run") == "1 row would be retried. Nothing was changed."
    said = "1 request was written. The consumer carries it out within a second while it runs."
    assert run("outbox_retry", *of, "--topic", "orders", "--partition", "0", "--offset", "1") == said
    assert run("outbox_skip", *of, "--id", str(id_)) == said
    assert run("outbox_requeue", *of, "--all", "--reason", "fixed", "--actor", "eve") == said
    assert latest_entry()[:3] == ("eve", "requeue", "fixed")
    assert run("outbox_discard", *of, "--dead-letters", "--all") == said
    assert shop.requests() == {1: "skip", 3: "discard"}
    said = "2 requests were written. The consumer carries them out within a second while it runs."
    assert run("outbox_discard", *of, "--topic", "orders", "--key", "k") == said
    found = json.loads(run("outbox_discard", *of, "--all", "--json"))
    assert (found["what"], found["pending"], found["left_out"]) == ("discard", 2, 0)
    assert run("outbox_skip", *of, "--id", "0") == "No row matches. Nothing was changed."


def test_the_command_edits_a_message(shop, tmp_path):
    id_ = shop.fail(1)
    of = ("--consumer", shop.name, "--id", str(id_))
    (tmp_path / "value").write_bytes(b"\xff\x00")
    said = "1 row was edited. 1 request was written. The consumer carries it out within a second while it runs."
    assert run("outbox_edit", *of, "--value-file", str(tmp_path / "value"), "--header", "a=b") == said
    (found,) = shop.take()
    assert (found.message.value, found.message.headers) == (b"\xff\x00", (("a", b"b"),))
    with pytest.raises(CommandError, match="value and headers"):
        run("outbox_edit", *of, "--to-key", "other")


def test_the_list_of_the_command(shop):
    id_ = shop.fail(1)
    shop.wait(2)
    shop.fail(3, None, dead=True)
    assert run("outbox_held", shop.name) == (
        f"{id_} orders[0] offset 1, key 'k', failed, attempts 5, waits for an operator, 1 behind it: it failed at 1"
    )
    assert "offset 3, no key, failed, attempts 5: it failed" in run("outbox_held", shop.name, "--dead-letters")
    assert run("outbox_held", shop.name, "--topic", "others") == "No held message."
    found = json.loads(run("outbox_held", shop.name, "--json"))
    assert [(one["offset"], one["behind"]) for one in found["messages"]] == [(1, 1)]
    held.retry(shop.selector(all=True), **WHO)
    shop.fail(4, b"x")
    assert "requested: retry" in run("outbox_held", shop.name, "--limit", "1")
    assert "There are more than 1." in run("outbox_held", shop.name, "--limit", "1")


def test_options_that_do_not_belong_together_are_refused(shop):
    shop.fail(1)
    refused = [
        (("outbox_retry", "--consumer", "shop.recrod", "--all"), "No consumer is called 'shop.recrod'"),
        (("outbox_held", "shop.recrod"), "No consumer is called"),
        (("outbox_retry", "--partition", "0"), "Add --consumer"),
        (("outbox_retry", "--offset", "0"), "Add --consumer"),
        (("outbox_retry", "--consumer", shop.name, "--lane", "0"), "no lane"),
        (("outbox_retry", "--consumer", shop.name), "--all"),
        (("outbox_retry", "--consumer", shop.name, "--offset", "1"), "belongs to a partition"),
    ]
    for arguments, said in refused:
        with pytest.raises(CommandError, match=said):
            run(*arguments)
    assert shop.requests() == {}


# ---- many


def test_a_hundred_thousand_held_messages_are_counted_and_listed_quickly(shop, django_assert_max_num_queries):
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO outbox_held (consumer, topic, partition, "offset", key, value, reason, next_try) '
            "SELECT %s, 'orders', 0, n, convert_to((n %% 50)::text, 'UTF8'), 'v', "
            "CASE WHEN n < 50 THEN 'failed' ELSE 'waiting' END, CASE WHEN n < 10 THEN now() END "
            "FROM generate_series(0, 99999) AS n",
            [shop.name],
        )
        cursor.execute("ANALYZE outbox_held")
        cursor.execute("SELECT clock_timestamp()")
        (begun,) = cursor.fetchone()
        assert messages.counts(cursor, "outbox", [shop.name])[shop.name] == MessageCounts(10_000, 40, 0)
        with django_assert_max_num_queries(2):
            assert [one.behind for one in held.listed(shop.selector())] == [messages.BEHIND_MAX] * 50
        cursor.execute("SELECT extract(epoch FROM clock_timestamp() - %s)", [begun])
        assert cursor.fetchone()[0] < 2
