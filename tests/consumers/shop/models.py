"""What consumers leave behind: one row per call, so that what is handled twice is there twice."""

from django.db import models


class Effect(models.Model):
    consumer = models.TextField()
    topic = models.TextField()
    partition = models.IntegerField()
    offset = models.BigIntegerField()
    key = models.TextField(null=True)
    value = models.TextField(null=True)
    attempt = models.IntegerField()

    class Meta:
        app_label = "shop"

    def __str__(self):
        return f"{self.consumer}: {self.value}"
