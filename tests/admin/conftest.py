"""Users with some permissions, rows of every kind, and how an action is sent."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils import timezone

from outbox.models import DeadLetter, Hold, OutboxRecord

DASHBOARD = "admin:outbox_sample_changelist"
HOLDS, HOLD, EDIT_HOLD = "admin:outbox_hold_changelist", "admin:outbox_hold_change", "admin:outbox_hold_edit"
DEAD, DEAD_ONE, EDIT_DEAD = (
    "admin:outbox_deadletter_changelist",
    "admin:outbox_deadletter_change",
    "admin:outbox_deadletter_edit",
)
SECRET = "canary-9f3a"


@pytest.fixture
def sign_in(client):
    def sign(*permissions, name="ada"):
        """With these permissions of this application alone."""
        user, _ = User.objects.get_or_create(username=name, defaults={"is_staff": True})
        found = Permission.objects.filter(content_type__app_label="outbox", codename__in=permissions)
        assert found.count() == len(permissions), permissions
        user.user_permissions.set(found)
        client.force_login(user)
        return client

    return sign


def record(**columns):
    return OutboxRecord.objects.create(
        **{"kafka_topic": "orders", "kafka_key": "a", "kafka_value": f'{{"secret": "{SECRET}"}}', **columns}
    )


def rejected(made=None, **columns):
    made = made or record()
    return Hold.objects.create(
        **{
            "topic": made.kafka_topic,
            "key": made.kafka_key,
            "record_id": made.pk,
            "reason": "rejected",
            "attempts": 3,
            "error_code": "MSG_SIZE_TOO_LARGE",
            "last_error": "Broker: Message size too large",
            "next_try": timezone.now() + timedelta(seconds=30),
            "history": [{"at": timezone.now().isoformat(), "code": "MSG_SIZE_TOO_LARGE", "error": "too large, once"}],
            **columns,
        }
    )


def dead(**columns):
    return DeadLetter.objects.create(
        **{
            "record_id": 77,
            "topic": "orders",
            "key": "b",
            "value": f'{{"secret": "{SECRET}"}}',
            "header_keys": ["h"],
            "header_values": [SECRET],
            "reason": "rejected",
            "error_code": "INVALID_RECORD",
            "last_error": "Broker: invalid",
            "attempts": 2,
            **columns,
        }
    )


def act(client, url, name, *rows, **more):
    """What the list's form and the buttons of a row send."""
    return client.post(
        reverse(url), {"action": name, "_selected_action": [row.pk for row in rows], **more}, follow=True
    )


def hidden(text):
    """The fields that a page sends back with an act."""
    return dict(re.findall(r'<input type="hidden" name="(seen|select_across|confirmed)" value="([^"]*)">', text))


def page(client, url, *arguments):
    response = client.get(reverse(url, args=arguments))
    assert response.status_code == 200
    return response.content.decode()
