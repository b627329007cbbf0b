"""Runs the Python blocks of a page in a project called `shop`, and tries what they define."""

import importlib
import inspect
import json
import logging.config
import unittest
import uuid
from contextlib import redirect_stderr
from datetime import UTC, datetime
from io import StringIO

from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.db import connection, transaction
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.test import RequestFactory, override_settings

import outbox
from outbox.consumers import registry
from outbox.consumers.handle import Handling
from outbox.core.consumers.values import Fetched
from outbox.core.election.neli import LeaderAcquired, LeaderRevoked
from outbox.models import OutboxRecord
from outbox.service.receivers import translate
from tests.document_blocks.pages import blocks, blocks_until

PAGE = "page"


def run(block, folder, request, given, *, has_database):
    """Everything on its page up to `block`, whose names are then tried. Returns the names of the page."""
    for shown in blocks(block.language):
        if shown.page == block.page and shown.file:
            path = folder / shown.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(shown.text)
    others = [name for name in django_settings.INSTALLED_APPS if name != "outbox"]
    names = {"__name__": PAGE, "INSTALLED_APPS": others, **given}
    with override_settings(INSTALLED_APPS=[*django_settings.INSTALLED_APPS, "shop"]):
        if has_database:
            with connection.schema_editor() as editor:
                for model in apps.get_app_config("shop").get_models():
                    editor.create_model(model)
        for above in blocks_until(block):
            new = defined_by(above, names)
            names |= new
        _try(new, request)
    return names


def defined_by(block, names):
    if block.file:
        module = importlib.import_module(".".join(block.file.with_suffix("").parts))
        return {name: value for name, value in vars(module).items() if not name.startswith("__")}
    before = {name: list(value) if isinstance(value, list) else value for name, value in names.items()}
    # So that a traceback names the line of the page.
    exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), names)
    return {name: value for name, value in names.items() if name not in before or before[name] != value}


def _try(new, request):
    own = {name: value for name, value in new.items() if _is_own(value)}
    consumers = {consumer.function: consumer for consumer in registry._consumers.values()}
    for name, value in own.items():
        if inspect.isclass(value) and issubclass(value, unittest.TestCase):
            _pass(value)
        elif inspect.isclass(value) and issubclass(value, Migration):
            _migrate(value)
        elif name in outbox.__all__:
            assert _parameters(value) == _parameters(getattr(outbox, name))
        elif name.startswith("test_"):
            value(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(value).parameters})
        elif name == "view":
            _place_an_order(value)
        elif hasattr(value, "delay"):
            _perform(value)
        elif inspect.isfunction(value) and value in consumers:
            _consume(consumers[value])
    _tell_receivers()
    _take_settings(new)


def _is_own(value):
    return str(getattr(value, "__module__", "")).split(".")[0] in (PAGE, "shop")


def _parameters(function):
    return [(found.name, found.kind, found.default) for found in inspect.signature(function).parameters.values()]


def _pass(case):
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)


def _migrate(kind):
    assert set(kind.dependencies) <= MigrationLoader(None, ignore_no_migrations=True).disk_migrations.keys()
    migration, state = kind("0002_of_the_page", "shop"), ProjectState()
    with connection.schema_editor() as editor:
        migration.apply(state.clone(), editor)
    with connection.schema_editor() as editor:
        migration.unapply(state.clone(), editor)


def _place_an_order(view):
    before = OutboxRecord.objects.count()
    request = RequestFactory().post("/", json.dumps({"total": 10}), content_type="application/json")
    assert async_to_sync(view)(request).status_code == 200
    assert OutboxRecord.objects.count() == before + 1


def _perform(task):
    """As the harvester's thread has a worker call it."""
    task(event="leader_acquired", at=datetime.now(UTC).isoformat(), lane=0, leader_id=str(uuid.uuid4()), epoch=1)


def _consume(consumer):
    """As a worker calls it."""
    before = OutboxRecord.objects.count()
    fetched = Fetched(consumer.names[0], 0, 0, 0, b"42", b'{"amount": 7}', (), 0)
    try:
        with transaction.atomic():
            Handling(consumer, "default")([fetched], 1)
    except outbox.NotYet:
        return  # the page shows a message that comes before what it needs
    assert OutboxRecord.objects.count() == before + 1


def _tell_receivers():
    leader = uuid.uuid4()
    for event in (LeaderAcquired(0, leader, 1), LeaderRevoked(0, leader)):
        signal, arguments = translate(event)
        signal.send(sender=None, harvester=None, lane=0, **arguments)


def _take_settings(new):
    shown = {name: new[name] for name in ("OUTBOX", "INSTALLED_APPS") if name in new}
    if "OUTBOX" in shown:
        shown["OUTBOX"] = {"BOOTSTRAP_SERVERS": "localhost:9092", **shown["OUTBOX"]}
    with override_settings(**shown):
        assert [found for found in run_checks() if found.id.startswith("outbox.")] == []
    if "LOGGING" in new:
        _log(new["LOGGING"])


def _log(configuration):
    logger = logging.getLogger("outbox")
    before, level = list(logger.handlers), logger.level
    try:
        with redirect_stderr(StringIO()) as written:
            logging.config.dictConfig(configuration)
            logger.info("record_held topic=%s key=%s", "orders", "of a customer")
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
    [line] = written.getvalue().splitlines()
    assert json.loads(line)["topic"] == "orders"
    assert "of a customer" not in line
    assert "(hidden: " not in line, "the function cannot be called"
