"""The simulated PostgreSQL of relays: rows of deliveries and destinations, and connections that are lost.

A statement takes effect when it arrives, also if its sender stands still or has died meanwhile. Its answer may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outbox.core.relay.circuit import Access, DestinationChange, DestinationRow
from outbox.core.relay.settlement import Refund, Settle, Settlement
from outbox.core.relay.table import DeliveriesUnavailable, Due
from outbox.core.relay.turns import Delivery
from tests.simulation.checkers import Violation
from tests.simulation.runtime import Answer

KEYS_MAX = 200
EXPIRED_MAX = 1_000
NEVER = float("-inf")


@dataclass(frozen=True)
class Rules:
    """The guards of the statements; a planted bug drops one."""

    compares_token: bool = True
    compares_charge: bool = True
    compares_version: bool = True
    begins_with_head: bool = True
    uses_own_clock: bool = True


@dataclass
class DeliveryRow:
    id: int
    destination: str
    key: str
    available_at: float
    attempts: int = 0
    leases: int = 0
    token: str = ""
    until: float = NEVER
    charged_lease: str = ""
    failed_at: float | None = None
    reason: str = ""
    blocks_key: bool = False
    charged_by: list[str] = field(default_factory=list)
    """For the checker: leases that an attempt was charged for and not given back, the last one last."""

    @property
    def is_living(self) -> bool:
        return not self.token and not self.reason


@dataclass
class SharedRow:
    version: int = 0
    access: Access = Access.CLOSED
    wait_until: float = NEVER
    failures: int = 0
    failing_since: float | None = None
    reason: str = ""
    next_at: float = NEVER


class Table:
    def __init__(self, world: Any, rules: Rules | None = None) -> None:
        self.world, self.rules = world, rules or Rules()
        self.rows: dict[int, DeliveryRow] = {}
        self.destinations: dict[str, SharedRow] = {}
        self.is_up = True
        self._ids = 0

    def post(self, destination: str, key: str = "", delay_s: float = 0.0) -> int:
        self._ids += 1
        self.rows[self._ids] = DeliveryRow(self._ids, destination, key, self.world.now + delay_s)
        return self._ids

    # ---- statements; `now` is the clock that they use

    def due(self, now: float, after: str, limit: int) -> tuple[list[Due], str]:
        names = sorted({row.destination for row in self.rows.values() if row.is_living and row.destination > after})
        names = names[:limit]
        found = []
        for name in names:
            due = [row for row in self.rows.values() if row.destination == name and self._is_due(row, now)]
            fresh = [row for row in due if not row.leases]
            one = Due(
                name,
                self._row_of(name, now),
                any(not row.key for row in fresh),
                any(row.key for row in fresh),
                len(fresh) < len(due),
                self.destinations[name].next_at - now if self._has_time(name) else 0.0,
            )
            if due:
                found.append(one)
        return found, names[-1] if len(names) == limit else ""

    def _has_time(self, name: str) -> bool:
        return name in self.destinations and self.destinations[name].next_at != NEVER

    def _row_of(self, name: str, now: float) -> DestinationRow:
        row = self.destinations.get(name)
        if row is None:
            return DestinationRow()
        failing_s = 0.0 if row.failing_since is None else now - row.failing_since
        wait_s = max(0.0, row.wait_until - now)
        return DestinationRow(row.version, row.access, wait_s, row.failures, failing_s, row.reason)

    def _is_due(self, row: DeliveryRow, now: float) -> bool:
        return row.is_living and row.available_at <= now

    def lease(self, now: float, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        found = []
        for name, count in wanted.items():
            due = [
                row
                for row in self.rows.values()
                if row.destination == name and not row.key and not row.leases and self._is_due(row, now)
            ]
            found += sorted(due, key=lambda row: (row.available_at, row.id))[:count]
        found.sort(key=lambda row: (row.available_at, row.id))
        return [self._lease_one(row, now, token, lease_s) for row in found]

    def lease_keys(self, now: float, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        found: list[DeliveryRow] = []
        for name, count in wanted.items():
            heads = [head for head in self._heads(name) if self._is_due(head, now) and not head.leases]
            heads = sorted(heads, key=lambda row: (row.available_at, row.id))[:count]
            for head in heads:
                found += self._run(head, now, max(1, count // len(heads)))
        return [self._lease_one(row, now, token, lease_s) for row in sorted(found, key=lambda row: row.id)]

    def _in_way(self, name: str) -> dict[str, list[DeliveryRow]]:
        """Ordered keys → their rows that are delivered or block it, in order."""
        found: dict[str, list[DeliveryRow]] = {}
        for row in sorted(self.rows.values(), key=lambda row: row.id):
            if row.destination == name and row.key and (not row.reason or row.blocks_key):
                found.setdefault(row.key, []).append(row)
        return found

    def _heads(self, name: str) -> Iterator[DeliveryRow]:
        for _, rows in sorted(self._in_way(name).items())[:KEYS_MAX]:
            if self.rules.begins_with_head:
                yield rows[0]
            else:
                yield next((row for row in rows if self._is_due(row, self.world.now)), rows[0])

    def _run(self, head: DeliveryRow, now: float, limit: int) -> Iterator[DeliveryRow]:
        rows = [row for row in self._in_way(head.destination)[head.key] if row.id >= head.id]
        for row in rows[:limit]:
            if not self._is_due(row, now) or row.leases:
                return
            yield row

    def lease_suspect(self, now: float, token: str, lease_s: float, destinations: Sequence[str]) -> list[Delivery]:
        due = [
            row
            for row in self.rows.values()
            if row.destination in destinations
            and row.leases
            and self._is_due(row, now)
            and (not row.key or self._in_way(row.destination)[row.key][0] is row)
        ]
        due.sort(key=lambda row: (row.available_at, row.id))
        return [self._lease_one(row, now, token, lease_s) for row in due[:1]]

    def _lease_one(self, row: DeliveryRow, now: float, token: str, lease_s: float) -> Delivery:
        row.token, row.charged_lease = token, ""
        row.until, row.leases = now + lease_s, row.leases + 1
        failed_s = None if row.failed_at is None else now - row.failed_at
        return Delivery(
            row.id,
            row.destination,
            token,
            key=row.key,
            attempts=row.attempts,
            leases=row.leases,
            failed_s=failed_s,
        )

    def expire(self, now: float) -> int:
        ended = [row for row in self.rows.values() if row.token and row.until <= now]
        ended = sorted(ended, key=lambda row: row.until)[:EXPIRED_MAX]
        for row in ended:
            row.token, row.until = "", NEVER
        return len(ended)

    def settle(self, now: float, settlements: Sequence[Settlement]) -> set[int]:
        found = set()
        for one in settlements:
            row = self.rows.get(one.delivery.id)
            if row is None or not self._has_token(row, one):
                continue
            found.add(row.id)
            self._settle_one(row, one, now)
        return found

    def _has_token(self, row: DeliveryRow, one: Settlement) -> bool:
        return not self.rules.compares_token or row.token == one.delivery.token

    def _settle_one(self, row: DeliveryRow, one: Settlement, now: float) -> None:
        row.token, row.until = "", NEVER
        if one.settle is Settle.DELIVERED:
            del self.rows[row.id]
            return
        if one.settle is Settle.RETURNED:
            row.leases -= 1
            return
        row.leases, row.available_at, row.failed_at = 0, now + one.pause_s, now
        row.reason, row.blocks_key, row.charged_lease = one.reason, one.blocks_key, ""
        if one.is_charged:
            row.attempts, row.charged_lease = row.attempts + 1, one.delivery.token
            row.charged_by.append(one.delivery.token)

    def refund(self, now: float, refunds: Sequence[Refund]) -> int:
        count = 0
        for one in refunds:
            row = self.rows.get(one.id)
            if row is None or (self.rules.compares_charge and (row.charged_lease != one.token or row.reason)):
                continue
            if row.charged_by[-1:] != [one.token] or row.token:
                raise Violation(f"delivery {row.id} gets an attempt back that was not its last one, or twice")
            row.charged_by.pop()
            row.attempts, row.charged_lease = row.attempts - 1, ""
            count += 1
        return count

    def change(self, now: float, destination: str, change: DestinationChange) -> bool:
        row, after = self.destinations.get(destination), change.after
        if row is None:
            if change.expected:
                return False
            row = self.destinations[destination] = SharedRow()
        if self.rules.compares_version and row.version != change.expected:
            return False
        if change.needs_end_of_wait and row.wait_until > now and self.rules.compares_version:
            return False
        row.version, row.access, row.failures, row.reason = after.version, after.access, after.failures, after.reason
        row.wait_until = now + after.wait_s
        if after.access is Access.CLOSED:
            row.failing_since = None
        elif row.failing_since is None:
            row.failing_since = now
        return True

    def reserve(self, now: float, destination: str, count: int, spacing_s: float) -> float:
        row = self.destinations.setdefault(destination, SharedRow())
        first_at = max(now, row.next_at)
        row.next_at = first_at + count * spacing_s
        return first_at - now


class SimulatedDeliveries:
    """A connection of one thread of a process."""

    def __init__(self, process: Any, table: Table) -> None:
        self._process, self._table = process, table
        self._world, self._runtime = process.world, process.runtime

    def due(self, after: str, limit: int) -> tuple[list[Due], str]:
        found: tuple[list[Due], str] = self._ask(lambda now: self._table.due(now, after, limit))
        return found

    def lease(self, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        return self._leased(lambda now: self._table.lease(now, token, lease_s, wanted))

    def lease_keys(self, token: str, lease_s: float, wanted: Mapping[str, int]) -> list[Delivery]:
        return self._leased(lambda now: self._table.lease_keys(now, token, lease_s, wanted))

    def lease_suspect(self, token: str, lease_s: float, destinations: Sequence[str]) -> list[Delivery]:
        return self._leased(lambda now: self._table.lease_suspect(now, token, lease_s, destinations))

    def _leased(self, act: Callable[[float], list[Delivery]]) -> list[Delivery]:
        found: list[Delivery] = self._ask(act)
        return found

    def expire(self) -> int:
        return int(self._ask(self._table.expire))

    def settle(self, settlements: Sequence[Settlement]) -> set[int]:
        given = list(settlements)
        found: set[int] = self._ask(lambda now: self._table.settle(now, given))
        return found

    def refund(self, refunds: Sequence[Refund]) -> int:
        given = list(refunds)
        return int(self._ask(lambda now: self._table.refund(now, given)))

    def change(self, destination: str, change: DestinationChange) -> bool:
        return bool(self._ask(lambda now: self._table.change(now, destination, change)))

    def reserve(self, destination: str, count: int, spacing_s: float) -> float:
        return float(self._ask(lambda now: self._table.reserve(now, destination, count, spacing_s)))

    def close(self) -> None:
        pass

    def _ask(self, act: Callable[[float], Any]) -> Any:
        """`act` gets the time of the clock that a statement uses."""
        world, faults = self._world, self._world.faults
        answer = Answer(self._runtime, "PostgreSQL")
        is_lost, arrives = world.chance(faults.cut), world.random.random() < 0.5

        def arrive() -> None:
            if not self._table.is_up:
                answer.settle(error=DeliveriesUnavailable("it is down"))
                return
            value = act(world.now if self._table.rules.uses_own_clock else world.now + self._process.skew_s)
            world.after(world.latency(), lambda: self._reply(answer, value, is_lost))

        if is_lost and not arrives:
            world.after(world.latency(), lambda: answer.settle(error=DeliveriesUnavailable("it is lost")))
        else:
            world.after(world.latency() + (0.5 if world.chance(faults.slow) else 0.0), arrive)
        answer.wait(None)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _reply(self, answer: Answer, value: Any, is_lost: bool) -> None:
        if is_lost:
            answer.settle(error=DeliveriesUnavailable("its answer is lost"))
        else:
            answer.settle(value)
