"""At-least-once harvesters as processes that are killed, paused, cut off and replaced while writers go on.

The short forms run with every test run; the long ones under the marker `torture`.
"""

import random
import signal
import time

import pytest

from outbox.failpoints import FAILPOINTS
from tests.faults.fleet import wait_until

WINDOW = 300
LIMITS = {"IN_FLIGHT_MAX": WINDOW, "MARK_MAX": 100, "FLUSH_TIMEOUT": 4}
# Reached only by `harvest --once` of one process, or only when a lane ends.
ENDING = ["before-reset"]
PASSING = [name for name in FAILPOINTS if name not in ENDING]


def test_a_rolling_restart_without_faults_repeats_nothing(scene):
    scene.write(rate=1000)
    older = scene.fleet.start(**LIMITS)
    scene.wait_delivered()
    for _ in range(3):
        newer = scene.fleet.start(**LIMITS)
        time.sleep(random.uniform(0.5, 1.5))
        assert older.stop() == 0
        scene.wait_delivered()
        older = newer
    scene.settle().assert_kept(repeats_max=0)


@pytest.mark.parametrize("name", PASSING)
def test_killed_at_a_failpoint_loses_and_turns_back_nothing(scene, name):
    scene.write(rate=1000)
    victim = scene.fleet.start(failpoints=f"{name}=kill@3" if name != "after-claim" else f"{name}=kill", **LIMITS)
    assert victim.wait(40) == -signal.SIGKILL
    scene.fleet.start(**LIMITS)
    scene.settle().assert_kept(repeats_max=WINDOW)


@pytest.mark.parametrize("name", ENDING)
def test_killed_while_it_ends(scene, name):
    scene.write(rate=3000, keys=2)
    victim = scene.fleet.start(failpoints=f"{name}=kill", **LIMITS)
    scene.wait_delivered()
    victim.send(signal.SIGTERM)
    assert victim.wait(40) == -signal.SIGKILL
    scene.fleet.start(**LIMITS)
    scene.settle().assert_kept(repeats_max=WINDOW)


def test_paused_beyond_its_session_it_loses_nothing(scene):
    """What it had handed to its client before may still arrive: counted, at most the window."""
    scene.write(rate=1000)
    first = scene.fleet.start(**LIMITS)
    scene.wait_delivered()
    scene.fleet.start(**LIMITS)
    first.send(signal.SIGSTOP)
    scene.wait_delivered(timeout_s=40)
    first.send(signal.SIGCONT)
    scene.wait_delivered()
    scene.settle().assert_kept(regressions_max=WINDOW)


def test_postgres_restarts_while_records_flow(fragile):
    fragile.write(rate=1000)
    fragile.fleet.start(**LIMITS)
    fragile.wait_delivered()
    fragile.postgres.restart()
    fragile.wait_delivered()
    fragile.settle().assert_kept(repeats_max=WINDOW)


def test_backends_are_cut_between_commit_and_reply(fragile):
    fragile.write(rate=1000)
    fragile.fleet.start(**LIMITS)
    fragile.wait_delivered()
    for _ in range(5):
        fragile.proxy.hold("to client")
        time.sleep(random.uniform(0.05, 0.2))
        fragile.proxy.cut()
        fragile.proxy.heal()
        fragile.wait_delivered()
    fragile.settle().assert_kept(repeats_max=5 * WINDOW)


def test_kafka_restarts_while_records_flow(fragile):
    fragile.write(rate=1000)
    fragile.fleet.start(**LIMITS)
    fragile.wait_delivered()
    fragile.kafka.restart()
    fragile.wait_delivered(timeout_s=60)
    fragile.settle().assert_kept(repeats_max=2 * WINDOW, regressions_max=0)


def test_stop_is_bounded_and_a_successor_leads_while_postgres_is_down(fragile):
    fragile.write(rate=1000)
    first = fragile.fleet.start(**LIMITS)
    fragile.wait_delivered()
    fragile.proxy.refuse()
    fragile.proxy.cut()
    second = fragile.fleet.start(**LIMITS)
    time.sleep(1)
    begun = time.monotonic()
    first.stop(20)
    assert time.monotonic() - begun < 12
    fragile.proxy.heal()
    fragile.wait_delivered()
    assert second.is_running
    fragile.settle().assert_kept(repeats_max=WINDOW)


def test_harvesters_join_and_leave(scene):
    scene.write(rate=1000)
    _join_and_leave(scene, members=3, seconds=8, pause_s=1.5)
    scene.settle().assert_kept(repeats_max=0)


def _join_and_leave(scene, *, members, seconds, pause_s):
    seed = random.Random(1)
    present = []
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        if len(present) < members and (len(present) < 2 or seed.random() < 0.6):
            present.append(scene.fleet.start(**LIMITS))
        else:
            assert present.pop(seed.randrange(len(present))).stop(30) == 0
        time.sleep(pause_s)
    scene.wait_delivered(timeout_s=60)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_torture_eight_harvesters_join_and_leave(scene):
    scene.write(rate=2000)
    scene.write(rate=2000)
    _join_and_leave(scene, members=8, seconds=240, pause_s=2)
    scene.settle(120).assert_kept(repeats_max=0)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_torture_killed_again_and_again(scene):
    seed = random.Random(2)
    scene.write(rate=3000)
    kills = 0
    give_up_at = time.monotonic() + 240
    while time.monotonic() < give_up_at:
        name = seed.choice(PASSING)
        victim = scene.fleet.start(failpoints=f"{name}=kill@{seed.randint(1, 20)}", **LIMITS)
        wait_until(lambda victim=victim: not victim.is_running, 60, f"killed at {name}")
        kills += 1
    scene.fleet.start(**LIMITS)
    scene.settle(120).assert_kept(repeats_max=kills * WINDOW)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_torture_kafka_is_stopped_for_a_minute(fragile):
    fragile.write(rate=500)
    fragile.fleet.start(**LIMITS)
    fragile.fleet.start(**LIMITS)
    fragile.wait_delivered()
    fragile.kafka.stop()
    time.sleep(60)
    fragile.kafka.start()
    fragile.wait_delivered(timeout_s=120)
    fragile.settle(120).assert_kept(repeats_max=10 * WINDOW)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_torture_paused_again_and_again(scene):
    scene.write(rate=2000)
    members = [scene.fleet.start(**LIMITS) for _ in range(3)]
    for turn in range(12):
        scene.wait_delivered(timeout_s=60)
        victim = members[turn % 3]
        victim.send(signal.SIGSTOP)
        time.sleep(9)
        victim.send(signal.SIGCONT)
    scene.settle(120).assert_kept(regressions_max=12 * WINDOW)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_torture_postgres_is_killed_again_and_again(fragile):
    fragile.write(rate=1000)
    fragile.fleet.start(**LIMITS)
    for _ in range(10):
        fragile.wait_delivered(timeout_s=60)
        fragile.postgres.kill()
        time.sleep(2)
        fragile.postgres.start()
    fragile.settle(120).assert_kept(repeats_max=10 * WINDOW)
