"""The three threads of a relay: one leases deliveries, one sends them, one writes the results.

They hold a lock, ask the core and act through their ports. No lock is held during a call of PostgreSQL or a receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from outbox.core.patience import Backoff
from outbox.core.relay.load import RelayLoad
from outbox.core.relay.quotas import Grant
from outbox.core.relay.results import Answered
from outbox.core.relay.settlement import Refund, Settlement
from outbox.core.relay.table import DeliveriesUnavailable, Due
from outbox.core.relay.turns import Delivery
from outbox.relay.ports import DeliveriesPort, RelayServers
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS

POLL_MIN_S = 0.002
POLL_MAX_S = 0.05
_POLL_GROWTH = 1.5
DUE_MAX = 200
"""Destinations of one round. The next round goes on behind them."""
EXPIRE_S = 1.0
WAIT_MAX_S = 1.0
OUTAGE_S = (0.1, 5.0)
GRACE_S = 25.0


class RelayWorker:
    """One relay, with the threads that do its work."""

    def __init__(
        self,
        load: RelayLoad,
        servers: RelayServers,
        *,
        lease_s: float,
        fail: Callable[[BaseException], None],
        grace_s: float = GRACE_S,
        runtime: Runtime = THREADS,
        new_token: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        """`fail` hears of an error that no thread may survive."""
        self._load, self._servers, self._runtime = load, servers, runtime
        self._lease_s, self._grace_s = lease_s, grace_s
        self._fail, self._new_token = fail, new_token
        self._sender = servers.sender()
        self._lock = runtime.lock("relay")
        self._stopping, self._to_lease, self._to_settle = runtime.event(), runtime.event(), runtime.event()
        self._is_leasing = self._is_sending = True
        self._after = ""
        self._expire_at = runtime.monotonic()
        self.lost = 0
        """Settlements without effect: the lease had ended before."""
        self._threads = [
            runtime.thread(self._guarded(self._lease_until_stopped), "outbox-relay-lease"),
            runtime.thread(self._guarded(self._send_until_stopped), "outbox-relay-send"),
            runtime.thread(self._guarded(self._settle_until_stopped), "outbox-relay-settle"),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Something is due, as a notification says."""
        self._to_lease.set()

    def stop(self) -> None:
        """Nothing more begins. Attempts under way may end within the grace; everything leased is settled."""
        with self._lock:
            self._load.stop()
        self._stopping.set()
        self._to_lease.set()
        self._sender.wake()

    def join(self, timeout_s: float) -> bool:
        """Whether all threads have ended in time."""
        give_up_at = self._runtime.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - self._runtime.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self._fail(error)

        return guarded

    # ---- leases

    def _lease_until_stopped(self) -> None:
        port, pause_s = self._servers.deliveries(), POLL_MIN_S
        backoff = Backoff(*OUTAGE_S, self._runtime.random)
        try:
            while not self._stopping.is_set():
                try:
                    is_busy = self._lease_round(port)
                except DeliveriesUnavailable:
                    self._stopping.wait(backoff.failed())
                    continue
                backoff.worked()
                pause_s = POLL_MIN_S if is_busy else min(POLL_MAX_S, pause_s * _POLL_GROWTH)
                self._to_lease.wait(pause_s)
                self._to_lease.clear()
        finally:
            self._is_leasing = False
            self._sender.wake()
            port.close()

    def _lease_round(self, port: DeliveriesPort) -> bool:
        """Whether something was leased."""
        self._write_changes(port)
        self._expire(port)
        due, self._after = port.due(self._after, DUE_MAX)
        self._probe(port, due)
        wanted = self._wanted(due)
        if not wanted:
            return False
        asked_at = self._runtime.monotonic()
        leased = self._lease(port, [one for one in due if one.name in wanted], wanted)
        now = self._runtime.monotonic()
        found: dict[str, list[Delivery]] = {name: [] for name in wanted}
        for delivery in leased:
            found[delivery.destination].append(replace(delivery, leased_at=now, until=asked_at + self._lease_s))
        self._hand_over(found, self._reserve(port, found))
        return bool(leased)

    def _probe(self, port: DeliveriesPort, due: Sequence[Due]) -> None:
        now = self._runtime.monotonic()
        with self._lock:
            for one in due:
                self._load.destination(one.name).read(one.row, now)
            asked = {one.name: self._load.destination(one.name).wants_probe(now) for one in due}
            asked = {} if self._load.is_stopping else asked
        for name, change in asked.items():
            if change is not None and port.change(name, change):
                with self._lock:
                    self._load.destination(name).probe_taken(change, self._runtime.monotonic())

    def _wanted(self, due: Sequence[Due]) -> dict[str, int]:
        """How many deliveries to lease of each destination, of those that get some."""
        times = {one.name: one.next_s for one in due}
        with self._lock:
            quotas = self._load.quotas(list(times))
            grants = {name: self._load.destination(name).grant(quota, times[name]) for name, quota in quotas.items()}
        counts = {name: quota if (grant := grants[name]) is None else grant.count for name, quota in quotas.items()}
        return {name: count for name, count in counts.items() if count}

    def _reserve(self, port: DeliveriesPort, found: Mapping[str, Sequence[Delivery]]) -> dict[str, Grant]:
        """Of destinations with a rate limit. If PostgreSQL does not answer, the limit holds in this process alone:
        what is leased is sent."""
        with self._lock:
            rates = {name: self._load.destination(name).options.rate for name, leased in found.items() if leased}
        grants: dict[str, Grant] = {}
        with suppress(DeliveriesUnavailable):
            for name, rate in rates.items():
                if rate is not None:
                    count, spacing_s = len(found[name]), 1.0 / rate
                    grants[name] = Grant(count, port.reserve(name, count, spacing_s), spacing_s)
        return grants

    def _lease(self, port: DeliveriesPort, due: Sequence[Due], wanted: Mapping[str, int]) -> list[Delivery]:
        """Ordered keys get up to half of what is wanted, and more only if nothing else is due."""
        token, left = self._new_token(), dict(wanted)
        with self._lock:
            suspects = [one.name for one in due if one.has_suspects] if self._load.wants_suspect else []
        found = port.lease_suspect(token, self._lease_s, suspects) if suspects else []
        for delivery in found:
            left[delivery.destination] -= 1
        halves = {one.name: (left[one.name] + 1) // 2 for one in due if one.has_keys and left[one.name]}
        ordered = port.lease_keys(token, self._lease_s, halves) if halves else []
        for delivery in ordered:
            left[delivery.destination] -= 1
        free = {one.name: left[one.name] for one in due if one.has_free and left[one.name]}
        found += ordered
        found += port.lease(token, self._lease_s, free) if free else []
        return found

    def _hand_over(self, found: Mapping[str, Sequence[Delivery]], grants: Mapping[str, Grant]) -> None:
        now = self._runtime.monotonic()
        with self._lock:
            for name, deliveries in found.items():
                self._load.leased(name, deliveries, now, grants.get(name))
        self._sender.wake()
        self._to_settle.set()

    def _expire(self, port: DeliveriesPort) -> None:
        if self._runtime.monotonic() >= self._expire_at:
            port.expire()
            self._expire_at = self._runtime.monotonic() + EXPIRE_S

    def _write_changes(self, port: DeliveriesPort) -> None:
        while True:
            with self._lock:
                changed = self._load.changes()
            if not changed:
                return
            for destination, name, change in changed:
                is_ours = port.change(name, change)
                with self._lock:
                    if is_ours:
                        destination.written()
                    else:
                        destination.overtaken()

    # ---- attempts

    def _send_until_stopped(self) -> None:
        give_up_at = None
        try:
            while True:
                self._begin()
                if self._stopping.is_set():
                    give_up_at = give_up_at or self._runtime.monotonic() + self._grace_s
                    if self._is_sent(give_up_at):
                        return
                self._end(self._sender.wait(self._pause_s()))
        finally:
            self._is_sending = False
            self._to_settle.set()

    def _begin(self) -> None:
        with self._lock:
            begun = self._load.begin(self._runtime.monotonic())
            deadlines_s = {one.destination: self._load.destination(one.destination).options.deadline_s for one in begun}
        for delivery in begun:
            self._sender.start(delivery, deadlines_s[delivery.destination])

    def _pause_s(self) -> float:
        with self._lock:
            next_at = self._load.next_at()
        if next_at is None:
            return WAIT_MAX_S
        return min(WAIT_MAX_S, max(0.0, next_at - self._runtime.monotonic()))

    def _is_sent(self, give_up_at: float) -> bool:
        """After a stop: whether nothing is under way any more, or is to be waited for."""
        with self._lock:
            if self._load.under_way and self._runtime.monotonic() < give_up_at:
                return False
            self._load.abandon()
        self._sender.abandon()
        return True

    def _end(self, answered: Sequence[Answered]) -> None:
        if not answered:
            return
        now = self._runtime.monotonic()
        draws = [self._runtime.random() for _ in answered]
        with self._lock:
            for (delivery, result), draw in zip(answered, draws, strict=True):
                self._load.answered(delivery, result, now, draw)
        self._to_settle.set()
        self._to_lease.set()

    # ---- results

    def _settle_until_stopped(self) -> None:
        port, backoff = self._servers.deliveries(), Backoff(*OUTAGE_S, self._runtime.random)
        settlements: list[Settlement] = []
        refunds: list[Refund] = []
        try:
            while True:
                is_last = not (self._is_leasing or self._is_sending)
                with self._lock:
                    settlements += self._load.take_settlements()
                    refunds += self._load.take_refunds()
                try:
                    self._settle(port, settlements, refunds)
                    if is_last:
                        self._write_changes(port)
                        return
                except DeliveriesUnavailable:
                    self._runtime.sleep(backoff.failed())
                    continue
                backoff.worked()
                self._to_settle.wait(WAIT_MAX_S)
                self._to_settle.clear()
        finally:
            port.close()

    def _settle(self, port: DeliveriesPort, settlements: list[Settlement], refunds: list[Refund]) -> None:
        """Empties both lists. An attempt that is given back was charged before."""
        if settlements:
            effective = port.settle(settlements)
            self.lost += len({one.delivery.id for one in settlements} - effective)
            settlements.clear()
        if refunds:
            port.refund(refunds)
            refunds.clear()
