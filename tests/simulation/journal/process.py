"""Simulated processes: those that append, those that read, and the keeper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from outbox.core.journal.chain import genesis
from outbox.core.journal.health import StoreHealth
from outbox.core.journal.reading import ReadCursor
from outbox.core.journal.values import Conditions
from outbox.journal import commit
from outbox.journal.errors import FragmentUnavailable, JournalDiverged, JournalError, StageExpired
from outbox.journal.keeper import Keeper
from outbox.journal.reader import JournalReader
from outbox.journal.staging import Staging
from tests.simulation.checkers import Violation
from tests.simulation.journal.database import Lost, Refused, Session, Table
from tests.simulation.journal.store import StoreClient
from tests.simulation.runtime import Simulated

STALL_S = 5.0


class Interrupted(Exception):
    """The content has raised."""


class Process:
    def __init__(self, world: Any, name: str) -> None:
        self.world, self.name = world, name
        self.runtime = Simulated(world, origin=world.random.uniform(0.0, 1e6), switching=world.switching)
        self.runtime.passed = self._passed
        self.sessions: list[Session] = []
        self.table = Table(self)
        self.stores = {one.name: StoreClient(self, one) for one in world.stores.values()}
        world.processes.append(self)
        for number in range(self.threads):
            self.runtime.thread(self._guarded, f"{name}-{number}").start()

    threads = 1

    def _guarded(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.world.fail(error)

    def run(self) -> None:
        raise NotImplementedError

    def _passed(self, name: str) -> None:
        if self.world.chance(self.world.faults.crash):
            self.world.after(0.0, lambda: self.world.crash(self))
            self.runtime.sleep(1e6)

    def crash(self) -> None:
        self.runtime.kill()
        for session in self.sessions:
            self.world.after(self.world.random.uniform(0.0, 1.0), session.rollback)


class Appender(Process):
    threads = 2

    def run(self) -> None:
        world = self.world
        staging = Staging(
            self.table,
            self.stores,
            world.zones,
            self.runtime,
            lambda: world.new_append(self),
            StoreHealth(),
            stall_s=STALL_S,
        )
        while world.is_appending:
            self.runtime.sleep(world.random.choice((0.0, 0.2, 0.7)))
            self._append(staging)

    def _append(self, staging: Staging) -> None:
        world, conditions = self.world, Conditions()
        size = world.random.choice((1, 3, world.block, 2 * world.block, 5 * world.block + 1, 9 * world.block))
        content = random.Random(world.random.random()).randbytes(size)
        count = 0
        if world.chance(0.3):
            state = self.table.state(world.journal)
            assert state is not None
            before = state.registers.get("n")
            count = int(before or 0) + 1
            conditions = Conditions(check={"n": before}, set={"n": str(count)})
        try:
            staged = staging.stage(world.journal, self._chunks(content, count), conditions)
        except (JournalError, Interrupted):
            world.given_up += 1
            return
        world.staged += 1
        if world.chance(world.faults.dawdle):
            self.runtime.sleep(world.random.choice((1.0, 5.0, 30.0)))
        if self._commit(staged, conditions):
            commit.write_index(self.table, self.stores, staged)

    def _chunks(self, content: bytes, count: int) -> Iterator[bytes]:
        """The append has its id when the first chunk is asked for."""
        from greenlet import getcurrent

        world = self.world
        append = world.latest.pop(getcurrent())
        world.checker.contents[append] = content
        world.checker.incomplete.add(append)
        if count:
            world.checker.counters[append] = count
        breaks = world.chance(world.faults.interrupts)
        while content:
            if breaks and world.chance(0.5):
                raise Interrupted
            size = world.random.randrange(1, len(content) + 1)
            chunk, content = content[:size], content[size:]
            yield chunk
        world.checker.incomplete.discard(append)

    def _commit(self, staged: Any, conditions: Conditions) -> bool:
        world, uid = self.world, self.world.new_uid()
        while True:
            session = Session(self)
            try:
                commit.place(session, staged, conditions)
                session.insert(uid, staged.append)
                if world.chance(world.faults.rolls_back):
                    session.ask(session.rollback)
                    return False
                session.commit()
                return True
            except Lost:
                self.runtime.sleep(world.random.choice((0.0, 0.2, 1.0)))
            except (Refused, StageExpired):
                session.rollback()
                return False


class Follower(Process):
    def run(self) -> None:
        world = self.world
        cursor = ReadCursor(0, chain=genesis(world.journal))
        while True:
            reader = JournalReader(world.journal, self.table, self.stores, cursor, self._wait)
            try:
                for block in reader:
                    world.checker.read(cursor.offset - len(block), bytes(block))
                    self._jumped(cursor)
                    world.read_to[self.name] = cursor.offset
            except FragmentUnavailable:
                self.runtime.sleep(0.5)
            except JournalDiverged as error:
                raise Violation(str(error)) from error
            cursor = ReadCursor(cursor.offset, chain=cursor.chain)

    def _wait(self) -> bool:
        self.runtime.sleep(0.2)
        return True

    def _jumped(self, cursor: ReadCursor) -> None:
        for _, to in cursor.jumps:
            self.world.checker.jumped(to)


class KeeperProcess(Process):
    def run(self) -> None:
        world = self.world
        keeper = Keeper(
            self.table, self.stores, world.zones, stage_age_s=world.stage_age_s, scrub_age_s=world.scrub_age_s
        )
        while True:
            keeper.round()
            world.note(sorted(keeper.counts.items()))
            self.runtime.sleep(world.random.choice((0.1, 1.0, 3.0)) if world.is_appending else 10.0)
