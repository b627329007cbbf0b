"""The long forms of the faults: `make torture`, on Kafka 4.1 and 3.9. Every random choice follows from the printed
seed; `--seed` repeats it."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from outbox.devstack import Kafka
from tests.consumers.acts import POINTS, Ending, rebalance
from tests.consumers.conftest import QUICK, open_scene, wait_until
from tests.consumers.shop import deeds
from tests.support.databases import fresh_database
from tests.support.topics import create_topic
from tests.support.wall_clock import WallClock

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]
LINES = ("4.1", "3.9")
KILLS = 200
BACKLOG_MAX = 3_000
HOLDING = {"SHOP_ON_ERROR": "hold", "SHOP_FAILS_AT_FIRST": "3", "SHOP_ATTEMPTS": "9"}
HELD = 10_000


@pytest.fixture(scope="module", params=LINES)
def quick_kafka(request):
    """In place of the one broker: the scenes below are on one of each version."""
    with Kafka(request.param, properties=QUICK) as kafka:
        yield kafka


def finish(scene):
    """One process handles the rest, and an operator has innocent messages tried again."""
    last = scene.consume("shop.record")
    wait_until(lambda: "consumers_started" in last.text(), 60, "it starts")
    wait_until(lambda: scene.retry_poison() or len(scene.effects()) == scene.sent, 240, "all is handled")
    assert last.stop() == 0, last.text()
    scene.check()
    assert scene.query("SELECT count(*) FROM outbox_held") == [(0,)]


def test_killed_two_hundred_times(scene, chance):
    """At every point, at random passages of it, and at none in particular. One of three that dies starts again."""
    scene.use(12)
    scene.environment |= HOLDING

    def start(number):
        return scene.consume("shop.record", failpoints=f"{POINTS[number % len(POINTS)]}=kill@{chance.randint(1, 15)}")

    kills, alive = 0, [start(number) for number in range(3)]
    while kills < KILLS:
        if scene.sent - len(scene.effects()) < BACKLOG_MAX:
            scene.produce(200, keys=61)
        give_up_at = time.monotonic() + 3
        while all(one.is_running for one in alive) and time.monotonic() < give_up_at:
            time.sleep(0.1)
        dead = [one for one in alive if not one.is_running]
        if not dead or chance.random() < 0.1:
            dead.append(chance.choice(alive))
            dead[-1].kill()
        for one in dict.fromkeys(dead):
            assert one.wait() == -signal.SIGKILL, one.text()[-3000:]
            kills += 1
            alive[alive.index(one)] = start(kills + 2)
    for one in alive:
        one.kill()
    print("poison:", scene.query("SELECT count(*) FROM outbox_held WHERE reason = 'poison'"))
    finish(scene)


def test_stopped_at_every_point(scene):
    """Until its session is over and a successor has handled everything; then it goes on."""
    scene.environment |= HOLDING
    for point in POINTS:
        scene.produce(200, keys=61)
        owner = scene.consume("shop.record", failpoints=f"{point}=stop@2")
        wait_until(lambda owner=owner: owner.stands_still, 60, point)
        successor = scene.consume("shop.record")
        scene.wait_for(scene.sent)
        owner.send(signal.SIGCONT)
        scene.produce(100, keys=61)
        scene.wait_for(scene.sent)
        assert [owner.stop(), successor.stop()] == [0, 0], point
        scene.check()
    finish(scene)


def test_processes_come_and_go_for_two_minutes(scene, chance):
    rebalance(scene, chance, turns=60)
    scene.check()


def test_servers_are_killed_again_and_again(fragile, chance):
    """The process lives through it all."""
    scene = fragile
    scene.environment |= HOLDING
    process = scene.consume("shop.record")
    for _ in range(8):
        scene.produce(300, keys=61)
        time.sleep(chance.uniform(0, 1))
        for server in chance.sample([scene.postgres, scene.kafka], chance.randint(1, 2)):
            server.kill()
            time.sleep(chance.uniform(0, 2))
            server.start()
        end_a_session(scene, chance)
        scene.wait_for(scene.sent, timeout_s=120)
    assert process.stop() == 0
    scene.check()


def end_a_session(scene, chance):
    """PostgreSQL then ends all others too, and recovers."""
    scene.produce(300, keys=61)
    time.sleep(chance.uniform(0, 0.5))
    found = scene.query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    if found:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found)[0], signal.SIGKILL)
    scene.query_when_it_answers("SELECT 1")


def test_a_copy_that_lags_takes_over_under_a_living_process(fragile, chance):
    """Effects, positions and held messages are lost together, and handled again."""
    scene = fragile
    scene.environment |= HOLDING
    process = scene.consume("shop.record")
    for _ in range(3):
        scene.produce(300, keys=61)
        scene.wait_for(scene.sent - chance.randint(0, 200))
        older = scene.postgres.folder / "older"
        scene.postgres.stop()
        subprocess.run(["cp", "-a", scene.postgres.data, older], check=True)
        scene.postgres.start()
        scene.produce(300, keys=61)
        scene.wait_for(scene.sent - chance.randint(0, 200))
        scene.postgres.kill()
        shutil.rmtree(scene.postgres.data)
        older.rename(scene.postgres.data)
        scene.postgres.start()
        scene.wait_for(scene.sent)
        scene.check()
    assert "database_went_back consumer=shop.record" in process.text()
    assert process.stop() == 0
    scene.check()


@pytest.mark.parametrize("place", [0, 2, 4])
def test_a_function_that_ends_its_process_in_every_place(scene, place):
    """After the function was corrected everything is handled."""
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_BATCH": "5"}
    every = [Ending(scene, deed, place) for deed in (*deeds.STOPPING, *deeds.CRASHING)]
    for one in every:
        one.ends()
    scene.environment["SHOP_IS_CORRECT"] = "1"
    for one in every:
        one.goes_on()
    scene.check(doubled=[number for one in every for number in one.doubled])


def test_topics_expire_grow_and_are_created_again_while_they_are_read(scene):
    """Messages of the new topic may be handled from the old position on until its id is asked for, which is documented:
    none before it is."""
    names = ("expired", "grown", "again")
    expired, grown, again = (create_topic(scene.servers, 1, f"{scene.topic}.{name}") for name in names)
    for topic in (expired, grown, again):
        scene.produce(20, topic)
    scene.once("shop.pattern")
    lost = {*range(scene.sent, scene.sent + 30)}
    scene.produce(30, expired)
    at = TopicPartition(expired, 0, 35)
    scene.admin.delete_records([at])[at].result(20)
    process = scene.consume("shop.pattern")
    scene.produce(20, again)
    scene.produce(20, grown)
    scene.wait_for(100, "shop.pattern")
    first = scene.sent
    scene.admin.create_partitions([NewPartitions(grown, 3)])[grown].result(20)
    scene.create_again(again)
    scene.produce(100, again)
    lost |= {*range(first, first + 100)}
    scene.produce(60, grown)
    wait_until(lambda: process.text().count("partition_stopped") == 2, 90, "both are stopped")
    assert f"{again}[0] was created again" in process.text()
    assert f"{expired}[0] holds the offsets 35 to 50 and the position is 20: messages expired" in process.text()
    handled = {number for (number,) in scene.query("SELECT value::int FROM shop_effect WHERE topic = %s", again)}
    later = {number for number in handled if number >= first}
    print(f"{len(later)} of the new topic were handled")
    assert all(number >= first + 40 for number in later), "none before the position"
    wait_until(lambda: len(scene.effects("shop.pattern")) >= 160 + len(later), 60, "the others go on")
    assert process.stop() == 0
    scene.check("shop.pattern", receipts=False, lost=lost - later)


@pytest.mark.parametrize("version", LINES)
def test_a_log_that_an_unclean_election_cuts_stops_its_partition(
    tmp_path, postgres, shop_template, version, own_servers
):
    """The leader with the last messages is lost, and one that lacks them leads, and takes others in their place."""
    with (
        Kafka(version, brokers=3, properties={**QUICK, "min.insync.replicas": "1"}) as kafka,
        fresh_database(os.environ["DATABASE_URL"], shop_template) as url,
        open_scene(tmp_path, url, kafka.bootstrap_servers) as scene,
    ):
        given = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        scene.topic = scene.environment["SHOP_TOPIC"] = create_topic(scene.servers, 1, copies=2, **given)
        scene.produce(50)
        process = scene.consume("shop.record")
        scene.wait_for(50)
        leader, follower = (kafka.brokers[number - 1] for number in replicas(scene))
        follower.kill()
        wait_until(lambda: in_sync(scene) == [leader.number], 60, "the follower is left out")
        scene.produce(50)
        scene.wait_for(100)
        leader.kill()
        follower.start()
        wait_until(lambda: leads(scene) == follower.number, 120, "the follower leads")
        lost = range(scene.sent, scene.sent + 100)
        scene.produce(100)
        wait_until(lambda: "partition_stopped" in process.text(), 120, "it is stopped")
        print(process.text())
        assert process.stop() == 0
        scene.check(lost=lost)
        again = scene.consume("--once", "shop.record")
        assert again.wait(120) == 4, again.text()
        scene.check(lost=lost)


def _partition(scene):
    return scene.admin.list_topics(scene.topic, timeout=30).topics[scene.topic].partitions[0]


def replicas(scene):
    """The leader first."""
    found = _partition(scene)
    return [found.leader, *(number for number in found.replicas if number != found.leader)]


def in_sync(scene):
    return list(_partition(scene).isrs)


def leads(scene):
    return _partition(scene).leader


def test_ten_thousand_held_keys(scene):
    """Other keys are handled about as fast, and the memory of the process stays flat."""
    scene.environment |= {"SHOP_ON_ERROR": "hold", "SHOP_ATTEMPTS": "1", "SHOP_BATCH": "100"}
    process = scene.consume("shop.record")
    held, seconds, memory = 0, [], []
    for more in (0, HELD // 10, HELD - HELD // 10):
        scene.produce_held(more)
        held += more
        scene.wait_for(scene.sent - held, timeout_s=600)
        began = time.monotonic()
        scene.produce(10_000)
        scene.wait_for(scene.sent - held, timeout_s=300)
        seconds.append(time.monotonic() - began)
        memory.append(resident_mb(process))
    assert scene.query("SELECT count(*) FROM outbox_held") == [(HELD,)]
    print(f"10,000 others: {seconds} s; memory: {memory} MB")
    assert process.stop() == 0
    assert seconds[2] < 2 * seconds[0]
    assert memory[2] < memory[0] + 32
    scene.environment["SHOP_IS_CORRECT"] = "1"
    scene.query("UPDATE outbox_held SET wanted = 'retry'")
    last = scene.consume("shop.record")
    scene.wait_for(scene.sent, timeout_s=600)
    assert last.stop() == 0
    scene.check()


def test_a_clock_that_is_set(scene, tmp_path, chance):
    """Forward and back, while processes come and are killed."""
    clock = WallClock(tmp_path)
    scene.environment |= {**HOLDING, **clock.environment}
    started = [scene.consume("shop.record") for _ in range(2)]
    for hours in (2, 0, -2, -4, -6, 0, 24, 0, -1, 1):
        scene.produce(300, keys=61)
        time.sleep(chance.uniform(0, 0.5))
        clock.set(hours * 3600)
        scene.wait_for(scene.sent, timeout_s=30)
        started.append(scene.consume("shop.record"))
        started.pop(0).kill()
    finish(scene)


def resident_mb(process):
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
