"""What a relay asks of PostgreSQL, asked of the simulated table and of a real one, with the rows that follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from outbox.core.relay.turns import Delivery
from outbox.edges.postgres.common.table import connect_bounded
from outbox.edges.postgres.relay.deliveries import Deliveries
from outbox.runtime.threads import THREADS
from tests.simulation.conformance.frame import Asking, RealServers, SimulatedServers, play, play_simulated
from tests.simulation.relay.scenario import World
from tests.simulation.relay.table import SharedRow, SimulatedDeliveries
from tests.simulation.runtime import Simulated
from tests.support.relay_tables import TABLES

SEED = 1
LEASE_S = 60.0
TOKENS = [f"00000000-0000-0000-0000-{number:012}" for number in range(10)]
SOON_S = 30.0


class SimulatedServer(SimulatedServers):
    def __init__(self) -> None:
        self.world = World(SEED)
        self.runtime = Simulated(self.world, origin=50.0)

    def port(self) -> SimulatedDeliveries:
        process = SimpleNamespace(world=self.world, runtime=self.runtime, skew_s=1e6)
        return SimulatedDeliveries(process, self.world.table)

    def post(self, destination: str, key: str, delay_s: float) -> None:
        self.world.table.post(destination, key, delay_s)

    def delete(self, id_: int) -> None:
        del self.world.table.rows[id_]

    def end_leases(self) -> None:
        for row in self.world.table.rows.values():
            if row.token:
                row.until = self.world.now

    def end_waits(self) -> None:
        for row in self.world.table.destinations.values():
            row.wait_until = self.world.now

    def rows(self) -> list[Any]:
        now = self.world.now
        return [
            (row.id, row.available_at - now, row.attempts, row.leases, row.token,
             row.until - now if row.token else None, row.charged_lease, row.reason, row.blocks_key,
             row.failed_at is not None)
            for row in self.world.table.rows.values()
        ]  # fmt: skip

    def destinations(self) -> list[Any]:
        def row(name: str, one: SharedRow) -> Any:
            since = one.failing_since is not None
            return name, one.version, one.access.value, one.failures, since, one.reason

        return [row(name, one) for name, one in self.world.table.destinations.items()]


class RealServer(RealServers):
    runtime = THREADS

    def __init__(self, url: str) -> None:
        self._url, self._admin = url, psycopg.connect(url, autocommit=True)
        self._admin.execute("DROP TABLE IF EXISTS outbox_delivery, outbox_destination")
        self._admin.execute(TABLES)

    def port(self) -> Deliveries:
        connect = partial(connect_bounded, conninfo_to_dict(self._url), statement_timeout_s=10.0)
        return Deliveries("outbox", connect, sweep_s=0.0)

    def post(self, destination: str, key: str, delay_s: float) -> None:
        self._admin.execute(
            "INSERT INTO outbox_delivery (destination, key, available_at) "
            "VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s))",
            [destination, key, delay_s],
        )

    def delete(self, id_: int) -> None:
        self._admin.execute("DELETE FROM outbox_delivery WHERE id = %s", [id_])

    def end_leases(self) -> None:
        self._admin.execute("UPDATE outbox_delivery SET lease_until = clock_timestamp() WHERE lease_token IS NOT NULL")

    def end_waits(self) -> None:
        self._admin.execute("UPDATE outbox_destination SET wait_until = clock_timestamp()")

    def rows(self) -> list[Any]:
        return self._admin.execute(
            "SELECT id, extract(epoch FROM available_at - clock_timestamp())::float8, attempts, leases, "
            "coalesce(lease_token::text, ''), extract(epoch FROM lease_until - clock_timestamp())::float8, "
            "coalesce(charged_lease::text, ''), dead_reason, blocks_key, failed_at IS NOT NULL FROM outbox_delivery"
        ).fetchall()

    def destinations(self) -> list[Any]:
        return self._admin.execute(
            "SELECT name, version, access, failures, failing_since IS NOT NULL, reason FROM outbox_destination"
        ).fetchall()

    def close(self) -> None:
        self._admin.close()


class Script(Asking):
    """Records each answer, and the rows after it."""

    def __init__(self, side: Any) -> None:
        super().__init__(side)
        self._port = side.port()

    def post(self, destination: str = "a", key: str = "", *, count: int = 1, delay_s: float = -1.0) -> None:
        for _ in range(count):
            self.side.post(destination, key, delay_s)

    def ask(self, name: str, *given: Any) -> Any:
        self.called.add(("DeliveriesPort", name))
        answer = getattr(self._port, name)(*given)
        self.lines.append((name, self._plain(name, answer), self._table()))
        return answer

    def lease(self, count: int = 10, name: str = "a", token: int = 1) -> list[Delivery]:
        return list(self.ask("lease", TOKENS[token], LEASE_S, {name: count}))

    def lease_keys(self, count: int = 10, name: str = "a", token: int = 1) -> list[Delivery]:
        return list(self.ask("lease_keys", TOKENS[token], LEASE_S, {name: count}))

    def lease_suspect(self, *names: str, token: int = 1) -> list[Delivery]:
        return list(self.ask("lease_suspect", TOKENS[token], LEASE_S, list(names or ("a",))))

    def close(self) -> None:
        self._port.close()

    def _plain(self, name: str, answer: Any) -> Any:
        if name == "due":
            found, after = answer
            return [(*one._replace(row=_rounded(one.row), next_s=_near(one.next_s)),) for one in found], after
        if name == "reserve":
            return _near(answer)
        if isinstance(answer, Sequence):
            return [_known(one) for one in answer]
        return answer

    def _table(self) -> Any:
        rows = [
            (id_, _near(at), attempts, leases, token, _near(until), *more)
            for id_, at, attempts, leases, token, until, *more in self.side.rows()
        ]
        return sorted(rows), sorted(self.side.destinations())


def _near(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return "past" if seconds <= 0 else "now" if seconds < 1 else "soon" if seconds < SOON_S else "later"


def _rounded(row: Any) -> Any:
    return row.version, row.access, _near(row.wait_s), row.failures, row.failing_s < 1, row.reason


def _known(one: Delivery) -> Any:
    return one.id, one.destination, one.token, one.key, one.attempts, one.leases, one.failed_s is None


def simulated(case: Callable[[Script], None]) -> Script:
    return play_simulated(case, lambda: Script(SimulatedServer()))


def real(case: Callable[[Script], None], url: str) -> Script:
    return play(case, Script(RealServer(url)))
