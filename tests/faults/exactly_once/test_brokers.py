"""Three brokers of which each may be missing: leaders change, two copies must acknowledge, and nothing is taken over
without need."""

import pytest

from tests.faults.exactly_once.acts import believe_they_lead, kill_at, late_transaction, settle, stop_at
from tests.faults.fleet import wait_until


def takeovers(member):
    return member.says("lane_taken")


def lose_brokers(scene, turns):
    """Each in turn, and with it whatever it led: partitions of the topic, the ledger, the lane's transactions."""
    scene.write(rate=300)
    member = scene.fleet.start()
    scene.wait_delivered(timeout_s=60)
    for turn in range(turns):
        broker = scene.kafka.brokers[turn % 3]
        broker.kill()
        scene.wait_delivered(300, timeout_s=90)
        if turn == 0:
            goes_on_without_it(scene, member)
        broker.start()
    scene.wait_delivered(timeout_s=90)
    settle(scene, 120)


def goes_on_without_it(scene, member):
    """The client logs a failure whenever it tries the missing broker (`FAIL ... in state CONNECT`). A lane that took
    this for trouble would renew its producer, which tries that broker too, and so on for ever."""

    def is_calm():
        before = takeovers(member)
        scene.wait_delivered(300, timeout_s=90)
        return takeovers(member) == before

    wait_until(is_calm, 90, "the lane goes on without being taken over")
    for _ in range(2):
        assert is_calm(), scene.fleet.logs()[-3000:]


@pytest.mark.timeout(300)
def test_a_broker_of_three_is_lost_in_the_middle_of_commits(fragile_exact_scenes):
    with fragile_exact_scenes(brokers=3) as scene:
        lose_brokers(scene, 1)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("line", ["4.1", "3.9"])
def test_brokers_of_three_are_lost_again_and_again(fragile_exact_scenes, line):
    with fragile_exact_scenes(line, brokers=3) as scene:
        with late_transaction(scene):
            lose_brokers(scene, 9)
        settle(scene)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("line", ["4.1", "3.9"])
def test_harvesters_are_lost_beside_three_brokers(fragile_exact_scenes, line):
    for act in (kill_at("before-commit"), stop_at("before-commit"), believe_they_lead(3)):
        with fragile_exact_scenes(line, brokers=3) as scene:
            act(scene)
