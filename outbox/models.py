"""The outbox table.

Its columns carry the names that other writers and harvesters of this table layout expect, and every default lives in
the database, so that any program can insert with plain SQL.
"""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import TransactionNow
from django.db import models
from django.db.models import Q

from outbox.conf import table_name
from outbox.expressions import EmptyTextArray, no_null_element, same_length

# The layout that older programs know, in its order.
CLASSIC_COLUMNS = (
    "id",
    "create_time",
    "kafka_topic",
    "kafka_key",
    "kafka_value",
    "kafka_header_keys",
    "kafka_header_values",
    "leader_id",
)


class OutboxRecordQuerySet(models.QuerySet["OutboxRecord"]):
    def oldest_first(self) -> "OutboxRecordQuerySet":
        return self.order_by("id")


class OutboxRecord(models.Model):
    """A message that waits in the table until the harvester has moved it to Kafka."""

    id = models.BigAutoField(primary_key=True)
    create_time = models.DateTimeField(
        db_default=TransactionNow(), help_text="When the transaction that stashed the record began."
    )
    kafka_topic = models.CharField("topic", max_length=249)
    kafka_key = models.TextField("key", help_text="Records of one topic and key keep their order; empty: no key.")
    kafka_value = models.TextField("value", null=True, blank=True, help_text="NULL is a tombstone.")
    kafka_header_keys = ArrayField(models.TextField(), verbose_name="header names", db_default=EmptyTextArray())
    kafka_header_values = ArrayField(models.TextField(), verbose_name="header values", db_default=EmptyTextArray())
    leader_id = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The at-least-once leader that claimed the record."
    )
    kafka_value_binary = models.BinaryField(
        "binary value", null=True, blank=True, help_text="Sent instead of the value when set."
    )

    objects: Any = OutboxRecordQuerySet.as_manager()

    class Meta:
        db_table = table_name()
        verbose_name = "pending record"
        verbose_name_plural = "pending records"
        constraints = [
            models.CheckConstraint(
                name="outbox_headers_paired",
                condition=same_length("kafka_header_keys", "kafka_header_values"),
            ),
            models.CheckConstraint(
                name="outbox_headers_not_null",
                condition=Q(no_null_element("kafka_header_keys"), no_null_element("kafka_header_values")),
            ),
            models.CheckConstraint(
                name="outbox_one_value",
                condition=Q(kafka_value__isnull=True) | Q(kafka_value_binary__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kafka_topic}[{self.kafka_key}] #{self.pk}"
