"""The example's commands, as the demo uses them."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from example_project.heroes.management.commands.consume_heroes import _text
from example_project.heroes.models import Hero
from outbox.models import OutboxRecord

ROOT = Path(__file__).parents[2]


def make_heroes(*arguments: str) -> str:
    out = StringIO()
    call_command("make_heroes", *arguments, stdout=out)
    return out.getvalue()


@pytest.mark.django_db(transaction=True)
def test_rolled_back_heroes_leave_nothing() -> None:
    report = json.loads(make_heroes("25", "--rolled-back", "2", "--json"))
    assert report["seconds"] > 0
    assert {**report, "seconds": 0} == {"stashed": 25, "rolled_back": 6, "transactions": 3, "seconds": 0}
    heroes = {hero.pk: hero.as_dict() for hero in Hero.objects.all()}
    records = {int(record.kafka_key): json.loads(record.kafka_value or "") for record in OutboxRecord.objects.all()}
    assert len(heroes) == 25
    assert records == heroes
    assert "Nobody" not in {hero["name"] for hero in heroes.values()}


@pytest.mark.django_db(transaction=True)
def test_a_run_is_named_in_a_header() -> None:
    make_heroes("2", "--run", "r1")
    for record in OutboxRecord.objects.all():
        headers = dict(zip(record.kafka_header_keys, record.kafka_header_values, strict=True))
        assert headers["run"] == "r1"


@pytest.mark.django_db(transaction=True)
def test_report_as_text() -> None:
    assert make_heroes("1").startswith("stashed=1 rolled_back=1 transactions=1 seconds=")
    assert make_heroes("0").startswith("stashed=0 rolled_back=0 ")


def test_senseless_numbers_are_refused() -> None:
    with pytest.raises(CommandError, match="--per-transaction to 1 or more"):
        call_command("make_heroes", "5", "--per-transaction", "0")


def test_any_bytes_can_be_stored_as_text() -> None:
    assert _text(None) is None
    assert _text("é".encode()) == "é"
    assert _text(b"\xff\0") == "\\xff\\x00"


def manage(*arguments: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, str(ROOT / "example_project" / "manage.py"), *arguments],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_manage_runs_from_any_folder(tmp_path: Path) -> None:
    url = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none", "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:9092"}
    for folder in (ROOT, tmp_path):
        done = manage("check", cwd=folder, **url)
        assert done.returncode == 0, done.stderr


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    code = (
        "from django.conf import settings as s; from outbox.conf import current;"
        "print(s.DEBUG, s.SECRET_KEY, s.ALLOWED_HOSTS, s.DATABASES['default']['NAME'], current().name)"
    )
    given = {
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none",
        "DEBUG": "1",
        "SECRET_KEY": "k" * 50,
        "ALLOWED_HOSTS": "a.example,b.example",
        "OUTBOX_NAME": "league",
    }
    done = manage("shell", "--no-imports", "-c", code, cwd=tmp_path, **given)
    assert done.stdout.split("\n")[0] == f"True {'k' * 50} ['a.example', 'b.example'] none league", done.stderr


@pytest.mark.part
def test_no_migration_is_missing(postgres: object) -> None:
    done = manage("makemigrations", "--check", "--dry-run", cwd=ROOT, DATABASE_URL=os.environ["DATABASE_URL"])
    assert done.returncode == 0, done.stdout + done.stderr
