"""The long forms: `make torture`, on Kafka 4.1 and 3.9. Every random choice follows from the printed seed; `--seed`
repeats it."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.conftest import open_scene
from tests.faults.exactly_once.acts import (
    CAREFUL,
    CROWNED,
    ENDING,
    ONCE,
    POINTS,
    WORKER,
    believe_they_lead,
    fall_one_by_one,
    join_and_leave,
    kill_at,
    late_transaction,
    lose_the_servers,
    roll,
    settle,
    stop_at,
)
from tests.faults.exactly_once.conftest import GIVEN, LINES

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]
KILLS = 200
SIDE_BY_SIDE = 5


@pytest.fixture(scope="module", params=LINES)
def servers(request):
    """One PostgreSQL and one Kafka of each line for all acts that harm neither."""
    from outbox.devstack import Kafka, Postgres

    with Kafka(request.param) as cluster, Postgres() as server:
        yield cluster, server


@pytest.fixture
def scenes(servers, tmp_path):
    cluster, server = servers

    def make(number=0):
        folder = tmp_path / str(number)
        folder.mkdir()
        return open_scene(folder, url=server.url, servers=cluster.bootstrap_servers, **GIVEN)

    return make


def play_all(scenes, acts):
    """All at the same time, as each waits for sessions to expire."""

    def run(number, act):
        with scenes(number) as scene:
            act(scene)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for running in [pool.submit(run, number, act) for number, act in enumerate(acts)]:
            running.result()


def test_killed_two_hundred_times(scenes, chance):
    """At every point, at random passages of it. Three harvesters share three lanes; one that dies starts again."""
    points = [*WORKER, *CAREFUL, "assigned", "acquired"]
    lanes = {"LANES": 3, "BATCH_MAX": 100}

    def start(scene, number):
        point = points[number % len(points)]
        nth = 1 if point in ONCE else chance.randint(1, 15)
        return scene.fleet.start(failpoints=f"{point}=kill@{nth}", **lanes)

    with scenes() as scene:
        scene.write(rate=400, keys=300)
        scene.write(rate=400, keys=300)
        kills, alive = 0, [start(scene, number) for number in range(3)]
        while kills < KILLS:
            give_up_at = time.monotonic() + 10
            while all(member.is_running for member in alive) and time.monotonic() < give_up_at:
                time.sleep(0.1)
            dead = [member for member in alive if not member.is_running]
            if not dead or chance.random() < 0.1:  # also at no point in particular
                dead.append(chance.choice(alive))
                dead[-1].kill()
            for member in dict.fromkeys(dead):
                assert member.wait() == -signal.SIGKILL, member.log.read_text()[-3000:]
                kills += 1
                alive[alive.index(member)] = start(scene, kills + 2)
        for member in alive:
            if member.is_running:
                member.kill()
        scene.fleet.start(**lanes)
        settle(scene, 240)


def test_killed_at_every_point(scenes):
    play_all(scenes, [kill_at(point) for point in POINTS])


def test_stopped_at_every_point(scenes):
    play_all(scenes, [stop_at(point) for point in POINTS])


@pytest.mark.parametrize("count", [2, 3])
def test_harvesters_that_all_believe_they_lead(scenes, count):
    with scenes() as scene:
        believe_they_lead(count)(scene, turns=15)


def test_two_that_believe_they_lead_are_stopped_at_random_points(scenes, chance):
    points = [point for point in WORKER if point not in ENDING]
    with scenes() as scene:
        scene.write(rate=300)
        for _ in range(25):
            point = f"{chance.choice(points)}=stop@{chance.randint(1, 5)}"
            paused, other = scene.fleet.start(program=CROWNED, failpoints=point), scene.fleet.start(program=CROWNED)
            give_up_at = time.monotonic() + 10
            while not paused.is_paused and time.monotonic() < give_up_at:
                time.sleep(0.05)
            scene.wait_delivered(100, timeout_s=60)
            paused.send(signal.SIGCONT)
            scene.wait_delivered(100, timeout_s=60)
            chance.choice([paused, other]).kill()
            for member in scene.fleet.running:
                member.kill()
        scene.fleet.start(program=CROWNED)
        settle(scene)


def test_six_lanes_move_every_two_seconds(scenes, chance):
    with scenes() as scene:
        join_and_leave(scene, chance, members=4, seconds=120, pause_s=2)


def test_sessions_end_twice_a_second_for_a_minute(scenes):
    with scenes() as scene:
        fall_one_by_one(scene, seconds=60)


def test_a_transaction_commits_minutes_after_its_neighbours(scenes):
    with scenes() as scene:
        with late_transaction(scene):
            scene.write(rate=300)
            scene.fleet.start()
            scene.wait_delivered(timeout_s=60)
            time.sleep(150)
        settle(scene)


def test_rolling_restarts_without_end(scenes):
    with scenes() as scene:
        roll(scene, 20)


@pytest.mark.parametrize("line", LINES)
def test_both_servers_are_killed_again_and_again(fragile_exact_scenes, line):
    with fragile_exact_scenes(line) as scene:
        lose_the_servers(scene, turns=8)
