"""Real members on a real Kafka. What one member decides is tested in tests/core/election/test_neli.py."""

import threading
import time
import uuid
from contextlib import closing
from statistics import median

import pytest
from confluent_kafka import Producer

from outbox.core.election import neli
from outbox.devstack import Kafka
from outbox.election.clients import Clients
from outbox.election.errors import ElectionRefused
from outbox.election.member import Member
from outbox.election.topic import LeaderTopic
from tests.election.conftest import wait_until
from tests.support.settings import changed

# Whoever leaves the group without a word is missed after 20 s: who does not wait for that takes less.
SESSION, SOON_S = {"SESSION_TIMEOUT": 20}, 12.0


@pytest.fixture(scope="module")
def own_kafka(own_servers, pytestconfig):
    """A broker of these tests that knows shorter sessions than others do."""
    with Kafka(pytestconfig.getoption("kafka_version"), properties={"group.min.session.timeout.ms": "1000"}) as kafka:
        yield kafka


@pytest.fixture
def breakable(own_kafka):
    """The broker of these tests, to pause and to kill."""
    if not own_kafka.is_running:  # a test before this one has killed it
        own_kafka.start()
    return own_kafka


def say(group, *payloads, partition=0):
    producer = Producer({"bootstrap.servers": group.conf.kafka.bootstrap_servers})
    for payload in payloads:
        producer.produce(group.conf.election.leader_topic, payload, partition=partition)
    assert producer.flush(10) == 0


def test_one_member_leads_and_gives_back(group):
    only = group().join().leads(0)
    only.leave()
    kinds = [type(effect) for _, effect in only.effects]
    assert kinds == [neli.LeaderAcquired, neli.FinishBatch, neli.LeaderRevoked]
    assert not only.errors


def test_of_four_members_exactly_one_leads_until_the_last_has_left(group):
    crowd = group()
    for _ in range(4):
        crowd.join()
    while left := [m for m in crowd.members if m.member.join(0) is False]:
        leader = crowd.leader()
        assert leader in left
        leader.leave()
    assert {count for kind, _, count in crowd.journal if kind == "LeaderAcquired"} == {1}
    assert {count for kind, _, count in crowd.journal if kind in ("LeaderRevoked", "LeaderFenced")} == {0}
    assert len({e.leader_id for m in crowd.members for e in m.of(neli.LeaderAcquired)}) == 4


def test_a_successor_leads_within_a_second_of_an_orderly_end(group):
    pair = group(**SESSION)
    first, second = pair.join().leads(0), pair.join()
    pair.wait_members(2)
    began = time.monotonic()
    first.leave()
    second.leads(0)
    assert second.at(neli.LeaderAcquired)[0] - began < SOON_S


def test_the_same_name_joins_again_without_waiting_for_its_ghost(group):
    alone = group(**SESSION)
    alone.join().leads(0).leave()
    began = time.monotonic()
    alone.join().leads(0)
    assert time.monotonic() - began < SOON_S


def test_a_newcomer_pauses_only_the_lanes_that_move(group):
    shared = group(LANES=2, HEARTBEAT_TIMEOUT=1)
    # Giving back takes longer than the heartbeat time-out: the lane that stays must go on being read meanwhile.
    first = shared.join(keep_s=1.5).leads(0, 1)
    second = shared.join()
    wait_until(lambda: second.lanes)
    (moved,) = second.lanes
    stayed = 1 - moved
    assert first.lanes == [stayed]
    assert [type(e) for e in first.of(object, stayed)] == [neli.LeaderAcquired]
    assert [type(e) for e in first.of(object, moved)][1:] == [neli.FinishBatch, neli.LeaderRevoked]
    assert second.at(neli.LeaderAcquired)[0] > first.at(neli.LeaderRevoked)[0]


def test_the_classic_assignor_shares_lanes_too(group):
    shared = group(LANES=2, ASSIGNOR="range")
    first = shared.join().leads(0, 1)
    second = shared.join()
    wait_until(lambda: len(first.lanes) == len(second.lanes) == 1)
    first.leave()
    second.leads(0, 1)
    assert {count for kind, _, count in shared.journal if kind == "LeaderAcquired"} == {1}


def test_a_rebalance_waits_for_the_batch_in_hand_but_not_for_ever(group):
    pair = group(ASSIGNOR="range", FLUSH_TIMEOUT=1)
    slow = pair.join(keep_s=60).leads(0)
    began = time.monotonic()
    pair.join()
    wait_until(lambda: slow.of(neli.LeaderRevoked))
    kinds = [type(effect) for _, effect in slow.effects]
    assert kinds[:4] == [neli.LeaderAcquired, neli.FinishBatch, neli.AbandonBatch, neli.LeaderRevoked]
    assert time.monotonic() - began > 1
    pair.leader()


def test_more_members_than_lanes_stand_by(group):
    pair = group()
    first, second = pair.join().leads(0), pair.join()
    pair.wait_members(2)
    time.sleep(1)  # nothing may happen
    assert first.lanes == [0]
    assert second.effects == []


def test_what_is_no_heartbeat_is_ignored_with_a_warning(group, caplog):
    """A stray producer, a tombstone, and a release to come."""
    alone = group()
    only = alone.join().leads(0)
    say(alone, b'{"order": 1}', None, b"outbox2 a release to come", b"outbox1 broken")
    wait_until(lambda: "heartbeat_unknown" in caplog.text, what="the warning")
    time.sleep(2 * alone.conf.election.heartbeat_timeout_s)  # it is still read
    assert only.lanes == [0]
    assert not only.errors
    assert [type(effect) for _, effect in only.effects] == [neli.LeaderAcquired]
    assert caplog.text.count("heartbeat_unknown") == 1
    assert "LEADER_TOPIC" in caplog.text


def test_a_member_of_another_database_gives_way_with_both_numbers(group, caplog):
    """It joined before it could know: the members of an older release do not tell, or both began at once."""
    ours, theirs = uuid.UUID(int=1), uuid.UUID(int=2)
    pair = group()
    first = pair.join(database=ours).leads(0)
    second = pair.join(database=theirs)
    wait_until(lambda: second.errors, what="the refusal")
    assert isinstance(second.errors[0], ElectionRefused)
    for text in (str(ours), str(theirs), "m0", "NAME"):
        assert text in str(second.errors[0])
    assert first.lanes == [0]
    assert not first.errors


def test_a_group_of_another_database_is_not_even_joined(group):
    ours, theirs = uuid.UUID(int=1), uuid.UUID(int=2)
    taken = group(HEARTBEAT_TIMEOUT=1, LANES=2)
    first = taken.join(database=ours).leads(0, 1)

    def look(database):
        with closing(LeaderTopic(Clients(taken.conf), taken.conf, threading.Event())) as topic:
            return topic.look_for_others(topic.prepare(), database)

    assert look(ours)
    with pytest.raises(ElectionRefused, match="NAME") as refused:
        look(theirs)
    assert str(ours) in str(refused.value)
    first.leave()
    assert look(theirs)  # what they have left behind says nothing


def test_a_goharvest_heartbeat_fences_and_the_coordinator_decides(group):
    alone = group()
    only = alone.join().leads(0)
    say(alone, b"1700000000000000000%other_1_1")
    wait_until(lambda: len(only.of(neli.LeaderAcquired)) == 2)
    kinds = [type(effect) for _, effect in only.effects]
    assert kinds == [neli.LeaderAcquired, neli.LeaderFenced, neli.LeaderAcquired]
    assert only.of(neli.LeaderFenced)[0].reason == "newer-owner"


def test_an_answer_that_never_comes_spoils_no_later_one(group, monkeypatch):
    """As it happens when the coordinator goes away between a question and its answer."""
    lost, answered = [], Member._on_commit

    def lose_one(self, error, partitions):
        if lost:
            answered(self, error, partitions)
        else:
            lost.append(partitions)

    monkeypatch.setattr(Member, "_on_commit", lose_one)
    alone = group()
    only = alone.join().leads(0)
    say(alone, b"1700000000000000000%other_1_1")
    wait_until(lambda: len(only.of(neli.LeaderAcquired)) == 2)
    assert lost


def test_doubt_is_answered_by_the_coordinator(group):
    only = group().join().leads(0)
    asked = only.member._neli._ticket
    only.member.doubt(0)
    wait_until(lambda: only.member._neli._ticket > asked and only.member._neli._owned[0].confirm_ticket is None)
    assert only.lanes == [0]
    only.member.step_down(0)
    wait_until(lambda: len(only.of(neli.LeaderAcquired)) == 2)


def test_a_refresh_changes_the_id_and_keeps_the_lane(group):
    only = group().join().leads(0)
    only.member.refresh(0)
    wait_until(lambda: only.of(neli.LeaderRefreshed))
    (acquired,), (refreshed,) = only.of(neli.LeaderAcquired), only.of(neli.LeaderRefreshed)
    assert refreshed.epoch == acquired.epoch
    assert refreshed.leader_id != acquired.leader_id
    assert only.member.owned[0].leader_id == refreshed.leader_id


@pytest.mark.slow
def test_a_flooded_topic_starves_nobody(group):
    alone = group(HEARTBEAT_TIMEOUT=3, SESSION_TIMEOUT=12)  # so that a busy machine alone fences nobody
    only = alone.join().leads(0)
    beat = neli.Heartbeat(only.member._neli.member_id, only.member._neli.member_id, 10**9, None, "flood")
    producer = Producer({"bootstrap.servers": alone.conf.kafka.bootstrap_servers, "linger.ms": 5})
    payload, ends = neli.encode_heartbeat(beat), time.monotonic() + 2 * alone.conf.election.heartbeat_timeout_s
    while time.monotonic() < ends:
        for _ in range(100):
            producer.produce(alone.conf.election.leader_topic, payload, partition=0)
        producer.poll(0.02)
    assert producer.flush(10) == 0
    assert [type(effect) for _, effect in only.effects] == [neli.LeaderAcquired]
    assert only.lanes == [0]


def test_another_assignor_in_the_group_is_an_error_that_names_the_remedy(group):
    pair = group()
    pair.join().leads(0)
    pair.conf = changed(pair.conf, ASSIGNOR="range")
    other = pair.join()
    wait_until(lambda: other.errors)
    assert isinstance(other.errors[0], ElectionRefused)
    assert "ASSIGNOR" in str(other.errors[0])


@pytest.mark.slow
def test_without_brokers_a_leader_is_fenced_in_time_and_stops_in_bounded_time(group, breakable):
    kafka = breakable
    alone = group(kafka.bootstrap_servers)
    only = alone.join().leads(0)
    kafka.pause()
    began = asked = time.monotonic()
    while only.member.may_send(0):  # the time before asking counts, so that a busy machine shortens what is seen
        assert asked - began <= alone.conf.election.heartbeat_timeout_s + 0.2
        time.sleep(0.01)
        asked = time.monotonic()
    wait_until(lambda: only.of(neli.LeaderFenced), 5)
    kafka.resume()
    only.leads(0)
    kafka.kill()
    wait_until(lambda: not only.lanes, 10)
    began = time.monotonic()
    only.member.stop()
    assert only.member.join(10)


@pytest.mark.slow
def test_brokers_that_were_away_longer_than_the_session_are_joined_again(group, breakable):
    kafka = breakable
    alone = group(kafka.bootstrap_servers, HEARTBEAT_TIMEOUT=1, SESSION_TIMEOUT=3, FLUSH_TIMEOUT=1)
    only = alone.join().leads(0)
    kafka.kill()
    time.sleep(alone.conf.election.session_timeout_s + 1)
    assert only.lanes == []
    assert (only.member.is_cut_off, only.member.led_last(0)) == (True, True)
    kafka.start()
    only.leads(0)
    assert not only.member.is_cut_off
    kinds = [type(effect) for _, effect in only.effects]
    assert kinds.count(neli.LeaderFenced) == kinds.count(neli.LeaderAcquired) - 1
    only.leave()


@pytest.mark.slow
def test_cold_starts_find_their_lane_quickly(group):
    alone, took_s = group(**SESSION), []
    for _ in range(8):
        began = time.monotonic()
        one = alone.join().leads(0)
        took_s.append(time.monotonic() - began)
        one.leave()
    del took_s[0]  # it makes the offsets topic
    print(f"median {median(took_s):.2f} s, longest {max(took_s):.2f} s")
    assert max(took_s) < SOON_S, took_s
