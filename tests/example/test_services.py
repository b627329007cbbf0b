"""The orders service and the payments service: their own tests, as a team would run them."""

import os
import subprocess
import sys

import pytest

from tests.support.databases import ROOT, fresh_database


def manage(service, *arguments, url):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "DJANGO_"))}
    given = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": f"example_project.{service}.settings"}
    return subprocess.run(
        [sys.executable, str(ROOT / "example_project" / "manage.py"), *arguments],
        cwd=ROOT,
        env={**kept, **given, "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:9092"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(("service", "tests"), [("orders", 3), ("payments", 2)])
def test_its_tests_pass_with_its_settings(postgres, service, tests):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        done = manage(service, "test", f"example_project.{service}", url=url)
    assert done.returncode == 0, done.stderr
    assert f"Ran {tests} tests" in done.stderr


@pytest.mark.parametrize("service", ["orders", "payments"])
def test_its_settings_are_checked_and_its_migrations_are_complete(service):
    for command in (["check", "--fail-level", "WARNING"], ["makemigrations", "--check", "--dry-run"]):
        done = manage(service, *command, url="postgresql://nobody@127.0.0.1:9/none")
        assert done.returncode == 0, done.stdout + done.stderr
