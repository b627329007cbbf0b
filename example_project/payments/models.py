"""Payments. An order is in the database of another service, so its number is no foreign key."""

from typing import Any

from django.db import models


class Payment(models.Model):
    """No constraint makes it unique per order: each message takes effect once, and the demo counts that."""

    order_number = models.BigIntegerField()
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    paid = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"payment of order {self.order_number}"

    def as_dict(self) -> dict[str, Any]:
        return {"order": self.order_number, "amount": self.amount}
