"""What the threads of a consumer do in a calm world: each promise by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from outbox.consumers import assignment, once
from outbox.core.consumers.overrun import OVERRUN
from outbox.core.consumers.partition import Life
from outbox.core.consumers.values import EARLIEST, STOP, ClientError, Partition, Position
from outbox.exceptions import NotAvailable
from tests.simulation.consumers.checkers import Written
from tests.simulation.consumers.database import Positions, Session, Transaction
from tests.simulation.consumers.process import Process
from tests.simulation.consumers.scenario import Faults, World, sized
from tests.simulation.consumers.topic import TOPIC, Client
from tests.simulation.runtime import ended_with, in_thread

FIRST, SECOND = Partition(TOPIC, 0), Partition(TOPIC, 1)
SEED = 5  # two partitions


class Calm(World):
    def __init__(self) -> None:
        super().__init__(SEED)
        self.threads = 1
        self.options = replace(self.options, start=EARLIEST, batch=4, many=False, on_error=STOP)

    def produce(self, partition: Partition, count: int) -> None:
        for _ in range(count):
            uid = len(self.written) + 1
            message = self.written[uid] = Written(uid, f"k{partition.number}", uid)
            self.topic.logs[partition].append(message, marks=1)

    def run_for(self, seconds: float, done: Callable[[], bool] | None = None) -> None:
        self.run_until(self.now + seconds, done)

    @property
    def handled(self) -> int:
        return len(self.primary.effects.handled)


@pytest.fixture(autouse=True)
def sizes() -> Iterator[None]:
    with sized():
        yield


def calmly(job: Callable[[Calm], None]) -> None:
    def run() -> None:
        world = Calm()
        with ended_with(world):
            job(world)

    in_thread(run)


def test_once_is_complete_behind_the_marks_of_transactions_and_waits_for_nothing_later() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 10)
        process = Process(world, "p1", once=True, topics=[TOPIC])
        assert not process.consumption.is_complete
        world.run_for(5.0, lambda: process.consumption.is_complete)
        assert (world.handled, process.consumption.handled) == (10, 10)
        world.produce(SECOND, 3)
        assert process.consumption.is_complete

    calmly(job)


def test_once_waits_for_partitions_that_another_process_has() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 200)
        world.produce(SECOND, 20)
        world.faults = Faults(slow=1.0)
        first = Process(world, "p1", once=True, topics=[TOPIC])
        world.run_for(1.0)
        second = Process(world, "p2", once=True, topics=[TOPIC])
        world.run_for(1.0)
        assert len(first.consumption.states) == len(second.consumption.states) == 1
        both = (first.consumption, second.consumption)
        world.run_for(300.0, lambda: any(one.is_complete for one in both))
        assert world.handled == 220
        world.run_for(once.COPY_STANDS_S + 2.0)
        assert all(one.is_complete for one in both)

    calmly(job)


def test_once_is_not_complete_for_a_copy_that_is_older_than_a_position_that_was_set_back() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 10)
        first = Process(world, "p1")
        world.run_for(3.0)
        first.stop()
        world.run_for(1.0)
        assert world.topic.copies[FIRST] == 20
        world.primary.rows[FIRST] = replace(world.primary.rows[FIRST], next=0)
        world.primary.effects.handled.clear()
        world.primary.effects._last.clear()
        world.no_fetch_until = world.now + 5.0
        second = Process(world, "p2", once=True, topics=[TOPIC])
        world.run_for(4.0)
        assert not second.consumption.is_complete
        world.run_for(10.0, lambda: second.consumption.is_complete)
        assert (second.consumption.is_complete, world.handled) == (True, 10)

    calmly(job)


def test_once_ends_without_a_topic_that_matches() -> None:
    def job(world: Calm) -> None:
        process = Process(world, "p1", once=True, matches=lambda topic: False)
        world.run_for(5.0, lambda: process.consumption.is_complete)
        assert process.consumption.is_complete

    calmly(job)


def test_a_stop_finishes_the_batch_under_way_and_leaves_the_group() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 500)
        world.faults = Faults(slow=1.0)
        process = Process(world, "p1")
        world.run_for(2.0)
        assert 0 < world.handled < 500
        process.stop()
        world.run_for(2.0)
        assert process.is_closed
        assert "p1" not in world.group.members
        assert process.consumption.handled == process.committed == world.handled
        assert not world.primary.locks
        assert world.topic.copies[FIRST] == world.primary.rows[FIRST].next

    calmly(job)


def test_an_abandoned_consumer_leaves_at_once() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 1)
        world.faults = Faults(hang=1.0)
        process = Process(world, "p1")
        world.run_for(1.0)
        process.consumption.abandon()
        world.run_for(0.5)
        assert process.is_closed
        assert not world.handled

    calmly(job)


@pytest.mark.parametrize("repeats", [False, True])
def test_a_function_that_hangs_ends_its_process_with_a_code_of_its_own(repeats: bool) -> None:
    def job(world: Calm) -> None:
        world.repeats = repeats
        world.produce(FIRST, 1)
        world.faults = Faults(hang=1.0)
        process = Process(world, "p1")
        world.run_for(world.options.timeout_s - 1.0)
        assert process.is_alive
        world.run_for(3.0)
        assert (process.exit_code, process.cancelled, process.is_alive) == (OVERRUN, 1, False)
        assert not world.handled

    calmly(job)


def test_the_limit_is_that_of_each_call_and_not_of_all_calls_of_a_batch() -> None:
    def job(world: Calm) -> None:
        world.options = replace(world.options, batch=8, timeout_s=1.0, transaction_max_s=10.0)
        world.produce(FIRST, 8)
        effect, begin = Process._effect, Transaction.begin

        def slow(process: Process, *given: Any) -> None:
            process.runtime.sleep(0.5)
            effect(process, *given)

        def patient(transaction: Transaction, timeout_s: float) -> Any:  # else the server ends the session as idle
            return begin(transaction, 10 * timeout_s)

        with patch.object(Process, "_effect", slow), patch.object(Transaction, "begin", patient):
            process = Process(world, "p1")
            world.run_for(9.0, lambda: world.handled == 8)
        assert (world.handled, process.exit_code) == (8, 0)
        assert len(world.committed) <= 2, "some transaction took longer than a call may"

    calmly(job)


def test_a_hook_that_hangs_ends_its_process_too() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 1)
        world.hooked = lambda xid: process.runtime.sleep(60.0)  # type: ignore[method-assign]
        process = Process(world, "p1")
        world.run_for(world.options.timeout_s - 1.0)
        assert (world.handled, process.is_alive) == (1, True)
        world.run_for(3.0)
        assert (process.exit_code, process.is_alive) == (OVERRUN, False)

    calmly(job)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((Transaction, name) for name in ("connection", "begin", "commit", "rollback")),
        *((Positions, name) for name in ("load", "create", "lock", "write", "settle")),
    ],
)
def test_a_database_that_does_not_answer_ends_the_process_whatever_it_was_asked(owner: type, name: str) -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 1)
        world.faults = Faults(**faults)
        began = world.now
        process = Process(world, "p1")
        frozen = lambda *given: process.runtime.sleep(600.0)  # noqa: E731
        with patch.object(owner, name, frozen):
            world.run_for(world.options.call_timeout_s + 20.0, lambda: not process.is_alive)
        assert (process.exit_code, process.is_alive) == (OVERRUN, False)
        assert world.now - began >= world.options.call_timeout_s

    faults: dict[str, Any] = {"settle": {"cut_commit": 1.0}, "rollback": {"conflict": 1.0}}.get(name, {})
    calmly(job)


def test_what_waits_in_memory_is_bounded_and_a_slow_function_gets_all_of_it_without_a_pause() -> None:
    """The client drops what it has fetched when it pauses, and is slow to resume."""

    def job(world: Calm) -> None:
        world.produce(FIRST, 400)
        world.produce(SECOND, 400)
        process = Process(world, "p1")
        most = 0

        def look() -> bool:
            nonlocal most
            held: Any = process.consumption._assignment._held
            most = max(most, sum(one.waiting for one in held.values()))
            return world.handled == 800

        world.run_for(60.0, look)
        assert world.handled == 800
        assert 100 <= most < 100 + 2 * 50, "and what the last poll has brought"
        pause.assert_not_called()

    with patch.object(assignment, "QUEUE_MAX", 100), patch.object(Client, "pause") as pause:
        calmly(job)


def test_the_partitions_of_a_worker_that_is_stuck_are_paused_while_another_wants_messages() -> None:
    def job(world: Calm) -> None:
        world.threads = 2
        world.produce(FIRST, 400)
        world.produce(SECOND, 400)
        effect = Process._effect

        def stuck(process: Process, transaction: Any, session: Any, message: Written) -> None:
            if message.key == f"k{FIRST.number}" and world.now < until:
                process.runtime.sleep(until - world.now)
            effect(process, transaction, session, message)

        until = world.now + 2.0
        with patch.object(Process, "_effect", stuck):
            process = Process(world, "p1")
            world.run_for(1.9)
            held: Any = process.consumption._assignment._held
            assert assignment.PAUSED_AT * 40 <= held[FIRST].waiting < assignment.PAUSED_AT * 40 + 50
            assert FIRST in process.client._paused
            assert world.handled > assignment.PAUSED_AT * 40, "the other goes on"
            world.run_for(20.0, lambda: world.handled == 800)
        assert (process.client._paused, world.handled) == (set(), 800)

    with patch.object(assignment, "QUEUE_MAX", 40):
        calmly(job)


def test_a_message_that_fails_stops_its_partition_and_the_others_go_on() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 5)
        world.produce(SECOND, 5)
        world.poison[3] = None
        process = Process(world, "p1")
        world.run_for(5.0)
        assert list(process.stopped) == [FIRST]
        assert "offset 4 failed 3 times" in process.stopped[FIRST]
        assert sorted(world.primary.effects.handled) == [1, 2, 6, 7, 8, 9, 10]
        assert world.primary.rows[FIRST].next == 3

    calmly(job)


def test_the_stack_is_logged_with_the_first_failure_of_a_message(caplog: pytest.LogCaptureFixture) -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 5)
        world.poison[3] = None
        Process(world, "p1")
        world.run_for(5.0)

    calmly(job)
    found = [record for record in caplog.records if record.getMessage().startswith("message_failed")]
    assert [record.exc_info is not None for record in found] == [True, False, False]


def test_a_lock_without_a_session_of_the_consumer_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 1)
        Process(world, "p1")
        with patch.object(Positions, "unblock", lambda *given: 0):
            holder = Session(world.primary, Process(world, "p2"))
            holder.begin()
            world.primary.locks[FIRST] = holder
            world.run_for(5.0)
            holder.rollback()
        world.run_for(5.0)
        assert world.handled == 1

    calmly(job)
    assert "consumer_waits" in caplog.text
    assert "blocking_session_ended" not in caplog.text


def test_a_successor_ends_the_session_of_an_owner_that_stands_still_behind_the_lock() -> None:
    def job(world: Calm) -> None:
        world.options = replace(world.options, timeout_s=60.0)
        first = Process(world, "p1")
        world.run_for(1.0)
        first.runtime.passed = lambda name: stand_still(first, name)
        world.produce(FIRST, 1)
        world.produce(SECOND, 1)
        world.run_for(1.0)
        assert first.is_paused
        world.group.leave("p1")
        Process(world, "p2")
        world.run_for(6.0)
        assert world.handled == 2
        first.resume()
        world.run_for(3.0)
        assert world.handled == 2

    def stand_still(process: Process, name: str) -> None:
        if name == "batch-handled" and not process.world.handled:
            process.pause()
            process.runtime.sleep(0.0)

    calmly(job)


def test_an_emptied_table_of_positions_stops_the_partitions() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 5)
        first = Process(world, "p1")
        world.run_for(3.0)
        first.stop()
        world.run_for(1.0)
        world.primary.rows.clear()
        second = Process(world, "p2")
        world.run_for(3.0)
        assert "the consumer's group has the offset" in second.stopped[FIRST]

    calmly(job)


def test_a_position_that_is_not_there_for_long_stops_the_partition_with_both_sides() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 5)
        world.primary.rows = {FIRST: Position(70, "1"), SECOND: Position(0, "1")}
        process = Process(world, "p1")
        world.run_for(2.0)
        assert process.consumption.states[FIRST][0] is Life.OUT_OF_BOUNDS
        world.run_for(3.0)
        assert "holds the offsets 0 to 10 and the position is 70" in process.stopped[FIRST]

    calmly(job)


def test_what_the_client_reports_of_one_partition_is_its_reason_until_it_is_read() -> None:
    def job(world: Calm) -> None:
        process = Process(world, "p1")
        world.run_for(1.0)
        refused = ClientError(FIRST, "TOPIC_AUTHORIZATION_FAILED", "it is not allowed")
        process.client.errors += [refused, refused]
        with patch("outbox.consumers.member.logger.warning") as warning:
            world.run_for(1.0)
        assert process.consumption.states[FIRST] == (Life.READING, "TOPIC_AUTHORIZATION_FAILED: it is not allowed")
        assert [call.args[0].split()[0] for call in warning.call_args_list] == ["partition_failing"]
        world.produce(FIRST, 1)
        world.run_for(1.0)
        assert (world.handled, process.consumption.states[FIRST][1]) == (1, "")

    calmly(job)


@pytest.mark.parametrize("is_other", [True, False])
def test_a_topic_that_the_client_does_not_know_is_held_back_until_its_id_is_asked(is_other: bool) -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 5)
        process = Process(world, "p1")
        world.run_for(3.0)
        world.faults = Faults(no_metadata=1.0)
        process.client.errors.append(ClientError(FIRST, "UNKNOWN_TOPIC_OR_PART", "it was deleted"))
        world.run_for(0.5)
        if is_other:
            world.topic.create_again()
            world.topic.logs[FIRST].epoch = 3  # else the lower epoch shows it
            world.produce(FIRST, 20)
        else:
            world.produce(FIRST, 1)
        world.run_for(3.0)
        assert world.handled == 5
        world.faults = Faults()
        world.run_for(2.0)
        if is_other:
            assert world.handled == 5
            assert "last confirmed at the position 9" in process.stopped[FIRST]
        else:
            assert (world.handled, process.stopped) == (6, {})

    calmly(job)


def test_a_partition_without_a_leader_keeps_no_other_from_being_read() -> None:
    def job(world: Calm) -> None:
        world.produce(FIRST, 5)
        world.produce(SECOND, 5)
        world.leaderless.add(FIRST)
        process = Process(world, "p1")
        world.run_for(20.0)
        assert world.handled == 5
        assert process.consumption.states[FIRST][0] in (Life.ASSIGNED, Life.LOADING)
        world.leaderless.clear()
        world.run_for(2.0)
        assert world.handled == 10

    calmly(job)


def test_a_topic_that_is_refused_keeps_no_other_from_being_compared() -> None:
    asked = []

    class Some:
        def ids(self, topics: Any) -> dict[str, str]:
            asked.append(topics)
            if "refused" in topics:
                raise NotAvailable("TOPIC_AUTHORIZATION_FAILED")
            return {TOPIC: "1"}

    def job(world: Calm) -> None:
        process = Process(world, "p1")
        watch: Any = process.consumption._topics
        watch._topics = Some()
        assert watch._ids([TOPIC, "refused"]) == {TOPIC: "1"}

    calmly(job)
    assert asked == [[TOPIC, "refused"], [TOPIC], ["refused"]]


def test_topics_that_match_are_subscribed_to_when_they_are_found_and_not_given_up() -> None:
    def job(world: Calm) -> None:
        world.other_topics = ["stock", "orders-eu"]
        process = Process(world, "p1", matches=lambda topic: topic.startswith(TOPIC))
        world.run_for(2.0)
        world.other_topics += ["orders-us"]
        world.run_for(2.0)
        world.other_topics = ["orders-us"]
        world.run_for(2.0)
        assert process.client.subscribed == [["orders", "orders-eu"], ["orders", "orders-eu", "orders-us"]]

    calmly(job)


def test_a_consumer_that_names_its_topics_asks_for_no_others() -> None:
    def job(world: Calm) -> None:
        process = Process(world, "p1")
        world.run_for(2.0)
        assert process.client.subscribed == []

    calmly(job)


def test_a_consumer_waits_as_long_as_its_database_is_unavailable() -> None:
    def job(world: Calm) -> None:
        process = Process(world, "p1")
        world.run_for(2.0)
        assert not process.consumption.is_waiting
        process.database_ok = False
        for session in list(world.primary.sessions):
            session.end()
        world.produce(FIRST, 1)
        world.run_for(2.0)
        assert process.consumption.is_waiting
        process.database_ok = True
        world.run_for(12.0)
        assert (world.handled, process.consumption.is_waiting) == (1, False)

    calmly(job)
