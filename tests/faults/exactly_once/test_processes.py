"""`manage.py harvest` with exactly-once delivery: killed, paused, crowned, cut off and replaced under load.

The acts wait for sessions to expire, so they run at the same time, each on a table, topic and group of its own. Only a
few run at once, else a slow machine stops for longer than an act waits. The long forms are in `test_torture.py`.
"""

import re
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from outbox.failpoints import FAILPOINTS
from tests.faults.exactly_once.acts import (
    CAREFUL,
    LANES,
    MEMBER,
    WORKER,
    believe_they_lead,
    fall_one_by_one,
    join_and_leave,
    kill_at,
    lose_the_servers,
    roll,
    stop_at,
)
from tests.support.databases import ROOT

SIDE_BY_SIDE = 3
PLAYED_S = 400  # all of them, on a slow machine

ACTS = {
    "killed at acquired": kill_at("acquired"),
    "killed at careful": kill_at("careful"),
    "stopped at careful": stop_at("careful"),
    "stopped at lane-settled": stop_at("lane-settled"),
    "stopped at before-commit": stop_at("before-commit"),
    "stopped at before-purge": stop_at("before-purge"),
    "three that believe they lead": believe_they_lead(3),
    "sessions that end": fall_one_by_one,
}


def test_every_failpoint_of_the_worker_is_an_act():
    paths = (ROOT / "outbox" / "harvest" / "exactly_once").rglob("*.py")
    source = "".join(path.read_text() for path in paths if path.name != "resolve.py")
    assert set(re.findall(r'failpoint\("([a-z-]+)"\)', source)) == {*WORKER, *CAREFUL, *LANES}
    assert set(FAILPOINTS) >= {*WORKER, *CAREFUL, *LANES, *MEMBER}


@pytest.fixture(scope="module")
def outcomes(exact_scenes, fragile_exact_scenes):
    """All acts, in their order, a few at a time."""

    def run(act, scene):
        with scene as opened:
            act(opened)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        servers = pool.submit(run, lose_the_servers, fragile_exact_scenes("3.9"))  # the longest first
        begun = {name: pool.submit(run, act, exact_scenes()) for name, act in ACTS.items()}
        yield {**begun, "servers of 3.9": servers}


@pytest.mark.slow
@pytest.mark.timeout(PLAYED_S + 20)
@pytest.mark.parametrize("name", [*ACTS, "servers of 3.9"])
def test_every_record_arrives_exactly_once(outcomes, name):
    outcomes[name].result(PLAYED_S)


@pytest.fixture
def quiet(outcomes):
    """No act is running any more."""
    wait(outcomes.values(), timeout=PLAYED_S)


@pytest.mark.timeout(PLAYED_S + 300)
@pytest.mark.usefixtures("quiet")
def test_a_rolling_restart_repeats_nothing_for_any_reader_and_hardly_pauses(exact):
    roll(exact, 2)


@pytest.mark.timeout(PLAYED_S + 300)
@pytest.mark.usefixtures("quiet")
def test_six_lanes_move_with_every_harvester_that_comes_or_goes(exact, chance):
    join_and_leave(exact, chance, members=3, seconds=4, pause_s=1)
