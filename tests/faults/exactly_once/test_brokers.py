"""Three brokers, each of which may be missing: leaders change, two copies must acknowledge, and no lane is taken over
without need."""

import subprocess
import sys

import pytest

from tests.faults.exactly_once.acts import believe_they_lead, kill_at, late_transaction, settle, stop_at
from tests.faults.fleet import wait_until
from tests.support.databases import ROOT


def renewals(member):
    """A limit that is not for takeovers: on a busy machine the election may need one of those."""
    return member.says("producer_renewed")


def lose_brokers(scene, turns):
    """Each broker is lost in turn, with all that it leads: partitions of the topic, the ledger, the lane's
    transactions."""
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
    """The client logs a failure each time it tries the missing broker (`FAIL ... in state CONNECT`). A lane that
    counted this as an error would renew its producer, which tries that broker too, and so on for ever."""

    def is_calm():
        before = renewals(member)
        scene.wait_delivered(300, timeout_s=90)
        return renewals(member) == before

    wait_until(is_calm, 90, "the lane goes on with the producer that it has")
    for _ in range(2):
        assert is_calm(), scene.fleet.logs()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_broker_of_three_is_lost_in_the_middle_of_commits(fragile_exact_scenes):
    with fragile_exact_scenes(brokers=3) as scene:
        lose_brokers(scene, 1)


ASK = """
import sys, time
from confluent_kafka.admin import AdminClient
from outbox.edges.kafka.common.clients import brokers_at_work
admin, seen = AdminClient({"bootstrap.servers": sys.argv[1]}), set()
give_up_at = time.monotonic() + 30
while len(seen) < 2 and time.monotonic() < give_up_at:
    try:
        seen.add(str(brokers_at_work(admin, 5).result(10)))
    except Exception as error:
        seen.add(error.args[0].name())
    time.sleep(0.02)
print(sorted(seen))
"""


def test_a_moment_without_any_broker_is_an_outage(kafka_factory):
    """Brokers that answer although their controller misses them, as on a machine that is too busy, or at their start.
    The client's other request for brokers aborts the process then, so the harvester has one of its own."""
    late = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "3000"}
    asked = [sys.executable, "-c", ASK, kafka_factory(properties=late).bootstrap_servers]
    answered = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert answered.stdout == "['[1]', '_ALL_BROKERS_DOWN']\n"


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
