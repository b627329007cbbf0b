"""Observers may raise or hang: receivers of signals, metrics, the redactor. Delivery is unaffected."""

import socket
import threading

import pytest

from outbox import redaction, signals
from outbox.contrib import exposition, prometheus
from outbox.contrib.metrics_server import serving
from outbox.harvest import samples
from outbox.models import OutboxRecord
from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.exactly_once.test_harvester import harvester
from tests.harvest.test_harvester import SIGNALS
from tests.support.databases import leading

pytestmark = pytest.mark.slow  # time for the whole file


class Hook:
    """Takes the place of any of them; `hang` returns when the test is over."""

    def __init__(self):
        self.over, self.calls = threading.Event(), 0

    def fail(self, *_, **__):
        self.calls += 1
        raise RuntimeError("a hook is broken")

    def hang(self, *_, **__):
        self.calls += 1
        self.over.wait(180)


@pytest.fixture(params=["fail", "hang"])
def hook(request):
    made = Hook()
    made.act = getattr(made, request.param)
    yield made
    made.over.set()


@pytest.fixture
def heard(hook):
    """Every signal of the harvester has it as a receiver."""
    connected = [getattr(signals, name) for name in SIGNALS]
    for signal in connected:
        signal.connect(hook.act, weak=False)
    yield
    for signal in connected:
        signal.disconnect(hook.act)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_receivers_metrics_and_samples_do_not_hold_up_delivery(bench, hook, heard, monkeypatch):
    monkeypatch.setattr(prometheus, "take_sample", hook.act)
    monkeypatch.setattr(exposition, "exposition", hook.act)
    monkeypatch.setattr(samples.samples, "take", hook.act)
    monkeypatch.setattr(samples, "EVERY_S", 0.2)
    poison = bench.stash(["bad"])
    bench.stashed.by_key.pop("bad")
    bench.db.execute("UPDATE outbox SET kafka_value = repeat('x', 2000000) WHERE id = %s", poison)
    with harvester(bench, METRICS_INTERVAL=1) as one, serving(one, "127.0.0.1:0") as address:
        for _ in range(3):
            with socket.create_connection(address) as scraper:  # a client that asks and never reads the answer
                scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                bench.stash([f"k{n % 5}" for n in range(100)])
                wait_until(lambda: bench.count == 1)
        wait_until(lambda: hook.calls > 1)
        assert one.is_leader
        assert bench.db.execute("SELECT kafka_key FROM outbox").fetchall() == [("bad",)]
        hook.over.set()
    bench.db.execute("DELETE FROM outbox")
    bench.check()


def test_a_redactor_holds_no_record_back(bench, hook, settings, django_db_blocker, monkeypatch):
    """The admin asks the redactor while it makes a page; the records of the page are delivered meanwhile."""
    settings.OUTBOX = {**settings.OUTBOX, "REDACTOR": f"{__name__}.redactor"}
    monkeypatch.setattr(f"{__name__}.redactor", hook.act)
    bench.stash(["a"] * 20)
    shown = []

    def look():
        with leading(bench.url, django_db_blocker):
            record = OutboxRecord.objects.order_by("id").first()
            shown.append(redaction.redact(record, record.kafka_value))

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    wait_until(lambda: hook.calls)
    with bench.working():
        bench.wait_empty()
    hook.over.set()
    reader.join(30)
    assert len(shown) == 1
    assert shown[0].startswith("(hidden: ")
    bench.check()


def redactor(record, text):
    raise AssertionError("replaced by the tests")
