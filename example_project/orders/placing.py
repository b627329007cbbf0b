"""The placing of orders: their rows and their messages in one transaction."""

from collections.abc import Iterable
from decimal import Decimal

from django.conf import settings
from django.db import transaction

import outbox
from example_project.orders.models import Order


def place_orders(amounts: Iterable[Decimal]) -> list[Order]:
    with transaction.atomic():
        orders = Order.objects.bulk_create(Order(amount=amount) for amount in amounts)
        outbox.stash_many(outbox.Message(settings.ORDERS_TOPIC, order.as_dict(), key=str(order.pk)) for order in orders)
    return orders
