"""The admin: read-only, safe with any value, and harmless on a million rows."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe

from outbox.admin import OutboxRecordAdmin
from outbox.admin.paging import COUNT_EXACT_MAX
from outbox.admin.pending import AGES
from outbox.models import OutboxRecord

pytestmark = pytest.mark.django_db

LIST = "admin:outbox_outboxrecord_changelist"
DETAIL = "admin:outbox_outboxrecord_change"


@pytest.fixture
def viewer(client: Client) -> Client:
    """Signed in with the permissions to see records and what is in them."""
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_outboxrecord", "view_payload"]))
    client.force_login(user)
    return client


def record(**columns: Any) -> OutboxRecord:
    made: OutboxRecord = OutboxRecord.objects.create(
        **{"kafka_topic": "heroes", "kafka_key": "1", "kafka_value": "{}", **columns}
    )
    return made


def listed(client: Client, **query: Any) -> list[int]:
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200
    return [row.pk for row in response.context["cl"].result_list]


def list_text(client: Client, **query: Any) -> str:
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200
    return response.content.decode()


def detail_text(client: Client, pk: int) -> str:
    response = client.get(reverse(DETAIL, args=[pk]))
    assert response.status_code == 200
    return response.content.decode()


# --- who may do what


def test_view_permission_is_enough(viewer: Client) -> None:
    made = record()
    assert listed(viewer) == [made.pk]
    assert "heroes" in detail_text(viewer, made.pk)


@pytest.mark.part
def test_the_page_of_a_record_explains_itself(viewer: Client) -> None:
    text = detail_text(viewer, record().pk)
    for explanation in ("disappears from here once", "in the order of their ids", "cut at 10,000", "a name may repeat"):
        assert explanation in text


def test_without_its_permission_no_payload_is_shown(client: Client) -> None:
    user = User.objects.create_user("stranger", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_outboxrecord"))
    client.force_login(user)
    made = record(kafka_value="canary-1", kafka_header_keys=["canary-2"], kafka_header_values=["canary-3"])
    assert listed(client) == [made.pk]
    for text in (list_text(client), detail_text(client, made.pk)):
        assert "canary" not in text
        assert "heroes" in text
    assert "outbox.view_payload" in detail_text(client, made.pk)


def test_editing_and_pausing_are_offered_to_those_who_may(admin_client: Client) -> None:
    made = record(kafka_key="a&b=c")
    edit = reverse("admin:outbox_outboxrecord_edit", args=[made.pk])
    user = User.objects.create_user("reader", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_outboxrecord", "view_payload"]))
    reader = Client()
    reader.force_login(user)
    assert edit not in detail_text(reader, made.pk)
    assert reader.get(edit).status_code == 403
    text = detail_text(admin_client, made.pk)
    assert edit in text
    assert "pause/?topic=heroes&amp;key=a%26b%3Dc" in text
    assert admin_client.get(edit).status_code == 200


def test_without_permission_nothing_is_shown(client: Client) -> None:
    client.force_login(User.objects.create_user("stranger", is_staff=True))
    assert client.get(reverse(LIST)).status_code == 403


def test_even_a_superuser_changes_nothing(admin_client: Client) -> None:
    made = record()
    assert admin_client.get(reverse("admin:outbox_outboxrecord_add")).status_code == 403
    assert admin_client.post(reverse(DETAIL, args=[made.pk]), {"kafka_topic": "x"}).status_code == 403
    assert admin_client.post(reverse("admin:outbox_outboxrecord_delete", args=[made.pk])).status_code == 403
    admin_client.post(reverse(LIST), {"action": "delete_selected", "_selected_action": [made.pk]})
    assert OutboxRecord.objects.get().kafka_topic == "heroes"


def test_a_wrong_id_leads_back(viewer: Client) -> None:
    for wrong in ("0", "x", "99999999999999999999"):
        assert viewer.get(reverse(DETAIL, args=[wrong])).status_code == 302


def test_the_database_of_the_settings_is_asked() -> None:
    from django.contrib import admin

    with override_settings(OUTBOX={"DATABASE": "elsewhere"}):
        queryset = admin.site.get_model_admin(OutboxRecord).get_queryset(None)  # type: ignore[arg-type]
    assert queryset.db == "elsewhere"


def test_a_project_without_the_admin_works() -> None:
    code = (
        "import sys; from django.conf import settings;"
        "settings.configure(INSTALLED_APPS=['outbox'], DATABASES={}); import django; django.setup();"
        "assert not [m for m in sys.modules if m.startswith('django.contrib.admin') or m == 'outbox.admin']"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- what is shown


def test_values_are_escaped(viewer: Client) -> None:
    made = record(
        kafka_value="<script>a()</script>", kafka_key="<b>k", kafka_header_keys=["<i>"], kafka_header_values=["<u>"]
    )
    for text in (list_text(viewer), detail_text(viewer, made.pk)):
        assert "&lt;script&gt;a()" in text
        assert "&lt;b&gt;k" in text
        for raw in ("<script>a()", "<b>k", "<i>", "<u>"):
            assert raw not in text


def test_long_values_are_cut_in_the_database(viewer: Client) -> None:
    made = record(kafka_value="a" * 80 + "b" * 3_000_000)
    with CaptureQueriesContext(connection) as queries:
        text = list_text(viewer)
    assert "a" * 80 + "…" in text
    assert "2.9" in text  # MB
    assert "aab" not in text
    for query in queries:
        assert not re.search(r'(?<!\()"outbox"\."kafka_value', query["sql"]), query["sql"]
    detail = detail_text(viewer, made.pk)
    assert detail.count("b") < 12_000


def test_tombstones_and_binary_values(viewer: Client) -> None:
    tombstone = record(kafka_value=None)
    binary = record(kafka_value=None, kafka_value_binary=b"\x00\xff" * 10_000)
    assert "tombstone" in detail_text(viewer, tombstone.pk)
    for text in (list_text(viewer), detail_text(viewer, binary.pk)):
        assert "binary, 19.5\xa0KB: \\x00ff00ff" in text
    assert "\\x" + "00ff" * 8 + "…" in detail_text(viewer, binary.pk)


def test_headers_are_pairs_in_order(viewer: Client) -> None:
    made = record(kafka_header_keys=["a", "b", "a"], kafka_header_values=["1", "2", "3"])
    text = detail_text(viewer, made.pk)
    pairs = [f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in (("a", 1), ("b", 2), ("a", 3))]
    assert "".join(pairs) in text


def test_nulls_of_an_adopted_table_are_shown_as_nothing(viewer: Client) -> None:
    with connection.cursor() as cursor:
        for column in ("create_time", "kafka_header_keys", "kafka_header_values"):
            cursor.execute(f"ALTER TABLE outbox ALTER {column} DROP NOT NULL")
    made = record()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox SET create_time = NULL, kafka_header_keys = NULL, kafka_header_values = NULL")
    assert "1 record is waiting;" in list_text(viewer)
    assert "(none)" in detail_text(viewer, made.pk)


def test_times_that_python_has_no_date_for_are_shown_as_nothing(viewer: Client) -> None:
    made = [record() for _ in range(5)]
    times = "'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'", "'9999-12-31 23:59:59+00'"
    with connection.cursor() as cursor:
        for row, time in zip(made, times, strict=True):
            cursor.execute(f"UPDATE outbox SET create_time = {time} WHERE id = %s", [row.pk])
    assert "5 records are waiting; the oldest has waited for 0 seconds." in list_text(viewer)
    for name in AGES:
        list_text(viewer, age=name)
    for row in made:
        assert "(none)" in detail_text(viewer, row.pk)
    made.append(record(create_time=timezone.now() - timedelta(hours=3, minutes=5)))
    assert "6 records are waiting; the oldest has waited for 3 hours, 5 minutes." in list_text(viewer)


def test_the_page_of_a_record_says_what_it_lacks(viewer: Client) -> None:
    text = detail_text(viewer, record(kafka_key="", kafka_value=None).pk)
    for said in ("(no key, and so no order)", "(none)", "tombstone (no value)"):
        assert said in text
    assert ">None<" not in text


def mask(record: OutboxRecord, text: str) -> str:
    return text.replace("hunter2", "***")


def leak(record: OutboxRecord, text: str) -> str:
    raise ValueError(text)


def markup(record: OutboxRecord, text: str) -> SafeString:
    return mark_safe("<b>bold</b>")


def nothing(record: OutboxRecord, text: str) -> None:
    return None


def redacted_by(function: Callable[..., Any] | str) -> override_settings:
    path = function if isinstance(function, str) else f"{__name__}.{function.__name__}"
    return override_settings(OUTBOX={"REDACTOR": path})


def test_the_redactor_sees_more_than_the_list_shows(viewer: Client) -> None:
    made = record(kafka_value="x" * 76 + "hunter2")
    with redacted_by(mask):
        for text in (list_text(viewer), detail_text(viewer, made.pk)):
            assert "x***" in text
            assert "hunt" not in text


@pytest.mark.parametrize(
    ("redactor", "error"),
    [(leak, "ValueError"), (nothing, "TypeError"), ("nowhere.to_be_found", "ModuleNotFoundError")],
)
@pytest.mark.parametrize(
    "column", [{"kafka_value": "hunter2"}, {"kafka_value": None, "kafka_value_binary": b"hunter2"}]
)
def test_a_failing_redactor_hides_the_value(
    viewer: Client, redactor: Any, error: str, column: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = record(**column)
    with redacted_by(redactor):
        texts = [list_text(viewer), detail_text(viewer, made.pk), caplog.text]
    for text in texts:
        assert error in text
        assert "hunter2" not in text
        assert b"hunter2".hex() not in text


def test_a_redactor_cannot_inject_markup(viewer: Client) -> None:
    record()
    with redacted_by(markup):
        assert "&lt;b&gt;bold" in list_text(viewer)


# --- search, filters, order


def test_search_is_exact_on_key_topic_and_id(viewer: Client) -> None:
    by_key = record(kafka_key="Ada Lovelace")
    by_topic = record(kafka_topic="orders", kafka_key="2")
    assert listed(viewer, q="Ada Lovelace") == [by_key.pk]
    assert listed(viewer, q="orders") == [by_topic.pk]
    assert listed(viewer, q=f"#{by_topic.pk}") == [by_topic.pk]
    assert listed(viewer, q="Ada") == listed(viewer, q="ada lovelace") == []


def test_a_number_finds_the_key_and_the_id(viewer: Client) -> None:
    by_id = record(kafka_key="x")
    by_key = record(kafka_key=str(by_id.pk))
    assert listed(viewer, q=str(by_id.pk)) == [by_id.pk, by_key.pk]
    assert listed(viewer, q=f"#{by_id.pk}") == [by_id.pk]
    like_an_id = record(kafka_key="#0")
    assert listed(viewer, q="#0") == [like_an_id.pk]


@pytest.mark.parametrize("term", ["99999999999999999999", "²", "\0", "'", "%", "\\"])
def test_odd_searches_find_nothing(viewer: Client, term: str) -> None:
    record()
    response = viewer.get(reverse(LIST), {"q": term})
    assert response.status_code == 200
    assert viewer.get(reverse(LIST), {"topic": term}).status_code == 200


def test_filter_by_topic(viewer: Client) -> None:
    record()
    order = record(kafka_topic="orders")
    assert listed(viewer, topic="orders") == [order.pk]
    text = list_text(viewer)
    assert "?topic=orders" in text
    assert "?topic=heroes" in text
    assert listed(viewer, topic="unheard-of") == []
    assert "?topic=unheard-of" in list_text(viewer, topic="unheard-of")


def test_filter_by_age(viewer: Client) -> None:
    ages = [timedelta(seconds=0), timedelta(minutes=2), timedelta(minutes=6), timedelta(hours=2), timedelta(days=2)]
    made = [record(create_time=timezone.now() - age).pk for age in ages]
    for at, name in enumerate(("1min", "5min", "1h", "1d"), start=1):
        assert listed(viewer, age=name) == made[at:]
    assert listed(viewer, age="nonsense") == made


def test_only_ids_can_be_sorted_and_only_our_filters_apply(viewer: Client) -> None:
    first, second = record(kafka_topic="b"), record(kafka_topic="a")
    assert listed(viewer, o="0") == [first.pk, second.pk]
    assert listed(viewer, o="-0") == [second.pk, first.pk]
    for column in range(1, 7):
        assert listed(viewer, o=str(column)) == [first.pk, second.pk]
    assert viewer.get(reverse(LIST), {"kafka_value__contains": "x"}).status_code == 400


# --- the summary


def test_summary_of_an_empty_table(viewer: Client) -> None:
    assert "No records are waiting." in list_text(viewer)


def test_summary_in_plain_words(viewer: Client) -> None:
    record(create_time=timezone.now() - timedelta(hours=3, minutes=5))
    assert "1 record is waiting; the oldest has waited for 3 hours, 5 minutes." in list_text(viewer)
    record(create_time=timezone.now() - timedelta(days=3, minutes=5))
    assert "2 records are waiting; the oldest has waited for 3 days." in list_text(viewer, q="nobody")


# --- a million rows

ROWS = 1_000_000


@pytest.fixture
def million() -> Iterator[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, create_time)"
            " SELECT 'topic-' || i %% 7, 'key-' || i %% 100000, repeat('v', 60),"
            " now() - make_interval(secs => (%s - i) / 10)"
            " FROM generate_series(1, %s) i",
            [ROWS, ROWS],
        )
        cursor.execute("ANALYZE outbox")
        cursor.execute("SELECT max(id) FROM outbox")
        yield cursor.fetchone()[0]


def plans(client: Client, url: str, query: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every statement on the table that a page sends, with the plan that ran."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url, query).status_code == 200
    result = []
    for sql in (query["sql"] for query in queries):
        if ' "outbox"' in sql and not sql.startswith("EXPLAIN"):
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}".replace("%", "%%"))
                plan = cursor.fetchone()[0]
            result.append((sql, (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))
    return result


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.slow
def test_the_plans_of_every_page_on_a_million_rows(viewer: Client, million: int) -> None:
    url = reverse(LIST)
    walks: dict[str, tuple[str, dict[str, Any]]] = {  # pages that must not read the table itself
        "list": (url, {}),
        "newest first": (url, {"o": "-0"}),
        "last page": (url, {"p": COUNT_EXACT_MAX // 100}),
        "page beyond the end": (url, {"p": 9_999}),
        "sorted by a column": (url, {"o": "2"}),
        "detail": (reverse(DETAIL, args=[million]), {}),
    }
    for name, (address, query) in walks.items():
        seen = plans(viewer, address, query)
        assert seen, name
        for sql, plan in seen:
            for node in nodes(plan):
                assert node["Node Type"] not in ("Seq Scan", "Parallel Seq Scan"), f"{name}: {sql}"
                assert node["Actual Rows"] <= COUNT_EXACT_MAX + 1, f"{name}: {sql}"
    scans: dict[str, dict[str, Any]] = {  # pages that may read the table once, and keep no more than a page's depth
        "key": {"q": "key-77"},
        "absent key": {"q": "nobody"},
        "topic": {"q": "topic-3"},
        "number": {"q": str(million)},
        "topic filter": {"topic": "topic-3"},
        "absent topic": {"topic": "none"},
        "age": {"age": "1h"},
        "all old, last page": {"age": "1min", "p": COUNT_EXACT_MAX // 100, "o": "-0"},
        "none old": {"age": "1d", "topic": "none", "q": "nobody"},
    }
    for name, query in scans.items():
        for sql, plan in plans(viewer, url, query):
            for node in nodes(plan):
                if node["Node Type"] == "Sort":
                    bounded = node["Sort Method"] == "top-N heapsort" or node["Actual Rows"] <= COUNT_EXACT_MAX + 1
                    assert bounded, f"{name}: {sql}"
                if node["Node Type"] != "Seq Scan":
                    assert node["Actual Rows"] <= COUNT_EXACT_MAX + 1 or "Scan" in node["Node Type"], f"{name}: {sql}"
    by_id = plans(viewer, url, {"q": f"#{million}"})
    for sql, plan in by_id:
        assert all("Seq Scan" not in node["Node Type"] for node in nodes(plan)), sql
    assert_estimated(viewer)


def assert_estimated(viewer: Client) -> None:
    """The list says about how many of a million rows there are, and counts few ones."""
    response = viewer.get(reverse(LIST))
    listing = response.context["cl"]
    assert not listing.estimate.exact
    assert abs(listing.result_count - ROWS) < ROWS / 10
    text = response.content.decode()
    assert "About 1,0" in text or "About 99" in text
    assert "the oldest has waited for 1 day, 3 hours" in text
    assert listing.paginator.num_pages == COUNT_EXACT_MAX // OutboxRecordAdmin.list_per_page
    few = viewer.get(reverse(LIST), {"q": "key-77"}).context["cl"]
    assert (few.estimate.exact, few.result_count) == (True, 10)
    for topic in range(7):
        assert f"?topic=topic-{topic}" in text
