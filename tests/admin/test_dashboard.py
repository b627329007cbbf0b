"""The dashboard: its numbers are those of the database, its words say what to do, and it costs little on any table."""

import json
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from outbox import conf
from outbox.admin import explain, reading
from outbox.admin.dashboard import contents
from outbox.admin.dashboard.summary import BAD, GOOD, WARN, summarise
from outbox.core.faults import in_plain_words
from outbox.edges.postgres.counts import backlog
from outbox.models import DeadLetter, Hold, OutboxRecord, Sample
from outbox.operations import stats
from outbox.operations.findings import sentence
from tests.admin.conftest import DASHBOARD, SECRET, dead, page, record, rejected

pytestmark = pytest.mark.django_db

PARTS = "admin:outbox_dashboard_parts"
ROWS = 300_000


@pytest.fixture(autouse=True)
def no_samples(db):
    """Harvesters of other tests may have left some in this database."""
    Sample.objects.all().delete()


def sql(text, *given):
    with connection.cursor() as cursor:
        cursor.execute(text, given)
        return cursor.fetchall() if cursor.description else None


def lane(number=0, owner="web-1_7", age_s=0):
    sql("INSERT INTO outbox_state (lanes) VALUES (1) ON CONFLICT (id) DO UPDATE SET lanes = outbox_state.lanes + 1")
    sql(
        "INSERT INTO outbox_lane VALUES (%s, gen_random_uuid(), %s, clock_timestamp() - make_interval(secs => %s))",
        number,
        owner,
        age_s,
    )


def value(text, tile):
    """The number of a tile as the program knows it."""
    return float(re.search(rf'id="outbox-tile-{tile}">.*?data-outbox-value="([^"]+)"', text, re.DOTALL)[1])


def samples(*rows):
    for minutes, waiting, stashed, delivered in rows:
        at = timezone.now() - timedelta(minutes=minutes)
        Sample.objects.create(taken_at=at, backlog=waiting, oldest_age_s=0, stashed=stashed, delivered=delivered)


# --- who may see it


def test_the_permission_to_see_samples_is_the_one_for_the_page(sign_in):
    assert sign_in("view_hold").get(reverse(DASHBOARD)).status_code == 403
    assert sign_in("view_hold").get(reverse(PARTS)).status_code == 403
    assert sign_in("view_sample").get(reverse(DASHBOARD)).status_code == 200


def test_strangers_are_sent_to_sign_in(client):
    for url in (DASHBOARD, PARTS):
        assert client.get(reverse(url)).status_code == 302


def test_without_permission_for_holds_only_their_number_is_shown(sign_in):
    rejected(record(kafka_key="a-telling-key"))
    text = page(sign_in("view_sample"), DASHBOARD)
    assert value(text, "held") == 1
    assert "a-telling-key" not in text
    assert "outbox.view_hold" in text
    assert "a-telling-key" in page(sign_in("view_sample", "view_hold"), DASHBOARD)


def test_the_page_never_shows_a_payload(admin_client):
    rejected()
    dead()
    assert SECRET not in page(admin_client, DASHBOARD)


# --- what it says


def test_the_numbers_are_those_of_the_database(admin_client):
    for index in range(3):
        record(kafka_key=str(index), create_time=timezone.now() - timedelta(seconds=90 + index))
    rejected(OutboxRecord.objects.first())
    Hold.objects.create(topic="mails", reason="paused")
    dead()
    text = page(admin_client, DASHBOARD)
    assert value(text, "backlog") == OutboxRecord.objects.count() == 3
    assert 92 <= value(text, "oldest") < 150
    assert value(text, "held") == 1
    assert value(text, "dead") == DeadLetter.objects.count() == 1
    assert "and 1 pause" in text


def test_rates_and_totals_come_from_the_samples(admin_client):
    now = reading.now_of("default")
    found = {"backlog": {"records": 5, "oldest_age_s": 1.0, "stashed_total": 1300, "deleted_total": 1240}}
    rows = [
        Sample(taken_at=now - timedelta(seconds=120), backlog=0, oldest_age_s=0, stashed=1000, delivered=1000),
        Sample(taken_at=now - timedelta(seconds=60), backlog=0, oldest_age_s=0, stashed=1060, delivered=1060),
        Sample(taken_at=now - timedelta(seconds=2), backlog=0, oldest_age_s=0, stashed=1290, delivered=1230),
    ]
    shown = contents._with_now(rows, found, now)
    assert [sample.stashed for sample in shown] == [1000, 1060, 1300]
    assert contents._last_rate(shown, "stashed") == pytest.approx(4.0)
    assert contents._last_rate(shown, "delivered") == pytest.approx(3.0)
    assert contents._total(shown, "delivered") == "240 in the last hour"


def test_charts_show_the_last_hour_and_have_a_table(admin_client):
    samples((90, 777, 0, 0), (3, 11, 60, 0), (2, 12, 120, 60), (1, 13, 180, 120))
    text = page(admin_client, DASHBOARD)
    backlog = text[text.index("outbox-table-1") : text.index("outbox-table-2")]
    assert re.findall(r'<td class="number">(\d+)</td>', backlog) == ["0", "13", "12", "11"]
    assert "777" not in text
    assert re.findall(r'<td class="number">([^<]*)</td>', text[text.index("outbox-table-2") :])[2:6] == [
        "1/s",
        "1/s",
        "1/s",
        "1/s",
    ]
    assert text.count('<path class="outbox-line') >= 3
    assert 'role="img" aria-label="Backlog, last hour. waiting: between' in text


def test_without_samples_it_says_so(admin_client):
    text = page(admin_client, DASHBOARD)
    assert "no samples yet" in text
    assert text.count("A harvester takes one every minute.") == 1  # of the throughput; the backlog is known


def test_lanes_have_their_owner_and_the_age_of_the_heartbeat(admin_client):
    lane(0, "web-1_7")
    lane(1, "web-2_<b>", 400)
    sql("INSERT INTO outbox_purged VALUES (0, 1234)")
    text = page(admin_client, DASHBOARD)
    first, second = (text[text.index(f'id="outbox-lane-{number}"') :][:900] for number in (0, 1))
    assert "web-1_7" in first
    assert "owned" in first
    assert "1,234" in first
    assert "no owner" in second
    assert "6 min 40 s ago" in second
    assert "<b>" not in second[: second.index("</tr>")]


def test_lanes_of_a_time_with_more_of_them_are_left_out(admin_client):
    lane(0, "web-1_7")
    lane(1, "web-2_7", 400)
    lane(2, "web-3_7")
    sql("UPDATE outbox_state SET lanes = 1")
    text = page(admin_client, DASHBOARD)
    assert 'id="outbox-lane-0"' in text
    assert 'id="outbox-lane-1"' not in text
    assert 'id="outbox-lane-2"' in text  # somebody works on it


def test_a_topic_that_is_held_as_a_whole_is_told_as_one(admin_client, sign_in):
    rejected(key=None, record_id=None, error_code="TOPIC_AUTHORIZATION_FAILED")
    for key in range(explain.SHOWN_MAX + 1):
        rejected(record(kafka_key=f"older-{key}"), since=timezone.now() - timedelta(hours=1))
    text = page(admin_client, DASHBOARD)
    assert "<code>topic orders</code>" in text[text.index('id="outbox-held"') : text.index('id="outbox-rejections"')]
    Hold.objects.exclude(key=None).delete()
    text = page(admin_client, DASHBOARD)
    assert "The topic orders is held back as a whole" in text
    assert "keys are held back" not in text
    assert "key is held back" not in text
    assert value(text, "held") == 1
    assert "1 topic is held back as a whole" in page(sign_in("view_sample"), DASHBOARD)


def test_a_held_record_without_a_key_is_not_called_a_key(admin_client):
    rejected()
    for _ in range(2):
        rejected(record(kafka_key=""))
    assert "1 key and 2 records without a key are held back" in page(admin_client, DASHBOARD)


def test_many_holds_and_dead_letters_are_counted_as_outbox_stats_counts_them(admin_client, monkeypatch):
    sql(
        "INSERT INTO outbox_hold (topic, key, reason) SELECT 'orders', i::text, "
        "CASE WHEN i <= 12000 THEN 'rejected' ELSE 'paused' END FROM generate_series(1, 15000) i"
    )
    sql(
        "INSERT INTO outbox_dead (record_id, topic, key, reason) "
        "SELECT i, 'orders', '', 'rejected' FROM generate_series(1, 12000) i"
    )
    text = page(admin_client, DASHBOARD)
    with reading.bounded("default") as connection:
        found = stats.of_database(connection, conf.current())
    assert value(text, "held") == found["holds_by_reason"]["rejected"] == 12000
    assert value(text, "dead") == found["dead_letters"] == 12000
    assert "12,000 keys are held back" in text
    assert "and 3,000 pauses" in text
    monkeypatch.setattr(backlog, "COUNT_MAX", 10_000)
    text = page(admin_client, DASHBOARD)
    assert value(text, "dead") == 10_000
    assert text.count("10,000+") == 2


def test_a_refusal_is_told_in_plain_words_with_the_next_step(admin_client):
    hold = rejected()
    letter = dead()
    text = page(admin_client, DASHBOARD)
    for said in (
        f"{sentence(in_plain_words(hold.error_code)[0])}",
        f"{sentence(in_plain_words(hold.error_code)[1])}",
        "orders[a]",
        "The harvester retries it in",
    ):
        assert said in text
    assert reverse("admin:outbox_hold_change", args=[hold.pk]) in text
    assert reverse("admin:outbox_deadletter_change", args=[letter.pk]) in text
    assert "It is a dead letter." in text
    refusals = text[text.index('id="outbox-rejections"') :]
    for row in (hold, letter):
        assert escape(explain.explained(row)[1]) in refusals


def test_a_code_of_a_newer_version_is_no_obstacle(admin_client):
    rejected(error_code="NEVER_HEARD_OF", last_error="who knows")
    text = page(admin_client, DASHBOARD)
    assert "Kafka rejected it." in text
    assert "who knows" in text


# --- the sentence above


def state(owned=(), **more):
    return {
        "backlog": {"records": 0, "oldest_age_s": 0.0, **more.pop("backlog", {})},
        "state": {"lanes": 1, "lease_mode": "exactly-once", "lease_seen_s": 0.1, "resize_to": None, **more},
        "lanes": [{"lane": number, "is_owned": is_owned} for number, is_owned in enumerate(owned)],
    }


def kept(rejected_count=0, dead_count=0, paused_count=0, topics=(), topic_count=None, keyless_count=0):
    whole = len(topics) if topic_count is None else topic_count
    return explain.Held([], rejected_count, [], dead_count, paused_count, whole, topics, keyless_count)


@pytest.mark.parametrize(
    ("found", "kept", "level", "said"),
    [
        (state([True]), kept(), GOOD, "No records are waiting."),
        (state([True], backlog={"records": 7}), kept(), GOOD, "7 records are waiting."),
        (state([]), kept(), BAD, "python manage.py harvest"),
        (state([False]), kept(), BAD, "No harvester owns a lane"),
        (state([True, False], lanes=2), kept(), BAD, "Lane 1 has no owner"),
        (state([True, False], lanes=1), kept(), GOOD, "No records are waiting."),
        (state([], lease_mode="spark", lease_seen_s=2.0), kept(), GOOD, "No records are waiting."),
        (state([], lease_mode="spark", lease_seen_s=200.0), kept(), BAD, "No harvester owns a lane"),
        (state([False], resize_to=4), kept(), WARN, "is changing the lane count from 1 to 4"),
        (state([True], backlog={"records": 1, "oldest_age_s": 300.0}), kept(), WARN, "has waited for 5 min"),
        (
            state([True], backlog={"records": 1, "oldest_age_s": 300.0}),
            kept(rejected_count=1),
            WARN,
            "1 key is held back",
        ),
        (state([True]), kept(rejected_count=1, topics=["mails"]), WARN, "The topic mails is held back as a whole"),
        (state([True]), kept(rejected_count=1, topic_count=1), WARN, "1 topic is held back as a whole"),
        (
            state([True]),
            kept(rejected_count=4, topics=["a", "b"], topic_count=3),
            WARN,
            "3 topics (a, b and 1 more) are",
        ),
        (
            state([True]),
            kept(rejected_count=3, topics=["mails"]),
            WARN,
            "2 keys are held back, because of rejected or poison records.",
        ),
        (
            state([True]),
            kept(rejected_count=4, topics=["mails"], keyless_count=1),
            WARN,
            "2 keys and 1 record without a key are held back",
        ),
        (state([True]), kept(rejected_count=1, keyless_count=1), WARN, ". 1 record without a key is held back"),
        (state([True]), kept(rejected_count=2, keyless_count=2), WARN, ". 2 records without a key are held back"),
        (state([False] * 12, lanes=12), kept(), BAD, "No harvester owns a lane"),
        (state([True, *[False] * 11], lanes=12), kept(), BAD, "Lanes 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 1 more have no"),
        (state([True]), kept(dead_count=2), WARN, "2 dead letters wait"),
        (state([True]), kept(dead_count=1), WARN, "1 dead letter waits"),
        (state([True]), kept(dead_count=100_000), WARN, "100,000+ dead letters wait"),
        (state([True]), kept(paused_count=1), GOOD, "No records are waiting."),
    ],
)
def test_the_sentence_above_everything(found, kept, level, said):
    shown = summarise(found, kept)
    assert shown.level == level
    assert said in " ".join([shown.headline, *(f"{notice.text} {notice.step}" for notice in shown.notices)])


def test_the_last_audit_is_shown(admin_client):
    assert "python manage.py outbox_verify" in page(admin_client, DASHBOARD)
    lane()
    sql("ALTER TABLE outbox_state ADD COLUMN IF NOT EXISTS verification jsonb")
    clean = {"clean": True, "at": timezone.now().isoformat(), "seconds": 1.0, "faults": [], "batches": 2, "records": 30}
    fault = {"kind": "lost", "count": 3, "first": "record 7 of batch 1 <i>"}
    for found, said in (
        (clean, "checked 2 batches with 30 records and found no record that was lost, sent twice or reordered."),
        ({**clean, "clean": False, "faults": [fault]}, "lost: 3; the first is record 7 of batch 1 &lt;i&gt;"),
    ):
        sql("UPDATE outbox_state SET verification = %s", json.dumps(found))
        assert said in page(admin_client, DASHBOARD)
    assert "The last verification found faults." in page(admin_client, DASHBOARD)


# --- what it costs


def test_nothing_is_changed_and_the_settings_of_the_connection_stay(admin_client):
    before = sql("SELECT current_setting('enable_seqscan'), current_setting('statement_timeout')")
    page(admin_client, DASHBOARD)
    assert sql("SELECT current_setting('enable_seqscan'), current_setting('statement_timeout')") == before


@pytest.mark.parametrize("missing", ["outbox", "outbox_hold", "outbox_dead", "outbox_sample"])
def test_a_missing_table_is_told_with_the_remedy(admin_client, missing):
    sql(f"ALTER TABLE {missing} RENAME TO elsewhere")
    for url in (DASHBOARD, PARTS):
        response = admin_client.get(reverse(url))
        assert response.status_code == 503
        assert "python manage.py migrate outbox" in response.content.decode()


def test_rights_that_are_missing_are_told_with_the_remedy(admin_client, monkeypatch):
    def as_a_writer(connection, conf):
        connection.execute("CREATE ROLE a_writer")
        connection.execute("GRANT INSERT ON outbox TO a_writer")
        connection.execute("SET LOCAL ROLE a_writer")
        return of_database(connection, conf)

    of_database = stats.of_database
    monkeypatch.setattr(stats, "of_database", as_a_writer)
    for url in (DASHBOARD, PARTS):
        response = admin_client.get(reverse(url))
        assert response.status_code == 503
        assert "may not read them" in response.content.decode()


@pytest.mark.parametrize("where", [(explain, "read"), (stats, "of_database")])
def test_a_database_that_takes_too_long_is_told(admin_client, monkeypatch, where):
    def slow(given, *others):
        run = sql if isinstance(given, str) else given.execute
        run("SET LOCAL statement_timeout = 20")
        run("SELECT pg_sleep(5)")

    monkeypatch.setattr(*where, slow)
    response = admin_client.get(reverse(PARTS))
    assert response.status_code == 503
    assert "did not answer" in response.content.decode()


@pytest.fixture
def many(db):
    sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT 'topic-' || i %% 7, 'key-' || i %% 1000, 'v' FROM generate_series(1, %s) i",
        ROWS,
    )
    sql("ANALYZE outbox")


def read_so_far():
    """Rows of the table that this transaction has read: by scans of the whole, and through an index."""
    sql("SELECT pg_stat_clear_snapshot()")
    return sql("SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'outbox'")[0]


@pytest.mark.parametrize("url", [DASHBOARD, PARTS])
def test_a_large_table_is_never_read_whole(admin_client, many, url):
    walked, looked_up = read_so_far()
    text = page(admin_client, url)
    walked_after, looked_up_after = read_so_far()
    assert "about " in text
    assert walked_after == walked
    assert looked_up_after - looked_up <= backlog.COUNT_MAX + backlog.OLDEST_ROWS + 1
