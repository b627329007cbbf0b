"""Databases of their own for tests that migrate, and commands that run against them as users run them."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


@contextmanager
def fresh_database(server_url: str, template: str = "template1") -> Iterator[str]:
    """The URL of a new database on the server: empty, or a copy of `template`, to which nobody may be connected."""
    name = f"fresh_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def leading(url: str, blocker: Any) -> Iterator[None]:
    """Django's alias `default` leads to this database; `blocker` is pytest-django's."""
    from django.db import connections

    parts, wrapper = psycopg.conninfo.conninfo_to_dict(url), connections["default"]
    before = dict(wrapper.settings_dict)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    with blocker.unblock():
        wrapper.close()
        wrapper.settings_dict.update({name: parts.get(part, "") for name, part in names.items()})
        try:
            yield
        finally:
            wrapper.close()
            wrapper.settings_dict.clear()
            wrapper.settings_dict.update(before)


def django(*arguments: str, url: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a management command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": url, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
