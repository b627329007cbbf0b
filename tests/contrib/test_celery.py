"""Events reach Celery: as signals in the harvest process, as tasks in a real worker, and never at harvesting's cost."""

import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from django.dispatch import Signal as DjangoSignal

from outbox import conf, signals
from outbox.conf import EVENTS
from outbox.contrib import celery
from outbox.contrib.celery import TaskSender, celery_app, plain
from outbox.exceptions import OutboxError
from tests.contrib import celery_app as application
from tests.support.databases import ROOT

LEADER = uuid.uuid4()


def until(condition, what, limit_s=60):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {limit_s} s"
        time.sleep(0.02)


def python(code, **environment):
    """A program of its own in which Django is set up."""
    return subprocess.run(
        [sys.executable, "-c", "import django; django.setup()\n" + textwrap.dedent(code)],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def broker(tmp_path, monkeypatch):
    """A folder as broker, and the application on it."""
    monkeypatch.setattr(application, "app", application.make(tmp_path))
    yield tmp_path
    application.app.pool.force_close_all()


@pytest.fixture
def with_events(settings, broker):
    settings.OUTBOX = {
        **settings.OUTBOX,
        "CELERY_EVENTS": dict.fromkeys(EVENTS, "shop.note"),
        "CELERY_APP": "tests.contrib.celery_app.app",
    }
    conf.current.cache_clear()
    yield broker
    conf.current.cache_clear()


@pytest.fixture
def worker(broker):
    """A real worker on the folder."""
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tests.contrib.celery_app", "worker", "--pool", "solo",
         "--without-gossip", "--without-mingle", "--without-heartbeat"],
        cwd=ROOT,
        env={**os.environ, "NOTES_FOLDER": str(broker)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def notes(folder):
    path = folder / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- signals


def test_every_signal_of_the_harvester_has_its_twins():
    ours = {name for name, value in vars(signals).items() if isinstance(value, DjangoSignal)}
    ours.remove("batch_delivered")  # for traces, in the process itself
    assert ours == set(EVENTS)
    assert {name for name, value in vars(celery).items() if isinstance(value, celery.Signal)} == ours


@pytest.mark.parametrize("event", EVENTS)
def test_a_celery_signal_fires_with_the_arguments_of_the_django_signal(event):
    seen = []

    def receiver(sender, **named):
        seen.append((sender, named))

    twin = getattr(celery, event)
    twin.connect(receiver)
    try:
        getattr(signals, event).send_robust(sender="Harvester", lane=3, leader_id=LEADER)
    finally:
        twin.disconnect(receiver)
    assert seen == [("Harvester", {"signal": twin, "lane": 3, "leader_id": LEADER})]


def test_a_raising_receiver_disturbs_neither_the_others_nor_the_harvester():
    seen = []

    def first(**named):
        raise RuntimeError("mine")

    def second(**named):
        seen.append(named["lane"])

    celery.leader_fenced.connect(first)
    celery.leader_fenced.connect(second)
    try:
        answers = signals.leader_fenced.send_robust(sender=None, lane=1, leader_id=LEADER, reason="lost")
    finally:
        celery.leader_fenced.disconnect(first)
        celery.leader_fenced.disconnect(second)
    assert seen == [1]
    assert not [answer for _, answer in answers if isinstance(answer, Exception)]


# ---- imports


def test_celery_is_imported_only_when_it_is_used():
    found = python("""
        import sys
        from outbox import signals
        signals.leader_acquired.send(sender=None, lane=0, leader_id=None)
        print("celery" in sys.modules, "kombu" in sys.modules)
    """)
    assert found.stdout.split() == ["False", "False"], found.stderr


WITHOUT_CELERY = """
    import sys

    class Nowhere:
        def find_spec(self, name, path=None, target=None):
            if name == "celery":
                raise ModuleNotFoundError("No module named 'celery'", name="celery")

    sys.meta_path.insert(0, Nowhere())
    from outbox import signals
"""


def test_without_celery_the_module_names_the_extra():
    found = python(WITHOUT_CELERY + "    import outbox.contrib.celery\n")
    assert "MissingExtra: celery is not installed" in found.stderr
    assert 'pip install "django-transactional-outbox[celery]"' in found.stderr


def test_without_celery_an_event_is_logged_and_nothing_raised():
    found = python(
        WITHOUT_CELERY
        + "    for _ in range(2): signals.leader_acquired.send(sender=None, lane=0, leader_id=None)\n    print('on')\n",
        OUTBOX_CELERY_EVENTS='{"leader_acquired": "shop.note"}',
    )
    assert found.stdout.strip() == "on", found.stderr
    assert found.stderr.count("celery_event_dropped event=leader_acquired") == 1
    assert 'pip install "django-transactional-outbox[celery]"' in found.stderr


# ---- tasks


@pytest.mark.part
def test_a_real_worker_runs_one_task_per_event(with_events, worker):
    before = celery.tasks.statistics().sent
    for number, event in enumerate(EVENTS):
        getattr(signals, event).send_robust(sender=object, harvester=object(), lane=number, leader_id=LEADER)
    until(lambda: len(notes(with_events)) == len(EVENTS), "every task")
    found = {note["event"]: note for note in notes(with_events)}
    assert set(found) == set(EVENTS)
    for number, event in enumerate(EVENTS):
        datetime.fromisoformat(found[event].pop("at"))
        assert found[event] == {"event": event, "lane": number, "leader_id": str(LEADER)}
    assert celery.tasks.statistics().sent == before + len(EVENTS)


def test_only_the_named_events_become_tasks(with_events, settings):
    settings.OUTBOX = {**settings.OUTBOX, "CELERY_EVENTS": {"leader_fenced": "shop.note"}}
    conf.current.cache_clear()
    before = celery.tasks.statistics()
    signals.leader_acquired.send(sender=None, lane=0, leader_id=LEADER)
    signals.leader_fenced.send(sender=None, lane=0, leader_id=LEADER, reason="lost")
    until(lambda: celery.tasks.statistics().sent == before.sent + 1, "the task")
    assert celery.tasks.statistics().waiting == 0


def test_options_of_the_task_are_used(with_events):
    sender = TaskSender()
    sender.submit("leader_acquired", {"task": "shop.note", "queue": "ops", "expires": 60}, {"lane": 0})
    until(lambda: sender.statistics().sent == 1, "the task")
    (message,) = (with_events / "data").iterdir()
    assert message.name.endswith("_ops.msg") or ".ops." in message.name
    assert json.loads(message.read_text())["headers"]["expires"] is not None
    sender.close()


def test_an_event_just_before_the_end_of_the_process_is_still_sent(broker):
    found = python(
        "from outbox import signals\nsignals.leader_revoked.send(sender=None, lane=0, leader_id=None)\n",
        OUTBOX_CELERY_EVENTS='{"leader_revoked": "shop.note"}',
        OUTBOX_CELERY_APP="tests.contrib.celery_app.app",
        NOTES_FOLDER=str(broker),
    )
    assert found.returncode == 0, found.stderr
    assert len(list((broker / "data").iterdir())) == 1


@pytest.fixture
def silent_broker():
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"amqp://127.0.0.1:{server.getsockname()[1]}//"


@pytest.fixture
def refusing_broker():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"amqp://127.0.0.1:{port}//"


@pytest.mark.parametrize("kind", ["silent_broker", "refusing_broker"])
def test_a_broker_that_is_down_costs_events_and_nothing_else(kind, request):
    """In a process of its own, which must also end in time although its sender hangs."""
    url = request.getfixturevalue(kind)
    found = python(
        """
        import time, logging
        logging.basicConfig(level=logging.INFO)
        from outbox import signals
        slowest, began = 0, time.monotonic()
        for number in range(5000):
            at = time.monotonic()
            signals.meter_read.send(sender=None, lane=0, leader_id=None, delivered=number)
            slowest = max(slowest, time.monotonic() - at)
        from outbox.contrib.celery import tasks, QUEUE_MAX
        found = tasks.statistics()
        assert found.sent == 0, found
        assert found.waiting <= QUEUE_MAX, found
        assert found.dropped + found.waiting >= 4999, found
        print("slowest", slowest, "ends", time.time())
        """,
        OUTBOX_CELERY_EVENTS='{"meter_read": "shop.note"}',
        OUTBOX_CELERY_APP="tests.contrib.celery_app:down",
        BROKER_OF_TEST=url,
    )
    ended = time.time()
    assert found.returncode == 0, found.stderr
    assert float(found.stdout.split()[1]) < 3, "an event waited for the broker"
    assert found.stderr.count("celery_event_dropped") == 1, found.stderr
    assert ended - float(found.stdout.split()[3]) < 6, "three times what the end may wait"


def test_an_outage_is_logged_once_at_its_begin_and_once_at_its_end(with_events, caplog):
    caplog.set_level(logging.INFO, "outbox.celery")
    sender = TaskSender()
    for _ in range(3):
        sender.submit("leader_acquired", {"task": "shop.note", "serializer": "nonsense"}, {"lane": 0})
    sender.submit("leader_acquired", {"task": "shop.note"}, {"lane": 0})
    until(lambda: sender.statistics().sent == 1, "the good task")
    sender.close()
    told = [record.getMessage() for record in caplog.records if record.name == "outbox.celery"]
    assert [text.split()[0] for text in told] == ["celery_event_dropped", "celery_events_resumed"]
    assert "dropped=3" in told[1]
    assert sender.statistics().dropped == 3


def test_a_full_queue_drops_and_counts(with_events, monkeypatch):
    sender = TaskSender(queue_max=2)
    monkeypatch.setattr(sender, "_run", lambda: None)
    for _ in range(5):
        sender.submit("leader_acquired", {"task": "shop.note"}, {"lane": 0})
    assert sender.statistics() == celery.TaskStatistics(sent=0, dropped=3, waiting=2)


def test_close_before_the_first_event_and_twice_is_safe():
    sender = TaskSender()
    sender.close()
    sender.close()


# ---- the application


def test_the_application_is_found_by_its_path_in_both_forms(settings, broker):
    for path in ("tests.contrib.celery_app.app", "tests.contrib.celery_app:app"):
        settings.OUTBOX = {**settings.OUTBOX, "CELERY_APP": path}
        conf.current.cache_clear()
        assert celery_app() is application.app


def test_the_application_is_found_where_celery_tells_django_projects_to_put_it(broker, monkeypatch):
    import tests

    monkeypatch.setattr(tests, "celery_app", application.app, raising=False)
    assert celery_app() is application.app


def test_no_application_is_told_with_its_remedy(settings):
    with pytest.raises(
        OutboxError, match=r'neither tests.celery_app nor tests.celery.app exists. Set OUTBOX\["CELERY_A'
    ):
        celery_app()


# ---- values and settings


@dataclass
class Reading:
    rate: float
    leader_id: uuid.UUID


def test_values_become_what_every_serializer_carries():
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    found = plain({"a": Reading(1.5, LEADER), "b": (1, {2}), "c": moment, "d": None, 5: True})
    assert found == {
        "a": {"rate": 1.5, "leader_id": str(LEADER)},
        "b": [1, [2]],
        "c": "2026-01-02T00:00:00+00:00",
        "d": None,
        "5": True,
    }
    json.dumps(found)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (["leader_acquired"], "not a dict"),
        ({"leader_aquired": "t"}, 'Did you mean "leader_acquired"?'),
        ({"leader_acquired": ""}, "Name the task"),
        ({"leader_acquired": {"queue": "q"}}, "Name the task"),
        ({"leader_acquired": 5}, "Name the task"),
        ({"leader_acquired": {"task": "t", "quue": "q"}}, 'Did you mean "queue"?'),
    ],
)
def test_wrong_settings_are_told(value, message):
    with pytest.raises(conf.ConfErrors, match="CELERY_EVENTS") as refused:
        conf.parse({"CELERY_EVENTS": value})
    assert message in str(refused.value)


def test_a_task_may_be_a_name_or_a_dict():
    found = conf.parse({"CELERY_EVENTS": {"meter_read": "a", "leader_fenced": {"task": "b", "queue": "q"}}})
    assert found.celery.celery_events == {"meter_read": {"task": "a"}, "leader_fenced": {"task": "b", "queue": "q"}}
