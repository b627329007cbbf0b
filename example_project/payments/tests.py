"""``manage.py test example_project.payments``, with the settings of the payments service. It needs PostgreSQL and no
Kafka."""

from decimal import Decimal

from django.conf import settings
from django.test import TestCase

from example_project.payments.inbox import take_payment
from example_project.payments.models import Payment
from outbox.testing import OutboxTestMixin


class PaymentTests(OutboxTestMixin, TestCase):
    def test_an_order_is_paid_and_its_receipt_is_announced(self) -> None:
        self.deliver(take_payment, {"order": 42, "amount": "19.90"}, key="42")
        payment = Payment.objects.get()
        self.assertEqual((payment.order_number, payment.amount), (42, Decimal("19.90")))
        self.assert_stashed(settings.RECEIPTS_TOPIC, key="42", value={"order": 42, "amount": "19.90"}, times=1)

    def test_an_order_without_an_amount_is_an_error_that_leaves_nothing(self) -> None:
        with self.assertRaises(KeyError):
            self.deliver(take_payment, {"order": 42}, key="42")
        self.assertFalse(Payment.objects.exists())
        self.assert_nothing_stashed()
