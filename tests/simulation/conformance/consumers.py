"""What a consumer asks of PostgreSQL, asked of the simulated server and of a real one, with the rows that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import psycopg
from django.db import connections
from psycopg.conninfo import conninfo_to_dict

from outbox.core.consumers.blame import StatementRefused
from outbox.core.consumers.holding import StoredMessage
from outbox.core.consumers.values import CommitInDoubt, ConsumerOptions, Fetched, Partition, Position
from outbox.edges.postgres.consumers.held import HeldMessages
from outbox.edges.postgres.consumers.owners import SHOW_LIFE, Owners
from outbox.edges.postgres.consumers.positions import Positions
from outbox.edges.postgres.consumers.seen import SeenIds
from outbox.edges.postgres.consumers.transactions import Transaction
from outbox.runtime.threads import THREADS
from tests.simulation.conformance.frame import Asking, Order, RealServers, SimulatedServers, play, play_simulated
from tests.simulation.consumers import database as simulated_database
from tests.simulation.consumers.scenario import World
from tests.simulation.consumers.topic import TOPIC
from tests.simulation.runtime import Simulated

ONE, TWO = Partition(TOPIC, 0), Partition(TOPIC, 1)
SEED = 5  # two partitions
ENOUGH_S = 20.0
SOON_S = 30.0
ENDED = "57P01"
"""The client is informed of the end of its session, or finds it out."""
_numbers = count(1)


class Raised(Exception):
    """By a call of a port."""

    def __init__(self, name: str, sqlstate: str = "") -> None:
        super().__init__(f"{name} {sqlstate}")
        self.sqlstate = sqlstate


class SimulatedServer(SimulatedServers):
    def __init__(self) -> None:
        self.world = World(SEED)
        self.runtime = Simulated(self.world, origin=50.0)

    def ports(self, owner: str, patience_s: float) -> dict[str, Any]:
        process = SimpleNamespace(
            name=owner, world=self.world, runtime=self.runtime, database_ok=True, transactions=[], committed=0,
            client=SimpleNamespace(owned={ONE, TWO}), passed=lambda *given: None, cancelled=0,
        )  # fmt: skip
        return {
            "TransactionPort": simulated_database.Transaction(process),
            "PositionsPort": simulated_database.Positions(process),
            "HeldPort": simulated_database.Held(process),
            "SeenPort": simulated_database.Seen(process),
            "OwnersPort": simulated_database.Owners(process),
        }

    def table(self) -> dict[str, Any]:
        server, now = self.world.primary, self.world.now
        held = [
            (one.id, *one.place, one.message.key, one.reason, one.attempts, one.delays,
             None if one.next_at is None else one.next_at - now, one.is_dead, one.wanted, now - one.since)
            for one in server.held.values()
        ]  # fmt: skip
        owners = [
            (*p, one.owner, one.is_clean, one.next, one.begun, one.suspect, one.deaths)
            for p, one in server.owners.items()
        ]
        positions = [(*p, one.next, one.topic_id, one.leader_epoch) for p, one in server.rows.items()]
        return {"held": held, "owners": owners, "positions": positions, "seen": list(server.seen)}

    def want(self, offset: int, wanted: str) -> None:
        self._change(lambda one: one.message.offset == offset, lambda one: replace(one, wanted=wanted))

    def age(self, seconds: float) -> None:
        self._change(lambda one: True, lambda one: replace(one, since=one.since - seconds))

    def _change(self, which: Callable[[Any], bool], change: Callable[[Any], Any]) -> None:
        held = self.world.primary.held
        held.update({id_: change(one) for id_, one in held.items() if which(one)})

    def is_waiting(self) -> bool:
        return any(session._waits is not None for session in self.world.primary.sessions)

    def end(self, transaction: Any) -> None:
        transaction.session.end()

    def raw(self, transaction: Any, statement: str) -> None:
        session = transaction.session
        session.commit(lambda: None) if statement == "COMMIT" else session.rollback()
        session.begin()

    def hook(self, transaction: Any, hook: Callable[[], None]) -> None:
        transaction.hooks.append(hook)

    @contextmanager
    def alive(self, owner: str) -> Iterator[None]:
        process = SimpleNamespace(name=owner, is_alive=True)
        self.world.processes.append(process)
        yield
        self.world.processes.remove(process)


class RealServer(RealServers):
    runtime = THREADS

    def __init__(self, url: str) -> None:
        parts = conninfo_to_dict(url)
        names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
        self._settings = {name: parts.get(part, "") for name, part in names.items()}
        self._url, self._admin = url, psycopg.connect(url, autocommit=True)
        self._admin.execute("TRUNCATE outbox_held, outbox_owner, outbox_position, outbox_seen")

    def ports(self, owner: str, patience_s: float) -> dict[str, Any]:
        alias = f"conformance-{next(_numbers)}"
        connections.databases[alias] = {**connections.databases["default"], **self._settings}
        return {
            "TransactionPort": Transaction(alias, consumer=CONSUMER, session_timeout_s=patience_s),
            "PositionsPort": Positions("outbox", session_timeout_s=patience_s),
            "HeldPort": HeldMessages("outbox"),
            "SeenPort": SeenIds("outbox", window_s=3600.0),
            "OwnersPort": Owners("outbox", owner=owner, session_timeout_s=patience_s),
        }

    def table(self) -> dict[str, Any]:
        def rows(columns: str, table: str) -> list[tuple[Any, ...]]:
            return self._admin.execute(f"SELECT {columns} FROM outbox_{table}").fetchall()  # type: ignore[arg-type]

        held = rows(
            'id, topic, partition, topic_id, "offset", key, reason, attempts, delays, '
            "extract(epoch FROM next_try - clock_timestamp())::float8, died_at IS NOT NULL, wanted, "
            "extract(epoch FROM clock_timestamp() - since)::float8",
            "held",
        )
        return {
            "held": [(row[0], Partition(*row[1:3]), *row[3:]) for row in held],
            "owners": rows("topic, partition, owner, is_clean, next, begun, suspect, deaths", "owner"),
            "positions": rows("topic, partition, next, topic_id, leader_epoch", "position"),
            "seen": rows("topic, id", "seen"),
        }

    def want(self, offset: int, wanted: str) -> None:
        self._admin.execute('UPDATE outbox_held SET wanted = %s WHERE "offset" = %s', [wanted, offset])

    def age(self, seconds: float) -> None:
        self._admin.execute("UPDATE outbox_held SET since = since - make_interval(secs => %s)", [seconds])

    def is_waiting(self) -> bool:
        """Locks of other databases are of tests beside this one."""
        text = (
            "SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) "
            "WHERE NOT l.granted AND a.datname = current_database())"
        )
        return bool(self._admin.execute(text).fetchone()[0])  # type: ignore[index]

    def end(self, transaction: Any) -> None:
        pid = transaction._session.info.backend_pid
        self._admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def raw(self, transaction: Any, statement: str) -> None:
        with connections[transaction._alias].cursor() as cursor:
            cursor.execute(statement)

    def hook(self, transaction: Any, hook: Callable[[], None]) -> None:
        connections[transaction._alias].on_commit(hook)

    @contextmanager
    def alive(self, owner: str) -> Iterator[None]:
        with psycopg.connect(self._url, autocommit=True) as session:
            session.execute(SHOW_LIFE, [owner])
            yield
            pid = session.info.backend_pid
        self._admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def close(self) -> None:
        self._admin.close()


CONSUMER = "shop.orders"


class Worker:
    """Calls the ports on one connection."""

    def __init__(self, script: Script, owner: str, patience_s: float) -> None:
        self._script, self._side = script, script.side
        self._ports = script.side.ports(owner, patience_s)
        self._transaction = self._ports["TransactionPort"]

    def begin(self) -> None:
        self._connection = self.transaction("begin", ENOUGH_S)

    def outside(self) -> Worker:
        self._connection = self.transaction("connection")
        return self

    def transaction(self, name: str, *given: Any) -> Any:
        return self._call("TransactionPort", name, *given)

    def positions(self, name: str, *given: Any) -> Any:
        return self._call("PositionsPort", name, self._connection, CONSUMER, *given)

    def held(self, name: str, *given: Any) -> Any:
        first = (CONSUMER,) if name in ("look", "keys", "take") else ()
        return self._call("HeldPort", name, self._connection, *first, *given)

    def seen(self, name: str, *given: Any) -> Any:
        return self._call("SeenPort", name, self._connection, CONSUMER, *given)

    def owners(self, name: str, *given: Any, **named: Any) -> Any:
        return self._call("OwnersPort", name, self._connection, CONSUMER, *given, **named)

    def commit(self) -> None:
        self.transaction("commit")

    def raw(self, statement: str) -> None:
        """By the function."""
        self._side.raw(self._transaction, statement)

    def hook(self) -> None:
        self._side.hook(self._transaction, lambda: None)

    def is_ended(self) -> None:
        """By the server."""
        self._side.end(self._transaction)

    def close(self) -> None:
        self._transaction.close()

    def _call(self, port: str, name: str, *given: Any, **named: Any) -> Any:
        self._script.called.add((port, name))
        try:
            answer = getattr(self._ports[port], name)(*given, **named)
        except CommitInDoubt as doubt:
            self._script.note(port, name, "in doubt", len(doubt.hooks))
            raise Raised("CommitInDoubt") from doubt
        except Exception as error:
            self._script.called.add(("TransactionPort", "failure"))
            failure = self._transaction.failure(error)
            sqlstate = failure.sqlstate if isinstance(failure, StatementRefused) else ""
            found = ("Disconnected", "") if sqlstate == ENDED else (type(failure).__name__, sqlstate)
            self._script.note(port, name, *found)
            raise Raised(*found) from error
        self._script.note(port, name, self._script.plain(name, answer))
        return answer


class Script(Asking):
    """Records each answer, and the rows that all see then."""

    def __init__(self, side: Any) -> None:
        super().__init__(side)
        self._workers: list[Worker] = []
        self._order = Order()
        self._is_beside = False

    def worker(self, owner: str = "me", *, patience_s: float = 10.0) -> Worker:
        worker = Worker(self, owner, patience_s)
        self._workers.append(worker)
        return worker

    def beside(self, job: Callable[[Worker], Any]) -> Callable[[], Any]:
        """Runs it with a worker in another thread, until it waits for a lock or ends. Returns how to wait for its
        result. Until then nobody can say what the tables hold."""
        other, found = Script(self.side), []
        other._order, other._is_beside = self._order, True

        def run() -> None:
            worker = other.worker()
            try:
                found.append(job(worker))
            except Raised as error:
                found.append(error.sqlstate or str(error))
            finally:
                worker.close()

        thread = self.runtime.thread(run, "beside")
        thread.start()
        self._is_beside = True
        give_up_at = self.runtime.monotonic() + ENOUGH_S
        while not found and not self.side.is_waiting():
            assert self.runtime.monotonic() < give_up_at
            self.runtime.sleep(0.01)

        def join() -> Any:
            thread.join(ENOUGH_S)
            self._is_beside = False
            self.lines += other.lines
            self.note("joined")
            return found[0]

        return join

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def note(self, *what: Any) -> None:
        self.lines.append((*what, None if self._is_beside else self._table()))

    def _table(self) -> Any:
        found = self.side.table()
        held = [self._held(row) for row in sorted(found.pop("held"), key=lambda row: row[0])]
        return held, {name: sorted(rows, key=repr) for name, rows in found.items()}

    def _held(self, row: Any) -> Any:
        id_, *place, key, reason, attempts, delays, pause_s, is_dead, wanted, age_s = row
        pause = pause_s if pause_s is None else "soon" if pause_s < SOON_S else "later"
        key = None if key is None else bytes(key)
        return (
            self._order.nth("row", id_),
            *place,
            key,
            reason,
            attempts,
            delays,
            pause,
            is_dead,
            wanted,
            round(age_s / 60),
        )

    def plain(self, name: str, answer: Any) -> Any:
        """As both sides can say it."""
        if name in ("connection", "begin"):
            return None
        if name in ("keep", "problem") and isinstance(answer, str):
            return bool(answer)
        if name == "commit":
            return len(answer)
        if name == "lock":
            return sorted(answer[0].items()), answer[1] and self._order.nth("transaction", answer[1])
        if name == "write":
            return answer[0], self._order.nth("transaction", answer[1])
        if name == "settle":
            return [
                (p, at, self._order.nth("transaction", by) if self._order.knows("transaction", by) else "")
                for p, (at, by) in sorted(answer.items())
            ]
        if name == "take":
            return [self._taken(row) for row in answer]
        if name == "keep":
            return [self._order.nth("row", id_) for id_ in answer]
        return sorted(answer.items()) if isinstance(answer, Mapping) else answer

    def _taken(self, row: StoredMessage) -> Any:
        message, tries = row.message, row.tries
        age = 0 if tries.age_s == 0 else 1 + round(tries.age_s / 60)
        return self._order.nth("row", row.id), message._replace(header_source=message.headers), tries[:2], age


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedServer()))


def real(case: Callable[[Script], None], url: str) -> Script:
    return play(case, Script(RealServer(url)))


OPTIONS = ConsumerOptions(CONSUMER)


def message(offset: int, key: bytes | None = b"k", number: int = 0) -> Fetched:
    return Fetched(TOPIC, number, offset, 3, key, b"v%d" % offset, (("name", b"value"),), 1_700_000_000_000)


def at(next_: int, topic_id: str = "id", epoch: int = 3) -> Position:
    return Position(next_, topic_id, epoch)
