from django.db import models


class Order(models.Model):
    total = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.pk)


class Payment(models.Model):
    order = models.TextField()
    amount = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.order}: {self.amount}"
