"""`manage.py outbox_graph run` in processes of its own, on a real Kafka. A `read_committed` consumer of the tests
judges: 0 lost, 0 doubled."""

import json
import os
import signal
import time
from collections import Counter

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox import failpoints
from tests.graphs.conftest import wait_until
from tests.support.databases import fresh_database

pytestmark = pytest.mark.slow

POINTS = [name for name, text in failpoints.FAILPOINTS.items() if text.startswith("graphs:")]


def test_every_kind_of_processor_writes_what_its_functions_return(scene):
    scene.create()
    process = scene.run()
    numbers = scene.produce("orders", 300)
    left, right = scene.produce("left", 60, keys=1), scene.produce("right", 60, keys=1)
    web, shop = scene.produce("web", 50), scene.produce("shop", 70)
    scene.wait_for("eu", 150)
    scene.wait_for("log", 60)
    scene.wait_for("joined", 60)
    scene.wait_for("all", 120)
    scene.check("priced", numbers)
    scene.check("eu", [number for number in numbers if number % 2])
    scene.check("us", [number for number in numbers if number % 2 == 0])
    scene.check("log", [number for number in numbers if number % 10 == 0] * 2)
    scene.check("joined", [f"{one}+{other}" for one, other in zip(left, right, strict=True)])
    scene.check("all", [*(f"web:{number}" for number in web), *(f"shop:{number}" for number in shop)])
    found = scene.read("eu")[0]
    headers = dict(found.headers)
    step, _, binding = headers["outbox-step"].decode().partition(":")
    assert (len(step), binding, headers["region"]) == (32, "eu", b"yes")
    hops = [topic for topic, *_ in json.loads(headers["outbox-provenance"])]
    assert hops == [scene.topic("orders"), scene.topic("priced")]
    assert found.key == f"k{(int(found.value) - numbers[0]) % 7 if numbers[0] else int(found.value) % 7}".encode()
    assert process.stop() == 0, process.text()
    assert scene.values("errors") == []


def test_killed_at_every_point_of_a_batch_each_step_has_its_outputs_once(scene):
    """One process for each point, and one that survives."""
    scene.create(12)
    scene.environment["GRAPH_BATCH"] = "5"
    numbers, web, shop, pairs = [], [], [], 0
    victims = {point: scene.run("price", "pair", "merge", failpoints=f"{point}=kill@3") for point in POINTS}
    survivor = scene.run("price", "pair", "merge")
    wait_until(lambda: "graph_lane_placed" in survivor.text(), 60, "it has lanes")
    give_up_at = time.monotonic() + 60
    while left := [point for point, victim in victims.items() if victim.is_running]:
        assert time.monotonic() < give_up_at, left
        numbers += scene.produce("orders", 240)
        web += scene.produce("web", 60)
        shop += scene.produce("shop", 60)
        for partition in range(12):
            scene.produce("left", 3, keys=1, partition=partition)
            scene.produce("right", 3, keys=1, partition=partition)
        pairs += 36
        time.sleep(0.5)
    assert {point: victim.wait() for point, victim in victims.items()} == dict.fromkeys(POINTS, -signal.SIGKILL)
    scene.wait_for("priced", len(numbers))
    scene.wait_for("all", len(web) + len(shop))
    scene.wait_for("joined", pairs)
    assert survivor.stop() == 0, survivor.text()
    scene.check("priced", numbers)
    scene.check("all", [*(f"web:{number}" for number in web), *(f"shop:{number}" for number in shop)])
    joined = [value.split("+") for value in scene.values("joined")]
    assert all(int(right) - int(left) == 3 for left, right in joined)
    assert len(joined) == len({left for left, _ in joined}) == pairs
    assert scene.values("errors") == []


def test_an_owner_that_stood_still_at_any_point_writes_nothing_twice(scene):
    scene.create(len(POINTS))
    scene.environment["GRAPH_BATCH"] = "5"
    numbers = [*scene.produce("orders", 400)]
    still = [scene.run("price", failpoints=f"{point}=stop@2") for point in POINTS[::2]]
    wait_until(lambda: all(one.stands_still for one in still), 60, "they stand still")
    numbers += scene.produce("orders", 200)
    owner = scene.run("price")
    scene.wait_for("priced", 600)
    for one in still:
        one.send(signal.SIGCONT)
    numbers += scene.produce("orders", 200)
    scene.wait_for("priced", 800)
    time.sleep(2)
    assert [one.stop() for one in (*still, owner)] == [0] * (len(still) + 1)
    scene.check("priced", numbers)


def test_processes_come_and_go_under_load(scene):
    scene.create(4)
    scene.environment |= {"GRAPH_BATCH": "20", "GRAPH_SLOW": "0.001"}
    numbers, started = [], [scene.run("price", "split")]
    for turn in range(8):
        numbers += scene.produce("orders", 300)
        if turn % 2 == 0:
            started.append(scene.run("price", "split"))
        elif turn % 4 == 1:
            started.pop(0).kill()
        else:
            assert started.pop(0).stop() == 0
        time.sleep(1.0)
    scene.wait_for("priced", len(numbers))
    scene.wait_for("eu", len(numbers) // 2)
    scene.wait_for("us", len(numbers) // 2)
    assert [one.stop() for one in started] == [0] * len(started)
    scene.check("priced", numbers)
    scene.check("eu", [number for number in numbers if number % 2])
    scene.check("us", [number for number in numbers if number % 2 == 0])


def test_a_step_that_fails_has_an_error_record_in_the_place_of_its_outputs(scene):
    scene.create(1)
    scene.environment["GRAPH_ATTEMPTS"] = "2"
    numbers = scene.produce("orders", 50, does={7: {"does": "fail"}, 20: {"does": "fail"}})
    process = scene.run("price")
    scene.wait_for("priced", 48)
    scene.wait_for("errors", 2)
    assert process.stop() == 0
    scene.check("priced", [number for place, number in enumerate(numbers) if place not in (7, 20)])
    first = scene.read("errors")[0]
    record = json.loads(first.value)
    assert (record["type"], record["attempts"]) == ("tests.graphs.shop.inbox.Unpriced", 2)
    assert record["context"] == {"shop": "the test"}
    assert record["inputs"][0]["value"] == "7"
    assert record["processor"]["name"] == "price"
    assert "raise Unpriced" in record["trace"]
    assert dict(first.headers)["outbox-step"].decode() == f"{record['step']}:errors"


def test_a_step_that_ends_its_process_twice_has_an_error_record(scene):
    scene.create(1)
    numbers = scene.produce("orders", 30, does={11: {"does": "end"}})
    for _ in range(3):
        assert scene.run("price").wait() == 9
    process = scene.run("price")
    scene.wait_for("priced", 29)
    assert process.stop() == 0
    scene.check("priced", [number for place, number in enumerate(numbers) if place != 11])
    (record,) = map(json.loads, scene.values("errors"))
    assert (record["type"], record["inputs"][0]["value"]) == ("outbox.ProcessEnded", "11")


def test_an_output_that_kafka_refuses_is_found_and_no_other_step_pays(scene):
    """The client sends it; the topic takes no such size."""
    scene.create(1, *(name for name in ("orders", "errors")))
    scene.create(1, "priced", **{"max.message.bytes": "2000"})
    does = {place: {"does": "large", "size": 300_000} for place in (5, 31)}
    numbers = scene.produce("orders", 60, does=does)
    process = scene.run("price", OUTBOX_PRODUCER='{"compression.type": "none"}')
    scene.wait_for("priced", 58)
    scene.wait_for("errors", 2)
    assert process.stop() == 0
    scene.check("priced", [number for place, number in enumerate(numbers) if place not in does])
    records = [json.loads(value) for value in scene.values("errors")]
    assert [record["inputs"][0]["value"] for record in records] == ["5", "31"]
    assert {record["type"] for record in records} == {"outbox.OutputRejected"}


def test_a_lane_stops_before_a_step_that_fails_and_a_restart_delivers_it_once(scene):
    scene.create(1)
    scene.environment["GRAPH_ON_ERROR"] = "stop"
    numbers = scene.produce("orders", 40, does={25: {"does": "fail"}})
    process = scene.run("price")
    scene.wait_for("priced", 25)
    wait_until(lambda: "graph_lane_stopped" in process.text(), 20, "it stops")
    assert process.stop() == 0
    scene.check("priced", numbers[:25])
    logged = scene.run("price", GRAPH_ON_ERROR="log")
    scene.wait_for("priced", 39)
    assert logged.stop() == 0
    scene.check("priced", [number for place, number in enumerate(numbers) if place != 25])


@pytest.mark.parametrize("strategy", ["at-least-once", "at-most-once"])
def test_other_strategies_keep_what_they_promise_and_switching_keeps_the_positions(scene, strategy):
    scene.create(2)
    scene.environment |= {"GRAPH_BATCH": "10", "GRAPH_SLOW": "0.002"}
    numbers = scene.produce("orders", 600)
    for point in ("outputs-sent", "positions-sent", "batch-decided"):
        victim = scene.run("price", GRAPH_STRATEGY=strategy, failpoints=f"{point}=kill@5")
        assert victim.wait() == -signal.SIGKILL
    before = Counter(scene.values("priced"))
    process = scene.run("price")  # exactly once, from the same positions
    wait_until(lambda: process.text().count("graph_lane_placed") == 2, 60, "it has the lanes")
    wait_until(lambda: is_quiet(scene, "priced"), 60, "all is priced")
    assert process.stop() == 0
    found = Counter(scene.values("priced"))
    lost, doubled = set(map(str, numbers)) - found.keys(), [value for value, count in found.items() if count > 1]
    assert len(before) > 20
    if strategy == "at-least-once":
        assert lost == set()
        assert len(doubled) <= 60
    else:
        assert doubled == []
        assert len(lost) <= 60


def is_quiet(scene, name):
    before = len(scene.read(name))
    time.sleep(2)
    return len(scene.read(name)) == before > 0


def test_a_message_that_is_missing_on_one_side_of_a_join_stops_the_lane_with_both_positions(scene):
    scene.create(1)
    for place in range(20):
        scene.produce("left", 1, keys=5)
        scene.sent -= 1
        if place != 12:
            scene.produce("right", 1, keys=5)
        else:
            scene.sent += 1
    process = scene.run("pair")
    wait_until(lambda: "graph_lane_stopped" in process.text(), 30, "it stops")
    assert process.stop() == 0
    assert scene.values("joined") == [f"{number}+{number}" for number in range(12)]
    assert f"{scene.name}.left[0] offset 12 with the key 'k2' and {scene.name}.right[0] offset 12" in process.text()


def test_positions_that_somebody_has_changed_stop_the_lane_and_expired_ones_do_not(scene):
    scene.create(1)
    numbers = [*scene.produce("orders", 30)]
    first = scene.run("price")
    scene.wait_for("priced", 30)
    assert first.stop() == 0
    group = f"{scene.name}.price"
    commit(scene, group, 3)
    second = scene.run("price")
    wait_until(lambda: "graph_lane_stopped" in second.text(), 30, "it stops")
    assert "has the offset 3 of" in second.text()
    assert "the topic of positions has 30" in second.text()
    assert second.stop() == 0
    forget(scene, group)
    numbers += scene.produce("orders", 30)
    third = scene.run("price")
    scene.wait_for("priced", 60)
    assert third.stop() == 0
    scene.check("priced", numbers)


def test_a_topic_that_is_created_again_stops_its_lane(scene):
    scene.create(1)
    numbers = scene.produce("orders", 10)
    process = scene.run("price")
    scene.wait_for("priced", 10)
    admin = AdminClient({"bootstrap.servers": scene.servers})
    admin.delete_topics([scene.topic("orders")])[scene.topic("orders")].result(20)
    wait_until(lambda: created(scene, "orders"), 30, "it is created again")
    scene.produce("orders", 40)
    wait_until(lambda: "was deleted and created again" in process.text(), 60, "it stops")
    assert process.stop() == 0
    scene.check("priced", numbers)


def created(scene, name):
    try:
        scene.create(1, name)
    except KafkaException:  # it is still being deleted
        return False
    return True


def commit(scene, group, offset):
    consumer = Consumer({"bootstrap.servers": scene.servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(scene.topic("orders"), 0, offset)], asynchronous=False)
    consumer.close()


def forget(scene, group):
    admin = AdminClient({"bootstrap.servers": scene.servers})  # kept until it has answered
    admin.delete_consumer_groups([group])[group].result(20)


def test_a_sink_runs_with_the_graph(scene, shop_template):
    scene.create(2)
    with fresh_database(os.environ["DATABASE_URL"], shop_template) as url:
        scene.environment |= {"GRAPH_SINK": "1", "DATABASE_URL": url, "OUTBOX_NAME": scene.name}
        process = scene.run()
        numbers = scene.produce("orders", 100)

        def noted():
            with psycopg.connect(url) as connection:
                rows = connection.execute("SELECT kafka_value FROM outbox WHERE kafka_topic = 'noted'").fetchall()
            return sorted(int(value) for (value,) in rows)

        expected = [number for number in numbers if number % 2]
        wait_until(lambda: len(noted()) >= len(expected), 60, "the sink has handled them")
        assert process.stop() == 0, process.text()
        assert noted() == expected


def test_the_command_names_mistakes_draws_and_refuses_topics_that_do_not_exist(scene):
    assert scene.command("check").stdout == f"{scene.name}: 4 processors, no mistake\n"
    shown = scene.command("topology").stdout
    assert f"price  pipe  {scene.name}.orders" in shown
    assert scene.command("topology", "--mermaid").stdout.startswith("flowchart LR\n")
    wrong = scene.command("check", GRAPH_BATCH="0", GRAPH_NAME="a b")
    assert wrong.returncode == 1
    assert wrong.stderr.count("batch=0 is no whole number") == 4
    assert "The name 'a b' is not" in wrong.stderr
    assert scene.command("topology", "nothing").returncode == 2
    process = scene.run()
    assert process.wait() == 1
    assert "do not exist. Create them" in process.text()
