"""Messages that fail, in a calm world: which are held, when they are tried again, and what operators can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from outbox.core.consumers import holding
from outbox.core.consumers.crashes import PartitionOwner
from outbox.core.consumers.values import DEAD_LETTER, HOLD, STOP, Partition
from tests.simulation.consumers.checkers import Written
from tests.simulation.consumers.database import Failed, HeldMessage, Seen, Transaction
from tests.simulation.consumers.process import Process
from tests.simulation.consumers.scenario import sized
from tests.simulation.consumers.test_life import FIRST, SECOND, Calm, calmly
from tests.simulation.consumers.topic import TOPIC


@pytest.fixture(autouse=True)
def sizes() -> Any:
    with sized():
        yield


class World(Calm):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        given: dict[str, Any] = {"on_error": HOLD, "batch": 20, "backoff_s": 0.1, **options}
        self.options = replace(self.options, **given)

    def write(self, *keys: str, partition: Partition = FIRST) -> list[int]:
        """A message of each; their numbers."""
        uids = []
        for key in keys:
            uid = len(self.written) + 1
            sequence = sum(message.key == key for message in self.written.values())
            message = self.written[uid] = Written(uid, key, sequence)
            self.topic.logs[partition].append(message, marks=0)
            uids.append(uid)
        return uids

    @property
    def held(self) -> dict[int, HeldMessage]:
        return {int(one.message.value or b""): one for one in self.primary.held.values()}

    @property
    def done(self) -> set[int]:
        return set(self.primary.effects.handled)

    def want(self, uid: int, what: str) -> None:
        one = self.held[uid]
        self.primary.held[one.id] = replace(one, wanted=what)


def live(job: Callable[[World], None], **options: Any) -> None:
    def run(_: Calm) -> None:
        job(World(**options))

    calmly(run)


def test_a_message_that_fails_holds_its_key_and_no_other_and_is_handled_in_order_later() -> None:
    def job(world: World) -> None:
        one, *rest = world.write("a", *["b", "a", "c"] * 10)
        world.failing[one] = 2
        Process(world, "p1")
        world.run_for(3.0, lambda: len(world.done) == 20)
        assert world.done == {uid for uid in rest if world.written[uid].key != "a"}
        assert world.held[one].reason == holding.FAILED
        world.run_for(20.0, lambda: len(world.done) == 31)
        assert len(world.done) == 31
        assert world.held == {}

    live(job, backoff_s=4.0)


def test_after_its_attempts_it_waits_for_an_operator_who_has_it_retried() -> None:
    def job(world: World) -> None:
        one, two = world.write("a", "a")
        world.poison[one] = None
        process = Process(world, "p1")
        world.run_for(8.0)
        assert (world.held[one].attempts, world.held[one].next_at) == (3, None)
        assert world.held[two].reason == holding.WAITING
        assert process.stopped == {}
        del world.poison[one]
        world.want(one, holding.RETRY)
        world.run_for(2.0)
        assert (world.done, world.held) == ({one, two}, {})

    live(job)


@pytest.mark.parametrize(("what", "left"), [(holding.SKIP, 1), (holding.DISCARD, 0)])
def test_an_operator_leaves_it_out_and_its_key_goes_on(what: str, left: int) -> None:
    def job(world: World) -> None:
        one, two = world.write("a", "a")
        world.poison[one] = None
        Process(world, "p1")
        world.run_for(8.0)
        world.want(one, what)
        world.run_for(2.0)
        assert (world.done, len(world.held)) == ({two}, left)
        assert all(message.is_dead for message in world.held.values())

    live(job)


def test_a_dead_letter_lets_its_key_go_on_by_itself() -> None:
    def job(world: World) -> None:
        one, two = world.write("a", "a")
        world.poison[one] = None
        Process(world, "p1")
        world.run_for(8.0)
        assert (world.done, list(world.held)) == ({two}, [one])
        assert world.held[one].is_dead

    live(job, on_error=DEAD_LETTER)


def test_attempts_survive_the_death_of_the_process() -> None:
    def job(world: World) -> None:
        (one,) = world.write("a")
        world.poison[one] = None
        for name in ("p1", "p2", "p3", "p4"):
            process = Process(world, name)
            world.run_for(3.0)
            process.crash()
            world.group.leave(name)
        assert world.held[one].attempts == 3

    live(job, backoff_s=2.0)


def test_a_postponed_message_costs_no_attempt_until_it_has_waited_too_long() -> None:
    def job(world: World) -> None:
        one, two = world.write("a", "b")
        world.not_yet[one] = 4
        Process(world, "p1")
        world.run_for(3.0, lambda: bool(world.done))
        assert world.done == {two}
        assert (world.held[one].reason, world.held[one].attempts) == (holding.NOT_YET, 0)
        world.run_for(20.0, lambda: not world.held)
        assert world.done == {one, two}

    live(job)


def test_a_message_that_closes_the_connection_is_held_too() -> None:
    def job(world: World) -> None:
        uids = world.write(*"abcdefgh")
        world.failing[uids[3]] = 1
        closing = [uids[3]]
        effect = Process._effect

        def close(process: Process, transaction: Transaction, session: Any, message: Written) -> None:
            if message.uid in closing and message.uid in world.failing:
                del world.failing[message.uid]
                transaction.close()
                raise Failed("XX000")
            effect(process, transaction, session, message)

        process = Process(world, "p1")
        process._effect = close.__get__(process)  # type: ignore[method-assign]
        world.run_for(10.0, lambda: len(world.done) == 8)
        assert world.done == set(uids)

    live(job)


def test_a_consumer_that_fails_with_every_message_holds_few_and_spends_no_attempts() -> None:
    def job(world: World) -> None:
        uids = world.write(*[f"k{number}" for number in range(40)])
        world.broken_until = world.now + 60.0
        process = Process(world, "p1")
        world.run_for(30.0)
        assert len(world.held) == 3, "one less than messages of so many keys would be"
        assert {message.attempts for message in world.held.values()} == {0}
        assert process.consumption.failing == "another service is unavailable"
        assert {(one.state, one.reason) for one in process.consumption.observed} == {
            ("failing", "another service is unavailable")
        }
        world.run_for(120.0, lambda: len(world.done) == 40)
        assert world.done == set(uids)
        assert process.consumption.failing == ""
        assert {one.state for one in process.consumption.observed} == {"reading"}

    live(job)


def test_a_consumer_of_lists_finds_the_message_by_halves() -> None:
    def job(world: World) -> None:
        uids = world.write(*[f"k{number % 10}" for number in range(40)])
        world.poison[uids[17]] = None
        Process(world, "p1")
        world.run_for(20.0)
        held = {uid for uid in uids if world.written[uid].key == "k7" and uid >= uids[17]}
        assert set(world.held) == held
        assert world.done == set(uids) - held

    live(job, many=True)


def test_ids_that_take_long_to_find_keep_nothing_from_being_handled() -> None:
    def job(world: World) -> None:
        world.repeats = True
        uids = world.write(*[f"k{number}" for number in range(40)])
        add = Seen.add

        def slow(seen: Seen, *given: Any) -> Any:
            seen._process.runtime.sleep(1.0)
            return add(seen, *given)

        with patch.object(Seen, "add", slow):
            Process(world, "p1")
            world.run_for(90.0, lambda: len(world.done) == 40)
        assert world.done == set(uids)

    live(job)


def test_a_message_that_was_begun_in_one_death_is_innocent_and_in_two_it_is_poison() -> None:
    def job(world: World) -> None:
        one, two = world.write("a", "b")
        world.crashing[one] = None

        def replace() -> None:
            world.group.leave(world.processes[-1].name)
            Process(world, f"p{len(world.processes) + 1}")

        world.replace = replace
        Process(world, "p1")
        world.run_for(200.0, lambda: world.deaths.get(one) == 2)
        del world.crashing[one]
        world.run_for(60.0, lambda: len(world.done) == 2)
        assert (world.done, world.held) == ({one, two}, {}), "one death of two was not by itself"
        (three,) = world.write("c")
        world.crashing[three] = None
        world.run_for(200.0, lambda: three in world.held)
        assert world.held[three].reason == holding.POISON
        assert world.deaths[three] in (2, 3, 4)

    live(job)


@pytest.mark.parametrize("on_error", [HOLD, STOP])
def test_a_message_that_has_failed_is_not_suspected_of_what_another_one_does(on_error: str) -> None:
    def job(world: World) -> None:
        one, *_ = world.write("a", "b")
        world.poison[one] = None
        world.primary.owners[FIRST] = PartitionOwner("dead", is_clean=False, next=0)
        Process(world, "p1")
        world.run_for(3.0)
        assert world.failing[one] < 0, "it was tried"
        assert world.primary.owners[FIRST].begun is None

    live(job, on_error=on_error, backoff_s=8.0)


def test_partitions_of_one_topic_hold_the_same_key_apart() -> None:
    def job(world: World) -> None:
        (one,) = world.write("a")
        (two,) = world.write("b", partition=SECOND)
        world.poison[one] = None
        Process(world, "p1", topics=[TOPIC])
        world.run_for(3.0)
        assert (world.done, list(world.held)) == ({two}, [one])

    live(job)
