"""Processes that end at each point of an append and of a round: nothing is half there, and nothing is left."""

import os
import subprocess
import sys

import pytest
from django.db import connection

from outbox import journal
from outbox.core.journal.chain import genesis
from tests.journal.test_api import fragments, rows, whole
from tests.journal.test_keeper import age, keep, objects, placed
from tests.support.databases import ROOT

pytestmark = pytest.mark.slow  # as a file

APPEND = """
import django, sys
django.setup()
from django.conf import settings
from django.db import transaction
settings.OUTBOX = settings.OUTBOX | {"STORES": {name: {"path": f"{sys.argv[1]}/{name}"} for name in "abc"}}
from outbox import journal
staged = journal.stage(sys.argv[2], b"x" * 3_000_000)
with transaction.atomic():
    staged.commit()
"""
KEEP = """
import django, sys
django.setup()
from django.conf import settings
settings.OUTBOX = settings.OUTBOX | {"STORES": {name: {"path": f"{sys.argv[1]}/{name}"} for name in "abc"}}
from django.core.management import call_command
call_command("journal", "--once", verbosity=0)
"""


def killed_at(failpoint, program, *arguments):
    given = connection.get_connection_params()
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**{"password": "", "port": 5432, **given})
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": url,
            "OUTBOX_FAILPOINTS": f"{failpoint}=kill",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr


@pytest.mark.parametrize("failpoint", ["append-opened", "append-sealing", "append-sealed"])
def test_an_append_that_was_killed_is_not_there_and_its_objects_go(name, roots, tmp_path, failpoint):
    journal.append(name, b"before")
    killed_at(failpoint, APPEND, tmp_path, name)
    journal.append(name, b"after")
    assert whole(name, chain=genesis(name)) == b"beforeafter"
    age("outbox_stage", "used_at", name)
    assert keep()["done"]["swept"] == 1
    assert [len(found) for found in objects(roots, name)] == [2, 2, 2]
    assert rows("SELECT count(*) FROM outbox_stage") == [(0,)]


@pytest.mark.parametrize("failpoint", ["stage-expired", "stage-emptied"])
def test_a_sweep_that_was_killed_is_finished_by_the_next_keeper(name, roots, tmp_path, failpoint):
    journal.append(name, b"abc")
    journal.stage(name, b"left")
    age("outbox_stage", "used_at", name)
    killed_at(failpoint, KEEP, tmp_path)
    assert keep()["done"]["swept"] == 1
    assert whole(name) == b"abc"
    assert [len(found) for found in objects(roots, name)] == [1, 1, 1]


def test_a_repair_that_was_killed_is_finished_by_the_next_keeper(name, roots, tmp_path):
    journal.append(name, b"abc")
    path = placed(name).fragment.path
    for store in "ab":
        (roots[store] / path).unlink()
    age("outbox_fragment", "scrubbed_at", name, "60 days")
    keep()
    killed_at("replica-copied", KEEP, tmp_path)
    assert [one[3] for one in fragments(name)] == [["c"]]
    keep()
    (replicas,) = [one[3] for one in fragments(name)]
    assert len(replicas) == 2
    assert all((roots[store] / path).read_bytes() == b"abc" for store in replicas)
    assert sum(map(len, objects(roots, name))) == 2
