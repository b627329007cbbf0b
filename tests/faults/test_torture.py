"""The long forms of the faults: `make torture`."""

import random
import signal
import time

import pytest

from tests.faults.fleet import wait_until
from tests.faults.test_at_least_once import ENDING, LIMITS, WINDOW, WORKER, join_and_leave

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]


def test_eight_harvesters_join_and_leave(scene):
    scene.write(rate=1000, keys=500)
    scene.write(rate=1000, keys=500)
    join_and_leave(scene, members=8, seconds=240, pause_s=2)
    scene.settle(240).assert_kept(repeats_max=0)


def test_killed_again_and_again(scene, pytestconfig):
    """For four minutes; with `--seed N` for one, as CI runs it."""
    given = pytestconfig.getoption("--seed")
    chance, seconds = random.Random(given or 2), 240 if given is None else 60
    scene.write(rate=1000, keys=500)  # of each key one record is undecided: few keys would be slow to drain
    kills = 0
    names = sorted(WORKER - ENDING - {"after-take"})
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        name = chance.choice(names)
        victim = scene.fleet.start(failpoints=f"{name}=kill@{chance.randint(1, 20)}", **LIMITS)
        wait_until(lambda victim=victim: not victim.is_running, 90, f"killed at {name}")
        kills += 1
    scene.fleet.start(**LIMITS)
    scene.settle(240).assert_kept(repeats_max=kills * WINDOW)


def test_kafka_is_stopped_for_a_minute(fragile):
    fragile.write(rate=500)
    fragile.fleet.start(**LIMITS)
    fragile.fleet.start(**LIMITS)
    fragile.wait_delivered()
    fragile.kafka.stop()
    time.sleep(60)
    fragile.kafka.start()
    fragile.wait_delivered(timeout_s=120)
    fragile.settle(240).assert_kept(repeats_max=10 * WINDOW)


def test_paused_again_and_again(scene):
    scene.write(rate=1000, keys=500)
    members = [scene.fleet.start(**LIMITS) for _ in range(3)]
    for turn in range(12):
        scene.wait_delivered(timeout_s=60)
        victim = members[turn % 3]
        victim.send(signal.SIGSTOP)
        time.sleep(9)
        victim.send(signal.SIGCONT)
    scene.settle(240).assert_kept(regressions_max=12 * WINDOW)


def test_postgres_is_killed_again_and_again(fragile):
    fragile.write(rate=1000)
    fragile.fleet.start(**LIMITS)
    for _ in range(10):
        fragile.wait_delivered(timeout_s=60)
        fragile.postgres.kill()
        time.sleep(2)
        fragile.postgres.start()
    fragile.settle(240).assert_kept(repeats_max=10 * WINDOW)
