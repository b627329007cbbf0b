"""The simulated tables of journals behave as those of PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection

from outbox.core.journal.values import Cause, Conditions, Staged
from outbox.edges.postgres.journal.keeper import KeeperTable
from tests.simulation.conformance.journal_cases import CASES
from tests.simulation.journal.checkers import Checker
from tests.simulation.journal.database import Database, Refused, Session, Table
from tests.simulation.journal.scenario import JournalWorld
from tests.simulation.runtime import Simulated, in_thread

SAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


# ---- the simulated one


class Nothing(Checker):
    def __getattribute__(self, name: str) -> Any:
        return lambda *given: None


class SimulatedSession(Session):
    def refused(self) -> Cause:
        with pytest.raises(Refused) as caught:
            self.commit()
        return caught.value.cause


class SimulatedSide:
    def __init__(self) -> None:
        self.world = world = JournalWorld(0)
        world.checker = Nothing(world)
        world.zones = {"a": "east", "b": "west"}
        world.replicas, self.journal = 2, world.journal
        state = world.database.journals[self.journal]
        world.database = Database(world, replace(state, replicas=2, stores=("a", "b")))
        self.runtime, self.sessions = Simulated(world), list[Any]()
        self.table = Table(self)

    def new_id(self) -> str:
        return str(uuid4())

    @contextmanager
    def session(self) -> Iterator[SimulatedSession]:
        yield SimulatedSession(self)

    def retain(self, seconds: float | None) -> None:
        self.world.database.retention_s = seconds


@SAME
def test_the_simulated_server(case: Callable[[Any], None]) -> None:
    def scenario() -> None:
        side, errors = SimulatedSide(), list[BaseException]()

        def run() -> None:
            try:
                case(side)
                done.append(True)
            except BaseException as error:
                errors.append(error)

        done: list[bool] = []
        side.runtime.spawn(run)
        side.world.run_until(side.world.now + 60.0)
        if errors:
            raise errors[0]
        assert done, "it waits for ever"

    in_thread(scenario)


# ---- the real one


class RealSession:
    def __init__(self) -> None:
        self.own = connection.copy()
        self.own.set_autocommit(False)
        self.table = KeeperTable(self.own, "outbox")

    def place(self, staged: Staged, conditions: Conditions) -> int | None:
        return self.table.place(staged, conditions)

    def commit(self) -> None:
        self.own.commit()

    def rollback(self) -> None:
        self.own.rollback()

    def refused(self) -> Cause:
        with pytest.raises(DatabaseError) as caught:
            self.own.commit()
        return Cause(caught.value.__cause__.sqlstate)  # type: ignore[union-attr]


class RealSide:
    def __init__(self) -> None:
        self.table = KeeperTable(connection, "outbox")
        self.journal = f"orders-{uuid4().hex[:8]}"
        self.table.create(self.journal, 2, ["a", "b"], 1 << 30, None)

    def new_id(self) -> str:
        return str(uuid4())

    @contextmanager
    def session(self) -> Iterator[RealSession]:
        session = RealSession()
        try:
            yield session
        finally:
            session.own.close()

    def retain(self, seconds: float | None) -> None:
        self.table.change(self.journal, None, seconds or 0.0)

    def remove(self) -> None:
        with connection.cursor() as cursor:
            for table in ("stage", "fragment", "journal"):
                cursor.execute(f"DELETE FROM outbox_{table}")


@SAME
@pytest.mark.usefixtures("transactional_db")
def test_the_real_server(case: Callable[[Any], None]) -> None:
    side = RealSide()
    try:
        case(side)
    finally:
        side.remove()
