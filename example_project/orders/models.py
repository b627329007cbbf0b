"""Orders, and the receipts of their payments."""

from typing import Any

from django.db import models


class Order(models.Model):
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    is_paid = models.BooleanField(default=False)
    placed = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"order {self.pk}"

    def as_dict(self) -> dict[str, Any]:
        return {"order": self.pk, "amount": self.amount}


class Receipt(models.Model):
    """No constraint makes it unique per order: each message takes effect once, and the demo counts that."""

    order = models.ForeignKey(Order, models.PROTECT, related_name="receipts")
    amount = models.DecimalField(max_digits=9, decimal_places=2)
    received = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"receipt of order {self.order_id}"
