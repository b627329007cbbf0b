"""A project that listens to the Celery signals of the harvester: its settings are those of the tests with one app more.

As a settings module it is named by DJANGO_SETTINGS_MODULE; what the receivers see goes to the file HEARD.
"""

import os
from pathlib import Path

from django.apps import AppConfig

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.contrib.listener.ListenerConfig"]


class ListenerConfig(AppConfig):
    name = "tests.contrib"
    label = "listener"

    def ready(self) -> None:
        from outbox.contrib import celery

        celery.leader_acquired.connect(hear)
        celery.leader_revoked.connect(hear)
        celery.leader_revoked.connect(stumble)


def hear(sender: object, signal: object, lane: int, leader_id: object, **named: object) -> None:
    with Path(os.environ["HEARD"]).open("a") as file:
        file.write(f"{signal.name} {lane} {leader_id}\n")


def stumble(**named: object) -> None:
    raise RuntimeError("a receiver stumbles")
