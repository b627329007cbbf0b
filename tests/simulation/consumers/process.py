"""One simulated process that consumes, what its function does, and what may befall it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from greenlet import getcurrent

from outbox.consumers.consumption import Consumption
from outbox.consumers.work.worker import ConsumerStopped
from outbox.core.consumers.partition import Life
from outbox.core.consumers.values import Fetched, Partition
from tests.simulation.checkers import Violation
from tests.simulation.consumers.checkers import Written
from tests.simulation.consumers.database import (
    ConnectionClosed,
    Failed,
    FunctionFailed,
    Held,
    Later,
    Owners,
    Positions,
    Seen,
    Session,
    Transaction,
)
from tests.simulation.consumers.topic import Client, Topics
from tests.simulation.runtime import Simulated


class Process:
    """Also what its threads connect with."""

    def __init__(self, world: Any, name: str, *, once: bool = False, topics: Any = (), matches: Any = None) -> None:
        self.world, self.name = world, name
        self.exit_code = 0
        self.runtime = Simulated(world, origin=world.random.uniform(0.0, 1e6), switching=world.switching)
        self.runtime.passed = self.passed
        self.transactions: list[Transaction] = []
        self.client = Client(self)
        self.database_ok, self.is_closed, self.is_leaving = True, False, False
        self.committed = self.cancelled = 0
        self._has_ended_transactions = False
        self.consumption = Consumption(
            world.options,
            self._handle,
            self,
            threads=world.threads,
            fail=self._fail,
            end_process=self._end,
            once=once,
            topics=topics,
            matches=matches,
            identify=(lambda fetched: (fetched.value or b"").decode()) if world.repeats else None,
            runtime=self.runtime,
        )
        world.processes.append(self)
        self.consumption.start()

    # ---- what the threads connect with

    def positions(self) -> Positions:
        return Positions(self)

    def held(self) -> Held:
        return Held(self)

    def seen(self) -> Seen:
        return Seen(self)

    def owners(self) -> Owners:
        return Owners(self)

    def transaction(self) -> Transaction:
        return Transaction(self)

    def group(self) -> Client:
        return self.client

    def topics(self) -> Topics:
        return Topics(self)

    # ---- the function

    def _handle(self, messages: Sequence[Fetched], attempt: int) -> None:
        transaction: Transaction = getcurrent().transaction  # type: ignore[attr-defined]
        session = transaction.session
        assert session is not None
        for fetched in messages:
            partition = Partition(fetched.topic, fetched.partition)
            if (
                session.is_alive
                and session.server.locks.get(partition) is not session
                and not self._has_ended_transactions
            ):
                raise Violation(f"{self.name} calls the function without the lock of {partition}")
            self._effect(transaction, session, self.world.written[int(fetched.value or b"")])

    def _effect(self, transaction: Transaction, session: Session, message: Written) -> None:
        world, faults = self.world, self.world.faults
        if world.chance(faults.slow):
            self.runtime.sleep(world.random.choice((0.01, 0.1, 0.3)))
        if world.chance(faults.hang):
            self.runtime.sleep(60.0)
        if world.chance(faults.asks):
            session.ask(lambda reply: reply())
        if world.chance(faults.conflict):
            raise Failed(world.random.choice(("40P01", "40001", "55P03")))
        if message.uid in world.crashing:
            world.deaths[message.uid] = world.deaths.get(message.uid, 0) + 1
            self.crash()
            world.after(0.3, world.replace)
            self.runtime.sleep(0.0)
        if world.not_yet.get(message.uid, 0) > 0:
            world.not_yet[message.uid] -= 1
            raise Later
        if world.now < world.broken_until:
            raise FunctionFailed("another service is unavailable")
        if message.uid in world.poison and world.chance(0.1):
            transaction.close()
            raise ConnectionClosed
        if message.uid in world.poison or world.failing.get(message.uid, 0) > 0:
            world.failing[message.uid] = world.failing.get(message.uid, 0) - 1
            if world.random.random() < 0.5:
                session.effects.append(message)
            raise FunctionFailed(f"message {message.uid}")
        if world.chance(faults.raw_commit) and self._is_by_itself:
            self._commit(session, message)
        if world.chance(faults.raw_rollback):
            self._has_ended_transactions = True
            session.rollback()
            session.begin()
        session.effects.append(message)
        if not transaction.hooks:
            transaction.hooks.append(partial(world.hooked, session.xid))

    @property
    def _is_by_itself(self) -> bool:
        """Nobody else could handle what it has committed before an operator knows of it."""
        return (
            self.world.threads == 1
            and not self.is_leaving
            and not any(process.is_alive for process in self.world.processes if process is not self)
        )

    def _commit(self, session: Session, message: Written) -> None:
        """A raw COMMIT keeps the effects without their position, and then the function fails."""
        world = self.world
        self._has_ended_transactions = world.is_ended_by_hand = True
        world.faults.calm()
        session.effects.append(message)
        session.commit(lambda: None)
        session.begin()
        raise world.random.choice((FunctionFailed("after COMMIT"), Failed("40001")))

    # ---- life and faults

    @property
    def is_alive(self) -> bool:
        return self.runtime.is_alive

    @property
    def is_paused(self) -> bool:
        return self.runtime.is_paused

    @property
    def stopped(self) -> dict[Partition, str]:
        states = self.consumption.states
        return {partition: reason for partition, (state, reason) in states.items() if state is Life.STOPPED}

    def passed(self, name: str, probability: float | None = None) -> None:
        if self.world.chance(self.world.faults.point if probability is None else probability) and self.is_alive:
            self.world.struck(self, name)
            self.runtime.sleep(0.0)

    def _fail(self, error: BaseException) -> None:
        if self.runtime.is_over or not self.is_alive:
            return
        if isinstance(error, ConsumerStopped) and self.world.is_ended_by_hand:
            self.world.after(0.0, self.world.decide)
        elif isinstance(error, ConsumerStopped) and self._has_ended_transactions:
            self.world.after(0.0, self.stop)
            self.world.after(0.5, self.world.replace)
        else:
            self.world.fail(error)

    def _end(self, code: int) -> None:
        self.exit_code = code
        self.crash()
        self.world.after(0.3, self.world.replace)
        self.runtime.sleep(0.0)

    def stop(self) -> None:
        """Its batch under way is finished, and it leaves the group."""
        self.is_leaving = True
        self.consumption.stop()

    def crash(self) -> None:
        if self.is_alive:
            self.check()
            self.runtime.kill()
            self.is_closed = True
            for transaction in self.transactions:
                transaction.close()

    def pause(self) -> None:
        self.runtime.pause()

    def resume(self) -> None:
        self.runtime.resume()

    def check(self) -> None:
        if self.consumption.handled > self.committed and not self.world.repeats:
            raise Violation(
                f"{self.name} counts {self.consumption.handled} messages as handled and has committed {self.committed}"
            )
