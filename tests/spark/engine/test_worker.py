"""The worker of the Spark engine and the process that it starts: a small program replaces the one that drives Spark,
which takes seconds to start."""

import sys
import textwrap
import threading
import time
from types import SimpleNamespace
from uuid import uuid4

import pytest

from outbox.conf import parse
from outbox.core.patience import Backoff
from outbox.service.status_line import StatusLine
from outbox.spark.engine.job import Job
from outbox.spark.engine.worker import Engine, EngineStatistics, with_flags
from tests.support.settings import changed

PROGRAM = textwrap.dedent("""
    import json, os, sys, time
    job = json.loads(sys.stdin.readline())
    say = lambda event, **given: print(json.dumps({"event": event, **given}), flush=True)
    def wait(word):
        for line in sys.stdin:
            if line.strip() == word:
                return
        os._exit(9)
    kind, place = job["transform"], job["checkpoint"]
    starts = open(place, "a")
    starts.write(job["owner"] + chr(10)); starts.close()
    number = len(open(place).readlines())
    if kind == "silent":
        time.sleep(600)
    say("ready", ui="http://127.0.0.1:4040")
    wait("go")
    if kind == "refuse":
        say("failed", kind="refused", text='set the option resend="true" to send those records again')
        sys.exit(1)
    if kind == "fenced":
        say("failed", kind="fenced", text="another")
        sys.exit(1)
    if kind == "crash" or kind == "crash once" and number == 1:
        os._exit(137)
    say("holds", count=2, held_keys=1, shown="paused: topic t; rejected: t[k]", is_idle=False)
    say("epoch", epoch=0, count=5, skipped=0, seconds=0.1)
    if kind == "crash late":
        os._exit(137)
    if kind != "busy":
        say("holds", count=2, held_keys=1, shown="paused: topic t; rejected: t[k]", is_idle=True)
    say("log", name="outbox.spark", level=30, text="database_unavailable seconds=1")
    wait("finish")
    say("finished")
""")


class Host:
    def __init__(self):
        self.calls, self.changed = [], threading.Condition()

    def __getattr__(self, name):
        def note(*given):
            with self.changed:
                self.calls.append((name, *given))
                self.changed.notify_all()

        return note

    def wait_for(self, name):
        with self.changed:
            assert self.changed.wait_for(lambda: any(call[0] == name for call in self.calls), 60), self.calls
            return next(call for call in self.calls if call[0] == name)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("outbox.spark.engine.worker._RESTART_MIN_S", 0.01)
    monkeypatch.setattr("outbox.spark.engine.worker._RESTART_MAX_S", 0.02)
    monkeypatch.setattr(Engine, "command", (sys.executable, "-c", PROGRAM))
    workers = []

    def make(kind):
        place = tmp_path / "starts"
        job = Job(url="", table="o", name="n", checkpoint=str(place), properties={}, transform=kind)
        engine, host = Engine(lambda: job), Host()
        worker = engine(changed(parse({}), METRICS_INTERVAL=0.0), 0, uuid4(), 0, host)
        workers.append(worker)
        worker.start()
        return SimpleNamespace(engine=engine, worker=worker, host=host, place=place)

    yield make
    for worker in workers:
        worker.abandon()
        assert worker.join(60)


def until(condition):
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_a_leadership_runs_until_it_is_finished(run):
    found = run("serve")
    reading = found.host.wait_for("emit")[1]
    assert reading.delivered == 5
    until(lambda: found.worker.statistics().phase == "running")
    until(lambda: (found.worker.statistics().held, found.worker.statistics().held_keys) == (2, 1))
    assert "batch 0: 5 in 0.1 s" in found.worker.statistics().progress
    found.worker.finish(time.monotonic() + 60)
    assert found.host.wait_for("finished") == ("finished", 0)
    assert found.worker.join(60)
    assert found.worker.statistics().delivered == 5


def test_holds_count_when_nothing_else_is_left(run, caplog):
    """`--once` exits when it sees them: a batch in flight may take longer than it waits."""
    busy = run("busy")
    busy.host.wait_for("emit")
    until(lambda: "database_unavailable" in caplog.text)
    assert "spark_holds count=2" in caplog.text
    assert busy.worker.statistics().held == 0
    idle = run("serve")
    until(lambda: idle.worker.statistics().held == 2)
    assert caplog.text.count("spark_holds count=2") == 2  # once each


def test_a_drained_worker_keeps_its_lane_until_the_election_wants_it(run):
    found = run("serve")
    found.host.wait_for("emit")
    found.engine.drain()
    assert found.worker.statistics().phase == "ended"
    assert not any(call[0] == "finished" for call in found.host.calls)
    found.worker.finish(time.monotonic() + 60)
    found.host.wait_for("finished")


def test_a_process_that_is_not_ready_is_not_waited_for(run):
    found = run("silent")
    until(lambda: found.place.exists() and found.place.read_text())
    found.worker.finish(time.monotonic() + 600)
    found.host.wait_for("finished")


def test_a_lost_leadership_ends_the_process_and_says_nothing(run):
    found = run("serve")
    found.host.wait_for("emit")
    process = found.worker._process
    found.worker.abandon()
    assert found.worker.join(60)
    assert process.returncode is not None
    assert not any(call[0] in ("finished", "fatal") for call in found.host.calls)


def test_a_process_that_dies_is_restarted_under_another_name(run):
    found = run("crash once")
    found.host.wait_for("emit")
    first, second = found.place.read_text().splitlines()
    assert first != second


def test_a_process_that_dies_repeatedly_ends_the_harvester(run):
    found = run("crash")
    error = found.host.wait_for("fatal")[1]
    assert str(error) == "Spark cannot continue: the process that drives Spark was killed, or ran out of memory"
    assert len(found.place.read_text().splitlines()) == 5


def test_a_process_that_dies_after_a_batch_is_restarted_without_a_longer_pause(run, monkeypatch):
    pauses = []

    class Noted(Backoff):
        def failed(self):
            pauses.append(super().failed())
            return pauses[-1]

    monkeypatch.setattr("outbox.spark.engine.worker.Backoff", Noted)
    monkeypatch.setattr("outbox.spark.engine.worker._RESTART_MAX_S", 10.0)
    run("crash late")
    until(lambda: len(pauses) > 6)
    assert len(set(pauses)) == 1


def test_a_refusal_ends_the_harvester_with_the_remedy(run):
    found = run("refuse")
    error = found.host.wait_for("fatal")[1]
    assert str(error) == "Spark cannot continue: pass --resend to send those records again"


def test_a_fenced_driver_asks_the_election(run):
    found = run("fenced")
    assert found.host.wait_for("step_down") == ("step_down", 0)


def test_remedies_name_the_flags():
    text = "Use another sink name, which sends again. If known, set begin_at=7 on the sink."
    assert with_flags(text).count("--sink") == 2
    assert "(--checkpoint)" in with_flags("start again with a new checkpoint")


def test_a_terminal_shows_what_spark_says():
    found = EngineStatistics("running", delivered=1500, progress="batch 3: 500 in 0.4 s")
    harvester = SimpleNamespace(
        state="running",
        leader_ids={0: uuid4()},
        statistics={0: found},
        in_flight=0,
    )
    backlog = SimpleNamespace(most=100, waiting=lambda: 7)
    line = StatusLine(harvester, backlog, lambda text: None)
    assert line.line().endswith("in flight 0, backlog 7, batch 3: 500 in 0.4 s")
