"""Python blocks of the documents run, after those that stand above them on their page.

A block whose first line names a file, such as `# shop/orders.py`, becomes that file; the others of a page share one
namespace. What a page speaks of without showing it is in the folder `shop`, or given below. Tests that a block shows
are run too, views and tasks are called, receivers get signals, and settings are checked.
"""

import os
import re
import shutil
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from celery import Celery, _state
from celery.utils.dispatch import Signal as CelerySignal
from confluent_kafka import Consumer, Producer, TopicPartition
from django.apps import apps
from django.dispatch import Signal as DjangoSignal

import outbox
from outbox import signals
from outbox.consumers import registry
from outbox.contrib import celery
from outbox.testing.pytest_plugin import assert_stashed, deliver, harvest_all, outbox_kit, run_chain, stashed
from tests.document_blocks.pages import blocks, blocks_until
from tests.document_blocks.running import run
from tests.support.databases import fresh_database, leading
from tests.support.topics import create_topic

__all__ = ["assert_stashed", "deliver", "harvest_all", "outbox_kit", "run_chain", "stashed"]

SIGNALS = (DjangoSignal, CelerySignal)
SHOP = Path(__file__).parent / "shop"
# Its blocks run where the Spark session of the tests is.
SPARK = "docs/spark.md"
PYTHON = [block for block in blocks("python") if block.page != SPARK]
_DATABASE = re.compile(r"\batomic\(|\bobjects\b|\bTestCase\b|\bharvest_all\b|\boutbox_kit\b|\bRunSQL\b")
_KAFKA = re.compile(r"\bHarvester\(|(?<!outbox\.)\bconsumer\b")


def of_pages_with(pattern):
    return [block for block in PYTHON if any(pattern.search(above.text) for above in blocks_until(block))]


WITH_KAFKA = of_pages_with(_KAFKA)
WITH_A_DATABASE = [block for block in of_pages_with(_DATABASE) if block not in WITH_KAFKA]
ALONE = [block for block in PYTHON if block not in WITH_KAFKA + WITH_A_DATABASE]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the reader's project is; what a block registers with Django, Celery and Python is gone afterwards."""
    shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)
    # An application of its own: tasks of a block are for no other, nor those of other tests for this one.
    monkeypatch.setattr(_state, "_apps", WeakSet())
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state._tls, "current_app", Celery("shop", set_as_current=False))
    monkeypatch.setattr(registry, "_consumers", {})
    every = [found for module in (signals, celery) for found in vars(module).values() if isinstance(found, SIGNALS)]
    for signal in every:
        monkeypatch.setattr(signal, "receivers", list(signal.receivers))
    yield tmp_path
    monkeypatch.undo()
    for signal in every:
        signal.sender_receivers_cache.clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]
    apps.all_models.pop("shop", None)
    apps.clear_cache()


@pytest.fixture
def given(monkeypatch):
    """Names of the reader's own program that pages use."""
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    return {
        "scheduler": SimpleNamespace(start=lambda: None, stop=lambda: None),
        "vault": SimpleNamespace(read=lambda path: "secret"),
    }


@pytest.mark.parametrize("block", ALONE, ids=str)
def test_a_block_runs(block, folder, given, request, caplog):
    run(block, folder, request, given, has_database=False)
    assert [found for found in caplog.records if found.levelname == "ERROR"] == []


@pytest.mark.django_db
@pytest.mark.parametrize("block", WITH_A_DATABASE, ids=str)
def test_a_block_runs_with_a_database(block, folder, given, request):
    run(block, folder, request, given, has_database=True)


@pytest.fixture
def consumer(bootstrap_servers):
    """At the beginning of a topic with one record that a harvester of exactly-once delivery could have sent."""
    topic = create_topic(bootstrap_servers)
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"v", headers=[("outbox-id", b"4711")])
    producer.flush()
    made = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": topic})
    made.assign([TopicPartition(topic, 0, 0)])
    yield made
    made.close()


@pytest.mark.parametrize("block", WITH_KAFKA, ids=str)
def test_a_block_runs_with_kafka(
    block, folder, request, consumer, bootstrap_servers, migrated_template, django_db_blocker, settings
):
    settings.OUTBOX = {"NAME": f"d{uuid.uuid4().hex[:12]}", "BOOTSTRAP_SERVERS": bootstrap_servers}
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url, leading(url, django_db_blocker):
        names = run(block, folder, request, {"consumer": consumer}, has_database=False)
    if "identity" in names:
        assert names["identity"] == outbox.identity([("outbox-id", b"4711")])
