"""An act takes what its question has listed, whatever came, went or was replaced in between."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from outbox.admin import actions as acting
from outbox.models import AuditLogEntry, DeadLetter, Hold, OutboxRecord
from outbox.operations import actions
from tests.admin.conftest import DEAD, DEAD_ONE, EDIT_HOLD, HOLD, HOLDS, act, dead, hidden, page, record, rejected

pytestmark = pytest.mark.django_db
PENDING = "admin:outbox_outboxrecord_changelist"


def asked(client, url, name, *rows, **more):
    """The hidden fields of the page that asks, which its button sends back."""
    text = act(client, url, name, *rows, **more).content.decode()
    found = hidden(text)
    assert {"seen", "select_across", "confirmed"} <= set(found), text
    return found


def paused(topic):
    return Hold.objects.create(topic=topic, reason="paused")


def replaced(hold, **other):
    """As a harvester does that lifts a hold and holds the next record of the key in one statement."""
    following = record(**other)
    changes = {"record_id": following.pk, "stashed_at": following.create_time, "wanted": ""}
    Hold.objects.filter(pk=hold.pk).update(**changes)
    return following


def known(**columns):
    """A hold that knows when its record was stashed."""
    made = record(**columns)
    made.refresh_from_db()
    return rejected(made, stashed_at=made.create_time)


ACTS = [
    (HOLDS, "skip", rejected, lambda row: Hold.objects.get(pk=row.pk).wanted == "skip"),
    (HOLDS, "discard", rejected, lambda row: Hold.objects.get(pk=row.pk).wanted == "discard"),
    (HOLDS, "retry", rejected, lambda row: Hold.objects.get(pk=row.pk).wanted == "retry"),
    (HOLDS, "resume", paused, lambda row: not Hold.objects.filter(pk=row.pk).exists()),
    (DEAD, "requeue", dead, lambda row: not DeadLetter.objects.filter(pk=row.pk).exists()),
    (DEAD, "discard", dead, lambda row: not DeadLetter.objects.filter(pk=row.pk).exists()),
    (PENDING, "pause", record, lambda row: Hold.objects.filter(key=row.kafka_key).exists()),
]


@pytest.mark.parametrize(("url", "name", "make", "is_done"), ACTS, ids=[f"{url}-{name}" for url, name, *_ in ACTS])
def test_what_arrives_after_the_question_is_left_alone(admin_client, url, name, make, is_done):
    names = iter("abcd")

    def one():
        if make in (paused, dead):
            return make(topic=next(names))
        made = record(kafka_key=next(names))
        return made if make is record else rejected(made)

    first, second = one(), one()
    given = asked(admin_client, url, name, first, select_across="1")
    assert not is_done(first)
    late = one()
    first.delete()
    act(admin_client, url, name, second, **given)
    assert is_done(second)
    assert not is_done(late)


def test_an_answer_that_does_not_say_what_was_listed_is_asked_again(admin_client):
    letters = [dead(), dead()]
    text = act(admin_client, DEAD, "discard", letters[0], select_across="1", confirmed="1").content.decode()
    assert 'name="confirmed"' in text
    assert DeadLetter.objects.count() == 2
    assert act(admin_client, DEAD, "discard", letters[0], select_across="1", confirmed="1", seen="x").status_code == 400


def test_the_first_of_many_are_those_that_were_listed(admin_client, monkeypatch):
    rows = [record(kafka_key=key) for key in "abcde"]
    monkeypatch.setattr(acting, "COUNT_MAX", 3)
    given = asked(admin_client, PENDING, "pause", rows[0], select_across="1")
    rows[0].delete()
    text = act(admin_client, PENDING, "pause", rows[4], **given).content.decode()
    assert sorted(Hold.objects.values_list("key", flat=True)) == ["b", "c"]
    assert "left out 1 row, because it was deleted or changed" in text


@pytest.mark.parametrize("name", ["skip", "discard"])
@pytest.mark.parametrize("across", ["0", "1"])
def test_a_hold_that_was_given_another_record_is_left_alone(admin_client, name, across):
    hold = known()
    given = asked(admin_client, HOLDS, name, hold, select_across=across)
    replaced(hold)
    text = act(admin_client, HOLDS, name, hold, **given).content.decode()
    assert "The action left out 1 row, because it was deleted or changed after the page was loaded." in text
    assert Hold.objects.get().wanted == ""
    assert not AuditLogEntry.objects.exists()


def test_a_hold_whose_record_was_replaced_under_its_id_is_left_alone(admin_client):
    hold = known()
    given = asked(admin_client, HOLDS, "discard", hold)
    Hold.objects.update(stashed_at=timezone.now() + timedelta(seconds=1))
    act(admin_client, HOLDS, "discard", hold, **given)
    assert Hold.objects.get().wanted == ""


def test_the_page_of_a_hold_shows_no_other_record_with_the_id_of_its_own(admin_client):
    hold = known(kafka_value="another")
    Hold.objects.update(stashed_at=timezone.now() - timedelta(days=1))
    text = page(admin_client, HOLD, hold.pk)
    assert "another" not in text
    assert "no longer in the table" in text
    text = admin_client.get(page_of(hold), follow=True).content.decode()
    assert "was delivered or deleted in the meantime" in text


def test_the_page_of_a_hold_acts_on_the_record_that_it_shows(admin_client):
    hold = known()
    seen = hidden(page(admin_client, HOLD, hold.pk))
    following = replaced(hold)
    text = act(admin_client, HOLDS, "discard", hold, **seen).content.decode()
    assert "left out 1 row" in text
    assert 'name="confirmed"' not in text
    seen = hidden(page(admin_client, HOLD, hold.pk))
    text = act(admin_client, HOLDS, "discard", hold, **seen).content.decode()
    assert f"#{following.pk}" in text
    act(admin_client, HOLDS, "discard", hold, **hidden(text))
    assert Hold.objects.get().wanted == "discard"
    assert page(admin_client, DEAD_ONE, dead().pk).count('name="seen"') == 1


def test_an_operation_compares_the_record_in_its_own_transaction():
    hold = known()
    seen = {hold.pk: (hold.record_id, hold.stashed_at)}
    replaced(hold)
    outcome = actions.discard(actions.Selector(hold_ids=[hold.pk], hold_records=seen), "ann")
    assert (outcome.matched, outcome.pending) == (0, 0)
    assert Hold.objects.get().wanted == ""


def test_an_edit_of_another_record_of_the_same_contents_is_refused(admin_client):
    hold = known(kafka_value="same")
    response = admin_client.get(page_of(hold))
    replaced(hold, kafka_value="same")
    given = {"topic": "orders", "key": "a", "value": "mine", "headers": "[]", "seen": response.context["seen"]}
    text = admin_client.post(page_of(hold), given).content.decode()
    assert "This record was changed after you loaded the page." in text
    assert not OutboxRecord.objects.filter(kafka_value="mine").exists()


def page_of(hold):
    return reverse(EDIT_HOLD, args=[hold.pk])
