"""What the payments service consumes. The payment, its receipt and the position are committed together."""

from decimal import Decimal

from django.conf import settings

import outbox
from example_project.payments.models import Payment


@outbox.consumer(settings.ORDERS_TOPIC, name="payments.take_payment")
def take_payment(message):
    order = message.json()
    payment = Payment.objects.create(order_number=order["order"], amount=Decimal(order["amount"]))
    outbox.stash(settings.RECEIPTS_TOPIC, payment.as_dict(), key=message.key)
