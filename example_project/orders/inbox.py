"""What the orders service consumes. The function takes a list, so one statement stores the receipts of a batch."""

from decimal import Decimal

from django.conf import settings

import outbox
from example_project.orders.models import Order, Receipt


@outbox.consumer(settings.RECEIPTS_TOPIC, many=True, name="orders.store_receipts")
def store_receipts(messages):
    receipts = [message.json() for message in messages]
    Receipt.objects.bulk_create(
        Receipt(order_id=receipt["order"], amount=Decimal(receipt["amount"])) for receipt in receipts
    )
    Order.objects.filter(pk__in=[receipt["order"] for receipt in receipts]).update(is_paid=True)
