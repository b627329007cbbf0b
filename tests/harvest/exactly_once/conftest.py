"""A bench per test; its Kafka is the run's, or one behind a proxy."""

import os

import pytest

from tests.harvest.exactly_once.bench import Bench
from tests.support.databases import fresh_database


@pytest.fixture
def bench(postgres, bootstrap_servers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.close()


@pytest.fixture(scope="session")
def server_of_its_own():
    from outbox.devstack import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture
def undisturbed(server_of_its_own, bootstrap_servers):
    """A bench on whose server no other test has a transaction open: in any database, reading would look back for it."""
    with fresh_database(server_of_its_own.url) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.close()


@pytest.fixture
def proxied(postgres, proxied_kafka):
    """Its Kafka is reached by way of `proxied.proxy`."""
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, proxied_kafka.address)
        made.proxy = proxied_kafka
        yield made
        proxied_kafka.heal()
        made.close()
