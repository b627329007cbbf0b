"""The two sides of the comparison: the simulated servers below the ports, and PostgreSQL and Kafka below the product's.

A script calls the ports of one side. It records each question, the answer and the rows that the table then holds, in
words that do not depend on the side: transaction ids, files, times and names are replaced by their order.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException

from outbox import wakeups
from outbox.conf import parse
from outbox.core.exactly_once.decisions import StateRow
from outbox.core.exactly_once.ledger import Entry
from outbox.core.frontier import Snapshot
from outbox.core.holds.crashes import Care, Watch
from outbox.core.holds.values import DeadRecord, HoldActions, HoldRow
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, kafka_error
from outbox.edges.postgres.exactly_once.companions import Companions, Found
from outbox.edges.postgres.exactly_once.reader import Page
from outbox.exceptions import OutboxError
from outbox.harvest.exactly_once.kafka import LaneKafka
from outbox.harvest.exactly_once.rounds.database import Database
from outbox.runtime.threads import THREADS
from outbox.schema.adoption import guarded_default
from tests.simulation.conformance.frame import (
    Asking,
    Order,
    RealServers,
    SimulatedServers,
    play,
    play_simulated,
    told_of,
)
from tests.simulation.exactly_once import database as simulated_database
from tests.simulation.exactly_once import kafka as simulated_kafka
from tests.simulation.exactly_once.checkers import TOPIC, Checkers, Written
from tests.simulation.exactly_once.holds import Hold
from tests.simulation.exactly_once.scenario import World
from tests.simulation.runtime import Simulated
from tests.support.settings import changed
from tests.support.tables import create_companions, create_table
from tests.support.topics import create_topic, read_topic

LANES = 3
_ENOUGH_S = 30.0
_BACKEND = re.compile(r"\d+ \d+(/\d+)?")
_UNTOLD = {("client", "poll")}
"""How much was told meanwhile is nobody's concern."""
_OWN_MAX = 1000
"""Of the numbers that a case chooses: greater ones are the server's."""
_OF_A_HOLD = (
    "topic", "key", "lane", "of_lane", "record_id", "reason", "attempts", "code", "error", "wanted", "confirmed_by",
    "is_there", "head_lane",
)  # fmt: skip
_ERRORS = (psycopg.Error, KafkaException, SystemError, OutboxError, ValueError, TypeError)

Table = tuple[Any, ...]
"""The ids and values of the rows, m of each lane that has one, the row of the lane count, holds and dead letters: as
far as it is committed."""


class Delivered(Checkers):
    """What is deleted need not be delivered."""

    def purged(self, uid: int) -> None:
        pass


class SimulatedSide(SimulatedServers):
    topic = TOPIC

    def __init__(self) -> None:
        self.checkers = Delivered()
        self.world = world = World(0, self.checkers)
        world.lanes, world.postgres.is_plain, world.watches = LANES, True, True
        world.postgres.rows_per_block = 100
        self.server.now.state, self.server.now.filenode = StateRow(LANES), 100 * _OWN_MAX
        self.runtime = Simulated(world, origin=50.0)
        self.caller = SimpleNamespace(
            name="caller", world=world, runtime=self.runtime, point=lambda name: None,
            perhaps_evicted=lambda: None,
            clients={}, connections={}, kafka_ok=True, table_ok=True, holds_lease=False,
        )  # fmt: skip

    @property
    def server(self) -> Any:
        return self.world.postgres.primary

    def database(self) -> Any:
        return simulated_database.Database(self.caller)

    def kafka(self) -> Any:
        return simulated_kafka.Kafka(self.caller)

    def writer(self, *, writes: bool = True) -> Any:
        server, records = self.server, []
        xid = server.begin(writes=writes)

        def insert(key: str, uid: int) -> int:
            records.append(Written(uid, key, uid, server.draw_id()))
            return records[-1].id

        def commit() -> None:
            server.end(xid, records)
            self.runtime.sleep(0.01)

        return SimpleNamespace(xid=xid, insert=insert, commit=commit, roll_back=lambda: server.end(xid))

    def table(self) -> Table:
        now = self.server.now
        holds = [
            (h.topic, h.key, h.lane, h.record_id, h.reason, h.attempts, h.code, h.error, h.wanted, h.confirmed_by)
            for _, h in sorted(now.holds.items())
        ]
        dead = [
            (
                id_,
                *letter.stored.row[1:4],
                letter.dead_record.reason,
                hold.attempts,
                hold.code,
                hold.error,
                _told_of(letter.history),
            )
            for id_, letter in sorted(now.dead.items())
            for hold in (letter.dead_record.hold,)
        ]
        rows = sorted((id_, stored.row[3]) for id_, stored in now.rows.items())
        return [row[0] for row in rows], dict(now.purged), now.state, [row[1] for row in rows], holds, dead

    def truncate(self) -> None:
        assert self.server.truncate()

    def set_sequence(self, last: int) -> None:
        self.server.now.sequence = last

    def keep_rows(self) -> None:
        self.world.postgres.is_plain = False

    def request(self, lanes: int) -> None:
        self.server.request(lanes)

    def hold(self, topic: str, key: str | None, lane: int | None, record_id: int | None, reason: str) -> None:
        stashed_at = None if record_id is None else self.server.now.rows[record_id].create_time
        assert self.server.holds.place(Hold(0, topic, key, lane, record_id, stashed_at, reason))

    def want(self, record_id: int, wanted: str) -> None:
        for hold in self.server.holds.of_record([record_id]):
            self.server.holds.want(hold.id, wanted)

    def give_to_other_mode(self, *, gives: bool) -> None:
        self.world.has_other_mode = gives

    def install_wakeups(self) -> None:
        pass

    def holds_lease(self) -> bool:
        return bool(self.caller.holds_lease)

    def make_topic(self, partitions: int = 1) -> None:
        pass

    def refuse_keyless(self) -> None:
        self.world.faults.refuse, self.world.faults.names_refused = {"": None}, True

    def limit_size(self, limit: int) -> None:
        self.world.faults.limit = limit

    def refuse_here(self, key: str) -> None:
        self.world.faults.refuse_here = {key: None}

    def delivered(self) -> list[int]:
        self.runtime.sleep(0.5)
        return list(self.checkers.delivered)


class RealSide(RealServers):
    """An empty table in a database that is there, and topics of its own."""

    def __init__(self, url: str, bootstrap_servers: str) -> None:
        self.runtime = THREADS
        self._url, self._servers = url, bootstrap_servers
        self._admin = psycopg.connect(url, autocommit=True)
        self._admin.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        create_table(self._admin)
        self._admin.execute(f"ALTER TABLE outbox ALTER id SET DEFAULT {guarded_default('outbox_id_seq')}")
        create_companions(self._admin)
        self.name = f"conformance-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}-orders"
        self._topic_config: dict[str, str] = {}
        given = parse({"BOOTSTRAP_SERVERS": bootstrap_servers, "NAME": self.name})
        producer = {"linger.ms": 100, "compression.type": "none"}  # what is sent before a flush is one request
        self.conf = changed(given, LANES=LANES, STATEMENT_TIMEOUT=2.4, ID_HEADER="", PRODUCER=producer)
        self._opened: list[Any] = []

    def close(self) -> None:
        for connection in self._opened:
            connection.close()
        self._admin.close()

    def database(self) -> Any:
        return Database(self.conf, lambda: {"conninfo": self._url})

    def kafka(self) -> Any:
        return LaneKafka(self.conf)

    def writer(self, *, writes: bool = True) -> Any:
        connection = psycopg.connect(self._url)
        self._opened.append(connection)
        xid = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0]  # type: ignore[index]

        def insert(key: str, uid: int) -> int:
            row = connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s) RETURNING id",
                [TOPIC, key, str(uid)],
            ).fetchone()
            assert row is not None
            return int(row[0])

        return SimpleNamespace(xid=xid, insert=insert, commit=connection.commit, roll_back=connection.rollback)

    def table(self) -> Table:
        rows = self._admin.execute("SELECT id, kafka_value FROM outbox ORDER BY id").fetchall()
        purged = dict(self._admin.execute("SELECT lane, max(batch) FROM outbox_purged GROUP BY lane").fetchall())
        state = self._admin.execute("SELECT lanes, resize_to, lanes_wanted, resize_no FROM outbox_state").fetchone()
        holds = self._admin.execute(
            "SELECT topic, key, lane, record_id, reason, attempts, error_code, last_error, wanted, confirmed_by "
            "FROM outbox_hold ORDER BY id"
        ).fetchall()
        dead = self._admin.execute(
            "SELECT record_id, topic, key, value, reason, attempts, error_code, last_error, history "
            "FROM outbox_dead ORDER BY record_id"
        ).fetchall()
        found = StateRow(LANES) if state is None else StateRow(*state)
        letters = [(*letter[:8], _told_of(letter[8])) for letter in dead]
        return [row[0] for row in rows], purged, found, [row[1] for row in rows], holds, letters

    def truncate(self) -> None:
        self._admin.execute("TRUNCATE outbox RESTART IDENTITY")

    def set_sequence(self, last: int) -> None:
        self._admin.execute("SELECT setval('outbox_id_seq', %s)", [last])

    def keep_rows(self) -> None:
        self._admin.execute(
            "CREATE TRIGGER look BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.id = 0) "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
        )

    def request(self, lanes: int) -> None:
        Companions("outbox", "outbox_id_seq").request(self._admin, lanes)

    def hold(self, topic: str, key: str | None, lane: int | None, record_id: int | None, reason: str) -> None:
        self._admin.execute(
            "INSERT INTO outbox_hold (topic, key, lane, record_id, stashed_at, reason) "
            "SELECT %s, %s, %s, %s, (SELECT create_time FROM outbox WHERE id = %s), %s",
            [topic, key, lane, record_id, record_id, reason],
        )

    def want(self, record_id: int, wanted: str) -> None:
        self._admin.execute("UPDATE outbox_hold SET wanted = %s WHERE record_id = %s", [wanted, record_id])

    def give_to_other_mode(self, *, gives: bool) -> None:
        self._admin.execute(
            "UPDATE outbox_state SET lease_mode = %s, lease_time = clock_timestamp()",
            ["at-least-once" if gives else ""],
        )

    def install_wakeups(self) -> None:
        self._admin.execute(wakeups.install("outbox"))

    def holds_lease(self) -> bool:
        row = self._admin.execute("SELECT lease_mode <> '' AND lease_time > '-infinity' FROM outbox_state").fetchone()
        return bool(row and row[0])

    def make_topic(self, partitions: int = 1) -> None:
        create_topic(self._servers, partitions, self.topic, **self._topic_config)

    def refuse_keyless(self) -> None:
        self._topic_config = {"cleanup.policy": "compact"}

    def limit_size(self, limit: int) -> None:
        self._topic_config = {"max.message.bytes": str(limit)}

    def refuse_here(self, key: str) -> None:
        assert len(key) > 1_000_000, "what the client takes for too large"

    def delivered(self) -> list[int]:
        return [int(record.value or b"") for record in read_topic(self._servers, self.topic)]


def _told_of(history: Any) -> list[tuple[str, str]]:
    return [(attempt["code"], attempt["error"]) for attempt in history]


class Recorded:
    """A port: every call is written down."""

    def __init__(self, script: Script, port: str, found: Any) -> None:
        self._script, self._port, self._found = script, port, found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._found, name)
        if callable(found):
            return lambda *given, **named: self._script.call(self._port, name, found, *given, **named)
        self._script.called.add((self._port, name))
        return self._script.wrapped(name, found)


class _RollBack(Exception):
    pass


class Script(Asking):
    """What a case works with, on one side."""

    _WRAPPED = {
        "statements": "StatementsPort",
        "holds": "HoldsPort",
        "reader": "ReaderPort",
        "sweeper": "SweeperPort",
        "lease": "LeasePort",
    }

    def __init__(self, side: Any, shared: Script | None = None) -> None:
        super().__init__(side)
        self._is_beside = shared is not None
        if shared is not None:
            self.called = shared.called
        self._order = Order() if shared is None else shared._order
        self._writers: list[Any] = [] if shared is None else shared._writers
        self.connections: list[Any] = []
        self.producers: list[TransactionalProducer] = []
        self._uids = 0
        self._read_at: Any = None
        if shared is None:
            self.database: Any = Recorded(self, "DatabasePort", side.database())
            self.kafka: Any = Recorded(self, "KafkaPort", side.kafka())
        else:
            self.database = Recorded(self, "DatabasePort", shared.database._found)
            self.kafka = Recorded(self, "KafkaPort", shared.kafka._found)

    # ---- what a case does

    @property
    def statements(self) -> Any:
        return self.database.statements

    @property
    def holds(self) -> Any:
        return self.database.holds

    @property
    def topic(self) -> str:
        return str(self.side.topic)

    def connect(self) -> Any:
        connection = self.database.connect("test")
        self.connections.append(connection)
        return connection

    def reader(self, lanes: int = 1) -> Any:
        return self.database.reader(lanes)

    def client(self, producer: TransactionalProducer) -> Any:
        """What the producer works with."""
        self.producers.append(producer)
        return Recorded(self, "client", producer.client)

    def begin(self, *keys: str, writes: bool = True) -> Any:
        """A transaction of an application that has written a record for each key."""
        writer = self.side.writer(writes=writes)
        self._writers.append(writer)
        writer.ids = [writer.insert(key, self.new_uid()) for key in keys]
        return writer

    def new_uid(self) -> int:
        self._uids += 1
        return self._uids

    def write(self, *keys: str) -> list[int]:
        writer = self.begin(*keys)
        writer.commit()
        return list(writer.ids)

    def read(self, connection: Any, look: int = 0, excluded: tuple[int, ...] = (), limit: int = 100) -> Any:
        """Of the one lane that there is."""
        reader = Recorded(self, "ReaderPort", self.side_reader())
        return reader.read(connection, look, (0,), excluded, limit, 1_000_000, simulated_database.LeftOut())

    def side_reader(self) -> Any:
        return self.database._found.reader(1)

    @contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        connection.give_up_at = self.runtime.monotonic() + _ENOUGH_S
        with connection.transaction():
            yield
        self.note("committed")

    @contextmanager
    def rolled_back(self, connection: Any) -> Iterator[None]:
        with suppress(_RollBack), connection.transaction():
            yield
            raise _RollBack

    def beside(self, job: Callable[[Script], Any]) -> Callable[[], Any]:
        """Runs it in another thread, some time to get stuck included. Returns how to wait for its result."""
        other, found = Script(self.side, self), []

        def run() -> None:
            try:
                found.append(job(other))
            except _ERRORS as error:
                found.append(type(error))

        thread = self.runtime.thread(run, "beside")
        thread.start()
        self.runtime.sleep(0.2)

        def join() -> Any:
            thread.join(_ENOUGH_S)
            self.lines += other.lines
            self.note("joined")
            return found[0]

        return join

    def note(self, *what: Any) -> None:
        self.lines.append((*what, self._table()))

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for producer in self.producers:
            producer.drop()
        self.kafka.close()

    # ---- what is written down

    def call(self, port: str, name: str, found: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.called.add((port, name))
        for value in given:
            if hasattr(value, "give_up_at") and value.give_up_at < float("inf"):
                value.give_up_at = max(value.give_up_at, self.runtime.monotonic() + _ENOUGH_S)
        asked = port, name, self._plain(given), self._plain(named)
        try:
            answer = found(*given, **named)
        except _ERRORS as error:
            self.lines.append((*asked, "raised", self._error(error), self._table()))
            raise
        told = None if (port, name) in _UNTOLD else self._plain(answer)
        self.lines.append((*asked, told, self._table()))
        return self.wrapped(name, answer)

    def wrapped(self, name: str, found: Any) -> Any:
        return Recorded(self, self._WRAPPED[name], found) if name in self._WRAPPED else found

    def _table(self) -> Any:
        """While something else is under way, nobody can say what it holds."""
        return None if self._is_beside else self._plain(self.side.table())

    @staticmethod
    def _error(error: BaseException) -> Any:
        found = kafka_error(error)
        if found is None:
            return type(error).__name__
        return told_of(found)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, StateRow):
            change = self._order.nth("change", value.resize_no)
            return "State", value.lane_count, value.resize_to, value.wanted, change
        if isinstance(value, Found):
            newest = None if value.newest is None else self._order.nth("time", value.newest)
            return "Found", value.count, value.digest, newest, self._order.nth("file", value.filenode)
        if isinstance(value, Page):
            return self._page(value)
        if isinstance(value, HoldRow):
            shown = self._plain([getattr(value, name) for name in _OF_A_HOLD])
            due = None if value.due_s is None else round(value.due_s / 10)
            return "HoldRow", self._order.nth("hold", value.id), due, _told_of(value.history), *shown
        if isinstance(value, Watch):
            return "Watch", *self._plain([getattr(value, field.name) for field in fields(value)])
        if isinstance(value, DeadRecord | Care | HoldActions):
            return type(value).__name__
        if isinstance(value, Entry):
            return "Entry", value.lane, value.batch, value.ids
        if isinstance(value, KafkaError):
            return told_of(value)
        if isinstance(value, dict):
            return {self._plain(key): self._plain(each) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return [self._plain(each) for each in value]
        if isinstance(value, uuid.UUID):
            return self._order.nth("uuid", value)
        if isinstance(value, str):
            if _BACKEND.fullmatch(value):
                return self._order.nth("backend", value)
            return value.replace(self.side.topic, TOPIC).replace(getattr(self.side, "name", "outbox"), "outbox")
        if value is None or isinstance(value, bool | float | bytes):
            return value
        if isinstance(value, int):
            if value <= _OWN_MAX:
                return value
            known = [what for what in ("file", "change") if self._order.knows(what, value)]
            return self._order.nth(known[0], value) if known else "unknown"
        return ""

    def _page(self, page: Page) -> Any:
        before, self._read_at = self._read_at, page.read_at
        assert before is None or before < page.read_at
        rows = [(*map(self._plain, row[:7]), self._order.nth("time", row[7]), *row[8:]) for row in page.rows]
        shown = [self._seen(writer.xid, page.snapshot) for writer in self._writers]
        what = page.sequence, page.purged, page.is_full, page.passes_over, page.last_id
        return (
            "Page",
            *what,
            rows,
            shown,
            self._order.nth("file", page.filenode),
            self._order.nth("backend", page.backend),
        )

    @staticmethod
    def _seen(xid: int, snapshot: Snapshot) -> str:
        if xid >= snapshot.next_xid:
            return "not begun"
        return "ended" if xid < snapshot.xmax and xid not in snapshot.running else "running"


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedSide()))


def real(case: Callable[[Script], None], url: str, bootstrap_servers: str) -> Script:
    return play(case, Script(RealSide(url, bootstrap_servers)))
