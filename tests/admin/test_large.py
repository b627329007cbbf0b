"""The pages on ten million records: every page that an operator opens, what it may read, how long it may take."""

import time

import pytest
from django.db import connection
from django.urls import reverse

from outbox.admin.paging import COUNT_EXACT_MAX
from outbox.edges.postgres.counts import backlog
from outbox.models import OutboxRecord
from tests.admin.conftest import DASHBOARD, DEAD, HOLDS, dead, rejected
from tests.admin.test_dashboard import PARTS, read_so_far, sql

ROWS = 10_000_000


@pytest.fixture
def ten_million(db):
    sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT 'topic-' || i %% 7, 'key-' || i %% 100000, repeat('v', 20) FROM generate_series(1, %s) i",
        ROWS,
    )
    sql("ANALYZE outbox")


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_no_page_reads_ten_million_records(admin_client, ten_million):
    first, last = OutboxRecord.objects.order_by("id").first(), OutboxRecord.objects.order_by("-id").first()
    hold = rejected(first)
    letter = dead()
    records = reverse("admin:outbox_outboxrecord_changelist")
    pages = {
        "dashboard": reverse(DASHBOARD),
        "what it asks for again": reverse(PARTS),
        "pending": records,
        "pending, newest first": f"{records}?o=-0",
        "pending, the last page": f"{records}?p={COUNT_EXACT_MAX // 100}",
        "pending, one by id": f"{records}?q=%23{last.pk}",
        "a pending record": reverse("admin:outbox_outboxrecord_change", args=[last.pk]),
        "editing one": reverse("admin:outbox_outboxrecord_edit", args=[last.pk]),
        "holds": reverse(HOLDS),
        "a hold": reverse("admin:outbox_hold_change", args=[hold.pk]),
        "dead letters": reverse(DEAD),
        "a dead letter": reverse("admin:outbox_deadletter_change", args=[letter.pk]),
    }
    limit = backlog.COUNT_MAX + backlog.OLDEST_ROWS + 3 * COUNT_EXACT_MAX
    for name, url in pages.items():
        walked, looked_up = read_so_far()
        begun = time.monotonic()
        assert admin_client.get(url).status_code == 200, name
        took_s = time.monotonic() - begun
        walked_after, looked_up_after = read_so_far()
        print(f"{name}: {took_s * 1000:.0f} ms, {looked_up_after - looked_up:,} rows")
        assert walked_after == walked, name
        assert looked_up_after - looked_up <= limit, name


def test_the_limits_are_those_of_the_document(db):
    assert connection.vendor == "postgresql"
    assert (backlog.COUNT_MAX, COUNT_EXACT_MAX) == (100_000, 10_000)
