"""A real harvester, a real Celery worker: the events of a leadership reach both kinds of listeners."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.support.databases import ROOT, fresh_database

WAIT_S = 60


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def processes():
    started = []

    def start(*arguments, **environment):
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_leadership_is_heard_in_the_process_and_told_to_a_worker(kafka, migrated_template, processes, tmp_path):
    heard, notes = tmp_path / "heard", tmp_path / "notes"
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url:
        worker = ("celery", "-A", "tests.contrib.celery_app", "worker", "--pool", "solo", "--without-mingle")
        processes(*worker, NOTES_FOLDER=str(tmp_path))
        harvester = processes(
            "django",
            "harvest",
            DJANGO_SETTINGS_MODULE="tests.contrib.listener",
            DATABASE_URL=url,
            HEARD=str(heard),
            NOTES_FOLDER=str(tmp_path),
            OUTBOX_NAME=f"celery-{uuid.uuid4().hex[:8]}",
            OUTBOX_DELIVERY="at-least-once",
            OUTBOX_CELERY_APP="tests.contrib.celery_app.app",
            OUTBOX_CELERY_EVENTS=json.dumps({"leader_acquired": "shop.note", "leader_revoked": "shop.note"}),
        )
        deadline = time.monotonic() + WAIT_S
        while not lines(heard) and time.monotonic() < deadline:
            time.sleep(0.05)
        harvester.send_signal(signal.SIGTERM)
        _, log = harvester.communicate(timeout=WAIT_S)
        assert harvester.returncode == 0, log
        while len(lines(notes)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    told = [json.loads(line) for line in lines(notes)]
    assert [note["event"] for note in told] == ["leader_acquired", "leader_revoked"], log
    assert told[0]["leader_id"] == told[1]["leader_id"]
    leader_id = told[0]["leader_id"]
    assert lines(heard) == [f"leader_acquired 0 {leader_id}", f"leader_revoked 0 {leader_id}"]
