"""The outbox table, and the tables beside it for operators: holds, dead letters, the audit log, samples, and what is
shown of consumers.

The columns of the outbox have the names that other writers and harvesters of this table layout expect. The database
has every default, so that any program can insert with plain SQL.
"""

from typing import Any

from django.contrib.postgres.functions import TransactionNow
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from outbox.conf import table_name
from outbox.schema import fields
from outbox.schema.expressions import (
    EmptyBytesArray,
    EmptyIntegerArray,
    EmptyTextArray,
    SuppliedTime,
    no_null_element,
    same_length,
)


class OutboxRecord(models.Model):
    """A message that waits in the table until the harvester has moved it to Kafka."""

    id = models.BigAutoField(primary_key=True)
    create_time = SuppliedTime(
        db_default=TransactionNow(), help_text="The time at which the transaction that stashed the record began."
    )
    kafka_topic = fields.CharField("topic", max_length=249)
    kafka_key = fields.TextField(
        "key", help_text="Records of one topic and key keep their order; an empty key is no key."
    )
    kafka_value = fields.TextField(
        "value", null=True, blank=True, help_text="A record without a value (NULL) is a tombstone."
    )
    kafka_header_keys = fields.TextsField(models.TextField(), verbose_name="header names", db_default=EmptyTextArray())
    kafka_header_values = fields.TextsField(
        models.TextField(), verbose_name="header values", db_default=EmptyTextArray()
    )
    leader_id = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The at-least-once leader that marked the record."
    )
    kafka_value_binary = models.BinaryField(
        "binary value", null=True, blank=True, help_text="If set, the harvester sends it instead of the value."
    )

    objects: Any = models.Manager()

    class Meta:
        db_table = table_name()
        verbose_name = "pending record"
        verbose_name_plural = "pending records"
        permissions = [("view_payload", "Can see values and headers")]
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


def _text(**given: Any) -> "models.TextField[str, str]":
    return models.TextField(blank=True, db_default="", **given)


def _history() -> "models.JSONField[Any, Any]":
    return models.JSONField(db_default=models.Value([], models.JSONField()))


class _Wanted(models.TextChoices):
    """What operators request for a held record or message."""

    RETRY = "retry", "retry"
    SKIP = "skip", "skip"
    DISCARD = "discard", "discard"


class Hold(models.Model):
    """A record without a key, a key, a topic or a lane that is not sent for now, with the reason.

    The harvester places and lifts `rejected` and `poison`; operators place and lift `paused`; `editing` lasts while an
    operator changes a record. In `wanted` operators request what happens to a held record; the harvester does it.
    """

    class Reason(models.TextChoices):
        REJECTED = "rejected", "rejected by Kafka"
        PAUSED = "paused", "paused by an operator"
        POISON = "poison", "crashed a harvester"
        EDITING = "editing", "being edited"

    Wanted = _Wanted

    id = models.BigAutoField(primary_key=True)
    topic = fields.CharField(max_length=249, blank=True, db_default="")  # empty: a whole lane
    key = fields.TextField(null=True, blank=True)  # NULL: the whole topic; empty: the one record
    lane = models.IntegerField(null=True, blank=True)
    record_id = models.BigIntegerField(null=True, blank=True)  # the first record of the key, which was rejected
    stashed_at = SuppliedTime(null=True, blank=True)  # its create_time, because ids can be drawn a second time
    reason = models.TextField(choices=Reason.choices)
    since = models.DateTimeField(db_default=Now())
    attempts = models.IntegerField(db_default=0)
    error_code = _text()
    last_error = _text()
    next_try = models.DateTimeField(null=True, blank=True)  # NULL: no automatic retry
    wanted = _text(choices=Wanted.choices)
    confirmed_by = fields.NumbersField(models.IntegerField(), db_default=EmptyIntegerArray())  # by lanes
    history = _history()

    class Meta:
        db_table = f"{table_name()}_hold"
        default_permissions = ("view",)
        permissions = [
            ("retry", "Can retry held records and messages"),
            ("requeue", "Can requeue dead letters"),
            ("edit", "Can edit pending records, held records and messages, and dead letters"),
            ("skip", "Can move held records and messages to the dead letters"),
            ("discard", "Can delete held records and messages, and dead letters"),
            ("pause", "Can pause and resume topics, keys and lanes"),
        ]

    def __str__(self) -> str:
        return f"{self.reason}: {self.scope}"

    @property
    def scope(self) -> str:
        """The held record, key, topic or lane, for people."""
        if not self.topic:
            return f"lane {self.lane}"
        if self.key is None:
            return f"topic {self.topic}"
        return f"{self.topic}[{self.key}]" if self.key else f"{self.topic} #{self.record_id}"


class DeadLetter(models.Model):
    """A whole message that is no longer sent, kept for an operator with the reason."""

    class Reason(models.TextChoices):
        REJECTED = "rejected", "rejected by Kafka"
        POISON = "poison", "crashed a harvester"
        SKIPPED = "skipped", "skipped by an operator"

    id = models.BigAutoField(primary_key=True)
    record_id = models.BigIntegerField(db_index=True)  # its id in the outbox
    topic = fields.CharField(max_length=249)
    key = fields.TextField(blank=True)
    value = fields.TextField(null=True, blank=True)
    value_binary = models.BinaryField(null=True, blank=True)
    header_keys = fields.TextsField(models.TextField(), db_default=EmptyTextArray())
    header_values = fields.TextsField(models.TextField(), db_default=EmptyTextArray())
    stashed_at = SuppliedTime(null=True, blank=True)
    died_at = models.DateTimeField(db_default=Now())
    reason = models.TextField(choices=Reason.choices)
    error_code = _text()
    last_error = _text()
    attempts = models.IntegerField(db_default=0)
    history = _history()  # [{"at": ..., "code": ..., "error": ...}], the latest attempts last

    class Meta:
        db_table = f"{table_name()}_dead"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.topic}[{self.key}] #{self.record_id}"


class AuditLogEntry(models.Model):
    """A change that an operator has made: who, when, what and why."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=Now())
    who = models.TextField()
    what = models.TextField()
    why = _text()
    details = fields.JSONField(db_default=models.Value({}, models.JSONField()))

    class Meta:
        db_table = f"{table_name()}_audit_log"
        default_permissions = ("view",)
        verbose_name = "audit log entry"
        verbose_name_plural = "audit log entries"

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


class Sample(models.Model):
    """The state of one minute, kept for 24 hours. PostgreSQL counts stashed and delivered records from the start of its
    statistics."""

    taken_at = models.DateTimeField(primary_key=True, db_default=Now())
    backlog = models.BigIntegerField()
    oldest_age_s = models.FloatField()
    stashed = models.BigIntegerField(db_default=0)
    delivered = models.BigIntegerField(db_default=0)
    rejected = models.BigIntegerField(db_default=0)
    holds = models.BigIntegerField(db_default=0)
    dead = models.BigIntegerField(db_default=0)

    class Meta:
        db_table = f"{table_name()}_sample"
        default_permissions = ("view",)
        verbose_name = "sample"
        verbose_name_plural = "dashboard"  # its page in the admin

    def __str__(self) -> str:
        return f"{self.taken_at}: {self.backlog}"


class ConsumerPartition(models.Model):
    """What a process with consumers shows of one of its partitions, every few seconds. Nobody decides by it."""

    id = models.BigAutoField(primary_key=True)
    consumer = models.TextField()
    topic = fields.CharField(max_length=249)
    partition = models.IntegerField()
    owner = _text()  # the process: its host and its number
    seen_at = models.DateTimeField(db_default=Now())
    state = _text()
    reason = _text()
    stable_offset = models.BigIntegerField(null=True, blank=True)  # NULL: Kafka does not say
    lag = models.BigIntegerField(null=True, blank=True)  # offsets up to the stable one
    oldest_age_s = models.FloatField(null=True, blank=True)  # of the first message that is not handled; NULL: unknown
    handled = models.BigIntegerField(db_default=0)  # messages, by this owner since it started
    rate = models.FloatField(null=True, blank=True)  # messages per second, since the owner wrote the row before

    class Meta:
        db_table = f"{table_name()}_partition"
        default_permissions = ()  # the page asks for the permission of the dashboard
        verbose_name = "partition of a consumer"
        verbose_name_plural = "consumers"  # its page in the admin

    def __str__(self) -> str:
        return f"{self.consumer}: {self.topic}[{self.partition}]"


class ConsumerHold(models.Model):
    """A message that a consumer could not handle, or that waits behind one of its key. With `died_at`: a dead
    letter."""

    class Reason(models.TextChoices):
        FAILED = "failed", "its function failed"
        NOT_YET = "not-yet", "its function postponed it"
        POISON = "poison", "ended its process"
        WAITING = "waiting", "waits behind an earlier message of its key"

    Wanted = _Wanted

    id = models.BigAutoField(primary_key=True)
    consumer = models.TextField()
    topic = models.CharField(max_length=249)
    topic_id = _text()
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    leader_epoch = models.IntegerField(db_default=-1)
    key = models.BinaryField(null=True, blank=True, editable=True)
    value = models.BinaryField(null=True, blank=True, editable=True)
    header_names = fields.TextsField(models.TextField(), db_default=EmptyTextArray())
    header_values = fields.BinariesField(models.BinaryField(null=True), db_default=EmptyBytesArray())
    produced_ms = models.BigIntegerField(db_default=-1)
    reason = models.TextField(choices=Reason.choices)
    since = models.DateTimeField(db_default=Now())
    attempts = models.IntegerField(db_default=0)  # failures; postponements are delays
    delays = models.IntegerField(db_default=0)
    last_error = _text()
    next_try = models.DateTimeField(null=True, blank=True)  # NULL: no automatic retry
    wanted = _text(choices=Wanted.choices)
    died_at = models.DateTimeField(null=True, blank=True)
    history = _history()

    class Meta:
        db_table = f"{table_name()}_held"
        default_permissions = ("view",)
        verbose_name = "held message"
        verbose_name_plural = "held messages of consumers"

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


class ConsumerDeadLetter(ConsumerHold):
    """Those with `died_at`, for a page of their own in the admin."""

    class Meta:
        proxy = True
        default_permissions = ()  # the page asks for the permission of held messages
        verbose_name = "dead letter of a consumer"
        verbose_name_plural = "dead letters of consumers"
