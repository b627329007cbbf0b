"""The simulated table with marks against PostgreSQL's: the questions to both sides, and the sides.

Ids, rows and holds are the same numbers on both; leader ids are given.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg

from outbox.conf import parse
from outbox.core.holds.values import DeadRecord, HoldActions, HoldRow
from outbox.edges.postgres.at_least_once.marks import Scopes
from outbox.edges.postgres.common.table import connect_session
from outbox.harvest.at_least_once.ports import MarkDatabase
from outbox.runtime.threads import THREADS
from tests.simulation.at_least_once import database as simulated_database
from tests.simulation.at_least_once.checkers import Checkers
from tests.simulation.at_least_once.scenario import PLAIN, World
from tests.simulation.at_least_once.table import TOPIC
from tests.simulation.conformance.frame import Asking, RealServers, SimulatedServers, play, play_simulated
from tests.simulation.exactly_once.holds import Hold
from tests.simulation.runtime import Simulated
from tests.support.tables import create_companions, create_table

LANES = 2
KEYS = ("k6", "k11", "k21", "k25", "k43", "k58")
"""Both sides give them the same lane."""
A, B = UUID(int=1), UUID(int=2)
_ERRORS = (psycopg.Error, ConnectionError)


class Unchecked(Checkers):
    def touched(self, id_: int, marked_by: UUID | None, by: UUID) -> None:
        pass


class SimulatedTable(SimulatedServers):
    def __init__(self) -> None:
        self.world = World(1, Unchecked(window=9), PLAIN)
        self.world.lanes = LANES
        self.runtime = Simulated(self.world, origin=50.0)
        self.process = SimpleNamespace(
            name="caller", world=self.world, runtime=self.runtime, point=lambda name: None, clients={}, connections={},
            kafka_ok=True, table_ok=True,
        )  # fmt: skip

    def database(self, lanes: int) -> Any:
        self.world.lanes = lanes
        return simulated_database.Database(self.process)

    def insert(self, *keys: str) -> list[int]:
        rows = [self.world.table.draw(key, number) for number, key in enumerate(keys)]
        self.world.table.insert(rows)
        return [row.id for row in rows]

    def rows(self) -> list[tuple[int, UUID | None]]:
        return [(id_, row.leader_id) for id_, row in sorted(self.world.table.rows.items())]

    def holds(self) -> list[tuple[Any, ...]]:
        found = self.world.table.holds_by_id.values()
        return sorted((h.record_id, h.reason, h.key, h.attempts, h.wanted, list(h.confirmed_by)) for h in found)

    def dead(self) -> list[tuple[int, str]]:
        return sorted(self.world.table.dead.items())

    def want(self, id_: int, wanted: str) -> None:
        holds = self.world.table.holds_by_id.values()
        self.world.table.hold_table.want(next(h.id for h in holds if h.record_id == id_), wanted)

    def pause(self, key: str) -> None:
        self.world.table.hold_table.place(Hold(0, TOPIC, key, None, 0, None, "paused"))

    def hold_ids(self) -> list[int]:
        return sorted(self.world.table.holds_by_id)


class RealTable(RealServers):
    runtime = THREADS

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = psycopg.connect(url, autocommit=True)
        self._admin.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        create_table(self._admin)
        create_companions(self._admin)

    def database(self, lanes: int) -> Any:
        conf = parse({"BOOTSTRAP_SERVERS": "unused:1", "DELIVERY": "at-least-once", "LANES": lanes})
        source = {"conninfo": self._url}
        return MarkDatabase(conf, partial(connect_session, source, statement_timeout_s=5.0))

    def insert(self, *keys: str) -> list[int]:
        text = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, 'v') RETURNING id"
        return [self._admin.execute(text, [TOPIC, key]).fetchone()[0] for key in keys]  # type: ignore[index]

    def rows(self) -> list[tuple[int, UUID | None]]:
        return self._admin.execute("SELECT id, leader_id FROM outbox ORDER BY id").fetchall()

    def holds(self) -> list[tuple[Any, ...]]:
        text = "SELECT record_id, reason, key, attempts, wanted, confirmed_by FROM outbox_hold"
        return sorted(self._admin.execute(text).fetchall())

    def dead(self) -> list[tuple[int, str]]:
        return self._admin.execute("SELECT record_id, reason FROM outbox_dead ORDER BY 1").fetchall()

    def want(self, id_: int, wanted: str) -> None:
        self._admin.execute("UPDATE outbox_hold SET wanted = %s WHERE record_id = %s", [wanted, id_])

    def pause(self, key: str) -> None:
        text = "INSERT INTO outbox_hold (topic, key, record_id, reason) VALUES (%s, %s, 0, 'paused')"
        self._admin.execute(text, [TOPIC, key])

    def hold_ids(self) -> list[int]:
        return [row[0] for row in self._admin.execute("SELECT id FROM outbox_hold ORDER BY id")]

    def close(self) -> None:
        self._admin.close()


class Script(Asking):
    """Calls ports of one side, and records the answers and the rows that the table then holds."""

    def __init__(self, side: Any) -> None:
        super().__init__(side)
        self.connections: list[Any] = []

    def lane(self, lane: int = 0, lanes: int = 1) -> Lane:
        return Lane(self, lane, lanes)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def call(self, port: str, name: str, found: Any, *given: Any, **named: Any) -> Any:
        self.called.add((port, name))
        try:
            answer = getattr(found, name)(*given, **named)
        except _ERRORS as error:
            self.lines.append((port, name, "rejected"))
            raise error
        told = sorted(row[:3] for row in answer) if name in ("mark", "fetch") else answer
        if name == "load":
            told = [(row.topic, row.key, row.lane, row.of_lane, row.record_id, row.reason, row.attempts, row.wanted,
                     row.due_s is None, row.confirmed_by, row.is_there) for row in answer]  # fmt: skip
        if (
            name in ("connect", "marks", "holds", "unmarked_holds", "lease", "take", "transaction")
            and port == "MarkDatabasePort"
        ):
            told = None
        told = sorted(told) if isinstance(told, frozenset) or name in ("purge", "look_up") else told
        self.lines.append((port, name, told, self.side.rows(), self.side.holds(), self.side.dead()))
        return answer


class Lane:
    """What one worker works with."""

    def __init__(self, script: Script, lane: int, lanes: int) -> None:
        self._script, self._database = script, script.side.database(lanes)
        self.marks = self._of_database("marks", lane)
        self.marked, self.unmarked = self._of_database("holds"), self._of_database("unmarked_holds")
        self.reconnect()

    def _of_database(self, name: str, *given: Any) -> Any:
        return self._script.call("MarkDatabasePort", name, self._database, *given)

    def reconnect(self) -> None:
        self.connection = self._of_database("connect")
        self._script.connections.append(self.connection)

    def ask(self, name: str, *given: Any) -> Any:
        return self._script.call("MarkStatements", name, self.marks, self.connection, *given)

    def hold(self, name: str, *given: Any, marked: bool = True, **named: Any) -> Any:
        table = self.marked if marked else self.unmarked
        return self._script.call("HoldStatements", name, table, self.connection, *given, **named)

    def run(self, hold_actions: HoldActions, leader: UUID, *, marked: bool = True) -> None:
        with self.connection.transaction():
            self.hold("run", 0, hold_actions, marked=marked, leader=leader)
        self._script.lines.append((self._script.side.rows(), self._script.side.holds(), self._script.side.dead()))

    def use_transaction(self) -> Any:
        return self._of_database("transaction", self.connection)

    def lease(self) -> Any:
        return self._of_database("lease", "test")


# ---- cases


def marks_take_rows_in_the_order_of_ids(s: Script) -> None:
    s.side.insert("a", "b", "", "a", "c")
    lane = s.lane()
    assert lane.ask("take", 5, 3.0) is True
    assert len(lane.ask("mark", A, 2)) == 2
    assert len(lane.ask("mark", A, 2, [(TOPIC, "a")])) == 2
    assert len(lane.ask("mark", A, 9)) == 1
    assert lane.ask("mark", A, 9) == []
    assert len(lane.ask("mark", B, 3)) == 3, "of another leader"


def marks_leave_out_what_is_held(s: Script) -> None:
    ids = s.side.insert("a", "b", "", "", "c")
    lane = s.lane()
    lane.ask("take", 5, 3.0)
    lane.marks.held = Scopes(keys=frozenset({(TOPIC, "a")}), ids=frozenset({ids[2]}))
    assert [row.id for row in sorted(lane.ask("mark", A, 9))] == [ids[1], ids[3], ids[4]]
    lane.marks.held = Scopes(is_all=True)
    assert lane.ask("mark", B, 9) == []
    lane.marks.held = Scopes(topics=frozenset({TOPIC}))
    assert lane.ask("mark", B, 9) == []
    lane.marks.held = Scopes()
    assert len(lane.ask("mark", B, 9)) == 5


def purge_reset_fetch_and_sweep_touch_only_rows_of_their_leader(s: Script) -> None:
    ids = s.side.insert(*"abcdef")
    lane = s.lane()
    lane.ask("take", 5, 3.0)
    lane.ask("mark", A, 3)
    assert lane.ask("fetch", A, ids) == lane.ask("fetch", A, ids[:3])
    assert lane.ask("fetch", B, ids) == []
    assert lane.ask("look_up", A, [*ids, 99]) == ids[:3]
    assert lane.ask("sweep", A, 2) == ids[:2]
    assert lane.ask("sweep", B, 9) == []
    assert lane.ask("reset", B, ids) == 0
    assert lane.ask("reset", A, ids[:1]) == 1
    assert lane.ask("purge", B, ids) == []
    assert lane.ask("purge", A, ids) == ids[1:3]


def a_sweep_does_not_go_beyond_what_marks_have_reached(s: Script) -> None:
    ids = s.side.insert(*"abcdef")
    lane = s.lane()
    lane.ask("take", 5, 3.0)
    lane.ask("mark", A, 9)
    assert lane.ask("sweep", A, 9) == ids
    lane.ask("reset", A, ids[:2])
    lane.ask("mark", A, 2)
    assert lane.ask("sweep", A, 9) == ids[:2]
    lane.ask("mark", A, 2)
    assert lane.ask("sweep", A, 9) == ids


def lanes_are_apart(s: Script) -> None:
    s.side.insert(*KEYS, "", "")
    lanes = [s.lane(number, LANES) for number in range(LANES)]
    for number, lane in enumerate(lanes):
        assert lane.ask("take", 5 + number, 3.0) is True
    assert sum(len(lane.ask("mark", A, 99)) for lane in lanes) == len(KEYS) + 2


def a_claim_ends_the_sessions_of_older_owners(s: Script) -> None:
    s.side.insert(*"abc")
    older, newer = s.lane(), s.lane()
    assert older.ask("take", 5, 3.0) is True
    assert newer.ask("take", 7, 3.0) is True
    with suppress(*_ERRORS):
        older.ask("mark", A, 1)
        raise AssertionError("its session has ended")
    older.reconnect()
    assert older.ask("take", 5, 3.0) is False
    assert "epoch" in older.marks.refused_by or older.marks.refused_by
    assert len(newer.ask("mark", B, 1)) == 1
    newer.connection.close()
    again = s.lane()
    assert again.ask("take", 8, 3.0) is True
    assert again.ask("take", 8, 3.0) is True


def held(record_id: int, topic: str, key: str, attempts: int, due_s: float | None = 1.0) -> HoldRow:
    return HoldRow(0, topic, key, record_id=record_id, attempts=attempts, code="X", error="x", due_s=due_s)


def leaving(record_id: int, reason: str) -> DeadRecord:
    return DeadRecord(held(record_id, TOPIC, "", 1), reason)


def refused_records_are_written_and_lifted(s: Script) -> None:
    ids = s.side.insert("a", "b", "", "a")
    lane = s.lane()
    assert lane.hold("exist") is True
    assert lane.hold("load", 1) == []
    placed = [held(ids[0], TOPIC, "a", 1), held(ids[2], TOPIC, "", 2, None)]
    lane.hold("write", placed, ())
    lane.hold("load", 1)
    lane.hold("write", [held(ids[0], TOPIC, "a", 2), held(99, TOPIC, "z", 1)], [ids[2]])
    lane.hold("load", 1)
    lane.hold("write", (), ids)
    assert lane.hold("load", 1) == []


def deletions_are_guarded_by_the_leader(s: Script) -> None:
    ids = s.side.insert(*"abcdef")
    lane = s.lane()
    lane.ask("take", 5, 3.0)
    lane.ask("mark", A, 4)
    lane.hold("write", [held(id_, TOPIC, key, 1) for id_, key in zip(ids, "abcdef", strict=True)], ())
    lane.run(HoldActions((leaving(ids[0], "rejected"),)), B)
    lane.run(HoldActions((leaving(ids[0], "rejected"), leaving(99, "rejected"))), A)
    lane.run(HoldActions(discarded=(ids[1], ids[4])), A)
    s.side.want(ids[1], "discard")
    s.side.want(ids[4], "discard")
    lane.run(HoldActions(discarded=(ids[1], ids[4])), A)
    lane.run(HoldActions(discarded=(ids[4],)), A, marked=False)
    lane.run(HoldActions((leaving(ids[2], "skipped"),)), A, marked=False)
    lane.run(HoldActions((leaving(ids[5], "skipped"),)), A, marked=False)


def a_pause_is_confirmed_once_by_each_lane(s: Script) -> None:
    s.side.pause("a")
    lane = s.lane()
    (number,) = s.side.hold_ids()
    for _ in range(2):
        lane.hold("run", 0, HoldActions(confirmed=(number, 99)))
    lane.hold("run", 1, HoldActions(confirmed=(number,)))
    lane.hold("load", 2)


def what_fails_in_a_transaction_has_no_effect(s: Script) -> None:
    ids = s.side.insert("a")
    lane = s.lane()
    lane.ask("take", 5, 3.0)
    lane.ask("mark", A, 4)
    with suppress(ValueError), lane.use_transaction():
        lane.hold("run", 0, HoldActions((leaving(ids[0], "rejected"),)), leader=A)
        raise ValueError
    lane.ask("look_up", A, ids)
    with lane.use_transaction():
        lane.hold("run", 0, HoldActions((leaving(ids[0], "rejected"),)), leader=A)
    lane.ask("look_up", A, ids)


def the_table_is_taken_for_the_mode(s: Script) -> None:
    lane = s.lane()
    lease = lane.lease()
    assert s.call("LeasePort", "take", lease, lane.connection, lanes=1, owned={0: A}) is True
    s.call("LeasePort", "release", lease, lane.connection)


CASES = (
    marks_take_rows_in_the_order_of_ids,
    marks_leave_out_what_is_held,
    purge_reset_fetch_and_sweep_touch_only_rows_of_their_leader,
    a_sweep_does_not_go_beyond_what_marks_have_reached,
    lanes_are_apart,
    a_claim_ends_the_sessions_of_older_owners,
    refused_records_are_written_and_lifted,
    deletions_are_guarded_by_the_leader,
    a_pause_is_confirmed_once_by_each_lane,
    what_fails_in_a_transaction_has_no_effect,
    the_table_is_taken_for_the_mode,
)


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedTable()))


def real(case: Callable[[Script], None], url: str) -> Script:
    return play(case, Script(RealTable(url)))
