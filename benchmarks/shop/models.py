"""What the measured consumers write."""

from django.db import models


class Payment(models.Model):
    order = models.TextField()
    amount = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.order}: {self.amount}"


class Account(models.Model):
    """A row that web transactions change too."""

    total = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.pk}: {self.total}"
