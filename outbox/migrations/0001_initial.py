import django.contrib.postgres.fields
import django.contrib.postgres.functions
import django.db.models.lookups
from django.db import migrations, models

import outbox.schema.expressions
from outbox.conf import table_name
from outbox.schema.adoption import CreateOrAdoptTable


class Migration(migrations.Migration):
    initial = True
    # Adoption takes its lock in short attempts, each in a transaction of its own.
    atomic = False

    dependencies = []

    operations = [
        CreateOrAdoptTable(
            name="OutboxRecord",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "create_time",
                    models.DateTimeField(
                        db_default=django.contrib.postgres.functions.TransactionNow(),
                        help_text="When the transaction that stashed the record began.",
                    ),
                ),
                ("kafka_topic", models.CharField(max_length=249, verbose_name="topic")),
                (
                    "kafka_key",
                    models.TextField(
                        help_text="Records of one topic and key keep their order; empty: no key.", verbose_name="key"
                    ),
                ),
                (
                    "kafka_value",
                    models.TextField(blank=True, help_text="NULL is a tombstone.", null=True, verbose_name="value"),
                ),
                (
                    "kafka_header_keys",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        db_default=outbox.schema.expressions.EmptyTextArray(),
                        size=None,
                        verbose_name="header names",
                    ),
                ),
                (
                    "kafka_header_values",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.TextField(),
                        db_default=outbox.schema.expressions.EmptyTextArray(),
                        size=None,
                        verbose_name="header values",
                    ),
                ),
                (
                    "leader_id",
                    models.UUIDField(
                        blank=True,
                        editable=False,
                        help_text="The at-least-once leader that claimed the record.",
                        null=True,
                    ),
                ),
                (
                    "kafka_value_binary",
                    models.BinaryField(
                        blank=True,
                        help_text="Sent instead of the value when set.",
                        null=True,
                        verbose_name="binary value",
                    ),
                ),
            ],
            options={
                "verbose_name": "pending record",
                "verbose_name_plural": "pending records",
                "db_table": table_name(),
                "constraints": [
                    models.CheckConstraint(
                        condition=django.db.models.lookups.Exact(
                            outbox.schema.expressions.Cardinality("kafka_header_keys"),
                            outbox.schema.expressions.Cardinality("kafka_header_values"),
                        ),
                        name="outbox_headers_paired",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            django.db.models.lookups.IsNull(
                                outbox.schema.expressions.NullPosition("kafka_header_keys"), True
                            ),
                            django.db.models.lookups.IsNull(
                                outbox.schema.expressions.NullPosition("kafka_header_values"), True
                            ),
                        ),
                        name="outbox_headers_not_null",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("kafka_value__isnull", True), ("kafka_value_binary__isnull", True), _connector="OR"
                        ),
                        name="outbox_one_value",
                    ),
                ],
            },
        ),
    ]
