"""A newcomer pauses only the lanes that move to it: the others keep their owner and go on sending.

Harvesters, writers and the test share one interpreter here: their heartbeats may be late, and none may be fenced."""

import pytest

from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.exactly_once.test_harvester import harvester

# The waits inside of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)

PATIENT = {"LANES": 4, "HEARTBEAT_TIMEOUT": 12, "SESSION_TIMEOUT": 36}


@pytest.fixture
def moved(bench, request):
    """What the first owner says of its lanes before and after another one joined, and every ledger entry."""

    def move(**settings):
        with bench.writing(keys=40), harvester(bench, **PATIENT, **settings) as first:
            wait_until(lambda: len(_delivering(first)) == 4, 60)
            before = dict(first.leader_ids)
            with harvester(bench, **PATIENT, **settings) as second:
                wait_until(lambda: len(_delivering(second)) == 2 and len(first.leader_ids) == 2, 60)
                sent = {lane: found.delivered for lane, found in first.statistics.items()}
                wait_until(lambda: all(first.statistics[lane].delivered > sent[lane] for lane in sent), 60)
                stayed = {lane: (first.leader_ids[lane], first.statistics[lane].takeovers) for lane in sent}
        with harvester(bench, **PATIENT, **settings):
            bench.wait_empty(60)
        bench.check()
        return before, stayed, bench.entries()

    return move


def _delivering(harvester):
    return [lane for lane, found in harvester.statistics.items() if found.delivered]


def test_lanes_that_stay_are_neither_given_back_nor_taken_over(moved):
    before, stayed, entries = moved()
    assert stayed == {lane: (before[lane], 1) for lane in stayed}
    movers = before.keys() - stayed.keys()
    for mover in movers:
        left = max(entry.read_at for entry in entries if entry.owner == before[mover])
        arrived = min(entry.read_at for entry in entries if entry.lane == mover and entry.read_at > left)
        for lane in stayed:
            assert any(left < entry.read_at < arrived for entry in entries if entry.lane == lane), (left, arrived)


def test_under_the_eager_protocol_every_lane_stops(moved):
    """The control: the assignor of goharvest-compatible harvesters takes everything away first."""
    before, stayed, _ = moved(ASSIGNOR="range")
    assert all(leader_id != before[lane] for lane, (leader_id, _) in stayed.items())
