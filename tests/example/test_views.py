"""The heroes' site: a hero and its message stand or fall together."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

import outbox
from example_project.heroes.models import Hero, Received
from outbox.models import OutboxRecord

pytestmark = pytest.mark.django_db(transaction=True)

HEROES = "/heroes/"


def post_json(client: Client, data: Any, **extra: Any) -> Any:
    body = data if isinstance(data, str) else json.dumps(data)
    return client.post(HEROES, body, content_type="application/json", **extra)


def assert_announced(hero: Hero) -> None:
    record = OutboxRecord.objects.get()
    assert (record.kafka_topic, record.kafka_key) == ("heroes", str(hero.pk))
    assert json.loads(record.kafka_value or "") == {"id": hero.pk, "name": hero.name, "power": hero.power}


def inserting_transactions() -> set[str]:
    """The ids of the transactions that wrote what the two tables hold."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xmin::text FROM heroes_hero UNION ALL SELECT xmin::text FROM outbox")
        return {row[0] for row in cursor.fetchall()}


def test_json_creates_a_hero_with_its_message_in_one_transaction(client: Client) -> None:
    response = post_json(client, {"name": "Ada", "power": "engines"})
    assert response.status_code == 201
    hero = Hero.objects.get()
    assert response.json() == {"id": hero.pk, "name": "Ada", "power": "engines"}
    assert_announced(hero)
    assert len(inserting_transactions()) == 1


def test_the_form_creates_a_hero_with_its_message(client: Client) -> None:
    response = client.post(HEROES, {"name": "Grace", "power": "compilers"}, follow=True)
    assert response.redirect_chain == [(HEROES, 302)]
    assert "Grace is a hero now." in response.content.decode()
    assert_announced(Hero.objects.get(name="Grace"))


def test_a_failure_leaves_neither_hero_nor_message(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stash = outbox.stash

    def stash_and_fail(*args: Any, **kwargs: Any) -> int:
        stash(*args, **kwargs)
        raise RuntimeError("after the stash")

    monkeypatch.setattr(outbox, "stash", stash_and_fail)
    with pytest.raises(RuntimeError):
        post_json(client, {"name": "Ada"})
    assert not Hero.objects.exists()
    assert not OutboxRecord.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '"x"',
        "null",
        "{}",
        '{"name": ""}',
        '{"name": "%s"}' % ("x" * 101),
        '{"name": "\\u0000"}',
        '{"name": "\\ud800"}',
    ],
)
def test_wrong_json_is_refused(client: Client, body: str) -> None:
    response = post_json(client, body)
    assert response.status_code == 400
    assert response.json()["errors"]
    assert not Hero.objects.exists()


def test_form_errors_are_shown(client: Client) -> None:
    response = client.post(HEROES, {"name": "", "power": "flight"})
    assert response.status_code == 400
    text = response.content.decode()
    assert "This field is required." in text
    assert 'value="flight"' in text
    assert not OutboxRecord.objects.exists()


def test_the_form_needs_its_token_and_json_does_not() -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.post(HEROES, {"name": "Eve"}).status_code == 403
    assert client.post(HEROES, '{"name": "Eve"}', content_type="text/plain").status_code == 403
    client.get(HEROES)
    token = client.cookies["csrftoken"].value
    assert client.post(HEROES, {"name": "Ada", "csrfmiddlewaretoken": token}).status_code == 302
    assert post_json(client, {"name": "Grace"}).status_code == 201
    assert {hero.name for hero in Hero.objects.all()} == {"Ada", "Grace"}


def test_lists_answer_what_is_accepted(client: Client) -> None:
    hero = Hero.objects.create(name="<Ada>", power="engines")
    Received.objects.create(topic="heroes", partition=0, offset=5, key="1", value="<v>")
    as_json = {"Accept": "application/json"}
    assert client.get(HEROES, headers=as_json).json() == {"heroes": [hero.as_dict()]}
    message = {"topic": "heroes", "partition": 0, "offset": 5, "key": "1", "value": "<v>"}
    assert client.get("/received/", headers=as_json).json() == {"received": [message]}
    assert "&lt;Ada&gt;" in client.get(HEROES).content.decode()
    page = client.get("/received/")
    assert "&lt;v&gt;" in page.content.decode()
    assert "Accept" in page["Vary"]
    assert page["Content-Type"].startswith("text/html")


def test_pages_of_an_empty_site(client: Client) -> None:
    assert "No heroes yet" in client.get(HEROES).content.decode()
    assert "The consumer has read no messages yet." in client.get("/received/").content.decode()
    assert client.get("/").headers["Location"] == reverse("heroes:heroes")
    assert client.delete(HEROES).status_code == 405
    assert client.post("/received/").status_code == 405


def test_the_admin_only_shows_heroes(admin_client: Client) -> None:
    hero = Hero.objects.create(name="Ada")
    assert "Ada" in admin_client.get(reverse("admin:heroes_hero_changelist")).content.decode()
    assert admin_client.get(reverse("admin:heroes_hero_add")).status_code == 403
    assert admin_client.post(reverse("admin:heroes_hero_delete", args=[hero.pk])).status_code == 403
