"""A scene for a fault test: a migrated database, a topic, writers, a fleet of harvesters, and the judge at the end."""

import os
import uuid
from contextlib import ExitStack

import psycopg
import pytest

from outbox.devstack import Kafka, Postgres
from tests.faults.fleet import Fleet, wait_until
from tests.support.checker import Writer, judge
from tests.support.databases import fresh_database
from tests.support.proxy import Proxy
from tests.support.tables import create_table
from tests.support.topics import create_topic, read_topic


class Scene:
    def __init__(self, folder, *, url, servers, stack, fleet_url=None, fleet_servers=None):
        self.url, self.servers = url, servers
        self.name = f"scene-{uuid.uuid4().hex[:8]}"
        with psycopg.connect(url, autocommit=True) as connection:
            create_table(connection)
        self.topic = create_topic(servers, 3)
        self.writers = []
        self._stack = stack
        self.fleet = stack.enter_context(
            Fleet(folder, url=fleet_url or url, servers=fleet_servers or servers, name=self.name)
        )

    def write(self, **options):
        """A writer that goes on until `settle`."""
        writer = self._stack.enter_context(Writer(self.url, self.topic, seed=len(self.writers), **options))
        self.writers.append(writer)
        return writer

    def query(self, text):
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(text).fetchone()[0]

    def backlog(self):
        return self.query("SELECT count(*) FROM outbox")

    def wait_delivered(self, more=200, timeout_s=30):
        """Until records have left the table that were not delivered when this was called."""
        begun = self.query("SELECT coalesce(max(id), 0) FROM outbox") + more
        wait_until(
            lambda: (
                self.query("SELECT last_value FROM outbox_id_seq") > begun
                and self.query(f"SELECT count(*) FROM outbox WHERE id <= {begun}") == 0
            ),
            timeout_s,
            f"records up to id {begun} are delivered\n{self.fleet.logs()[-3000:]}",
        )

    def settle(self, timeout_s=60):
        """Writers stop, the backlog drains; what the judge says of it."""
        for writer in self.writers:
            writer.stop()
        wait_until(lambda: self.backlog() == 0, timeout_s, f"the backlog drains\n{self.fleet.logs()[-6000:]}")
        return judge([writer.log for writer in self.writers], read_topic(self.servers, self.topic))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def scene(postgres, bootstrap_servers, tmp_path, stack):
    """On the servers that the whole run shares."""
    url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
    return Scene(tmp_path, url=url, servers=bootstrap_servers, stack=stack)


@pytest.fixture(scope="session")
def own_kafka():
    """A Kafka for tests that restart it."""
    with Kafka() as kafka:
        yield kafka


@pytest.fixture(scope="session")
def own_postgres():
    """A PostgreSQL for tests that restart it."""
    with Postgres() as server:
        yield server


@pytest.fixture
def fragile(own_kafka, own_postgres, tmp_path, stack):
    """On servers that the test may stop; the harvesters reach the database by way of `fragile.proxy`."""
    own_kafka.start()
    own_postgres.start()
    url = stack.enter_context(fresh_database(own_postgres.url))
    proxy = stack.enter_context(Proxy(target=int(own_postgres.port)))
    scene = Scene(tmp_path, url=url, servers=own_kafka.bootstrap_servers, stack=stack, fleet_url=proxy.rewrite(url))
    scene.kafka, scene.postgres, scene.proxy = own_kafka, own_postgres, proxy
    return scene
