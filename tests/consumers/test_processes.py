"""`manage.py consume` in processes of its own, on a real PostgreSQL and a real Kafka. The judge counts effects with a
query of its own: each message once, in the order of its key."""

import json
import os
import random
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from outbox import failpoints
from outbox.consumers.daemon import LEAVE_TIMEOUT_S
from tests.support.topics import create_topic


def test_what_is_there_is_handled_once_and_what_comes_later_too(scene):
    scene.produce(300)
    done = scene.once()
    assert "shop.record: handled 300" in done.text()
    scene.check()
    assert "shop.record: handled 0" in scene.once().text()
    scene.produce(100)
    scene.once()
    scene.check()
    assert {attempt for (attempt,) in scene.query("SELECT attempt FROM shop_effect")} == {1}


def test_once_ends_when_all_is_handled_whichever_process_has_it(scene):
    assert scene.consume("--once", "shop.pattern").wait(30) == 0, "no topic matches"
    scene.produce(3000, keys=50)
    first = scene.consume("--once", "shop.record", SHOP_BATCH="5")
    scene.wait_for(100)
    second = scene.consume("--once", "shop.record", SHOP_BATCH="5")
    for process in (first, second):
        assert process.wait() == 0
        assert len(scene.effects()) == 3000
    scene.check()
    handled = [int(re.search(r"handled ([\d,]+)", one.text())[1].replace(",", "")) for one in (first, second)]
    assert sum(handled) == 3000


POINTS = [name for name in failpoints.FAILPOINTS if name.startswith("batch-")]


@pytest.mark.slow
def test_killed_at_every_point_of_a_batch_a_successor_continues(scene):
    """Some messages fail once, so they are held and released too."""
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_FAILS_AT_FIRST": "3", "SHOP_ATTEMPTS": "9"}
    for point in POINTS:
        scene.produce(100)
        process = scene.consume("shop.record", failpoints=f"{point}=kill@3")
        assert process.wait() == -signal.SIGKILL, process.text()
        assert len(scene.effects()) < scene.sent, point
    last = scene.consume("shop.record")
    # Two processes that were killed at the same message make it suspect.
    scene.query("UPDATE outbox_held SET wanted = 'retry' WHERE reason = 'poison'")
    scene.wait_for(scene.sent)
    assert last.stop() == 0, last.text()
    scene.check()
    assert scene.query("SELECT count(*) FROM outbox_held") == [(0,)]


@pytest.mark.parametrize("point", ["batch-taken", "batch-handled"])
def test_an_owner_that_stands_still_is_replaced_and_does_nothing_afterwards(scene, point):
    """Before its locks it finds another position; behind them its session was ended by its successor."""
    scene.produce(200)
    owner = scene.consume("shop.record", failpoints=f"{point}=stop@3")
    wait_until(lambda: state_of(owner) == "T", 60, "the owner stands still")
    began = time.monotonic()
    scene.once()
    assert time.monotonic() - began < 30
    scene.check()
    scene.produce(100)
    owner.send(signal.SIGCONT)
    scene.wait_for(300)
    assert owner.stop() == 0, owner.text()
    scene.check()


@pytest.mark.slow
def test_a_database_that_neither_answers_nor_refuses_ends_the_process(scene):
    scene.produce(60)
    process = scene.consume("shop.record")
    scene.wait_for(60)
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    frozen = [pid for (pid,) in scene.query(sessions)]
    assert frozen
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        scene.produce(60)
        assert process.wait() == 7, process.text()
        assert "database_overrun consumer=shop.record call=" in process.text()
        scene.once()
        scene.check()
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_rebalances_under_load(scene):
    """A process comes or goes every two seconds, and every third is killed."""
    started = [scene.consume("shop.record", "--threads", "2")]
    for turn in range(6):
        scene.produce(300)
        if turn % 2 == 0:
            started.append(scene.consume("shop.record"))
        elif turn % 3 == 1:
            started.pop(0).kill()
        else:
            leaving = started.pop(0)
            assert leaving.stop() == 0, leaving.text()
        time.sleep(2)
    scene.wait_for(1800)
    assert [one.stop() for one in started] == [0] * len(started)
    scene.check()


def test_kills_at_random_moments(scene):
    randoms = random.Random(1)
    for _ in range(4):
        scene.produce(500)
        victim = scene.consume("shop.record", SHOP_BATCH="5")
        wait_until(lambda victim=victim: "consumers_started" in victim.text(), 60, "it starts")
        time.sleep(randoms.uniform(0, 2.5))
        victim.kill()
    scene.once()
    scene.check()


def test_a_stop_finishes_what_is_under_way(scene):
    scene.produce(100)
    process = scene.consume()
    scene.wait_for(100)
    scene.wait_for(100, "shop.many")
    assert process.stop() == 0, process.text()
    scene.check()
    scene.check("shop.many", receipts=False)
    assert "consumers_stopped" in process.text()


def test_a_stop_while_a_server_is_waited_for(scene):
    process = scene.consume("shop.record", OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:1")
    wait_until(lambda: " waiting reason=" in process.text(), 60, "it waits for Kafka")
    assert process.stop() == 0, process.text()
    assert process.text().splitlines()[-1].endswith("consumers_stopped consumers='shop.record'")


@pytest.mark.slow
def test_a_stop_while_kafka_does_not_answer(scene, quick_kafka):
    """Kafka has the last copy of the positions, and has not answered."""
    scene.produce(100)
    process = scene.consume("shop.record")
    scene.wait_for(100)
    quick_kafka.pause()
    try:
        began = time.monotonic()
        assert process.stop() == 0, process.text()
        assert time.monotonic() - began < LEAVE_TIMEOUT_S + 10
    finally:
        quick_kafka.resume()
    scene.check()


def test_a_message_that_fails_stops_its_partition_and_no_other(scene):
    scene.produce(60)
    failing = scene.consume("--once", "shop.record", SHOP_FAILS="20")
    assert failing.wait() == 4, failing.text()
    assert "partition_stopped" in failing.text()
    assert "the order 20 is refused" in failing.text()
    assert failing.text().count("message_failed") == 2
    assert failing.text().count("Traceback") == 1, "of the first attempt"
    found = {int(value) for _, value, _ in scene.effects()}
    assert 20 not in found
    assert all(int(value) < 20 for key, value, _ in scene.effects() if key == "k6"), "its key waits"
    assert found > {number for number in range(60) if number % 7 == 6 and number < 20}
    scene.once()
    scene.check()
    assert scene.query("SELECT count(*) FROM shop_effect WHERE attempt > 1") == [(0,)]


def test_a_message_that_fails_is_held_with_its_key_until_an_operator_decides(scene):
    scene.produce(60)
    failing = scene.consume("--once", "shop.record", SHOP_ON_ERROR="hold", SHOP_FAILS="20")
    assert failing.wait() == 4, failing.text()
    assert re.search(r"shop.record: messages of t-\w+\[\d\] are held", failing.text()), failing.text()
    held = [number for number in range(20, 60) if number % 7 == 6]
    found = {int(value) for _, value, _ in scene.effects()}
    assert found == set(range(60)) - set(held)
    assert scene.query("SELECT convert_from(value, 'UTF8')::int FROM outbox_held ORDER BY id") == [(n,) for n in held]
    process = scene.consume("shop.record", SHOP_ON_ERROR="hold")
    retried = scene.command("outbox_retry", "--consumer", "shop.record", "--all", "--reason", "corrected")
    assert retried.stdout.startswith("1 request was written."), retried.stdout + retried.stderr
    scene.wait_for(60)
    assert process.stop() == 0
    scene.check()
    assert scene.query("SELECT value, attempt FROM shop_effect WHERE attempt > 1") == [("20", 3)]


def test_a_message_that_ends_its_process_is_held_and_no_other(scene):
    scene.produce(60)
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_ABORTS": "20"}
    deaths = 0
    while (process := scene.consume("--once", "shop.record")).wait() == -signal.SIGABRT:
        deaths += 1
        assert deaths < 6, scene.logs()
    assert process.wait() == 4, process.text()
    assert "poison_message consumer=shop.record" in process.text()
    assert scene.query("SELECT convert_from(value, 'UTF8') FROM outbox_held WHERE reason = 'poison'") == [("20",)]
    held = [number for number in range(20, 60) if number % 7 == 6]
    assert {int(value) for _, value, _ in scene.effects()} == set(range(60)) - set(held)
    del scene.environment["SHOP_ABORTS"]
    scene.query("UPDATE outbox_held SET wanted = 'retry' WHERE reason = 'poison'")
    last = scene.consume("shop.record")
    scene.wait_for(60)
    assert last.stop() == 0
    scene.check()
    assert scene.query("SELECT DISTINCT is_clean FROM outbox_owner WHERE consumer = 'shop.record'") == [(True,)]


def test_topics_of_a_pattern_are_found_while_it_runs(scene):
    process = scene.consume("shop.pattern")
    wait_until(lambda: "consumers_started" in process.text(), 60, "it starts")
    topic = create_topic(scene.servers, 2, f"{scene.topic}.eu")
    create_topic(scene.servers, 1, f"{scene.topic}.eu.late")
    scene.produce(30, topic)
    scene.wait_for(30, "shop.pattern")
    assert process.stop() == 0
    scene.check("shop.pattern", receipts=False)


def test_a_topic_that_was_created_again_stops_the_consumer_with_both_ids(scene):
    scene.produce(50)
    scene.once()
    admin = AdminClient({"bootstrap.servers": scene.servers})
    admin.delete_topics([scene.topic])[scene.topic].result(20)
    time.sleep(1)
    create_topic(scene.servers, 3, scene.topic)
    scene.produce(500)
    process = scene.consume("--once", "shop.record")
    assert process.wait() == 4, process.text()
    assert "was created again" in process.text()
    assert len(scene.effects()) == 50, "none of the other topic's messages"


def test_an_operator_sees_the_positions_and_sets_them_while_nobody_consumes(scene):
    scene.produce(50)
    scene.once()
    between = datetime.now(UTC)
    time.sleep(0.01)
    scene.produce(20)
    shown = json.loads(scene.command("outbox_positions", "--json").stdout)["positions"]
    assert [(one["consumer"], one["partition"], one["is_other_topic"]) for one in shown] == [
        ("shop.record", number, False) for number in range(3)
    ]
    assert (sum(one["next"] for one in shown), sum(one["lag"] for one in shown)) == (50, 20)
    assert all((0 < one["lag_s"] < 60) if one["lag"] else one["lag_s"] == 0 for one in shown)
    assert scene.command("outbox_positions").stdout.count(" s, the topic holds ") == 3
    back = ("outbox_positions", "shop.record", "--topic", scene.topic, "--to", "earliest")
    process = scene.consume("shop.record")
    scene.wait_for(70)
    refused = scene.command(*back)
    assert refused.returncode == 1
    assert "are running" in refused.stderr
    assert process.stop() == 0
    assert "would be set from" in scene.command(*back, "--dry-run").stdout
    at = scene.command(*back[:-1], between.isoformat(), "--dry-run", "--json")
    assert sum(after for _, after in json.loads(at.stdout)["positions"].values()) == 50, at.stderr
    late = scene.command(*back[:-1], (between + timedelta(hours=1)).isoformat())
    assert "is in the future" in late.stderr
    done = scene.command(*back, "--reason", "again")
    assert (done.returncode, done.stdout.count("was set from")) == (0, 3), done.stderr
    scene.once()
    assert len(scene.effects()) == 140, "each was handled again, as the operator has said"
    outside = scene.command(*back[:-1], "9999", "--partition", "0")
    assert "holds the offsets 0 to" in outside.stderr
    assert scene.query("SELECT what, why FROM outbox_audit_log") == [("position", "again")]


def test_the_positions_of_a_topic_with_fewer_partitions_are_shown(scene):
    scene.query(
        "INSERT INTO outbox_position (consumer, topic, partition, next) VALUES ('shop.record', %s, 0, 0), "
        "('shop.record', %s, 7, 5), ('shop.old', %s, 1, 0)",
        *[scene.topic] * 3,
    )
    shown = scene.command("outbox_positions", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)["positions"]
    assert [(one["consumer"], one["partition"], one["end"]) for one in found] == [
        ("shop.old", 1, 0),
        ("shop.record", 0, 0),
        ("shop.record", 7, None),
    ]
    for arguments in ((), ("--topic", scene.topic, "--to", "latest")):
        refused = scene.command("outbox_positions", "shop.recrod", *arguments)
        assert refused.returncode == 1
        assert "No consumer is called 'shop.recrod'. Known consumers: shop.many, shop.old," in refused.stderr
    assert scene.query("SELECT count(*) FROM outbox_position") == [(3,)]
    assert scene.command("outbox_positions", "shop.old", "--json").returncode == 0, "it has rows"
    nothing = scene.command("outbox_positions", "shop.many")
    assert "No consumer has a position." in nothing.stdout


def test_the_examination_says_what_consumers_need(scene):
    found = scene.command("outbox_check", "--consumers")
    assert found.returncode == 0, found.stdout
    assert "the user may keep positions in 'default'" in found.stdout
    assert "consumer 'shop.record': 1 topics, 0 members" in found.stdout
    assert "result: consumers can run with this configuration" in found.stdout
    scene.environment["SHOP_TOPIC"] = "no-such-topic"
    scene.query("DROP TABLE outbox_position")
    found = scene.command("outbox_check", "--consumers")
    assert found.returncode == 1
    assert 'the table "outbox_position" is missing in' in found.stdout
    assert "the topic 'no-such-topic' does not exist" in found.stdout


def test_probes_and_metrics_say_how_it_is(scene):
    process = scene.consume("shop.record", "--metrics-port", "127.0.0.1:0")
    wait_until(lambda: "metrics_served" in process.text(), 60, "it listens")
    port = re.search(r"metrics_served address=127.0.0.1 port=(\d+)", process.text())[1]
    for path in ("/livez", "/readyz"):
        wait_until(lambda path=path: status(port, path) == 200, 30, path)
    scene.produce(60)
    scene.wait_for(60)
    shown = "SELECT owner, state, reason, lag, oldest_age_s, handled FROM outbox_partition ORDER BY partition"
    wait_until(lambda: sum(row[5] for row in scene.query(shown)) == 60, 30, "it shows what it has handled")
    owner = f"{socket.gethostname()}_{process.process.pid}"
    assert [row[:5] for row in scene.query(shown)] == [(owner, "reading", "", 0, 0.0)] * 3
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in lines}
    label = '{consumer="shop.record"}'
    assert found[f"outbox_consumer_handled_messages_total{label}"] == 60
    assert (found[f"outbox_consumer_lag_messages{label}"], found[f"outbox_consumer_waiting{label}"]) == (0, 0)
    assert found['outbox_consumer_partitions{consumer="shop.record",state="reading"}'] == 3
    assert found[f"outbox_consumer_batch_duration_seconds_count{label}"] > 0
    assert status(port, "/other") == 404
    assert process.stop() == 0


def status(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_an_empty_table_of_positions_stops_the_consumer(scene):
    scene.produce(50)
    scene.once()
    scene.query("DELETE FROM outbox_position")
    process = scene.consume("--once", "shop.record")
    assert process.wait() == 4, process.text()
    assert "has no row" in process.text()
    scene.check()


def test_a_consumer_that_was_renamed_is_not_begun_anew(scene):
    scene.produce(50)
    scene.once()
    scene.query("UPDATE outbox_position SET consumer = 'shop.old'")
    process = scene.consume("--once", "shop.record")
    assert process.wait() == 1
    assert "'shop.old', which no app declares" in process.text()
    assert "name='shop.old'" in process.text()
    assert "declare 'shop.old' too" in process.text()
    scene.check()


def test_what_is_wrong_at_the_start_is_one_line(scene):
    for arguments, settings, code, text in (
        (["nobody"], {}, 2, "No consumer is called nobody. Known consumers: shop.many, shop.pattern, shop.record."),
        (["shop.record", "--threads", "0"], {}, 2, "--threads 0 is less than 1."),
        (["shop.record", "--once"], {"SHOP_TOPIC": "no-such-topic"}, 1, "topics that do not exist: no-such-topic"),
        (
            ["shop.record", "--fail-fast"],
            {"OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
            1,
            "did not answer|_TRANSPORT|_TIMED_OUT",
        ),
        (["shop.record", "--fail-fast"], {"DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}, 1, "cannot be asked"),
        (["shop.record"], {"OUTBOX_TABLE": "elsewhere"}, 1, "elsewhere_position is missing"),
    ):
        process = scene.consume(*arguments, **settings)
        assert process.wait() == code, process.text()
        assert re.search(text, process.text()), process.text()
        assert "Traceback" not in process.text(), process.text()


def test_the_state_is_json_for_machines(scene):
    scene.produce(10)
    done = scene.consume("--once", "--json", "shop.record")
    assert done.wait() == 0, done.text()
    state = json.loads(next(line for line in done.text().splitlines() if line.startswith("{")))
    assert state["consumers"]["shop.record"]["handled"] == 10


def state_of(process):
    try:
        return Path(f"/proc/{process.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_until(condition, timeout_s, what):
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)
