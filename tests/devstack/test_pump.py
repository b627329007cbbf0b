"""`outbox_pump` writes as many records as it reports, and a reader can check them."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from outbox.devstack.pump import Pump, PumpPlan
from outbox.models import OutboxRecord
from tests.support.databases import ROOT, fresh_database

pytestmark = pytest.mark.django_db(transaction=True)


def pump(*arguments):
    out, err = io.StringIO(), io.StringIO()
    call_command("outbox_pump", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def header(record, name):
    return dict(zip(record.kafka_header_keys, record.kafka_header_values, strict=True)).get(name)


def sequences():
    by_key = defaultdict(list)
    for record in OutboxRecord.objects.order_by("id"):
        by_key[record.kafka_key].append(int(header(record, "Seq")))
    return by_key


def test_writes_the_records_with_keys_values_and_a_sequence_per_key():
    out, err = pump("--keys", "3", "--records", "50", "--topic", "load")
    records = list(OutboxRecord.objects.all())
    assert len(records) == 50
    assert {record.kafka_key for record in records} == {"key-0", "key-1", "key-2"}
    assert {record.kafka_topic for record in records} == {"load"}
    assert all(record.kafka_value.startswith("value-") for record in records)
    assert len({header(record, "Run") for record in records}) == 1
    assert all(found == list(range(len(found))) for found in sequences().values())
    assert out.startswith("complete: 50 records committed, 0 rolled back in 3 transactions")
    assert "keys=3 records=50" in err


def test_a_transaction_holds_twenty_records():
    pump("--keys", "3", "--records", "50")
    times = defaultdict(int)
    for record in OutboxRecord.objects.all():
        times[record.create_time] += 1
    assert sorted(times.values()) == [10, 20, 20]


def test_blank_records_have_no_value():
    pump("--keys", "1", "--records", "5", "--blank")
    assert set(OutboxRecord.objects.values_list("kafka_value", flat=True)) == {None}


@pytest.mark.parametrize("size", [0, 5, 1001])
def test_value_size_is_exact(size):
    pump("--keys", "1", "--records", "3", "--value-size", str(size))
    assert {len(value) for value in OutboxRecord.objects.values_list("kafka_value", flat=True)} == {size}


def test_concurrent_writers_keep_each_key_in_order_and_leave_no_rolled_back_record():
    out, _ = pump(
        "--keys", "40", "--records", "2000", "--writers", "4", "--rollback-share", "0.5", "--seed", "7", "--json"
    )
    summary = json.loads(out)
    assert summary["committed"] == OutboxRecord.objects.count() == 2000
    assert summary["complete"]
    assert summary["rolled_back"] > 0
    assert summary["transactions"] == 100 + summary["rolled_back"] // 20
    assert all(found == list(range(len(found))) for found in sequences().values())
    assert not any(header(record, "Rolled-Back") for record in OutboxRecord.objects.all())


def test_rolled_back_records_name_themselves():
    from outbox.devstack.pump import _Writer

    message = _Writer(PumpPlan(keys=1, records=1), "run", 0).messages(1, rolls_back=True)[0]
    assert ("Rolled-Back", "1") in message.headers


def test_a_seed_repeats_keys_and_values():
    pump("--keys", "9", "--records", "30", "--seed", "5")
    first = list(OutboxRecord.objects.order_by("id").values_list("kafka_key", "kafka_value"))
    OutboxRecord.objects.all().delete()
    pump("--keys", "9", "--records", "30", "--seed", "5")
    assert list(OutboxRecord.objects.order_by("id").values_list("kafka_key", "kafka_value")) == first


def test_the_rate_holds_transactions_back():
    summary = json.loads(pump("--keys", "1", "--records", "100", "--transactions-per-second", "20", "--json")[0])
    assert summary["transactions"] == 5
    assert summary["seconds"] >= 0.2  # the fifth starts four slots after the first


def test_the_interval_holds_records_back():
    summary = json.loads(pump("--keys", "1", "--records", "60", "--interval", "5", "--json")[0])
    assert summary["seconds"] >= 0.2  # two pauses of 20 records


def test_all_refusals_are_reported_at_once():
    with pytest.raises(CommandError) as refused:
        pump("--keys", "0", "--records", "0", "--rollback-share", "1", "--writers", "0", "--interval", "-1")
    lines = str(refused.value).splitlines()
    assert [line.split()[0] for line in lines] == ["--keys", "--records", "--interval", "--rollback-share", "--writers"]
    assert all(". Set " in line for line in lines)


def test_more_writers_than_keys_are_refused():
    assert "one writer per key" in " ".join(PumpPlan(keys=2, records=1, writers=3).problems())


def test_a_failing_writer_stops_the_others_and_its_error_is_reported():
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {OutboxRecord._meta.db_table} ADD CONSTRAINT pumped CHECK (id < 0) NOT VALID")
    try:
        with pytest.raises(CommandError, match="A writer failed"):
            pump("--keys", "5", "--records", "1000", "--writers", "3")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {OutboxRecord._meta.db_table} DROP CONSTRAINT pumped")


def test_stop_ends_the_writers_early():
    plan = Pump(PumpPlan(keys=5, records=1_000_000, transactions_per_second=10, writers=2))
    plan.start()
    plan.stop()
    assert plan.wait(30)
    assert not plan.numbers().complete


@pytest.fixture
def command(migrated_template):
    """The pump as a process on a database of its own, with its output on a terminal."""
    url = connection.settings_dict
    server = f"postgresql://{url['USER']}:{url['PASSWORD']}@{url['HOST']}:{url['PORT']}/postgres"
    with fresh_database(server, migrated_template) as fresh:
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": fresh}
        manage = [sys.executable, "-m", "django"]

        def start(*arguments, **streams):
            return subprocess.Popen(
                [*manage, "outbox_pump", *arguments], cwd=ROOT, env=environment, text=True, **streams
            )

        yield start


def read_until(file, text, limit_s=60):
    seen, deadline = "", time.monotonic() + limit_s
    while text not in seen and time.monotonic() < deadline:
        if select.select([file], [], [], 0.1)[0]:
            seen += os.read(file, 4096).decode()
    return seen


def test_a_terminal_sees_a_bar_and_ctrl_c_still_gives_the_summary(command):
    ours, theirs = pty.openpty()
    arguments = ("--keys", "5", "--records", "1000000", "--transactions-per-second", "50", "--meter-interval", "0.5")
    process = command(*arguments, "--json", stdout=subprocess.PIPE, stderr=theirs)
    try:
        os.close(theirs)
        seen = read_until(ours, "meter committed=")
        assert "\r[" in seen
        assert "/s" in seen
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 130
        summary = json.loads(out)
        assert summary["committed"] > 0
        assert not summary["complete"]
    finally:
        process.kill()
        process.wait()
        os.close(ours)
