"""The one place where a hero comes to be: the row and its message in one transaction."""

from django.db import transaction

import outbox
from example_project.heroes.models import TOPIC, Hero


def create_hero(name: str, power: str = "") -> Hero:
    """Both or neither: if anything fails, before or after, Kafka never hears of the hero."""
    with transaction.atomic():
        hero = Hero.objects.create(name=name, power=power)
        outbox.stash(TOPIC, hero.as_dict(), key=str(hero.pk))
    return hero
