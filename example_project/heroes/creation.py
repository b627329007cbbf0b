"""The one place where a hero comes to be: the row and its message in one transaction."""

from django.db import transaction

import outbox
from example_project.heroes.models import TOPIC, Hero
from outbox.api import Headers


def create_hero(name: str, power: str = "", headers: Headers | None = None) -> Hero:
    """Both or neither: if anything fails, before or after, Kafka never hears of the hero."""
    with transaction.atomic():
        hero = Hero.objects.create(name=name, power=power)
        outbox.stash(TOPIC, hero.as_dict(), key=str(hero.pk), headers=headers)
    return hero
