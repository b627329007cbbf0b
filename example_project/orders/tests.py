"""``manage.py test example_project.orders``, with the settings of the orders service. It needs PostgreSQL and no
Kafka."""

from decimal import Decimal

from django.conf import settings
from django.db import transaction
from django.test import TestCase

from example_project.orders.inbox import store_receipts
from example_project.orders.models import Order, Receipt
from example_project.orders.placing import place_orders
from outbox.testing import OutboxTestMixin


class PlacingTests(OutboxTestMixin, TestCase):
    def test_an_order_is_announced(self) -> None:
        [order] = place_orders([Decimal("19.90")])
        self.assert_stashed(settings.ORDERS_TOPIC, key=str(order.pk), value={"order": order.pk, "amount": "19.90"})

    def test_an_order_that_is_rolled_back_is_not_announced(self) -> None:
        with transaction.atomic():
            place_orders([Decimal("19.90")])
            transaction.set_rollback(True)
        self.assert_nothing_stashed()


class ReceiptTests(OutboxTestMixin, TestCase):
    def test_a_receipt_marks_its_order_as_paid(self) -> None:
        paid, other = place_orders([Decimal("19.90"), Decimal("5.00")])
        self.deliver(store_receipts, {"order": paid.pk, "amount": "19.90"}, key=str(paid.pk))
        receipt = Receipt.objects.get()
        self.assertEqual((receipt.order, receipt.amount), (paid, Decimal("19.90")))
        self.assertEqual(list(Order.objects.filter(is_paid=False)), [other])
