"""The count. It asks both databases in plain SQL, and uses nothing of Django and of outbox."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import psycopg

Row = tuple[int, Decimal]
"""The number of an order, and an amount."""


@dataclass(frozen=True)
class Found:
    """The payments or the receipts, beside the orders. All but `rows` must be 0."""

    rows: int
    missing: int
    doubled: int
    of_no_order: int
    other_amount: int

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.doubled or self.of_no_order or self.other_amount)

    def __str__(self) -> str:
        return (
            f"{self.rows:,}  ({self.missing:,} missing, {self.doubled:,} doubled, {self.of_no_order:,} of no order, "
            f"{self.other_amount:,} with another amount)"
        )


def compare(orders: Mapping[int, Decimal], rows: Sequence[Row]) -> Found:
    times = Counter(order for order, _ in rows)
    return Found(
        rows=len(rows),
        missing=len(orders.keys() - times.keys()),
        doubled=sum(times.values()) - len(times),
        of_no_order=len(times.keys() - orders.keys()),
        other_amount=sum(orders.get(order, amount) != amount for order, amount in rows),
    )


@dataclass(frozen=True)
class Counted:
    orders: int
    not_paid: int
    payments: Found
    receipts: Found
    seconds: float
    """From the first order to the last receipt."""
    delays_s: Sequence[float]
    """From each order to its receipt, the shortest first."""

    def is_right(self, placed: int) -> bool:
        return self.orders == placed and not self.not_paid and self.payments.is_right and self.receipts.is_right

    @property
    def rate(self) -> float:
        return self.orders / max(self.seconds, 0.001)

    def delay_s(self, share: float) -> float:
        """The delay that this share of the orders does not exceed."""
        return self.delays_s[int(share * (len(self.delays_s) - 1))] if self.delays_s else float("nan")


def count(orders: psycopg.Connection, payments: psycopg.Connection) -> Counted:
    placed = dict(orders.execute("SELECT id, amount FROM orders_order").fetchall())
    [(not_paid,)] = orders.execute("SELECT count(*) FROM orders_order WHERE NOT is_paid").fetchall()
    receipts = orders.execute("SELECT order_id, amount FROM orders_receipt").fetchall()
    made = payments.execute("SELECT order_number, amount FROM payments_payment").fetchall()
    [(seconds,)] = orders.execute(
        "SELECT extract(epoch FROM (SELECT max(received) FROM orders_receipt) - min(placed)) FROM orders_order"
    ).fetchall()
    delays = orders.execute(
        "SELECT extract(epoch FROM received - placed) AS delay FROM orders_receipt "
        "JOIN orders_order ON orders_order.id = order_id ORDER BY delay"
    ).fetchall()
    return Counted(
        orders=len(placed),
        not_paid=not_paid,
        payments=compare(placed, made),
        receipts=compare(placed, receipts),
        seconds=float(seconds or 0),
        delays_s=[float(delay) for (delay,) in delays],
    )
