"""At-least-once harvesters as processes that are killed, paused, cut off and replaced while writers continue.

Most acts wait for a session to expire, so they run at the same time, each on a table, topic and group of its own. Each
has a test that reports its outcome. A scene in which nothing may be repeated has the machine for itself.
"""

import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from outbox.devstack.wire import cluster
from outbox.failpoints import FAILPOINTS
from tests.faults.fleet import wait_until
from tests.support.databases import ROOT

pytestmark = pytest.mark.slow

WINDOW = 300
LIMITS = {"IN_FLIGHT_MAX": WINDOW, "MARK_MAX": 100, "FLUSH_TIMEOUT": 4}
# Where nothing may be repeated, a machine that stands still for seconds must not look like a dead leader.
PATIENT = {**LIMITS, "HEARTBEAT_TIMEOUT": 8, "SESSION_TIMEOUT": 24}
SIDE_BY_SIDE = 5  # writers and proxies are threads of this process: more of them would wait for one another
BOTH_MODES = {"assigned", "acquired", "revoking", "before-leave"}
WORKER = {
    *("after-take", "after-mark", "before-send", "after-send", "after-ack"),
    *("before-purge", "after-purge", "before-reset"),
}
ENDING = {"before-reset", "revoking", "before-leave"}  # reached by a harvester that stops
ONCE = {"after-take", "assigned", "acquired"}  # reached once by a harvester that continues


def kill_at(name, nth=3, rate=100):
    """The victim dies at the failpoint, a successor delivers the rest."""

    def act(scene):
        scene.write(rate=rate)
        when = "" if name in ENDING | ONCE else f"@{nth}"
        victim = scene.fleet.start(failpoints=f"{name}=kill{when}", **LIMITS)
        if name in ENDING:
            scene.wait_delivered(50, timeout_s=60)
            if name == "before-reset":  # the harvester gives records back only if it has marked more than it has sent
                hot = scene.write(rate=2000, keys=1)
                wait_until(lambda: scene.backlog() > 150, 60, "a key waits for itself")
                hot.stop()
            victim.send(signal.SIGTERM)
        assert victim.wait(60) == -signal.SIGKILL, scene.fleet.logs()[-3000:]
        scene.fleet.start(**LIMITS)
        scene.settle(90).assert_kept(repeats_max=WINDOW)

    return act


def pause(scene):
    """Records that it had handed to its client before may still arrive: they are counted, at most the window."""
    scene.write(rate=150)
    first = scene.fleet.start(**LIMITS)
    scene.wait_delivered(timeout_s=60)
    scene.fleet.start(**LIMITS)
    first.send(signal.SIGSTOP)
    scene.wait_delivered(timeout_s=60)
    first.send(signal.SIGCONT)
    scene.wait_delivered(timeout_s=60)
    scene.settle(90).assert_kept(regressions_max=WINDOW)


def cut_between_commit_and_reply(scene):
    scene.write(rate=150)
    scene.fleet.start(**LIMITS)
    scene.wait_delivered(timeout_s=60)
    for _ in range(5):
        scene.proxy.hold("to client")
        time.sleep(random.uniform(0.05, 0.2))
        scene.proxy.cut()
        scene.proxy.heal()
        scene.wait_delivered(100, timeout_s=60)
    scene.settle(90).assert_kept(repeats_max=5 * WINDOW)


def stop_while_postgres_is_down(scene):
    """It ends in bounded time, gives its lane back, and the successor works as soon as it can."""
    scene.write(rate=150)
    first = scene.fleet.start(**LIMITS)
    scene.wait_delivered(timeout_s=60)
    second = scene.fleet.start(**LIMITS)
    scene.proxy.refuse()
    scene.proxy.cut()
    time.sleep(1)
    begun = time.monotonic()
    first.stop(30)
    assert time.monotonic() - begun < LIMITS["FLUSH_TIMEOUT"] + 15
    scene.proxy.heal()
    scene.wait_delivered(timeout_s=60)
    assert second.is_running
    scene.settle(90).assert_kept(repeats_max=WINDOW)


def restart_both_servers(scene):
    scene.write(rate=150)
    scene.fleet.start(**LIMITS)
    scene.wait_delivered(timeout_s=60)
    scene.postgres.restart()
    scene.wait_delivered(timeout_s=60)
    scene.kafka.restart()
    try:
        scene.wait_delivered(timeout_s=150)
    except AssertionError:
        print("brokers that answer:", cluster(*scene.kafka.bootstrap_servers.split(":")))
        scene.fleet.members[0].where()
        raise
    scene.settle(90).assert_kept(repeats_max=3 * WINDOW)


ACTS = {f"killed at {name}": kill_at(name) for name in sorted(WORKER | BOTH_MODES)}
ACTS |= {act.__name__: act for act in (pause, cut_between_commit_and_reply, stop_while_postgres_is_down)}


def test_every_failpoint_of_the_worker_is_an_act():
    paths = (ROOT / "outbox" / "harvest" / "at_least_once").rglob("*.py")
    source = "".join(path.read_text() for path in paths)
    assert set(re.findall(r'failpoint\("([a-z-]+)"\)', source)) == WORKER
    assert set(FAILPOINTS) >= WORKER | BOTH_MODES


@pytest.fixture(scope="module")
def outcomes(scenes):
    """All acts, started together."""

    def run(act, opener):
        with opener() as scene:
            act(scene)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        begun = {name: pool.submit(run, act, scenes) for name, act in ACTS.items()}
        yield begun


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ACTS)
def test_nothing_is_lost_invented_or_turned_back(outcomes, name):
    outcomes[name].result(230)


@pytest.fixture
def quiet(outcomes):
    """No act is running any more."""
    wait(outcomes.values(), timeout=230)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quiet")
def test_a_rolling_restart_without_faults_repeats_nothing(scene):
    scene.write(rate=300)
    older = scene.fleet.start(**PATIENT)
    scene.wait_delivered()
    for _ in range(2):
        newer = scene.fleet.start(**PATIENT)
        time.sleep(random.uniform(0.5, 1.5))
        assert older.stop() == 0
        scene.wait_delivered()
        older = newer
    scene.settle().assert_kept(repeats_max=0)


def join_and_leave(scene, *, members, seconds, pause_s):
    seed = random.Random(1)
    present = []
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        if len(present) < members and (len(present) < 2 or seed.random() < 0.6):
            present.append(scene.fleet.start(**PATIENT))
        else:
            assert present.pop(seed.randrange(len(present))).stop(30) == 0
        time.sleep(pause_s)
    scene.wait_delivered(timeout_s=60)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quiet")
def test_harvesters_that_join_and_leave_repeat_nothing(scene):
    scene.write(rate=300)
    join_and_leave(scene, members=3, seconds=6, pause_s=1.5)
    scene.settle().assert_kept(repeats_max=0)


@pytest.mark.torture
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("quiet")
def test_restarted_servers_lose_and_turn_back_nothing(fragile_scenes):
    with fragile_scenes() as scene:
        restart_both_servers(scene)
