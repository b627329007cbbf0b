"""A consumer's member of its group, and its questions about topics, on a real Kafka."""

import time
import uuid
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from outbox.core.consumers.values import Partition, Position
from outbox.edges.kafka.consumers.group import Group, properties_of
from outbox.edges.kafka.consumers.topics import Topics
from outbox.exceptions import NotAvailable
from tests.support.topics import create_topic


class Listener:
    """What the group gives, and takes back."""

    def __init__(self):
        self.held, self.taken = set(), []

    def assigned(self, partitions):
        self.held.update(partitions)

    def revoked(self, partitions):
        self.held.difference_update(partitions)
        self.taken += partitions


class Bench:
    def __init__(self, servers, stack):
        self.servers, self._stack = servers, stack
        self.group_id = f"g-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.topics = Topics({"bootstrap.servers": servers}, self.group_id)

    def member(self, *topics, group_id=""):
        given = {"bootstrap.servers": self.servers}
        found = Group(properties_of(given, group_id or self.group_id, session_timeout_s=6), topics)
        listener = Listener()
        found.join(listener)
        self._stack.callback(found.close)
        return found, listener

    def produce(self, topic, values, partition=0, **options):
        producer = Producer({"bootstrap.servers": self.servers, **options})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(20) == 0

    def make_again(self, topic, partitions=1):
        self.admin.delete_topics([topic])[topic].result(20)
        deadline = time.monotonic() + 20
        while topic in self.topics.ids([topic]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        create_topic(self.servers, partitions, topic)


@pytest.fixture
def bench(bootstrap_servers):
    with ExitStack() as stack:
        yield Bench(bootstrap_servers, stack)


def poll_until(until, *members, within_s=30):
    """What all of them have fetched, and what they report."""
    messages, errors, ends = [], [], {}
    deadline = time.monotonic() + within_s
    while not until(messages, errors, ends):
        assert time.monotonic() < deadline, (messages, errors, ends)
        for member in members:
            polled = member.poll(0.05, 1000)
            messages += polled.messages
            errors += polled.errors
            ends |= polled.ends
    return messages, errors, ends


def offsets(messages):
    return [message.offset for message in messages]


def test_nothing_is_read_before_it_is_started_and_then_from_there(bench):
    topic = create_topic(bench.servers, 2)
    one, two = Partition(topic, 0), Partition(topic, 1)
    bench.produce(topic, ["a", "b", "c", "d"])
    bench.produce(topic, ["e"], partition=1)
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held == {one, two}, member)
    assert poll_until(lambda *found: True, member) == ([], [], {})
    for _ in range(10):
        assert member.poll(0.05, 1000) == ([], [], {}), "it has no position to read from"
    member.start({one: Position(2)})
    messages, errors, ends = poll_until(lambda messages, errors, ends: ends, member)
    assert [(m.topic, m.partition, m.offset, m.key, m.value, m.headers) for m in messages] == [
        (topic, 0, 2, None, b"c", ()),
        (topic, 0, 3, None, b"d", ()),
    ]
    assert (errors, ends) == ([], {one: 4})
    assert all(m.timestamp_ms > 0 and m.leader_epoch >= 0 for m in messages)
    member.start({two: Position(0)})
    messages, _, _ = poll_until(lambda messages, errors, ends: messages, member)
    assert [(m.partition, m.offset) for m in messages] == [(1, 0)]


def test_a_poll_does_not_wait_for_more_than_there_is(bench):
    topic = create_topic(bench.servers)
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({Partition(topic, 0): Position(0)})
    poll_until(lambda messages, errors, ends: ends, member)
    bench.produce(topic, ["a"])
    began = time.monotonic()
    while not member.poll(10, 1000).messages:
        pass
    assert time.monotonic() - began < 5


def test_headers_and_keys_are_as_they_were_sent(bench):
    topic = create_topic(bench.servers)
    producer = Producer({"bootstrap.servers": bench.servers})
    producer.produce(topic, None, key=b"\xff", headers=[("a", b"1"), ("a", None), ("b", b"\xff")])
    assert producer.flush(20) == 0
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({Partition(topic, 0): Position(0)})
    ((message,), _, _) = poll_until(lambda messages, *rest: messages, member)
    assert (message.key, message.value) == (b"\xff", None)
    assert message.headers == (("a", b"1"), ("a", None), ("b", b"\xff"))
    member.close()
    assert message.headers == (("a", b"1"), ("a", None), ("b", b"\xff")), "as often as they are asked for"


def test_what_was_stopped_is_read_again_from_where_it_is_started(bench):
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, map(str, range(100)))
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(0)})
    poll_until(lambda messages, *rest: messages, member)
    for _ in range(3):
        member.stop([one])
        for _ in range(5):
            assert member.poll(0.02, 1000).messages == []
        assert listener.held == {one}, "it stays assigned"
        member.start({one: Position(90)})
        messages, _, _ = poll_until(lambda messages, errors, ends: ends, member)
        assert offsets(messages) == list(range(90, 100))


def test_a_paused_partition_waits_and_goes_on_without_a_gap(bench):
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(0)})
    seen = []
    for number in range(20):
        member.pause([one, Partition(topic, 9)])
        bench.produce(topic, [str(number)])
        seen += member.poll(0.02, 1000).messages
        member.resume([one])
        seen += member.poll(0.02, 1000).messages
    seen += poll_until(lambda messages, *rest: len(seen) + len(messages) >= 20, member)[0]
    assert offsets(seen) == list(range(20))


def test_a_pause_outlasts_a_stop_until_it_is_resumed(bench):
    """The client keeps it over the end of an assignment. Who starts a partition resumes it."""
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, map(str, range(10)))
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(0)})
    poll_until(lambda messages, errors, ends: ends, member)
    member.pause([one])
    member.stop([one])
    for begin in (4, 7):
        member.start({one: Position(begin)})
        member.resume([one])
        messages, _, _ = poll_until(lambda messages, errors, ends: ends, member)
        assert offsets(messages) == list(range(begin, 10))
        member.pause([one])
        member.stop([one])
    member.start({one: Position(2)})
    for _ in range(10):
        assert member.poll(0.05, 1000) == ([], [], {})


def test_partitions_move_to_a_second_member_and_back(bench):
    topic = create_topic(bench.servers, 4)
    everything = {Partition(topic, number) for number in range(4)}
    first, one = bench.member(topic)
    poll_until(lambda *found: one.held == everything, first)
    first.start(dict.fromkeys(everything, Position(0)))
    second, two = bench.member(topic)
    poll_until(lambda *found: len(one.held) == len(two.held) == 2, first, second)
    assert set(one.taken) == two.held, "those that stay are not interrupted"
    bench.produce(topic, ["a"], partition=min(two.held).number)
    for _ in range(10):
        assert first.poll(0.05, 1000).messages == [], "it is read no longer"
    second.start(dict.fromkeys(two.held, Position(0)))
    messages, _, _ = poll_until(lambda messages, *rest: messages, first, second)
    assert [message.partition for message in messages] == [min(two.held).number]
    second.close()
    poll_until(lambda *found: one.held == everything, first)
    assert two.held == set()


def test_a_member_that_takes_one_message_at_a_time_gives_partitions_back_at_once(bench):
    """What the client has fetched in advance does not stand before the callbacks of a rebalance."""
    topic = create_topic(bench.servers, 4)
    everything = {Partition(topic, number) for number in range(4)}
    for number in range(4):
        bench.produce(topic, ["v" * 100] * 2_000, partition=number)
    first, one = bench.member(topic)
    poll_until(lambda *found: one.held == everything, first)
    first.start(dict.fromkeys(everything, Position(0)))
    poll_until(lambda messages, *rest: messages, first)
    second, two = bench.member(topic)
    deadline = time.monotonic() + 20
    while len(two.held) < 2:
        assert time.monotonic() < deadline
        first.poll(0.0, 1)
        second.poll(0.05, 1000)
    assert len(one.held) == 2


def test_a_revoked_partition_that_was_never_started_is_given_back(bench):
    topic = create_topic(bench.servers, 2)
    first, one = bench.member(topic)
    poll_until(lambda *found: len(one.held) == 2, first)
    second, two = bench.member(topic)
    poll_until(lambda *found: len(one.held) == len(two.held) == 1, first, second)


def test_topics_are_added_and_partitions_too(bench):
    topic, other = create_topic(bench.servers), create_topic(bench.servers)
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held == {Partition(topic, 0)}, member)
    member.subscribe([topic, other])
    poll_until(lambda *found: listener.held == {Partition(topic, 0), Partition(other, 0)}, member)
    assert listener.taken == []
    bench.admin.create_partitions([NewPartitions(other, 2)])[other].result(20)
    poll_until(lambda *found: Partition(other, 1) in listener.held, member)


def test_a_member_may_begin_without_a_topic(bench):
    """Of a pattern that matches none yet."""
    topic = create_topic(bench.servers)
    member, listener = bench.member()
    assert member.poll(0.1, 1000) == ([], [], {})
    member.subscribe([topic])
    poll_until(lambda *found: listener.held == {Partition(topic, 0)}, member)
    member.subscribe([])
    poll_until(lambda *found: listener.held == set(), member)


def test_a_topic_that_does_not_exist_is_reported_and_read_when_it_does(bench):
    topic = f"t-{uuid.uuid4().hex[:8]}"
    member, listener = bench.member(topic)
    _, errors, _ = poll_until(lambda messages, errors, ends: errors, member)
    assert errors[0].name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
    assert (errors[0].partition, topic in errors[0].text) == (None, True)
    assert bench.topics.ids([topic]) == {}, "to ask for it does not create it"
    create_topic(bench.servers, 1, topic)
    poll_until(lambda *found: listener.held == {Partition(topic, 0)}, member)


def test_kafkas_own_offset_is_a_copy_that_nobody_reads_from(bench):
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, "abcd")
    assert bench.topics.copies([one]) == {}
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(0)})
    member.commit_copy({one: 3})
    poll_until(lambda *found: bench.topics.copies([one]) == {one: 3}, member)
    member.close()
    second, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, second)
    second.start({one: Position(1)})
    messages, _, _ = poll_until(lambda messages, errors, ends: ends, second)
    assert offsets(messages) == [1, 2, 3]
    second.commit_copy({})


@pytest.mark.parametrize("next", [2, 99])
def test_a_position_that_the_topic_does_not_have_is_reported_and_not_left(bench, next):
    """The control is the client's own habit: it goes to the first message, or to the end."""
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, "abcdefgh")
    bench.admin.delete_records([_at(one, 5)])[_at(one, 5)].result(20)
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(next)})
    messages, errors, _ = poll_until(lambda messages, errors, ends: errors, member)
    assert (messages, errors[0].partition) == ([], one)
    assert errors[0].name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
    for _ in range(10):
        assert member.poll(0.05, 1000).messages == []
    assert bench.topics.bounds(one) == (5, 8)
    member.stop([one])
    member.start({one: Position(5)})
    messages, _, _ = poll_until(lambda messages, errors, ends: ends, member)
    assert offsets(messages) == [5, 6, 7]
    bare = Consumer(
        {"bootstrap.servers": bench.servers, "group.id": bench.group_id + "bare", "auto.offset.reset": "earliest"}
    )
    bare.assign([_at(one, next)])
    assert bare.consume(1, 20)[0].offset() == 5
    bare.close()


def test_another_message_in_the_place_of_the_last_one_is_told_by_its_epoch(bench):
    """The log was cut below the position, and has grown beyond it since."""
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, "abcde")
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(3, leader_epoch=0)})
    messages, errors, _ = poll_until(lambda messages, errors, ends: ends, member)
    assert (offsets(messages), errors) == ([3, 4], [])
    member.stop([one])
    member.start({one: Position(3, leader_epoch=7)})
    messages, errors, _ = poll_until(lambda messages, errors, ends: errors, member)
    assert (messages, errors[0].partition, errors[0].name) == ([], one, "_LOG_TRUNCATION")
    assert "offset 2 has the leader epoch 0, and the one that was handled there had 7" in errors[0].text
    assert member.poll(0.5, 1000).messages == [], "it is read no longer"
    member.stop([one])
    member.start({one: Position(5, leader_epoch=0)})
    messages, errors, ends = poll_until(lambda messages, errors, ends: ends, member)
    assert (messages, errors, ends) == ([], [], {one: 5})


def test_the_message_before_the_position_may_have_expired(bench):
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, "abcde")
    for first, expected in ((3, [3, 4]), (5, [])):
        bench.admin.delete_records([_at(one, first)])[_at(one, first)].result(20)
        member, listener = bench.member(topic, group_id=f"{bench.group_id}-{first}")
        poll_until(lambda *found, listener=listener: listener.held, member)
        member.start({one: Position(first, leader_epoch=0)})
        messages, errors, ends = poll_until(lambda messages, errors, ends: ends, member)
        assert (offsets(messages), errors, ends) == (expected, [], {one: 5})


def test_a_topic_that_was_created_again_has_another_id(bench):
    topic = create_topic(bench.servers)
    bench.produce(topic, "abc")
    before = bench.topics.ids([topic, "no-such-topic"])
    assert list(before) == [topic]
    assert len(before[topic]) >= 20
    assert bench.topics.ids([topic]) == before
    bench.make_again(topic)
    assert bench.topics.ids([topic])[topic] != before[topic]
    assert bench.topics.ids([]) == {}


def test_a_topic_that_was_created_again_is_read_on_by_the_client(bench):
    """Also where it is longer than before: the client does not say that it is another one, only the id does."""
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    bench.produce(topic, "abc")
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(0)})
    poll_until(lambda messages, errors, ends: ends, member)
    before = bench.topics.ids([topic])
    bench.make_again(topic)
    bench.produce(topic, "vwxyz")
    assert bench.topics.ids([topic]) != before
    seen = []
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not seen:
        seen += member.poll(0.1, 1000).messages
    assert all(message.value not in (b"v", b"w") for message in seen), "it does not begin at its first message"


def test_bounds_end_where_a_transaction_is_open(bench):
    topic = create_topic(bench.servers)
    one = Partition(topic, 0)
    other, gone = Partition(create_topic(bench.servers, 2), 1), Partition("no-such-topic", 0)
    bench.produce(topic, "ab")
    producer = Producer({"bootstrap.servers": bench.servers, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, "c")
    producer.flush(20)
    assert bench.topics.bounds(one) == (0, 2)
    assert bench.topics.ends([one, other, gone]) == {one: 2, other: 0}
    assert bench.topics.ends([]) == {}
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    member.start({one: Position(0)})
    messages, _, ends = poll_until(lambda messages, errors, ends: ends, member)
    assert (offsets(messages), ends) == ([0, 1], {one: 2})
    producer.abort_transaction(20)
    bench.produce(topic, "d")
    messages, _, _ = poll_until(lambda messages, *rest: messages, member)
    assert [message.value for message in messages] == [b"d"], "what was aborted is never seen"
    assert bench.topics.bounds(one)[1] > messages[0].offset


def test_an_offset_by_time(bench):
    topic = create_topic(bench.servers)
    producer = Producer({"bootstrap.servers": bench.servers})
    for at in (1_000, 2_000, 3_000):
        producer.produce(topic, "v", timestamp=at * 1_000_000)
    assert producer.flush(20) == 0
    one = Partition(topic, 0)
    found = [bench.topics.offset_at(one, at * 1_000_000) for at in (0, 1_000, 1_500, 3_000, 3_001)]
    assert found == [0, 0, 1, 2, 3]


def test_names_and_numbers_of_partitions(bench):
    topic = create_topic(bench.servers, 3)
    assert topic in bench.topics.names()
    assert not any(name.startswith("__") for name in bench.topics.names())
    assert (bench.topics.partitions(topic), bench.topics.partitions("no-such-topic")) == (3, 0)


def test_members_are_counted_and_a_group_that_never_was_has_none(bench):
    """Also while the broker still loads the group: the first group of a new broker is asked for here."""
    assert bench.topics.members() == 0
    topic = create_topic(bench.servers)
    member, listener = bench.member(topic)
    poll_until(lambda *found: listener.held, member)
    assert bench.topics.members() == 1
    assert bench.topics.denied([topic, "no-such-topic"]) == {topic: ""}


def test_the_groups_offsets_are_known_again_after_the_brokers_have_started_again(kafka_factory):
    """A client may wait for ever for the coordinator that it knew before."""
    cluster = kafka_factory()
    with ExitStack() as stack:
        bench = Bench(cluster.bootstrap_servers, stack)
        one = Partition(create_topic(bench.servers), 0)
        member, listener = bench.member(one.topic)
        poll_until(lambda *found: listener.held, member)
        member.commit_copy({one: 3})
        poll_until(lambda *found: bench.topics.copies([one]) == {one: 3}, member)
        cluster.kill()
        cluster.start()
        give_up_at = time.monotonic() + 20
        while True:
            try:
                assert bench.topics.copies([one]) == {one: 3}
                break
            except NotAvailable:
                assert time.monotonic() < give_up_at


def test_brokers_that_do_not_answer(monkeypatch):
    monkeypatch.setattr("outbox.edges.kafka.consumers.topics._REQUEST_S", 0.5)
    topics = Topics({"bootstrap.servers": "127.0.0.1:1"}, "g")
    one = Partition("t", 0)
    for ask in (
        topics.names,
        lambda: topics.ids(["t"]),
        lambda: topics.partitions("t"),
        lambda: topics.bounds(one),
        lambda: topics.ends([one]),
        lambda: topics.copies([one]),
    ):
        with pytest.raises(NotAvailable):
            ask()
    member = Group(properties_of({"bootstrap.servers": "127.0.0.1:1"}, "g", session_timeout_s=6), ["t"])
    member.join(Listener())
    try:
        _, errors, _ = poll_until(lambda messages, errors, ends: errors, member)
        assert errors[0].partition is None
        assert errors[0].name in ("_TRANSPORT", "_ALL_BROKERS_DOWN")
    finally:
        member.close()


def _at(partition, offset):
    from confluent_kafka import TopicPartition

    return TopicPartition(partition.topic, partition.number, offset)
