"""`manage.py consume` in processes of its own, on a real PostgreSQL and a real Kafka. The judge counts effects with a
query of its own: each message once, in the order of its key. The long forms are in `test_torture.py`."""

import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import NewPartitions

from outbox.consumers.daemon import LEAVE_TIMEOUT_S
from tests.consumers.acts import (
    POINTS,
    Ending,
    commit_is_slow,
    commits,
    hold_back_replies,
    kill_backend,
    rebalance,
    send_replies,
)
from tests.consumers.conftest import wait_until
from tests.consumers.shop import deeds
from tests.support.topics import create_topic
from tests.support.wall_clock import WallClock

pytestmark = pytest.mark.slow


def test_what_is_there_is_handled_once_whichever_process_has_it_and_what_comes_later_too(scene):
    scene.produce(3000, keys=50)
    nothing = scene.consume("--once", "shop.pattern")
    first = scene.consume("--once", "shop.record", SHOP_BATCH="5")
    scene.wait_for(100)
    second = scene.consume("--once", "shop.record", SHOP_BATCH="5")
    for process in (first, second):
        assert process.wait() == 0
        assert len(scene.effects()) == 3000
    scene.check()
    handled = [int(re.search(r"handled ([\d,]+)", one.text())[1].replace(",", "")) for one in (first, second)]
    assert sum(handled) == 3000
    assert nothing.wait() == 0, "no topic matches"
    scene.produce(100)
    done = scene.once("--json", "shop.record")
    state = json.loads(next(line for line in done.text().splitlines() if line.startswith("{")))
    assert state["consumers"]["shop.record"]["handled"] == 100
    scene.check()
    assert {attempt for (attempt,) in scene.query("SELECT attempt FROM shop_effect")} == {1}
    assert "shop.record: handled 0" in scene.once().text()
    sent, scene.sent = scene.sent, 0
    scene.produce(sent, keys=50)
    scene.once("shop.deduped")
    scene.check("shop.deduped", receipts=False)
    assert scene.query("SELECT count(*) FROM outbox_seen WHERE consumer = 'shop.deduped'") == [(sent,)]


def test_killed_or_stopped_at_every_point_of_a_batch_the_others_continue(scene):
    """One process for each point, and one that survives. Some messages fail once, so they are held and released too.
    Of those that stand still, one is before its locks and finds another position afterwards; the session of the other
    is ended by its successor."""
    scene.use(12)
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_FAILS_AT_FIRST": "3", "SHOP_ATTEMPTS": "9"}
    still = [scene.consume("shop.record", failpoints=f"{point}=stop@3") for point in ("batch-taken", "batch-handled")]
    scene.produce(600, keys=61)
    wait_until(lambda: all(one.stands_still for one in still), 60, "they stand still")
    victims = {point: scene.consume("shop.record", failpoints=f"{point}=kill@3") for point in POINTS}
    wait_until(lambda: all("consumers_started" in one.text() for one in victims.values()), 60, "they start")
    give_up_at = time.monotonic() + 60
    while left := [point for point, victim in victims.items() if victim.is_running]:
        assert time.monotonic() < give_up_at, left
        scene.produce(120, keys=61)
        time.sleep(0.2)
    assert {point: victim.wait() for point, victim in victims.items()} == dict.fromkeys(POINTS, -signal.SIGKILL)
    survivor = scene.consume("shop.record")
    # Two processes that were killed at the same message make it suspect.
    wait_until(lambda: scene.retry_poison() or len(scene.effects()) == scene.sent, 60, "all is handled")
    # Sessions that wait for the one that stands still, with locks of their own, may be ended with it.
    assert "blocking_session_ended consumer=shop.record sessions=" in scene.logs()
    scene.check()
    for owner in still:
        owner.send(signal.SIGCONT)
    scene.produce(120, keys=61)
    scene.wait_for(scene.sent)
    assert survivor.stop() == 0
    # It may have stood still in a call of PostgreSQL, for longer than such a call may take.
    assert {owner.stop() for owner in still} <= {0, 7}
    scene.check()
    assert scene.query("SELECT count(*) FROM outbox_held") == [(0,)]


def test_a_clock_that_is_set_costs_nothing(scene, tmp_path):
    """Ahead, back, and back again."""
    clock = WallClock(tmp_path)
    process = scene.consume("shop.record", **clock.environment)
    for hours in (0, 2, 0, -2):
        clock.set(hours * 3600)
        scene.produce(60)
        scene.wait_for(scene.sent)
    process.kill()
    scene.produce(60)
    scene.once(**clock.environment)
    scene.check()


def test_what_hangs_ends_the_process(scene):
    """A database that neither answers nor refuses, and a function."""
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
        other = {"SHOP_TOPIC": create_topic(scene.servers), "OUTBOX_NAME": "other", "SHOP_TIMEOUT": "1"}
        scene.fill(other["SHOP_TOPIC"], 0, {2: "hang"})
        hanging = scene.consume("shop.record", **other)
        assert hanging.wait() == 7, hanging.text()
        assert "function_overrun consumer=shop.record after_s=1." in hanging.text()
        assert "in hang" in hanging.text()
        assert len(scene.effects()) == 60
        scene.once(SHOP_IS_CORRECT="1", **other)
        assert process.wait() == 7, process.text()
        assert "database_overrun consumer=shop.record call=" in process.text()
        scene.once()
        scene.check()
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


def test_processes_come_and_go_and_are_killed_under_load(scene, chance):
    rebalance(scene, chance, turns=8)
    scene.check()


def test_servers_are_killed_in_a_commit_and_under_load_and_do_not_answer_at_a_stop(fragile):
    """The COMMIT has not taken effect; it has, and its answer is lost; then Kafka. The process lives through it all.
    At its end Kafka has the last copy of the positions, and does not answer."""
    scene = fragile
    scene.produce(100)
    process = scene.consume("shop.record")
    scene.wait_for(100)
    with commit_is_slow(scene):
        scene.produce(100)
        kill_backend(commits(scene, "PgSleep"))
    scene.wait_for(200)
    assert "commit_settled consumer=shop.record messages=20 committed=False" in process.text()
    hold_back_replies(scene)
    scene.produce(100)
    commits(scene, "SyncRep")
    scene.postgres.kill()
    send_replies(scene)
    scene.postgres.start()
    scene.wait_for(300)
    assert "commit_settled consumer=shop.record messages=20 committed=True" in process.text()
    scene.kafka.kill()
    scene.kafka.start()
    scene.produce(100)
    scene.wait_for(400)
    scene.kafka.pause()
    try:
        began = time.monotonic()
        assert process.stop() == 0, process.text()
        assert time.monotonic() - began < LEAVE_TIMEOUT_S + 10
    finally:
        scene.kafka.resume()
    scene.check()


def test_a_careless_function_costs_its_message_or_ends_its_process(scene):
    """In the first, a middle and the last message of a batch of five, which is all that a partition has."""
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_BATCH": "5", "SHOP_ATTEMPTS": "1"}
    cases = [(deed, place) for deed in (*deeds.HELD, *deeds.HARMLESS) for place in (0, 2, 4)]
    scene.use(len(cases))
    held = set()
    for partition, (deed, place) in enumerate(cases):
        numbers = scene.fill(scene.topic, partition, {place: deed.__name__})
        if deed in deeds.HELD:
            held |= set(numbers[place::2])
    careless = scene.consume("--once", "shop.record")
    ending = {deed: Ending(scene, deed, place) for deed, place in zip(deeds.STOPPING, (2, 4, 0, 2), strict=True)}
    assert careless.wait() == 4, careless.text()
    for one in ending.values():
        one.ends()
    found = {int(value) for _, value, _ in scene.effects() if int(value) < 5 * len(cases)}
    assert found == {*range(5 * len(cases))} - held
    assert {number for (number,) in scene.query("SELECT convert_from(value, 'UTF8')::int FROM outbox_held")} == held
    assert len(scene.effects("shop.hook")) == 3, "the hooks behind those that raise"
    scene.environment["SHOP_IS_CORRECT"] = "1"
    process = scene.consume("shop.record")
    for one in ending.values():
        one.goes_on()
    scene.query("UPDATE outbox_held SET wanted = 'retry' WHERE attempts > 0")
    scene.wait_for(scene.sent + 3)
    assert process.stop() == 0
    scene.check(doubled=ending[deeds.commit].doubled)


def test_a_message_that_fails_stops_its_partition_or_is_held_and_one_that_ends_its_process_is_held(scene):
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
    holding = scene.consume("--once", "shop.record", SHOP_ON_ERROR="hold", SHOP_FAILS="20")
    assert holding.wait() == 4, holding.text()
    assert re.search(r"shop.record: messages of t-\w+\[\d\] are held", holding.text()), holding.text()
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
    one_that_ends_its_process(scene)


def one_that_ends_its_process(scene):
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_ABORTS": "80"}
    scene.produce(60)
    deaths = 0
    while (process := scene.consume("--once", "shop.record")).wait() == -signal.SIGABRT:
        deaths += 1
        assert deaths < 6, scene.logs()
    assert process.wait() == 4, process.text()
    assert "poison_message consumer=shop.record" in process.text()
    assert scene.query("SELECT convert_from(value, 'UTF8') FROM outbox_held WHERE reason = 'poison'") == [("80",)]
    held = [number for number in range(80, 120) if number % 7 == 80 % 7]
    assert {int(value) for _, value, _ in scene.effects()} == set(range(120)) - set(held)
    del scene.environment["SHOP_ABORTS"]
    scene.retry_poison()
    last = scene.consume("shop.record")
    scene.wait_for(120)
    assert last.stop() == 0
    scene.check()
    assert scene.query("SELECT DISTINCT is_clean FROM outbox_owner WHERE consumer = 'shop.record'") == [(True,)]


def test_topics_that_come_grow_and_are_created_again_and_rows_that_are_gone(scene):
    """Those that are created again stop with both ids, and the others go on."""
    grown, shorter, longer = (create_topic(scene.servers, 1, f"{scene.topic}.{name}") for name in ("g", "s", "l"))
    for topic in (grown, shorter, longer):
        scene.produce(20, topic)
    scene.once("shop.pattern")
    scene.admin.create_partitions([NewPartitions(grown, 3)])[grown].result(20)
    lost = range(scene.sent, scene.sent + 60)
    for topic, count in ((shorter, 10), (longer, 50)):
        scene.create_again(topic)
        scene.produce(count, topic)
    scene.produce(60, grown)
    process = scene.consume("shop.pattern")
    wait_until(lambda: "consumers_started" in process.text(), 60, "it starts")
    found = create_topic(scene.servers, 2, f"{scene.topic}.found")
    create_topic(scene.servers, 1, f"{scene.topic}.found.late")
    scene.produce(30, found)
    scene.wait_for(150, "shop.pattern")
    assert process.stop() == 0
    stopped = re.findall(r"partition_stopped consumer=shop.pattern topic=(\S+) .*was created again", process.text())
    assert sorted(stopped) == [longer, shorter]
    assert len({number for (number,) in scene.query("SELECT DISTINCT partition FROM shop_effect")}) > 1
    scene.query("DELETE FROM outbox_position WHERE topic IN (%s, %s)", grown, found)
    emptied = scene.consume("--once", "shop.pattern")
    assert emptied.wait() == 4, emptied.text()
    assert len(re.findall(r"partition_stopped .*has no row", emptied.text())) == 5
    scene.check("shop.pattern", receipts=False, lost=lost)


def test_an_operator_checks_what_consumers_need_and_sets_positions_while_nobody_consumes(scene):
    found = scene.command("outbox_check", "--consumers")
    assert found.returncode == 0, found.stdout
    assert "the user may keep positions in 'default'" in found.stdout
    assert "consumer 'shop.record': 1 topics, 0 members" in found.stdout
    assert "result: consumers can run with this configuration" in found.stdout
    assert "No consumer has a position." in scene.command("outbox_positions", "shop.many").stdout
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
    positions_of_other_topics(scene)
    scene.environment["SHOP_TOPIC"] = "no-such-topic"
    scene.query("DROP TABLE outbox_position")
    found = scene.command("outbox_check", "--consumers")
    assert found.returncode == 1
    assert 'the table "outbox_position" is missing in' in found.stdout
    assert "the topic 'no-such-topic' does not exist" in found.stdout


def positions_of_other_topics(scene):
    """A partition that the topic does not have any more, and a consumer that no app declares."""
    scene.query(
        "INSERT INTO outbox_position (consumer, topic, partition, next) VALUES ('shop.record', %s, 7, 5), "
        "('shop.old', %s, 1, 0)",
        *[scene.topic] * 2,
    )
    shown = scene.command("outbox_positions", "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)["positions"]
    assert [(one["consumer"], one["partition"], one["end"] is None) for one in found] == [
        ("shop.old", 1, False),
        *(("shop.record", number, False) for number in range(3)),
        ("shop.record", 7, True),
    ]
    for arguments in ((), ("--topic", scene.topic, "--to", "latest")):
        refused = scene.command("outbox_positions", "shop.recrod", *arguments)
        assert refused.returncode == 1
        assert (
            "No consumer is called 'shop.recrod'. Known consumers: shop.deduped, shop.many, shop.old," in refused.stderr
        )
    assert scene.query("SELECT count(*) FROM outbox_position") == [(5,)]
    assert scene.command("outbox_positions", "shop.old", "--json").returncode == 0, "it has rows"


def test_probes_and_metrics_say_how_it_is_and_a_stop_finishes_what_is_under_way(scene):
    process = scene.consume("--metrics-port", "127.0.0.1:0")
    wait_until(lambda: "metrics_served" in process.text(), 60, "it listens")
    port = re.search(r"metrics_served address=127.0.0.1 port=(\d+)", process.text())[1]
    for path in ("/livez", "/readyz"):
        wait_until(lambda path=path: status(port, path) == 200, 30, path)
    scene.produce(60)
    scene.wait_for(60)
    scene.wait_for(60, "shop.many")
    shown = (
        "SELECT owner, state, reason, lag, oldest_age_s, handled FROM outbox_partition "
        "WHERE consumer = 'shop.record' ORDER BY partition"
    )
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
    assert process.stop() == 0, process.text()
    scene.check()
    scene.check("shop.many", receipts=False)
    assert "consumers_stopped" in process.text()


def status(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_what_is_wrong_at_the_start_is_one_line_and_a_server_is_waited_for_until_a_stop(scene):
    scene.produce(50)
    scene.once()
    scene.query("UPDATE outbox_position SET consumer = 'shop.old'")
    renamed = "'shop.old', which no app declares.*name='shop.old'.*declare 'shop.old' too"
    cases = (
        (
            ["nobody"],
            {},
            2,
            "No consumer is called nobody. Known consumers: shop.deduped, shop.many, shop.pattern, shop.record.",
        ),
        (["shop.record", "--threads", "0"], {}, 2, "--threads 0 is less than 1."),
        (["shop.record", "--once"], {"SHOP_TOPIC": "no-such-topic"}, 1, "topics that do not exist: no-such-topic"),
        (
            ["shop.record", "--fail-fast"],
            {"OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SHOP_TOPIC": "new-topic"},
            1,
            "did not answer|_TRANSPORT|_TIMED_OUT",
        ),
        (["shop.record", "--fail-fast"], {"DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}, 1, "cannot be asked"),
        (["shop.record"], {"OUTBOX_TABLE": "elsewhere"}, 1, "elsewhere_position is missing"),
        (["shop.record", "--once"], {}, 1, renamed),
    )
    processes = [scene.consume(*arguments, **settings) for arguments, settings, _, _ in cases]
    waiting = scene.consume("shop.record", OUTBOX_BOOTSTRAP_SERVERS="127.0.0.1:1", SHOP_TOPIC="new-topic")
    for process, (_, _, code, text) in zip(processes, cases, strict=True):
        assert process.wait() == code, process.text()
        assert re.search(text, process.text()), process.text()
        assert "Traceback" not in process.text(), process.text()
    wait_until(lambda: " waiting reason=" in waiting.text(), 60, "it waits for Kafka")
    assert waiting.stop() == 0, waiting.text()
    assert waiting.text().splitlines()[-1].endswith("consumers_stopped consumers='shop.record'")
    scene.check()
