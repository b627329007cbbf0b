"""Journals on the run's PostgreSQL, with stores in folders of the test."""

import uuid

import pytest
from django.db import connection

from outbox.journal import api


@pytest.fixture
def roots(tmp_path):
    return {name: tmp_path / name for name in "abc"}


@pytest.fixture
def stores(settings, roots):
    """Three folders in three zones."""
    settings.OUTBOX = settings.OUTBOX | {"STORES": {name: {"path": str(root)} for name, root in roots.items()}}
    api._health.cache_clear()


@pytest.fixture
def name(transactional_db, stores):
    """Of a journal that is there, with two replicas on three stores."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    api.create(name, replicas=2)
    yield name
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM outbox_stage")
        cursor.execute("DELETE FROM outbox_fragment")
        cursor.execute("DELETE FROM outbox_journal")
