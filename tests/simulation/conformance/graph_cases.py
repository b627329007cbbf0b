"""The questions of lanes to both sides. The test compares the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.outputs import Produced
from tests.simulation.conformance.graphs import ERRORS, OUTPUT, Lane, Member, Script, X, Y

# ---- transactions


def a_processor_begins_with_nothing(s: Script) -> None:
    assert s.ask("prepare") == ""
    s.side.write(X, 1, range(3))
    assert s.entry(1) is s.begun(1) is None
    assert s.positions(1) == {X: None, Y: None}
    found = s.ask("inputs", 0)
    assert s.call("LaneKafkaPort", s.kafka, "topic_ids") == {topic: state.topic_id for topic, state in found.items()}
    s.ask("transactional_id", 1)
    there, missing = [s.side.topic(X), s.side.topic(OUTPUT), s.side.topic(ERRORS)], s.side.topic("missing")
    assert s.ask("missing", there) == s.ask("missing", []) == {}
    assert list(s.ask("missing", [missing, *there])) == [missing]
    assert set(s.ask("size_limits", there)) == set(there)
    assert s.ask("size_limits", [missing]) == {}


def positions_count_when_their_transaction_is_committed(s: Script) -> None:
    assert s.ask("prepare") == ""
    member, lane = s.joined(), s.lane(1)
    lane.move(member.metadata, x=2, y=0)
    assert s.entry(1) == _positions(s) == {X: 2, Y: 0}
    lane.begin()
    lane.send_offsets(member.metadata, x=3, y=1)
    lane.send_entry(x=3, y=1)
    lane.output(b"1:a")
    lane.settle()
    lane.abort()
    assert s.entry(1) == _positions(s) == {X: 2, Y: 0}
    lane.begin()
    lane.output(b"2:a")
    lane.send_offsets(member.metadata, y=1)
    lane.send_entry(x=2, y=1)
    lane.commit()
    assert s.entry(1) == _positions(s) == {X: 2, Y: 1}
    assert s.entry(0) is None
    s.positions(0)
    s.note(s.side.delivered())


def a_newer_owner_ends_what_an_older_one_has_begun(s: Script) -> None:
    assert s.ask("prepare") == ""
    member, older = s.joined(), s.lane(0)
    older.begin()
    older.output(b"1:a")
    older.send_offsets(member.metadata, x=1, y=1)
    older.send_entry(x=1, y=1)
    older.settle()
    newer = s.lane(0)
    assert s.entry(0) is None
    assert _positions(s, 0) == {X: None, Y: None}
    newer.move(member.metadata, x=4, y=0)
    assert s.fails(older.commit)[2], "for good"
    assert s.entry(0) == _positions(s, 0) == {X: 4, Y: 0}
    s.note(s.side.delivered())


def an_open_transaction_is_waited_for(s: Script) -> None:
    assert s.ask("prepare") == ""
    member, lane = s.joined(), s.lane(1)
    lane.move(member.metadata, x=1, y=1)
    s.entry(1)
    lane.begin()
    lane.send_offsets(member.metadata, x=2, y=2)
    lane.send_entry(x=2, y=2)
    lane.append(s.kafka.attempts_topic, Begun({X: 2}, 1).encode("p"))
    lane.settle()
    for name in ("entry", "begun"):
        assert s.fails(lambda name=name: s.ask(name, 1, s.runtime.monotonic() + 0.2)) == "LedgerOpen"
    join = s.beside(lambda: (s.entry(1), s.begun(1)))
    lane.commit()
    entry, begun = join()
    assert entry == {X: 2, Y: 2}
    assert begun is not None


def positions_of_an_open_transaction_are_waited_for(s: Script) -> None:
    assert s.ask("prepare") == ""
    member, lane = s.joined(), s.lane(1)
    lane.begin()
    lane.send_offsets(member.metadata, x=2, y=2)
    join = s.beside(lambda: s.positions(1))
    lane.send_entry(x=2, y=2)
    lane.commit()
    assert join() == {X: 2, Y: 2}


def the_record_of_another_processor_is_passed_over(s: Script) -> None:
    assert s.ask("prepare") == ""
    lane = s.lane(1)
    own = Begun({X: 1, Y: 2}, 1, 3, ((X, 1),), "why")
    for processor, begun in (("p", own), ("p2", Begun({X: 9}, 9)), ("pp", Begun({}, 8))):
        lane.begin()
        lane.append(s.kafka.attempts_topic, begun.encode(processor))
        lane.commit()
    assert s.begun(1) == own
    assert s.begun(0) is None
    lane.begin()
    lane.append(s.kafka.positions_topic, b'{"processor":"p2","positions":{"x":7},"topics":{}}')
    lane.commit()
    assert s.entry(1) is None
    newer = Begun({X: 3}, 2)
    lane.begin()
    lane.append(s.kafka.attempts_topic, newer.encode("p"))
    lane.commit()
    assert s.begun(1) == newer


def a_record_that_names_no_processor_is_refused(s: Script) -> None:
    assert s.ask("prepare") == ""
    lane = s.lane(1)
    for value in (b"{}", b"?", Begun({X: 1}, 1).encode("p")):
        lane.begin()
        lane.append(s.kafka.attempts_topic, value)
        lane.commit()
        assert s.fails(lambda: s.begun(1)) == "UnreadableRecord"


# ---- the member in transactions


def a_member_that_has_left_is_refused(s: Script) -> None:
    member, lane = _ready(s)
    metadata = member.metadata
    lane.move(metadata, x=1, y=1)
    member.close()
    _refuses(s, lane, metadata)
    lane.move(s.joined("second").metadata, x=2, y=2)
    assert s.entry(1) == _positions(s) == {X: 2, Y: 2}


def a_fenced_producer_is_refused_whoever_its_member_is(s: Script) -> None:
    member, older = _ready(s)
    metadata = member.metadata
    older.move(metadata, x=1, y=1)
    s.lane(1)
    member.close()
    older.begin()
    assert s.fails(lambda: older.send_offsets(metadata, x=2, y=2))[2], "for good"
    assert s.entry(1) == _positions(s) == {X: 1, Y: 1}


def a_member_of_an_earlier_assignment_is_refused(s: Script) -> None:
    first, lane = _ready(s)
    before = first.metadata
    second = _shared(s, first)
    _refuses(s, lane, before)
    lane.move(first.metadata, x=2, y=2)
    lane.move(second.metadata, x=3, y=2)
    second.close()
    s.until(lambda: first.poll() or len(first.held) == 4)
    _refuses(s, lane, second.metadata)
    lane.move(first.metadata, x=4, y=2)
    assert s.entry(1) == _positions(s) == {X: 4, Y: 2}


# ---- the group


def a_revocation_comes_before_the_next_assignment(s: Script) -> None:
    first = s.joined()
    second = _shared(s, first)
    assert [what for what, _ in first.told] == ["assigned", "revoked", "assigned"]
    assert [what for what, _ in second.told] == ["assigned"]
    second.close()
    assert [what for what, _ in second.told] == ["assigned", "revoked"]
    s.until(lambda: first.poll() or len(first.held) == 4)
    assert [what for what, _ in first.told] == ["assigned", "revoked", "assigned", "revoked", "assigned"]
    s.note(first.told[0], first.told[-1])


def partitions_are_read_from_where_they_are_begun(s: Script) -> None:
    s.side.write(X, 0, range(5))
    s.side.write(Y, 1, range(3))
    member = s.joined()
    s.silent(member)
    member("read_from", {s.at[X, 0]: 2})
    assert s.read(member, 3, at_a_time=2) == {(X, 0): [2, 3, 4]}
    s.silent(member)
    member("read_from", {s.at[Y, 1]: 1, s.at[X, 1]: 0})
    assert s.read(member, 2) == {(Y, 1): [1, 2]}
    s.side.write(X, 0, [5])
    assert s.read(member, 1) == {(X, 0): [5]}
    member("read_from", {s.at[X, 0]: 4})
    assert s.read(member, 2) == {(X, 0): [4, 5]}
    s.silent(member)


def a_paused_partition_is_not_read(s: Script) -> None:
    member = s.joined()
    one, two = s.at[X, 0], s.at[Y, 0]
    member("read_from", {one: 0, two: 0})
    s.side.write(X, 0, range(2))
    assert s.read(member, 2) == {(X, 0): [0, 1]}
    member("pause", [one])
    s.side.write(X, 0, [2])
    s.silent(member)
    s.side.write(Y, 0, [0])
    assert s.read(member, 1) == {(Y, 0): [0]}
    member("resume", [one, two])
    assert s.read(member, 1) == {(X, 0): [2]}
    member("pause", [one, two])
    s.side.write(X, 0, [3])
    s.side.write(Y, 0, [1])
    s.silent(member)
    member("read_from", {one: 1})
    s.silent(member)
    member("resume", [one, two])
    assert s.read(member, 4) == {(X, 0): [1, 2, 3], (Y, 0): [1]}


def a_pause_outlasts_the_assignment(s: Script) -> None:
    first = s.joined()
    first("read_from", dict.fromkeys(s.at.values(), 0))
    first("pause", list(s.at.values()))
    s.side.write(X, 0, [0])
    s.silent(first)
    second = _shared(s, first)
    second.close()
    s.until(lambda: first.poll() or len(first.held) == 4)
    s.silent(first)
    first("read_from", {s.at[X, 0]: 0})
    s.silent(first)
    first("resume", [s.at[X, 0]])
    assert s.read(first, 1) == {(X, 0): [0]}


def a_position_beyond_the_end_is_reported(s: Script) -> None:
    s.side.write(X, 0, range(2))
    member = s.joined()
    member("read_from", {s.at[X, 0]: 7})
    assert s.read(member, 1) == ["_AUTO_OFFSET_RESET"]
    s.silent(member)
    member("read_from", {s.at[X, 0]: 1})
    assert s.read(member, 1) == {(X, 0): [1]}


# ---- outputs outside of a transaction


def plain_outputs_arrive_and_refused_ones_are_reported(s: Script) -> None:
    sender, told = s.sender(), list[Any]()
    outputs = [Produced(s.side.topic(OUTPUT), b"k", value, ()) for value in (b"1:a", b"2:a")]
    _send(s, sender, outputs, told)
    _send(s, sender, [s.side.refused(b"3:a")], told)
    _send(s, sender, [outputs[0]._replace(value=b"4:a")], told)
    assert told == [(0, False), (1, False), (0, True), (0, False)]
    s.note(told, s.side.delivered())


def plain_outputs_that_are_not_acknowledged_are_given_up(s: Script) -> None:
    sender, told = s.sender(), list[Any]()
    s.call("PlainPort", sender, "send", [s.side.unacknowledged(b"1:a")], s.soon(), _reporter(told))
    give_up_at = s.runtime.monotonic() + 0.5
    is_over = lambda: s.runtime.monotonic() > give_up_at  # noqa: E731
    assert s.fails(lambda: s.call("PlainPort", sender, "wait_reports", is_over)) == "ReportsMissing"
    s.note(told)


# ---- what they share


def _ready(s: Script) -> tuple[Member, Lane]:
    assert s.ask("prepare") == ""
    return s.joined(), s.lane(1)


def _shared(s: Script, first: Member) -> Member:
    """Each of two members has equal partitions of both topics."""
    second = s.member("second")
    s.until(lambda: first.poll() or second.poll() or len(first.held) == len(second.held) == 2)
    for member in (first, second):
        assert len({partition.number for partition in member.held}) == 1
    assert not first.held & second.held
    return second


def _positions(s: Script, number: int = 1) -> dict[str, int | None]:
    return s.positions(number)


def _refuses(s: Script, lane: Lane, metadata: Any) -> None:
    """And what was in the transaction does not count."""
    before = s.entry(1)
    lane.begin()
    lane.output(b"never:a")
    _, _, is_fatal, requires_abort = s.fails(lambda: lane.send_offsets(metadata, x=100, y=100))
    assert requires_abort
    assert not is_fatal
    s.fails(lane.commit)
    lane.abort()
    assert s.entry(1) == before
    s.positions(1)
    assert s.side.delivered() == []


def _reporter(told: list[Any]) -> Callable[[int], Callable[[Any, Any], None]]:
    def report_of(at: int) -> Callable[[Any, Any], None]:
        return lambda error, message: told.append((at, error is not None))

    return report_of


def _send(s: Script, sender: Any, outputs: list[Produced], told: list[Any]) -> None:
    s.call("PlainPort", sender, "send", outputs, s.soon(), _reporter(told))
    s.call("PlainPort", sender, "wait_reports", lambda: False)


CASES: tuple[Callable[[Script], None], ...] = (
    a_processor_begins_with_nothing,
    positions_count_when_their_transaction_is_committed,
    a_newer_owner_ends_what_an_older_one_has_begun,
    an_open_transaction_is_waited_for,
    positions_of_an_open_transaction_are_waited_for,
    the_record_of_another_processor_is_passed_over,
    a_record_that_names_no_processor_is_refused,
    a_member_that_has_left_is_refused,
    a_fenced_producer_is_refused_whoever_its_member_is,
    a_member_of_an_earlier_assignment_is_refused,
    a_revocation_comes_before_the_next_assignment,
    partitions_are_read_from_where_they_are_begun,
    a_paused_partition_is_not_read,
    a_pause_outlasts_the_assignment,
    a_position_beyond_the_end_is_reported,
    plain_outputs_arrive_and_refused_ones_are_reported,
    plain_outputs_that_are_not_acknowledged_are_given_up,
)
