"""The page Consumers: positions, lag, owners and reasons, from what processes have shown."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from outbox.admin.consumers import contents
from outbox.core.consumers.values import Partition, Position
from outbox.edges.postgres.consumers.positions import Positions
from outbox.models import ConsumerHold, ConsumerPartition
from tests.admin.conftest import page

pytestmark = pytest.mark.django_db

CONSUMERS, PARTS = "admin:outbox_consumerpartition_changelist", "admin:outbox_consumers_parts"


def shown(partition=0, age_s=1.0, **columns):
    row = ConsumerPartition.objects.create(
        **{
            "consumer": "shop.pay",
            "topic": "orders",
            "partition": partition,
            "owner": "web-1_7",
            "seen_at": timezone.now() - timedelta(seconds=age_s),
            "state": "reading",
            "stable_offset": 130,
            "lag": 20,
            "oldest_age_s": 75.0,
            "handled": 50,
            "rate": 12.5,
            **columns,
        }
    )
    place_at(row.consumer, row.topic, row.partition)
    return row


def place_at(consumer, topic, partition, next=110):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_position (consumer, topic, partition, next) VALUES (%s, %s, %s, %s)",
            [consumer, topic, partition, next],
        )


def cells(text):
    """Of each row, what the columns say."""
    rows = re.findall(r"<tr>\s*<th scope=\"row\".*?</tr>", text, re.DOTALL)
    return [
        [re.sub(r"<[^>]+>", " ", cell).split() for cell in re.findall(r"<t[hd] .*?</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


def test_the_permission_is_the_one_of_the_dashboard(sign_in, client):
    for url in (CONSUMERS, PARTS):
        assert client.get(reverse(url)).status_code == 302
    for url in (CONSUMERS, PARTS):
        assert sign_in("view_hold").get(reverse(url)).status_code == 403
        assert sign_in("view_sample").get(reverse(url)).status_code == 200
    index = sign_in("view_sample").get(reverse("admin:index")).content.decode()
    assert reverse(CONSUMERS) in index
    row = shown()
    change = reverse("admin:outbox_consumerpartition_change", args=[row.pk])
    assert client.get(change).status_code == 200
    assert client.post(change, {"state": "stopped"}).status_code == 403
    assert client.post(reverse("admin:outbox_consumerpartition_delete", args=[row.pk])).status_code == 403


def test_each_partition_has_its_position_lag_rate_and_owner(admin_client):
    shown()
    shown(partition=1, lag=0, oldest_age_s=0.0, rate=None)
    place_at("shop.pay", "orders", 1, 115)
    text = page(admin_client, CONSUMERS)
    rows = cells(text)
    ages = [row.pop() for row in rows]
    assert all(float(age) >= 1 and rest == ["s", "ago"] for age, *rest in ages), ages
    assert rows == [
        [
            ["orders[0]"],
            ["reading"],
            ["110"],
            ["20"],
            ["1", "min", "15", "s"],
            ["12/s"],
            ["web-1_7"],
        ],
        [["orders[1]"], ["reading"], ["115"], ["0"], ["0.0", "s"], ["–"], ["web-1_7"]],
    ]
    assert "2 partitions, behind by 20 messages and 1 min 15 s, 12/s" in text
    assert "Consumers work normally. 2 partitions are shown." in text


def test_a_stopped_partition_has_its_reason(admin_client):
    reason = "orders[0]: the message at offset 110 failed 5 times. Correct <the> function."
    shown(state="stopped", reason=reason, lag=None, oldest_age_s=None)
    shown(partition=1)
    text = page(admin_client, CONSUMERS)
    assert escape(reason) in text
    assert "Some messages are not being handled." in text
    assert "1 partition of shop.pay is stopped. " in text
    assert "behind by at least 20 messages" in text
    assert '<span class="outbox-state bad">stopped</span>' in text


def test_a_consumer_of_which_every_message_fails_is_named(admin_client):
    shown(state="failing", reason="ConnectionError: the bank does not answer")
    text = page(admin_client, CONSUMERS)
    assert "Some messages are not being handled." in text
    assert "Every message of shop.pay fails. " in text
    assert '<span class="outbox-state bad">failing</span>' in text
    assert "the bank does not answer" in text


def test_rows_that_nobody_has_written_for_a_while_are_marked(admin_client):
    shown(age_s=contents.STALE_S - 5)
    assert "outbox-state warn" not in page(admin_client, CONSUMERS)
    shown(partition=1, age_s=contents.STALE_S + 95)
    text = page(admin_client, CONSUMERS)
    assert "No process has shown 1 partition of shop.pay for 30 s." in text
    assert '<span class="outbox-state warn">reading</span>' in text
    assert '<span class="outbox-state warn">2 min 5 s ago</span>' in text
    assert "2 partitions, behind by 40 messages and 1 min 15 s, 12/s" in text, "nobody knows the rate of a stale row"


def test_a_consumer_that_no_process_has_shown_has_its_positions(admin_client):
    positions = Positions("outbox", session_timeout_s=6)
    assert "No process has shown a consumer yet." in page(admin_client, CONSUMERS)
    place_at("shop.old", "orders", 0)
    place_at("shop.old", "orders", 0, 111)
    text = page(admin_client, CONSUMERS)
    assert cells(text) == [[["orders[0]"], ["not", "shown"], ["111"], *[["–"]] * 3, ["none", "yet"], ["never"]]]
    assert positions.everything(connection, "shop.old") == {Partition("orders", 0): Position(111)}


def test_a_page_ends_after_some_partitions(admin_client, monkeypatch):
    monkeypatch.setattr(contents, "ROWS_MAX", 2)
    for partition in range(3):
        shown(partition=partition)
    text = page(admin_client, CONSUMERS)
    assert len(cells(text)) == 2
    assert "there are more. Run: <code>python manage.py outbox_positions</code>" in text


def test_the_parts_are_those_of_the_page(admin_client):
    shown()
    whole, parts = page(admin_client, CONSUMERS), page(admin_client, PARTS)
    assert reverse(PARTS) in whole
    assert re.findall('data-outbox-part="([^"]+)"', parts) == re.findall('data-outbox-part="([^"]+)"', whole)
    assert cells(parts)[0][0] == ["orders[0]"]


@pytest.mark.parametrize("missing", ["outbox_partition", "outbox_position"])
def test_a_missing_table_is_named_with_the_remedy(admin_client, missing):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {missing} RENAME TO elsewhere")
    for url in (CONSUMERS, PARTS):
        response = admin_client.get(reverse(url))
        assert response.status_code == 503
        assert "python manage.py migrate outbox" in response.content.decode()


def held(offset, **columns):
    place = {"consumer": "shop.pay", "topic": "orders", "partition": 0, "reason": "failed"}
    return ConsumerHold.objects.create(**place, offset=offset, **columns)


def test_held_messages_and_dead_letters_are_counted_with_a_link_for_those_who_may_see_them(sign_in):
    shown()
    client = sign_in("view_sample", "view_consumerhold")
    assert "Consumers work normally." in page(client, CONSUMERS)
    held(1)
    held(2, next_try=timezone.now())
    text = page(client, CONSUMERS)
    assert "1 message of shop.pay waits for your decision." in text
    assert "12/s, 2 messages held" in text
    assert "Read the notices below." in text
    assert f'{reverse("admin:outbox_consumerhold_changelist")}?consumer=shop.pay"' in text
    held(3)
    for offset in (4, 5):
        held(offset, died_at=timezone.now())
    text = page(sign_in("view_sample"), CONSUMERS)
    assert "2 messages of shop.pay wait for your decision." in text
    assert "2 dead letters of shop.pay wait for your decision." in text
    assert "3 messages held, 2 dead letters" in text
    assert "?consumer=" not in text


def test_many_partitions_are_read_by_as_many_statements_as_one(admin_client):
    counts = []
    for partitions in (range(2), range(2, 40)):
        for partition in partitions:
            shown(partition=partition, consumer=f"shop.{partition % 2}")
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(reverse(CONSUMERS))
        counts.append(len(queries))
    assert counts[0] == counts[1]
