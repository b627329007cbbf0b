"""The creation of heroes: their rows and their messages in one transaction."""

from collections.abc import Iterable

from django.db import transaction

import outbox
from example_project.heroes.models import TOPIC, Hero
from outbox.api import Headers


def create_hero(name: str, power: str = "") -> Hero:
    """Stores the hero and its message, or neither: if anything fails, before or after, Kafka gets no message."""
    with transaction.atomic():
        hero = Hero.objects.create(name=name, power=power)
        outbox.stash(TOPIC, hero.as_dict(), key=str(hero.pk))
    return hero


def create_heroes(described: Iterable[tuple[str, str]], headers: Headers | None = None) -> list[Hero]:
    """Stores many heroes in one transaction, with one statement for the rows and one for the messages."""
    with transaction.atomic():
        heroes = Hero.objects.bulk_create(Hero(name=name, power=power) for name, power in described)
        outbox.stash_many(outbox.Message(TOPIC, hero.as_dict(), key=str(hero.pk), headers=headers) for hero in heroes)
    return heroes
