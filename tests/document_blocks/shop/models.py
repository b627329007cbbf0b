from django.db import models


class Order(models.Model):
    total = models.IntegerField(default=0)

    def __str__(self) -> str:
        return str(self.pk)
