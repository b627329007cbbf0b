"""What operators do, in a real PostgreSQL; that harvesters carry it out is tested with them."""

import json
import threading
import time
from datetime import timedelta
from io import StringIO

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

import outbox
from outbox.edges.postgres.common import table
from outbox.models import AuditLogEntry, DeadLetter, Hold, OutboxRecord
from outbox.operations import actions
from outbox.operations.actions import NothingSelected, OperationRefused, Selector
from outbox.operations.selection import lane_expression

pytestmark = pytest.mark.django_db
NEVER_DRAWN = 3_000_000_003  # an id of no record in the outbox
WHO = {"actor": "ann", "reason": "told to"}


def rejected(record_id, key="k", topic="t", reason="rejected", **given):
    return Hold.objects.create(topic=topic, key=key, record_id=record_id, reason=reason, **given)


def dead(record_id, key="k", topic="t", **given):
    return DeadLetter.objects.create(
        record_id=record_id, topic=topic, key=key, value=f"v{record_id}", reason="rejected", **given
    )


def requests():
    return dict(Hold.objects.values_list("record_id", "wanted"))


def test_nothing_is_not_everything():
    for operation in (
        actions.retry,
        actions.requeue,
        actions.skip,
        actions.discard,
        actions.discard_dead_letters,
        actions.resume,
    ):
        with pytest.raises(NothingSelected, match="--all"):
            operation(Selector(), "ann")
    with pytest.raises(OperationRefused, match="Name the topic too"):
        actions.skip(Selector(key="k"), "ann")
    assert not AuditLogEntry.objects.exists()


def test_requests_about_held_records_are_written_down_in_bulk(django_assert_max_num_queries):
    for number in range(50):
        rejected(number, key=f"k{number}")
    rejected(99, key=None)
    Hold.objects.create(topic="t", key="z", reason="paused")
    with django_assert_max_num_queries(6):
        outcome = actions.skip(Selector(topic="t"), **WHO)
    assert (outcome.matched, outcome.changed, outcome.pending) == (50, 0, 50)  # neither the topic nor the pause
    assert actions.retry(Selector(ids=[3, 99]), "ann").pending == 2
    assert actions.discard(Selector(topic="t", key="k5"), "ann").pending == 1
    found = requests()
    assert (found[3], found[99], found[5], found[7], found[None]) == ("retry", "retry", "discard", "skip", "")
    assert list(AuditLogEntry.objects.order_by("id").values_list("who", "what", "why")) == [
        ("ann", "skip", "told to"),
        ("ann", "retry", ""),
        ("ann", "discard", ""),
    ]
    assert AuditLogEntry.objects.earliest("id").details["selector"] == {"topic": "t"}
    assert Selector(lane=0, topic="t").as_dict() == {"lane": 0, "topic": "t"}


def test_a_dry_run_changes_nothing():
    rejected(1)
    dead(2)
    for operation in (actions.retry, actions.requeue, actions.discard, actions.discard_dead_letters):
        outcome = operation(Selector(all=True), "ann", dry_run=True)
        assert (outcome.matched, outcome.changed, outcome.pending) == (1, 0, 0)
    assert actions.pause(topic="t", actor="ann", dry_run=True).changed == 0
    assert (requests(), DeadLetter.objects.count(), AuditLogEntry.objects.count()) == ({1: ""}, 1, 0)


def test_dead_letters_come_back_in_the_order_they_had():
    for number in (7, 3, 5):
        dead(number, header_keys=["a"], header_values=["b"])
    other = dead(8)
    assert actions.requeue(Selector(ids=[3, 5, 7]), **WHO).changed == 3
    rows = OutboxRecord.objects.order_by("id").values_list("kafka_value", "kafka_key", "kafka_header_keys")
    assert list(rows) == [("v3", "k", ["a"]), ("v5", "k", ["a"]), ("v7", "k", ["a"])]
    assert list(DeadLetter.objects.all()) == [other]


def test_dead_letters_are_discarded_by_age():
    old = dead(1)
    dead(2)
    DeadLetter.objects.filter(pk=old.pk).update(died_at="2020-01-01T00:00Z")
    assert actions.discard_dead_letters(Selector(older_than=timedelta(days=1)), **WHO).changed == 1
    assert [letter.record_id for letter in DeadLetter.objects.all()] == [2]


def test_the_ids_of_rows_say_which_table_is_meant():
    hold, letter = rejected(1), dead(1)
    assert actions.discard(Selector(dead_ids=[letter.pk]), "ann").pending == 0
    assert actions.discard_dead_letters(Selector(hold_ids=[hold.pk]), "ann").changed == 0


def test_held_records_and_dead_letters_are_different_operations():
    rejected(1)
    dead(2)
    assert actions.retry(Selector(all=True), "ann").changed == 0
    assert actions.discard(Selector(all=True), "ann").changed == 0
    assert (requests(), DeadLetter.objects.count()) == ({1: "discard"}, 1)
    Hold.objects.update(wanted="")
    assert actions.requeue(Selector(all=True), "ann").pending == 0
    dead(3)
    assert actions.discard_dead_letters(Selector(all=True), "ann").pending == 0
    assert (requests(), DeadLetter.objects.count()) == ({1: ""}, 0)


def test_a_lane_selects_by_the_key_and_keyless_records_by_their_id(settings):
    settings.OUTBOX = {**settings.OUTBOX, "LANES": 4}
    for number in range(40):
        rejected(number, key=f"k{number}")
        rejected(100 + number, key="", topic="none")
    rejected(-7, key="", topic="none")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n FROM generate_series(0, 39) n WHERE (hashtextextended('k' || n, 0) & 9223372036854775807) % 4 = 2"
        )
        expected = {row[0] for row in cursor.fetchall()}
    found = set(Selector(lane=2).holds("default").values_list("record_id", flat=True))
    assert found == expected | {100 + n for n in range(40) if (100 + n) % 4 == 2}
    assert set(Hold.objects.annotate(lane_of=lane_expression("default")).values_list("lane_of", flat=True)) == {
        0,
        1,
        2,
        3,
    }


def test_pauses_are_placed_once_and_end():
    assert actions.pause(topic="t", key="k", **WHO).details == {"scope": "t[k]"}
    actions.pause(topic="t", actor="ann")
    actions.pause(lane=1, actor="ann")
    with pytest.raises(OperationRefused, match=r"A pause exists already for t\[k\]\."):
        actions.pause(topic="t", key="k", actor="ann")
    for given in ({}, {"topic": "t", "lane": 1}, {"lane": 1, "key": "k"}, {"topic": "t", "key": ""}, {"lane": -1}):
        with pytest.raises(OperationRefused):
            actions.pause(actor="ann", **given)
    rejected(5)
    assert actions.resume(Selector(topic="t"), **WHO).changed == 2
    assert sorted(Hold.objects.values_list("reason", flat=True)) == ["paused", "rejected"]
    assert actions.resume(Selector(all=True), "ann").changed == 1


def test_a_dead_letter_is_edited_and_put_back():
    letter = dead(NEVER_DRAWN)
    with pytest.raises(OperationRefused, match="MAX_MESSAGE_BYTES"):
        actions.edit_dead(letter.pk, {"value": "x" * 2_000_000}, actor="ann")
    with pytest.raises(OperationRefused, match=r"topic, key, value, headers\. You gave: colour\."):
        actions.edit_dead(letter.pk, {"colour": "red"}, actor="ann")
    assert actions.edit(record_id=NEVER_DRAWN, changes={"value": "better", "headers": {"a": "b"}}, **WHO).changed == 1
    row = OutboxRecord.objects.get()
    assert (row.kafka_value, row.kafka_key, row.kafka_header_keys, row.kafka_header_values) == (
        "better",
        "k",
        ["a"],
        ["b"],
    )
    assert not DeadLetter.objects.exists()
    with pytest.raises(OperationRefused, match="neither in the outbox nor"):
        actions.edit(record_id=NEVER_DRAWN, changes={"value": ""}, actor="ann")


@pytest.mark.django_db(transaction=True)
def test_an_edit_that_no_lane_confirms_changes_nothing():
    id_ = outbox_record()
    with pytest.raises(actions.NotConfirmed, match=r"Lane 0 did not confirm within 0.2 s.*outbox_stats"):
        actions.edit(record_id=id_, changes={"value": "better"}, actor="ann", wait_s=0.2)
    assert OutboxRecord.objects.get(pk=id_).kafka_value == "v"
    assert not Hold.objects.exists()
    assert not AuditLogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_edits_that_begin_at_once_one_is_told():
    id_ = outbox_record()
    connected = {name: connection.settings_dict[name.upper()] for name in ("host", "port", "user", "password")}
    dbname, outcome = connection.settings_dict["NAME"], []

    def edit():
        try:
            actions.edit(record_id=id_, changes={"value": "better"}, actor="ann", wait_s=0)
        except OperationRefused as error:
            outcome.append(str(error))
        finally:
            connection.close()

    with psycopg.connect(**{k: v for k, v in connected.items() if v}, dbname=dbname) as other:
        other.execute("INSERT INTO outbox_hold (topic, key, record_id, reason) VALUES ('t', 'k', %s, 'editing')", [id_])
        thread = threading.Thread(target=edit)
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
        deadline = time.monotonic() + 60
        while not other.execute(waiting, [dbname]).fetchone()[0]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            other.execute("SELECT pg_stat_clear_snapshot()")
        other.commit()
        thread.join(60)
    assert "Another edit of t[k]" in outcome[0]


@pytest.mark.django_db(transaction=True)
def test_an_edit_does_not_change_another_record_with_the_same_id():
    """TRUNCATE … RESTART IDENTITY while it waits for the lane."""
    id_ = outbox_record()
    replace = (
        "DELETE FROM outbox; INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_value) VALUES "
        f"({id_}, clock_timestamp(), 't', 'k', 'new'); UPDATE outbox_hold SET confirmed_by = '{{0}}'"
    )

    def lane():
        with psycopg.connect(**table.parameters("default"), autocommit=True) as own:
            deadline = time.monotonic() + 60
            while not own.execute("SELECT 1 FROM outbox_hold WHERE reason = 'editing'").fetchone():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            own.execute(replace)

    thread = threading.Thread(target=lane)
    thread.start()
    with pytest.raises(OperationRefused, match="was delivered or deleted in the meantime"):
        actions.edit(record_id=id_, changes={"value": "better"}, actor="ann")
    thread.join(60)
    assert OutboxRecord.objects.get(pk=id_).kafka_value == "new"
    assert not Hold.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_record_is_edited_whatever_its_create_time_is():
    id_ = outbox_record()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox SET create_time = 'infinity'")
    rejected(id_)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_hold SET stashed_at = 'infinity'")
        cursor.execute(
            "CREATE FUNCTION confirms() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN NEW.confirmed_by := '{0}'; RETURN NEW; END $$"
        )
        cursor.execute("CREATE TRIGGER lane BEFORE INSERT ON outbox_hold FOR EACH ROW EXECUTE FUNCTION confirms()")
    try:
        assert actions.edit(record_id=id_, changes={"value": "better"}, actor="ann").pending == 1
        assert OutboxRecord.objects.get(pk=id_).kafka_value == "better"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION confirms CASCADE")


def test_an_edit_does_not_wait_inside_of_a_transaction():
    with pytest.raises(OperationRefused, match="non_atomic_requests"):
        actions.edit(record_id=outbox_record(), changes={"value": "better"}, actor="ann")


def outbox_record():
    from django.db import transaction

    with transaction.atomic():
        return outbox.stash("t", "v", key="k")


# ---- commands


def run(name, *arguments):
    out = StringIO()
    call_command(name, *arguments, stdout=out)
    return out.getvalue()


def test_commands_take_selectors_and_answer_in_json():
    rejected(1)
    dead(2, topic="u")
    assert json.loads(run("outbox_retry", "--topic", "t", "--dry-run", "--json"))["matched"] == 1
    assert json.loads(run("outbox_skip", "--id", "1", "--json"))["pending"] == 1
    assert (
        json.loads(run("outbox_discard", "--dead-letters", "--topic", "u", "--reason", "old", "--json"))["changed"] == 1
    )
    assert run("outbox_pause", "--topic", "t") == "1 row was paused.\n"
    assert run("outbox_resume", "--all") == "1 row was resumed.\n"
    dead(3)
    assert "No row matches." in run("outbox_discard", "--dead-letters", "--older-than", "1d")
    assert run("outbox_discard", "--dead-letters", "--all") == "1 row was discarded.\n"
    assert "Nothing was changed" in run("outbox_discard", "--dead-letters", "--all")
    whats = list(AuditLogEntry.objects.order_by("id").values_list("what", flat=True))
    assert whats == ["skip", "discard", "pause", "resume", "discard"]


def test_commands_count_rows_and_requests():
    rejected(1)
    rejected(2, key="l")
    assert run("outbox_skip", "--all", "--dry-run") == "2 rows would be skipped. Nothing was changed.\n"
    assert run("outbox_skip", "--id", "1") == "The running harvester, or the next one, carries out 1 request.\n"
    assert run("outbox_retry", "--all") == "The running harvester, or the next one, carries out 2 requests.\n"


def test_commands_refuse_what_is_not_meant():
    for name in ("outbox_retry", "outbox_requeue", "outbox_skip", "outbox_discard", "outbox_resume"):
        with pytest.raises(CommandError, match="--all"):
            run(name)
    with pytest.raises(CommandError, match="Name one of these"):
        run("outbox_pause")
    with pytest.raises(CommandError, match="30d"):
        run("outbox_discard", "--dead-letters", "--older-than", "soon")


def test_the_edit_command_changes_dead_letters():
    dead(9)
    assert run("outbox_edit", "--id", "9", "--value", "better", "--header", "a=b=c") == "1 row was edited.\n"
    row = OutboxRecord.objects.get()
    assert (row.kafka_value, row.kafka_header_keys, row.kafka_header_values) == ("better", ["a"], ["b=c"])
