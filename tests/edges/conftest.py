"""A database with an outbox table of its own."""

import os

import psycopg
import pytest

from tests.support.databases import fresh_database
from tests.support.tables import create_table


@pytest.fixture
def url(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            create_table(connection)
        yield url
