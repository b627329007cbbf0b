"""Heroes, and the messages that a consumer has received about them."""

from typing import Any

from django.db import models

TOPIC = "heroes"


class Hero(models.Model):
    name = models.CharField(max_length=100)
    power = models.CharField(max_length=200, blank=True)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "heroes"

    def __str__(self) -> str:
        return self.name

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.pk, "name": self.name, "power": self.power}


class Received(models.Model):
    """A message as a consumer received it. Its place in Kafka is unique, so reading it again stores nothing."""

    topic = models.CharField(max_length=249)
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    key = models.TextField(null=True)
    value = models.TextField(null=True)
    received = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "received"
        constraints = [
            models.UniqueConstraint(fields=["topic", "partition", "offset"], name="received_once"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("topic", "partition", "offset", "key", "value")}
