"""One destination as one relay sees it: what is leased, what is under way, and how it has answered lately. Pure.

The owner reads the row of the destination, leases deliveries, begins those that `next` gives, and reports results. Then
it writes the settlements, refunds and changes of the row that are decided here. A change of the row takes effect here
at once. It is dropped if another relay has written the row meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outbox.core.relay import circuit
from outbox.core.relay.charging import Payer, payer
from outbox.core.relay.circuit import Access, AccessEvent, DestinationChange, DestinationRow
from outbox.core.relay.quotas import Durations, Grant, grant, quota
from outbox.core.relay.results import AttemptCause, AttemptResult
from outbox.core.relay.schedule import Schedule
from outbox.core.relay.settlement import FAILED, POISON, REJECTED, Refund, Settle, Settlement, is_poison
from outbox.core.relay.turns import NEVER, Delivery, Turns

TRIP = 5
"""So many different deliveries that failed, with no success between them, speak of the destination."""


@dataclass(frozen=True, slots=True)
class DestinationOptions:
    name: str
    concurrency: int = 64
    """Deliveries under way at a time, in each relay."""
    rate: float | None = None
    """Deliveries in a second, of all relays together."""
    deadline_s: float = 20.0
    """Of one attempt, everything included."""
    lease_s: float = 60.0
    schedule: Schedule = field(default_factory=Schedule)
    dead_blocks_key: bool = True
    """An ordered key waits behind a dead delivery until an operator decides."""

    def __post_init__(self) -> None:
        assert self.lease_s >= 2 * self.deadline_s, "an attempt that begins late must end within the lease"


@dataclass(frozen=True, slots=True)
class UnderWay:
    delivery: Delivery
    began_at: float
    is_probe: bool


class Destination:
    def __init__(self, options: DestinationOptions) -> None:
        self.options = options
        self.row = DestinationRow()
        self._read_at = NEVER
        self._turns = Turns()
        self._under_way: dict[tuple[int, str], UnderWay] = {}
        """By id and token. A relay that stood still may have leased once more what it is still sending."""
        self._durations = Durations()
        self._succeeded_at = self._success_began_at = NEVER
        self._failed: dict[int, str] = {}
        """Deliveries that failed since the last success → token, or nothing if no attempt can be given back."""
        self._has_probe = False
        self._next_at = NEVER
        """With a rate limit: nothing begins before, so deliveries that are late do not begin together."""
        self._settlements: list[Settlement] = []
        self._refunds: list[Refund] = []
        self._changes: list[DestinationChange] = []
        """That are not known to be written; the oldest first."""

    # ---- the row

    def read(self, row: DestinationRow, now: float) -> None:
        """As the table has it. While a change is not written, the table does not know it."""
        if not self._changes:
            self._has_probe = self._has_probe and row.version == self.row.version
            self._set_row(row, now)

    def wants_probe(self, now: float) -> DestinationChange | None:
        """To be written before a probe is leased: the relay that succeeds has it."""
        row = self._row_at(now)
        if self._has_probe or self._changes or row.wait_s > 0:
            return None
        if not circuit.expects(row, AccessEvent.PROBED):
            return None
        return circuit.probed(row, self.options.lease_s)

    def probe_taken(self, change: DestinationChange, now: float) -> None:
        """It is written."""
        self._set_row(change.after, now)
        self._has_probe = True

    @property
    def change(self) -> DestinationChange | None:
        """The next one to write."""
        return self._changes[0] if self._changes else None

    def written(self) -> None:
        """That one is."""
        self._changes.pop(0)

    def overtaken(self) -> None:
        """Another relay has written the row, which is to be read again."""
        self._changes.clear()
        self._has_probe = False

    def _set_row(self, row: DestinationRow, now: float) -> None:
        self.row, self._read_at = row, now
        if row.access is not Access.CLOSED and not self._has_probe:
            self._refund()
            self.give_back()

    def _refund(self) -> None:
        """The destination was unavailable when these failed: nothing was accepted since."""
        self._refunds += [Refund(id_, token) for id_, token in self._failed.items() if token]
        self._failed.clear()

    def _row_at(self, now: float) -> DestinationRow:
        row = self.row
        if row.access is Access.CLOSED:
            return row
        passed_s = now - self._read_at
        return replace(row, wait_s=max(0.0, row.wait_s - passed_s), failing_s=row.failing_s + passed_s)

    # ---- leases

    def quota(self) -> int:
        """How many deliveries to lease. While the circuit is open none, or one if the probe is ours."""
        options, held = self.options, len(self._turns) + len(self._under_way)
        if self.row.access is Access.CLOSED:
            return quota(options.concurrency, options.lease_s, self._durations.average_s, held)
        return int(self._has_probe and not self._turns and not self._is_probing)

    def grant(self, wanted: int, next_s: float) -> Grant | None:
        """None: it has no rate limit."""
        rate = self.options.rate
        return None if rate is None else grant(wanted, rate, next_s, self.options.lease_s)

    def leased(self, deliveries: Sequence[Delivery], now: float, granted: Grant | None = None) -> None:
        """Also none: the probe goes back."""
        if granted is not None:
            times = (now + granted.first_s + nth * granted.spacing_s for nth in range(len(deliveries)))
            deliveries = [replace(one, not_before=time) for one, time in zip(deliveries, times, strict=True)]
        if not deliveries and self._has_probe and not self._is_probing and not self._turns:
            self._change(circuit.returned(self._row_at(now)), now)
        sent = []
        for delivery in deliveries:
            if is_poison(delivery, self.options.schedule.attempts):
                self._settle(self._dead(delivery, False, POISON, "Relays have ended while they sent it."))
            else:
                sent.append(delivery)
        self._turns.add(sent)
        if self.row.access is not Access.CLOSED and not self._has_probe:
            self.give_back()

    def give_back(self) -> None:
        """Whatever has not begun: the circuit is open, or the relay stops."""
        for delivery in self._turns.clear():
            self._settle(Settlement(delivery, Settle.RETURNED))

    def abandon(self) -> None:
        """What is under way goes back too, whether the receiver has it or not: the relay ends."""
        self.give_back()
        for one in self._under_way.values():
            self._settle(Settlement(one.delivery, Settle.RETURNED))
        self._under_way.clear()
        if self._has_probe:
            self._change(circuit.returned(self.row), self._read_at)

    # ---- attempts

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def _is_probing(self) -> bool:
        return any(one.is_probe for one in self._under_way.values())

    def next(self, now: float) -> Delivery | None:
        """A delivery to begin now. One that could not end within its lease goes back."""
        while self._may_begin(now) and (delivery := self._turns.next()) is not None:
            if delivery.until - now <= self.options.deadline_s:
                self._end(delivery, Settlement(delivery, Settle.RETURNED))
                continue
            self._under_way[delivery.id, delivery.token] = UnderWay(delivery, now, self._has_probe)
            if self.options.rate is not None:
                self._next_at = max(self._next_at, now) + 1.0 / self.options.rate
            return delivery
        return None

    def _may_begin(self, now: float) -> bool:
        first = self._turns.first
        return first is not None and now >= max(self._next_at, first.not_before) and self._has_place

    @property
    def _has_place(self) -> bool:
        if self.row.access is Access.CLOSED:
            return len(self._under_way) < self.options.concurrency
        return self._has_probe and not self._is_probing

    @property
    def next_at(self) -> float:
        """When `next` gives a delivery that waits for nothing but the rate limit; `NEVER`: none does."""
        first = self._turns.first
        return max(self._next_at, first.not_before) if first is not None and self._has_place else NEVER

    def answered(self, delivery: Delivery, result: AttemptResult, now: float, draw: float) -> None:
        """`draw` is a random number from 0 to less than 1."""
        one = self._under_way.pop((delivery.id, delivery.token))
        self._durations.add(now - one.began_at)
        if result.cause is AttemptCause.DELIVERED:
            self._succeeded(one, now)
        else:
            self._failed_with(one, result, now, draw)

    def _succeeded(self, one: UnderWay, now: float) -> None:
        self._succeeded_at, self._success_began_at = now, max(self._success_began_at, one.began_at)
        self._works(now)
        self._end(one.delivery, Settlement(one.delivery, Settle.DELIVERED))

    def _works(self, now: float) -> None:
        """The receiver has answered: what failed before failed for its own sake."""
        self._failed.clear()
        if circuit.expects(self.row, AccessEvent.SUCCEEDED):
            self._change(circuit.succeeded(self.row), now)

    def _failed_with(self, one: UnderWay, result: AttemptResult, now: float, draw: float) -> None:
        delivery = one.delivery
        pays = payer(
            result.cause,
            is_closed=self.row.access is Access.CLOSED,
            now=now,
            began_at=one.began_at,
            failed_at=delivery.failed_at,
            succeeded_at=self._succeeded_at,
            success_began_at=self._success_began_at,
        )
        settlement = self._settlement(delivery, result, pays, draw)
        if result.cause is AttemptCause.REJECTED:
            self._works(now)
        elif result.cause in (AttemptCause.GONE, AttemptCause.FORBIDDEN):
            if circuit.expects(self.row, AccessEvent.DISABLED):
                self._change(circuit.disabled(self._row_at(now), result.error), now)
        elif self.row.access is Access.CLOSED:
            may_be_refunded = settlement.is_charged and settlement.settle is Settle.RETRY
            self._failed[delivery.id] = delivery.token if may_be_refunded else ""
            if pays is Payer.DESTINATION or len(self._failed) >= TRIP:
                self._open(result, now, draw)
        elif one.is_probe and self._has_probe:
            self._open(result, now, draw)
        self._end(delivery, settlement)

    def _settlement(self, delivery: Delivery, result: AttemptResult, pays: Payer, draw: float) -> Settlement:
        schedule, is_charged = self.options.schedule, pays is Payer.MESSAGE
        if result.cause is AttemptCause.REJECTED:
            return self._dead(delivery, True, REJECTED, result.error)
        if is_charged and schedule.is_last(delivery.attempts):
            return self._dead(delivery, True, FAILED, result.error)
        attempts = 0 if pays is Payer.DESTINATION else delivery.attempts + is_charged
        pause_s = schedule.pause_s(attempts, draw, result.retry_after_s)
        return Settlement(delivery, Settle.RETRY, is_charged, pause_s, result.error)

    def _dead(self, delivery: Delivery, is_charged: bool, reason: str, error: str) -> Settlement:
        blocks_key = bool(delivery.key) and self.options.dead_blocks_key
        return Settlement(delivery, Settle.DEAD, is_charged, error=error, reason=reason, blocks_key=blocks_key)

    def _open(self, result: AttemptResult, now: float, draw: float) -> None:
        self._change(circuit.failed(self._row_at(now), draw, result.error, result.retry_after_s), now)

    def _change(self, change: DestinationChange, now: float) -> None:
        self._changes.append(change)
        self._has_probe = False
        self._set_row(change.after, now)

    def _end(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settle(settlement)
        is_dead = settlement.settle is Settle.DEAD
        is_through = settlement.settle is Settle.DELIVERED or (is_dead and not self.options.dead_blocks_key)
        for behind in self._turns.ended(delivery, is_through=is_through):
            self._settle(Settlement(behind, Settle.RETURNED))

    # ---- what the owner writes

    def _settle(self, settlement: Settlement) -> None:
        self._settlements.append(settlement)

    def take_settlements(self) -> list[Settlement]:
        taken, self._settlements = self._settlements, []
        return taken

    def take_refunds(self) -> list[Refund]:
        """To be written after the settlements."""
        taken, self._refunds = self._refunds, []
        return taken

    @property
    def is_idle(self) -> bool:
        """There is nothing to send and nothing to write."""
        return not (self.held or self._settlements or self._refunds or self._changes)

    @property
    def held(self) -> int:
        """Deliveries that this relay has leased and not settled."""
        return len(self._turns) + len(self._under_way)
