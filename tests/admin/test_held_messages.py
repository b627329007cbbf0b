"""Held messages and dead letters of consumers in the admin: what is shown, who may do what, and what is requested."""

import json
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from outbox.models import AuditLogEntry, ConsumerHold
from tests.admin.conftest import SECRET, act, hidden, page

pytestmark = pytest.mark.django_db
HELD, ONE, EDIT = (f"admin:outbox_consumerhold_{name}" for name in ("changelist", "change", "edit"))
DEAD, DEAD_ONE, EDIT_DEAD = (f"admin:outbox_consumerdeadletter_{name}" for name in ("changelist", "change", "edit"))


def held(offset=1, **columns):
    return ConsumerHold.objects.create(
        **{
            "consumer": "shop.pay",
            "topic": "orders",
            "partition": 0,
            "offset": offset,
            "key": b"a",
            "value": f'{{"secret": "{SECRET}"}}'.encode(),
            "header_names": ["h"],
            "header_values": [SECRET.encode()],
            "reason": "failed",
            "attempts": 5,
            "last_error": "ValueError: no amount",
            "history": [{"at": timezone.now().isoformat(), "error": "KeyError, once"}],
            **columns,
        }
    )


def waiting(offset, **columns):
    return held(offset, reason="waiting", attempts=0, last_error="", history=[], **columns)


def dead(offset=1, **columns):
    return held(offset, died_at=timezone.now(), **columns)


def wanted(row):
    return ConsumerHold.objects.get(pk=row.pk).wanted


def place_at(consumer, topic):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_position (consumer, topic, partition, next) VALUES (%s, %s, 0, 9)", [consumer, topic]
        )


def rows_of(client, url, **query):
    return [row.pk for row in client.get(reverse(url), query).context["cl"].result_list]


def mask(record, text):
    assert (record.kafka_topic, record.kafka_key, record.pk) == ("orders", "a", None)
    return "***"


# --- what is shown


def test_one_permission_shows_both_pages(sign_in):
    for url, row in ((HELD, held()), (DEAD, dead(2))):
        one = url.replace("changelist", "change")
        assert sign_in("view_hold", "view_deadletter").get(reverse(url)).status_code == 403
        assert sign_in("view_consumerhold").get(reverse(url)).status_code == 200
        text = page(sign_in("view_consumerhold"), one, row.pk)
        assert "outbox.view_payload" in text
        assert SECRET not in text
        assert 'name="action"' not in text
        assert SECRET in page(sign_in("view_consumerhold", "view_payload"), one, row.pk)


def test_a_held_message_shows_everything_about_itself(admin_client):
    row = held(7)
    waiting(8)
    waiting(9, key=b"other")
    for text in (page(admin_client, HELD), page(admin_client, ONE, row.pk)):
        for said in ("orders[0] offset 7", "shop.pay", "The function of the consumer failed.", "Correct the function"):
            assert said in text
        assert "It waits for your decision." in text
    text = page(admin_client, ONE, row.pk)
    assert "KeyError, once" in text
    assert "ValueError: no amount" in text
    assert text.count(SECRET) == 2
    (shown,) = admin_client.get(reverse(HELD)).context["cl"].result_list
    assert (shown.pk, shown.behind) == (row.pk, 1)


def test_the_next_step_depends_on_the_row(admin_client):
    for row, said in (
        (held(1, wanted="skip"), "about to move it to the dead letters"),
        (held(2, next_try=timezone.now() + timedelta(seconds=90)), "The consumer tries it in 1 min"),
        (waiting(3), "Decide about the first message of the key."),
        (held(4, reason="poison"), "The message ended the process"),
        (held(5, reason="not-yet"), "The function has postponed the message."),
    ):
        assert said in page(admin_client, ONE, row.pk)
    assert "Correct the function and requeue it" in page(admin_client, DEAD_ONE, dead(6).pk)


def test_bytes_that_are_no_text_are_hexadecimal(admin_client):
    row = held(key=b"\xff\x01", value=b"\xfe\x00", header_names=["b", "n"], header_values=[b"\xfd", None])
    text = page(admin_client, ONE, row.pk)
    for said in ("\\xff01", "\\xfe00", "\\xfd"):
        assert said in text
    text = page(admin_client, ONE, held(2, key=None, value=None).pk)
    assert "(no key)" in text
    assert "tombstone" in text
    assert "(empty)" in page(admin_client, ONE, held(3, key=b"").pk)


def test_the_redactor_is_asked(admin_client):
    with override_settings(OUTBOX={"REDACTOR": f"{__name__}.mask"}):
        text = page(admin_client, ONE, held().pk)
    assert "***" in text
    assert SECRET not in text


def test_the_list_leaves_out_those_that_wait_until_it_is_asked_for_them(admin_client):
    place_at("shop.pay", "orders")
    place_at("shop.other", "others")
    first, second, soon = held(1), waiting(2), held(3, next_try=timezone.now())
    other, letter = held(4, consumer="shop.other", topic="others"), dead(5)
    assert rows_of(admin_client, HELD) == [first.pk, soon.pk, other.pk]
    assert rows_of(admin_client, HELD, reason="waiting") == [second.pk]
    assert rows_of(admin_client, HELD, reason="undecided") == [first.pk, other.pk]
    assert rows_of(admin_client, HELD, consumer="shop.other") == [other.pk]
    assert rows_of(admin_client, HELD, topic="others", reason="failed") == [other.pk]
    assert rows_of(admin_client, DEAD) == [letter.pk]
    assert rows_of(admin_client, DEAD, reason__exact="poison") == []
    assert "All but those that wait behind another" in page(admin_client, HELD)


def test_search_is_exact(admin_client):
    first, second = held(1), held(2, key=b"b", partition=1)
    assert rows_of(admin_client, HELD, q="b") == [second.pk]
    assert rows_of(admin_client, HELD, q="1") == [first.pk]
    assert rows_of(admin_client, HELD, q="orders") == [first.pk, second.pk]
    for odd in ("\0", "'", "9" * 40):
        assert admin_client.get(reverse(HELD), {"q": odd}).status_code == 200


# --- actions


def test_each_action_has_a_permission_of_its_own(sign_in):
    row, letter = held(), dead(2)
    client = sign_in("view_consumerhold")
    for url, name, of in (
        (HELD, "retry", row),
        (HELD, "skip", row),
        (DEAD, "requeue", letter),
        (DEAD, "discard", letter),
    ):
        act(client, url, name, of, confirmed="1")
        assert wanted(of) == ""
    act(sign_in("view_consumerhold", "retry"), HELD, "retry", row, why="the bank is back")
    assert wanted(row) == "retry"
    entry = AuditLogEntry.objects.latest("id")
    assert (entry.who, entry.what, entry.why, entry.details["ids"]) == ("ada", "retry", "the bank is back", [row.pk])
    act(sign_in("view_consumerhold", "requeue"), DEAD, "requeue", letter)
    assert wanted(letter) == "retry"


@pytest.mark.parametrize("name", ["skip", "discard"])
def test_giving_up_a_message_asks_first(admin_client, name):
    row = held()
    asked = act(admin_client, HELD, name, row).content.decode()
    assert "orders[0] offset 1" in asked
    assert wanted(row) == ""
    done = act(admin_client, HELD, name, row, **hidden(asked), why="no use").content.decode()
    assert "The consumer does this within a second while it runs." in done
    assert wanted(row) == name


def test_the_buttons_of_a_message_that_waits_find_it(admin_client):
    held(1)
    row = waiting(2)
    text = page(admin_client, ONE, row.pk)
    assert 'value="retry"' not in text
    target = f"{reverse(HELD)}?reason=waiting"
    assert f'action="{target}"' in text
    given = {"action": "discard", "_selected_action": [row.pk], "confirmed": "1", "seen": str(row.pk)}
    admin_client.post(target, given)
    assert wanted(row) == "discard"


def test_a_message_that_died_meanwhile_is_left_out(admin_client):
    row, other = held(1), held(2, key=b"b")
    asked = hidden(act(admin_client, HELD, "skip", row, other).content.decode())
    ConsumerHold.objects.filter(pk=row.pk).update(died_at=timezone.now())
    done = act(admin_client, HELD, "skip", row, other, **asked).content.decode()
    assert "left out 1 row" in done
    assert (wanted(row), wanted(other)) == ("", "skip")


# --- edits


def form(client, url, row):
    return client.get(reverse(url, args=[row.pk])).context


@pytest.mark.parametrize(("url", "make"), [(EDIT, held), (EDIT_DEAD, dead)])
def test_an_edit_changes_value_and_headers_and_nothing_else(admin_client, url, make):
    row = make()
    context = form(admin_client, url, row)
    assert set(context["form"].fields) == {"value", "is_tombstone", "headers", "why"}
    given = {"value": "new", "headers": json.dumps([["x", "y"]]), "why": "typo", "seen": context["seen"], "key": "z"}
    done = admin_client.post(reverse(url, args=[row.pk]), given, follow=True).content.decode()
    assert "You have saved the message." in done
    row = ConsumerHold.objects.get(pk=row.pk)
    assert (bytes(row.value), row.header_names, [bytes(one) for one in row.header_values]) == (b"new", ["x"], [b"y"])
    assert (bytes(row.key), row.wanted) == (b"a", "retry")
    entry = AuditLogEntry.objects.latest("id")
    assert (entry.what, entry.details["fields"]) == ("edit", ["headers", "value"])


def test_an_edit_of_what_has_changed_is_refused(admin_client):
    row = held()
    seen = form(admin_client, EDIT, row)["seen"]
    ConsumerHold.objects.filter(pk=row.pk).update(value=b"other")
    given = {"value": "new", "headers": "[]", "seen": seen}
    assert "This message was changed" in admin_client.post(reverse(EDIT, args=[row.pk]), given).content.decode()
    ConsumerHold.objects.all().delete()
    done = admin_client.post(reverse(EDIT, args=[row.pk]), given, follow=True).content.decode()
    assert "handled or deleted in the meantime" in done


def test_what_is_no_text_is_not_edited_here(admin_client):
    context = form(admin_client, EDIT, held(value=b"\xff", header_values=[None]))
    assert set(context["form"].fields) == {"why"}
    assert len(context["notes"]) == 2


def test_an_edit_needs_both_permissions(sign_in):
    row = held()
    for permissions in (("view_consumerhold", "edit"), ("view_consumerhold", "view_payload")):
        assert sign_in(*permissions).get(reverse(EDIT, args=[row.pk])).status_code == 403
    assert sign_in("edit", "view_payload").get(reverse(EDIT, args=[row.pk])).status_code == 200


# --- many


def test_a_hundred_thousand_held_messages_do_not_slow_the_pages(admin_client):
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO outbox_held (consumer, topic, partition, "offset", key, value, reason, died_at) '
            "SELECT 'shop.pay', 'orders', 0, n, convert_to((n % 100)::text, 'UTF8'), "
            "convert_to(repeat('v', 500), 'UTF8'), "
            "CASE WHEN n < 100 THEN 'failed' ELSE 'waiting' END, CASE WHEN n % 3 = 0 THEN now() END "
            "FROM generate_series(0, 99999) AS n"
        )
        cursor.execute("ANALYZE outbox_held")
    urls = [reverse(HELD), f"{reverse(HELD)}?reason=waiting", f"{reverse(HELD)}?q=7", f"{reverse(DEAD)}?p=150"]
    for url in urls:
        begun = time.monotonic()
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(url).status_code == 200
        took_s = time.monotonic() - begun
        print(url, took_s, max((q["time"], q["sql"]) for q in queries))
        assert took_s < 1.5, (url, took_s, sorted(queries, key=lambda query: query["time"])[-1])
        assert len(queries) < 20
    first = ConsumerHold.objects.filter(died_at=None).order_by("id").first()
    assert f"{1000:,}+" not in page(admin_client, ONE, first.pk)
    assert "666" in page(admin_client, ONE, first.pk)
