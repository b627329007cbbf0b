"""Holds and dead letters in the admin: what is shown, who may do what, and that each act leaves an audit log entry."""

import json
import re
import threading

import psycopg
import pytest
from django.conf import settings
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import resolve, reverse
from django.utils.safestring import mark_safe

from outbox.admin import actions, base, message_view
from outbox.admin import edit as editing
from outbox.edges.postgres.common import table
from outbox.models import AuditLogEntry, DeadLetter, Hold, OutboxRecord
from outbox.redaction import TEXT_MAX
from tests.admin.conftest import (
    DEAD,
    DEAD_ONE,
    EDIT_DEAD,
    EDIT_HOLD,
    HOLD,
    HOLDS,
    SECRET,
    act,
    dead,
    hidden,
    page,
    record,
    rejected,
)

pytestmark = pytest.mark.django_db
PAUSE = "admin:outbox_hold_pause"
AUDIT = "admin:outbox_auditlogentry_changelist"


def wanted(hold):
    return Hold.objects.get(pk=hold.pk).wanted


def mask(record, text):
    return "***"


def mask_secrets(record, text):
    return text.replace(SECRET, "***")


def markup(record, text):
    return mark_safe("<b>bold</b>")


# --- what is shown


@pytest.mark.parametrize(
    ("url", "permission"), [(HOLDS, "view_hold"), (DEAD, "view_deadletter"), (AUDIT, "view_auditlogentry")]
)
def test_each_list_has_a_permission_of_its_own(sign_in, url, permission):
    assert sign_in("view_outboxrecord").get(reverse(url)).status_code == 403
    assert sign_in(permission).get(reverse(url)).status_code == 200


def test_a_hold_tells_everything_about_itself(admin_client):
    hold = rejected()
    for text in (page(admin_client, HOLDS), page(admin_client, HOLD, hold.pk)):
        for said in ("orders[a]", "The record is larger than the topic allows", "make the record smaller."):
            assert said in text
    assert "too large, once" in text
    assert SECRET in text


def test_a_dead_letter_tells_everything_about_itself(admin_client):
    letter = dead()
    for text in (page(admin_client, DEAD), page(admin_client, DEAD_ONE, letter.pk)):
        for said in ("orders[b] #77", "The broker does not accept the record", "Broker: invalid"):
            assert said in text
    assert text.count(SECRET) == 2


def test_a_time_that_python_has_no_date_for_is_shown_as_nothing(admin_client):
    hold, letter, waits = rejected(), dead(), record(kafka_key="z")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox SET create_time = 'infinity'")
        cursor.execute("UPDATE outbox_hold SET stashed_at = 'infinity'")
        cursor.execute("UPDATE outbox_dead SET stashed_at = '0044-03-15 BC'")
    for url, *row in (
        (HOLDS,),
        (DEAD,),
        (HOLD, hold.pk),
        (DEAD_ONE, letter.pk),
        (EDIT_HOLD, hold.pk),
        (EDIT_DEAD, letter.pk),
    ):
        page(admin_client, url, *row)
    page(admin_client, "admin:outbox_outboxrecord_edit", waits.pk)
    assert DeadLetter.objects.get(pk=letter.pk).stashed_at is None


def test_payloads_are_hidden_without_their_permission(sign_in):
    hold, letter = rejected(), dead()
    client = sign_in("view_hold", "view_deadletter")
    for url, row in ((HOLD, hold), (DEAD_ONE, letter)):
        text = page(client, url, row.pk)
        assert SECRET not in text
        assert "outbox.view_payload" in text
    client = sign_in("view_hold", "view_deadletter", "view_payload")
    for url, row in ((HOLD, hold), (DEAD_ONE, letter)):
        assert SECRET in page(client, url, row.pk)


def test_the_redactor_is_asked_and_what_it_returns_is_escaped(admin_client):
    hold, letter = rejected(record(kafka_value="<script>x()</script>")), dead()
    assert "&lt;script&gt;x()" in page(admin_client, HOLD, hold.pk)
    with override_settings(OUTBOX={"REDACTOR": f"{__name__}.mask"}):
        for url, row in ((HOLD, hold), (DEAD_ONE, letter)):
            text = page(admin_client, url, row.pk)
            assert "***" in text
            assert SECRET not in text


def test_a_redactor_cannot_inject_markup(admin_client):
    rows = [
        (HOLD, rejected()),
        (DEAD_ONE, dead()),
        (HOLD, rejected(record(kafka_key="z", kafka_value=None, kafka_value_binary=b"x"))),
    ]
    with override_settings(OUTBOX={"REDACTOR": f"{__name__}.markup"}):
        for url, row in rows:
            text = page(admin_client, url, row.pk)
            assert "&lt;b&gt;bold" in text
            assert "<b>bold" not in text


def test_search_is_exact(admin_client):
    first, second = rejected(), rejected(record(kafka_key="b"))
    assert [row.pk for row in admin_client.get(reverse(HOLDS), {"q": "b"}).context["cl"].result_list] == [second.pk]
    found = admin_client.get(reverse(HOLDS), {"q": str(first.record_id)}).context["cl"].result_list
    assert [row.pk for row in found] == [first.pk]
    for odd in ("\0", "'", "9" * 40):
        assert admin_client.get(reverse(HOLDS), {"q": odd}).status_code == 200


@pytest.mark.parametrize(
    ("url", "lookup"),
    [
        (DEAD, "value__startswith"),
        (DEAD, "value__regex"),
        (DEAD, "value_binary__isnull"),
        (DEAD, "header_values__contains"),
        (DEAD, "header_keys__0"),
        (DEAD, "history__0__error__startswith"),
        (DEAD, "reason__startswith"),
        (HOLDS, "history__0__error__startswith"),
        (HOLDS, "key__startswith"),
        (AUDIT, "details__id"),
        (AUDIT, "why__startswith"),
    ],
)
def test_no_lookup_but_those_of_the_filters_is_answered(sign_in, url, lookup):
    dead()
    client = sign_in("view_hold", "view_deadletter", "view_auditlogentry")
    assert client.get(reverse(url), {lookup: SECRET}).status_code == 400


def test_the_filters_of_the_lists_work(admin_client):
    refused, crashed = dead(), dead(reason="poison")
    for reason, letter in (("rejected", refused), ("poison", crashed)):
        assert f"?reason__exact={reason}" in page(admin_client, DEAD)
        found = admin_client.get(reverse(DEAD), {"reason__exact": reason}).context["cl"].result_list
        assert [row.pk for row in found] == [letter.pk]
    rejected()
    assert len(admin_client.get(reverse(HOLDS), {"reason__exact": "paused"}).context["cl"].result_list) == 0


def test_nothing_is_added_changed_or_deleted_by_django_itself(admin_client):
    hold, letter = rejected(), dead()
    audit = AuditLogEntry.objects.create(who="ada", what="pause")
    for name, row in (("hold", hold), ("deadletter", letter), ("auditlogentry", audit)):
        base = f"admin:outbox_{name}"
        assert admin_client.get(reverse(f"{base}_add")).status_code == 403
        assert admin_client.post(reverse(f"{base}_change", args=[row.pk]), {"topic": "x"}).status_code == 403
        assert admin_client.post(reverse(f"{base}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
        act(admin_client, f"{base}_changelist", "delete_selected", row)
        row.refresh_from_db()


# --- what may be done

HOLD_ACTS = [("retry", "retry", "retry"), ("skip", "skip", "skip"), ("discard", "discard", "discard")]


@pytest.mark.parametrize(("action", "permission", "asked"), HOLD_ACTS)
def test_each_act_on_a_hold_takes_its_own_permission(sign_in, action, permission, asked):
    hold = rejected()
    others = {"retry", "requeue", "skip", "discard", "edit", "pause"} - {permission}
    client = sign_in("view_hold", *others)
    act(client, HOLDS, action, hold, confirmed="1", why="no")
    assert wanted(hold) == ""
    assert f'id="outbox-{action}"' not in page(client, HOLD, hold.pk)
    assert not AuditLogEntry.objects.exists()
    client = sign_in("view_hold", permission)
    assert f'id="outbox-{action}"' in page(client, HOLD, hold.pk)
    act(client, HOLDS, action, hold, confirmed="1", why="because")
    assert wanted(hold) == asked
    (audit,) = AuditLogEntry.objects.all()
    assert (audit.who, audit.why) == ("ada", "because")


def test_every_act_asks_why(admin_client):
    hold, letter, pause = rejected(), dead(), Hold.objects.create(topic="mails", reason="paused")
    for url, one, row in ((HOLDS, HOLD, hold), (HOLDS, HOLD, pause), (DEAD, DEAD_ONE, letter)):
        for text in (page(admin_client, url), page(admin_client, one, row.pk)):
            assert 'name="why"' in text
    for url, name, row in ((HOLDS, "retry", hold), (HOLDS, "resume", pause), (DEAD, "requeue", letter)):
        act(admin_client, url, name, row, why=f"{name} {row.pk}")
        assert AuditLogEntry.objects.last().why == f"{name} {row.pk}"
    text = act(admin_client, HOLDS, "skip", rejected(record(kafka_key="z")), why="typed before").content.decode()
    assert 'value="typed before"' in text
    before = AuditLogEntry.objects.count()
    act(admin_client, HOLDS, "retry", hold, why="x" * 501)
    assert AuditLogEntry.objects.count() == before


def test_an_act_on_everything_tells_where_it_ends(admin_client, monkeypatch):
    letters = [dead(record_id=number) for number in range(5)]
    for module in (actions, base):
        monkeypatch.setattr(module, "COUNT_MAX", 3)
    assert "This list and its actions end after 3 rows, and there are more." in page(admin_client, DEAD)
    text = act(admin_client, DEAD, "discard", letters[0], select_across="1").content.decode()
    assert "The action takes the first 3 of the list." in text
    assert "more</li>" not in text
    text = act(admin_client, DEAD, "discard", letters[0], **hidden(text)).content.decode()
    assert "3 rows were deleted." in text
    assert "The action took only the first 3 rows." in text
    assert [letter.record_id for letter in DeadLetter.objects.order_by("record_id")] == [0, 1]
    assert "and there are more" not in page(admin_client, DEAD)
    text = act(admin_client, DEAD, "discard", letters[0], select_across="1").content.decode()
    assert "of the list" not in text


@pytest.mark.parametrize("action", ["skip", "discard"])
def test_what_gives_something_up_is_asked_for_first(admin_client, action):
    hold = rejected()
    text = act(admin_client, HOLDS, action, hold).content.decode()
    assert "orders[a]" in text
    assert 'name="confirmed"' in text
    assert wanted(hold) == ""
    assert not AuditLogEntry.objects.exists()


def test_dead_letters_are_deleted_only_after_a_question_and_with_permission(sign_in):
    letter = dead()
    act(sign_in("view_deadletter", "requeue"), DEAD, "discard", letter, confirmed="1")
    assert DeadLetter.objects.count() == 1
    client = sign_in("view_deadletter", "discard")
    assert "You delete these messages for good." in act(client, DEAD, "discard", letter).content.decode()
    assert DeadLetter.objects.count() == 1
    act(client, DEAD, "discard", letter, confirmed="1", why="rubbish")
    assert DeadLetter.objects.count() == 0
    assert AuditLogEntry.objects.get().why == "rubbish"


def test_dead_letters_go_back_into_the_table(sign_in):
    first, second = dead(record_id=5, value="1"), dead(record_id=4, value="0")
    act(sign_in("view_deadletter", "discard", "retry"), DEAD, "requeue", first, second)
    assert OutboxRecord.objects.count() == 0
    act(sign_in("view_deadletter", "requeue"), DEAD, "requeue", first, second)
    assert list(OutboxRecord.objects.order_by("id").values_list("kafka_value", flat=True)) == ["0", "1"]
    assert DeadLetter.objects.count() == 0
    assert AuditLogEntry.objects.count() == 1


def test_many_rows_take_as_many_statements_as_few(sign_in):
    client = sign_in("view_hold", "retry")

    def statements(count):
        rows = [rejected(record(kafka_key=f"{count}-{index}")) for index in range(count)]
        with CaptureQueriesContext(connection) as queries:
            act(client, HOLDS, "retry", *rows)
        assert {wanted(row) for row in rows} == {"retry"}
        return len(queries)

    statements(1)
    assert statements(2) == statements(25)


def test_get_requests_change_nothing(admin_client):
    hold = rejected()
    admin_client.get(reverse(HOLDS), {"action": "retry", "_selected_action": hold.pk})
    assert wanted(hold) == ""


def test_a_request_without_the_token_is_refused(admin_user):
    hold = rejected()
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    posts = [
        (reverse(HOLDS), {"action": "retry", "_selected_action": hold.pk}),
        (reverse(PAUSE), {"topic": "orders"}),
        (reverse(EDIT_HOLD, args=[hold.pk]), {"topic": "x"}),
    ]
    for url, given in posts:
        assert client.post(url, given).status_code == 403
    assert wanted(hold) == ""
    assert Hold.objects.count() == 1


def test_pause_and_resume(sign_in):
    client = sign_in("view_hold", "retry")
    assert client.get(reverse(PAUSE)).status_code == 403
    client = sign_in("view_hold", "pause")
    assert page(client, HOLDS).count("Pause…") == 1
    client.post(reverse(PAUSE), {"topic": "mails", "key": "", "why": "too many"})
    hold = Hold.objects.get()
    assert (hold.topic, hold.key, hold.reason) == ("mails", None, "paused")
    assert AuditLogEntry.objects.get().why == "too many"
    act(client, HOLDS, "resume", hold)
    assert not Hold.objects.exists()
    assert AuditLogEntry.objects.count() == 2


@pytest.mark.parametrize("given", [{}, {"topic": "a", "lane": "1"}, {"lane": "1", "key": "k"}, {"lane": "-1"}])
def test_a_pause_needs_one_thing_to_pause(admin_client, given):
    assert "errorlist" in admin_client.post(reverse(PAUSE), given).content.decode()
    assert not Hold.objects.exists()


@pytest.mark.parametrize("given", [{"topic": "t" * 250}, {"lane": str(2**31)}, {"lane": "9" * 30}])
def test_a_pause_that_no_column_takes_is_told(admin_client, given):
    response = admin_client.post(reverse(PAUSE), given)
    assert response.status_code == 200
    assert "errorlist" in response.content.decode()
    assert not Hold.objects.exists()


# --- the keys of pending records

PENDING = "admin:outbox_outboxrecord_changelist"


def test_the_keys_of_pending_records_are_paused_after_a_question(sign_in):
    rows = [record(kafka_key=key) for key in ("a", "a", "b", "", "c")] + [record(kafka_topic="mails", kafka_key="b")]
    Hold.objects.create(topic="orders", key="c", reason="paused")
    act(sign_in("view_outboxrecord", "edit"), PENDING, "pause", *rows, confirmed="1")
    assert Hold.objects.count() == 1
    assert 'name="action"' not in page(sign_in("view_outboxrecord", "edit"), PENDING)
    client = sign_in("view_outboxrecord", "pause")
    assert "Pause the keys of these records" in page(client, PENDING)
    text = act(client, PENDING, "pause", *rows).content.decode()
    assert 'name="why"' in text
    assert "orders[b]" in text
    assert Hold.objects.count() == 1
    text = act(client, PENDING, "pause", *rows, confirmed="1", why="too many").content.decode()
    assert "You have paused 3 keys." in text
    found = Hold.objects.filter(reason="paused", lane=None, record_id=None).values_list("topic", "key")
    assert set(found) == {("orders", "a"), ("orders", "b"), ("orders", "c"), ("mails", "b")}
    (audit,) = AuditLogEntry.objects.all()
    assert (audit.who, audit.what, audit.why) == ("ada", "pause", "too many")
    assert audit.details == {"pauses": 3, "scopes": ["mails[b]", "orders[a]", "orders[b]"]}
    assert "Nothing was changed" in act(client, PENDING, "pause", *rows, confirmed="1").content.decode()
    assert AuditLogEntry.objects.count() == 1


def test_many_keys_are_paused_by_as_many_statements_as_few(sign_in):
    client = sign_in("view_outboxrecord", "pause")

    def statements(count):
        rows = [record(kafka_key=f"{count}-{index}") for index in range(count)]
        with CaptureQueriesContext(connection) as queries:
            act(client, PENDING, "pause", *rows, confirmed="1")
        assert Hold.objects.filter(key__startswith=f"{count}-").count() == count
        return len(queries)

    statements(1)
    assert statements(2) == statements(25)


def test_all_that_is_found_is_paused_up_to_a_limit(admin_client, monkeypatch):
    rows = [record(kafka_key=key) for key in "abcde"]
    monkeypatch.setattr(actions, "COUNT_MAX", 3)
    text = act(admin_client, PENDING, "pause", rows[4], select_across="1").content.decode()
    assert "The action takes the first 3 of the list." in text
    act(admin_client, PENDING, "pause", rows[4], **hidden(text))
    assert sorted(Hold.objects.values_list("key", flat=True)) == ["a", "b", "c"]


# --- editing


def edit(client, url, row, **changes):
    """Load the page, change something, send it all as a browser does."""
    address = reverse(url, args=[row.pk])
    response = client.get(address)
    assert response.status_code == 200
    form = response.context["form"]
    given = {name: form[name].value() for name in form.fields}
    given = {name: value for name, value in given.items() if value not in (None, False)}
    given = {name: re.sub("\r\n?|\n", "\r\n", str(value)) for name, value in given.items()}
    return client.post(address, {**given, "seen": response.context["seen"], **changes}, follow=True)


@pytest.mark.parametrize("missing", ["edit", "view_payload"])
def test_editing_takes_the_right_to_edit_and_to_see(sign_in, missing):
    hold, letter = rejected(), dead()
    client = sign_in("view_hold", "view_deadletter", *({"edit", "view_payload"} - {missing}))
    for url, row in ((EDIT_HOLD, hold), (EDIT_DEAD, letter)):
        assert client.get(reverse(url, args=[row.pk])).status_code == 403
        assert client.post(reverse(url, args=[row.pk]), {"topic": "x"}).status_code == 403


@pytest.fixture
def lane(transactional_db):
    """A lane that confirms every edit, as a harvester's does."""
    stop = threading.Event()

    def confirm():
        with psycopg.connect(**table.parameters("default"), autocommit=True) as own:
            while not stop.wait(0.02):
                own.execute("UPDATE outbox_hold SET confirmed_by = '{0}' WHERE reason = 'editing'")

    thread = threading.Thread(target=confirm)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.django_db(transaction=True)
def test_an_edited_record_keeps_what_was_not_touched(lane, sign_in):
    value = "line one\r\nline two\r\n  \r\n"
    hold = rejected(record(kafka_value=value, kafka_header_keys=["a", "a"], kafka_header_values=["1", "2"]))
    client = sign_in("view_hold", "edit", "view_payload")
    edit(client, EDIT_HOLD, hold, headers='[["b", "3"]]', why="typo")
    made = OutboxRecord.objects.get()
    assert (made.kafka_value, made.kafka_topic, made.kafka_key) == (value, "orders", "a")
    assert (made.kafka_header_keys, made.kafka_header_values) == (["b"], ["3"])
    assert wanted(hold) == "retry"
    assert Hold.objects.count() == 1
    (audit,) = AuditLogEntry.objects.all()
    assert (audit.who, audit.why) == ("ada", "typo")

    edit(client, EDIT_HOLD, hold, value="short")
    assert OutboxRecord.objects.get().kafka_value == "short"
    edit(client, EDIT_HOLD, hold, is_tombstone="on")
    assert OutboxRecord.objects.get().kafka_value is None


@pytest.mark.django_db(transaction=True)
def test_what_the_redactor_hides_and_what_is_binary_stay_as_they_are(lane, admin_client):
    hold, binary = rejected(), rejected(record(kafka_key="b", kafka_value=None, kafka_value_binary=b"\x00\xff"))
    with override_settings(OUTBOX={**settings.OUTBOX, "REDACTOR": f"{__name__}.mask"}):
        text = page(admin_client, EDIT_HOLD, hold.pk)
        assert SECRET not in text
        assert "REDACTOR" in text
        edit(admin_client, EDIT_HOLD, hold, key="k2")
    made = OutboxRecord.objects.get(pk=hold.record_id)
    assert SECRET in made.kafka_value
    assert made.kafka_key == "k2"
    assert "binary" in page(admin_client, EDIT_HOLD, binary.pk)
    edit(admin_client, EDIT_HOLD, binary, headers='[["a", "b"]]')
    made = OutboxRecord.objects.get(pk=binary.record_id)
    assert bytes(made.kafka_value_binary) == b"\x00\xff"
    assert made.kafka_header_keys == ["a"]


@pytest.mark.django_db(transaction=True)
def test_the_redactor_hides_from_editors_what_it_is_not_given(lane, admin_client):
    long = "x" * TEXT_MAX + SECRET
    hold = rejected(record(kafka_value=long, kafka_header_keys=["h", "open"], kafka_header_values=[SECRET, "2"]))
    letter = dead(value=long, header_values=["y" * TEXT_MAX + SECRET])
    assert SECRET in page(admin_client, EDIT_HOLD, hold.pk)
    with override_settings(OUTBOX={**settings.OUTBOX, "REDACTOR": f"{__name__}.mask_secrets"}):
        for url, row in ((HOLD, hold), (DEAD_ONE, letter), (EDIT_HOLD, hold), (EDIT_DEAD, letter)):
            assert SECRET not in page(admin_client, url, row.pk)
        text = page(admin_client, EDIT_HOLD, hold.pk)
        assert "gets the first 10,000 characters" in text
        assert "hides headers" in text
        edit(admin_client, EDIT_HOLD, hold, key="k2", value="mine", headers="[]")
    made = OutboxRecord.objects.get(pk=hold.record_id)
    assert (made.kafka_key, made.kafka_value, made.kafka_header_values) == ("k2", long, [SECRET, "2"])


def test_the_redactor_is_asked_about_the_headers_of_pending_records(admin_client):
    made = record(kafka_value="1", kafka_header_keys=["h"], kafka_header_values=[SECRET])
    with override_settings(OUTBOX={"REDACTOR": f"{__name__}.mask_secrets"}):
        text = page(admin_client, "admin:outbox_outboxrecord_change", made.pk)
        assert SECRET not in text
        assert "***" in text


def test_what_a_page_tells_of_a_hidden_value_cannot_be_tried_out():
    """A hash of what is hidden would let short values be guessed."""
    made = record(kafka_value="1")
    seen = {message_view.of_record(made.pk).fingerprint}
    with override_settings(SECRET_KEY="another"):
        seen.add(message_view.of_record(made.pk).fingerprint)
    assert len(seen) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("before", "typed", "after"),
    [
        ("a\r\nb\r\nc", "a\r\nb\r\nX", "a\r\nb\r\nX"),
        ("a\r\nb\r\nc", "a\r\nb\r\nc\r\nX", "a\r\nb\r\nc\r\nX"),
        ("a\nb\nc", "a\r\nb\r\nX", "a\nb\nX"),
        ("abc", "a\r\nbc", "a\nbc"),
    ],
)
def test_an_edited_text_keeps_its_line_ends(lane, admin_client, before, typed, after):
    hold = rejected(record(kafka_key=before, kafka_value=before))
    edit(admin_client, EDIT_HOLD, hold, key=typed, value=typed)
    made = OutboxRecord.objects.get()
    assert (made.kafka_key, made.kafka_value) == (after, after)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("odd", ["a\rb", "a\r\nb\nc", "a\r\r\nb"])
def test_a_text_whose_line_ends_a_browser_would_change_is_not_edited(lane, admin_client, odd):
    hold = rejected(record(kafka_key=odd, kafka_value=odd))
    text = page(admin_client, EDIT_HOLD, hold.pk)
    assert "The key has line ends of several kinds" in text
    assert "The value has line ends of several kinds" in text
    edit(admin_client, EDIT_HOLD, hold, key="k2", value="mine", is_tombstone="on", headers='[["b", "3"]]')
    made = OutboxRecord.objects.get()
    assert (made.kafka_key, made.kafka_value, made.kafka_header_keys) == (odd, odd, ["b"])


@pytest.mark.django_db(transaction=True)
def test_no_harvester_no_edit(admin_client, monkeypatch):
    monkeypatch.setattr(editing, "WAIT_S", 0.05)
    hold = rejected()
    text = edit(admin_client, EDIT_HOLD, hold, value="short").content.decode()
    assert "did not confirm" in text
    assert "short" in text  # what was typed is not lost
    assert SECRET in OutboxRecord.objects.get().kafka_value
    assert Hold.objects.count() == 1


def test_a_view_that_waits_is_in_no_transaction():
    for url in ("admin:outbox_hold_edit", "admin:outbox_outboxrecord_edit"):
        assert resolve(reverse(url, args=[1])).func._non_atomic_requests == {"default"}


def test_an_edited_dead_letter_goes_back_into_the_table(admin_client):
    edit(admin_client, EDIT_DEAD, dead(), value="short", why="cut")
    made = OutboxRecord.objects.get()
    assert (made.kafka_value, made.kafka_key, made.kafka_header_values) == ("short", "b", [SECRET])
    assert not DeadLetter.objects.exists()


def test_a_record_that_was_changed_meanwhile_is_not_overwritten(admin_client):
    hold = rejected()
    text = edit(admin_client, EDIT_HOLD, hold, value="mine", seen="older").content.decode()
    assert "This record was changed after you loaded the page." in text
    assert OutboxRecord.objects.get().kafka_value != "mine"
    assert not AuditLogEntry.objects.exists()


@pytest.mark.parametrize(
    "headers", ["x", "{", '"ab"', "[[1, 2]]", '[["a"]]', "5", '{"a": 1}', '{"ab": 1}', '["ab"]', "[" * 100_000]
)
def test_headers_that_are_no_pairs_are_told(admin_client, headers):
    hold = rejected()
    assert "headers" in edit(admin_client, EDIT_HOLD, hold, headers=headers).context["form"].errors
    assert not AuditLogEntry.objects.exists()


def test_what_stash_refuses_is_refused_here_in_the_same_words(admin_client):
    hold = rejected()
    text = edit(admin_client, EDIT_HOLD, hold, topic="no such / topic").content.decode()
    assert "errorlist" in text
    assert OutboxRecord.objects.get().kafka_topic == "orders"
    assert wanted(hold) == ""


def test_a_record_that_is_gone_leads_back(admin_client):
    hold = rejected()
    OutboxRecord.objects.all().delete()
    response = admin_client.get(reverse(EDIT_HOLD, args=[hold.pk]), follow=True)
    assert "was delivered or deleted in the meantime" in response.content.decode()
    assert "no longer in the table" in page(admin_client, HOLD, hold.pk)
    assert admin_client.get(reverse(EDIT_HOLD, args=[0]), follow=True).status_code == 200


# --- the audit log


def test_the_audit_trail_is_listed_and_shows_its_details(admin_client):
    row = AuditLogEntry.objects.create(who="ada", what="pause", why="<b>quiet</b>", details={"topic": "mails"})
    for text in (page(admin_client, AUDIT), page(admin_client, "admin:outbox_auditlogentry_change", row.pk)):
        for said in ("ada", "pause", "&lt;b&gt;quiet", "mails"):
            assert said in text
        assert "<b>quiet" not in text
    assert [found.pk for found in admin_client.get(reverse(AUDIT), {"q": "ada"}).context["cl"].result_list] == [row.pk]


def test_the_list_of_the_audit_log_counts_entries(admin_client):
    for foot in ("1 audit log entry\n", "2 audit log entries\n"):
        AuditLogEntry.objects.create(who="ada", what="pause")
        text = page(admin_client, AUDIT)
        assert foot in text
        assert "<title>Select audit log entry to view" in text


def test_no_audit_row_holds_a_payload(admin_client):
    edit(admin_client, EDIT_HOLD, rejected(), value=f"changed {SECRET}", why="shorter")
    edit(admin_client, EDIT_DEAD, dead(), value=f"changed {SECRET}", why="shorter")
    said = json.dumps(list(AuditLogEntry.objects.values("what", "why", "details")))
    assert SECRET not in said


def test_the_permissions_exist_under_their_names():
    found = set(Permission.objects.filter(content_type__app_label="outbox").values_list("codename", flat=True))
    assert {
        "view_payload",
        "retry",
        "requeue",
        "edit",
        "skip",
        "discard",
        "pause",
        "view_sample",
        "view_auditlogentry",
    } <= found
