"""The faults that the long runs and their short forms inject into exactly-once harvesters. Each act runs on one scene
and ends with the judge: nothing lost, nothing invented, nothing twice, every key in order."""

import signal
import time
from contextlib import contextmanager
from itertools import pairwise

import psycopg

from tests.faults.fleet import wait_until
from tests.support.checker import Log
from tests.support.topics import read_topic

CROWNED = "tests.faults.exactly_once.crowned"
WORKER = (
    *("after-init", "before-settle", "before-send", "after-send", "after-ack"),
    *("before-commit", "after-commit", "before-purge", "after-purge"),
)
CAREFUL = ("careful",)  # reached in the first batches after an owner that ended without a clean release
LANES = (
    "lanes-grown",
    "lanes-closed",
    "lane-settled",
    "change-marked",
    "lanes-opened",
)  # of a change of the lane count
MEMBER = ("assigned", "acquired", "revoking", "before-leave")
POINTS = (*WORKER, *CAREFUL, *LANES, *MEMBER)
ENDING = {"revoking", "before-leave"}  # reached by a harvester that stops
ONCE = {"after-init", "before-settle", "assigned", "acquired", *CAREFUL, *LANES}  # reached once by one that continues
AFTER_A_CRASH = {"before-settle": "after-commit", "careful": "before-send"}  # and the fault must have happened there
LANES_WANTED = 3


def armed(point, action, nth=3):
    return f"{point}={action}" + ("" if point in ENDING | ONCE else f"@{nth}")


def settle(scene, timeout_s=90):
    """Stop the writers, wait until the backlog is empty, return the judge's result."""
    scene.settle(timeout_s).assert_kept(repeats_max=0)


def arrange(scene, point):
    """Bring about the state in which a harvester can reach the point."""
    if point in AFTER_A_CRASH:
        victim = scene.fleet.start(failpoints=f"{AFTER_A_CRASH[point]}=kill@2")
        assert victim.wait(60) == -signal.SIGKILL


def reach(scene, member, point):
    """Bring it to a point that only an ending harvester passes, or one that changes the lane count."""
    if point in ENDING:
        scene.wait_delivered(50, timeout_s=60)
        member.send(signal.SIGTERM)
    if point in LANES:
        scene.wait_delivered(50, timeout_s=60)
        scene.query(f"UPDATE outbox_state SET lanes_wanted = {LANES_WANTED} RETURNING lanes_wanted")


def conclude(scene, point):
    """The point from which its successor must have continued."""
    if point in LANES:
        counts = "SELECT (lanes, lanes_wanted, resize_to)::text FROM outbox_state"
        wait_until(lambda: scene.query(counts) == f"({LANES_WANTED},,)", 60, "the lane count is changed")


def kill_at(point, nth=3):
    def act(scene):
        scene.write(rate=300)
        arrange(scene, point)
        victim = scene.fleet.start(failpoints=armed(point, "kill", nth))
        reach(scene, victim, point)
        assert victim.wait(60) == -signal.SIGKILL, scene.fleet.logs()[-3000:]
        scene.fleet.start()
        conclude(scene, point)
        settle(scene)

    return act


def stop_at(point, nth=3):
    """Paused for longer than its session lasts. A successor takes over and continues; then the first one wakes up."""

    def act(scene):
        scene.write(rate=300)
        arrange(scene, point)
        first = scene.fleet.start(failpoints=armed(point, "stop", nth))
        reach(scene, first, point)
        wait_until(lambda: first.is_paused, 60, lambda: f"it pauses at {point}\n{scene.fleet.logs()[-3000:]}")
        scene.fleet.start()
        conclude(scene, point)
        scene.wait_delivered(300, timeout_s=60)
        first.send(signal.SIGCONT)
        scene.wait_delivered(500, timeout_s=60)
        settle(scene)

    return act


def believe_they_lead(count, rate=300):
    """No election: each of them believes that it owns the lane. Each is killed in turn, and starts again."""

    def act(scene, turns=1):
        scene.write(rate=rate)
        scene.write(rate=rate)
        members = [scene.fleet.start(program=CROWNED) for _ in range(count)]
        for turn in range(turns):
            scene.wait_delivered(300, timeout_s=90)
            members[turn % count].kill()
            members[turn % count] = scene.fleet.start(program=CROWNED)
        wait_until(lambda: all(member.says("lane_taken") for member in members), 60, "each owns the lane for a while")
        settle(scene)

    return act


def fall_one_by_one(scene, seconds=4):
    """Sessions of PostgreSQL end twice a second, while a transaction older than all its neighbours stays open."""
    with late_transaction(scene):
        scene.write(rate=300)
        scene.fleet.start()
        scene.wait_delivered(50, timeout_s=60)
        give_up_at = time.monotonic() + seconds
        while time.monotonic() < give_up_at:
            terminate(scene.url)
            time.sleep(0.5)
    settle(scene)


def terminate(url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'outbox %'"
        )


@contextmanager
def late_transaction(scene, keys=7):
    """Ids lower than those of its neighbours, visible only when all of those are delivered: at the end of the block."""
    log = Log()
    with psycopg.connect(scene.url) as connection:
        for number in range(keys * 3):
            entry = (f"late-{id(log)}-{number % keys}", number)
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                [scene.topic, entry[0], str(entry[1])],
            )
            log.committed.append(entry)
        yield
        connection.commit()
    scene.logs.append(log)


def join_and_leave(scene, chance, *, members, seconds, pause_s):
    """The lanes move with every harvester that comes or goes."""
    scene.write(rate=500)
    scene.write(rate=500)
    present = []
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        if len(present) < members and (len(present) < 2 or chance.random() < 0.6):
            present.append(scene.fleet.start(LANES=6))
        else:
            assert present.pop(chance.randrange(len(present))).stop(60) == 0
        time.sleep(pause_s)
    scene.wait_delivered(timeout_s=90)
    settle(scene, 120)


def roll(scene, turns):
    """A rolling restart by SIGTERM under load. No reader sees a repeat, not even one that reads uncommitted records,
    and the pause is short."""
    scene.write(rate=1000)
    older = scene.fleet.start()
    scene.wait_delivered(timeout_s=60)
    begun = time.time()
    for _ in range(turns):
        newer = scene.fleet.start()
        wait_until(lambda newer=newer: newer.says("partitions_assigned"), 60, "it stands by")
        assert older.stop() == 0
        scene.wait_delivered(timeout_s=60)
        older = newer
    ended = time.time()
    settle(scene)
    received = read_topic(scene.servers, scene.topic, committed=False)
    assert len({(record.key, record.value) for record in received}) == len(received)
    times = sorted(record.time_s for record in received if begun < record.time_s < ended)
    pause_s = max(after - before for before, after in pairwise(times))
    print(f"{turns} restarts, {len(received)} records, longest pause {pause_s:.3f} s (promised: less than 1)")
    assert pause_s < 3, "three times the promised second"


def lose_the_servers(scene, turns=1):
    """Each is killed while it is in use: the broker in the middle of a commit, PostgreSQL at the same time."""
    scene.write(rate=300)
    scene.fleet.start()
    for _ in range(turns):
        scene.wait_delivered(timeout_s=90)
        scene.postgres.kill()
        scene.postgres.start()
        scene.wait_delivered(timeout_s=90)
        scene.kafka.kill()
        scene.kafka.start()
    scene.wait_delivered(timeout_s=90)
    settle(scene, 120)
