"""A scene for a fault test: a migrated database, a topic, writers, a fleet of harvesters, and the judge at the end."""

import os
import uuid
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from outbox.devstack import Kafka, Postgres
from tests.faults.fleet import Fleet, wait_until
from tests.harvest.conftest import proxied_kafka  # noqa: F401
from tests.support.checker import Writer, judge
from tests.support.databases import fresh_database
from tests.support.proxy import Proxy
from tests.support.tables import create_table
from tests.support.topics import create_topic, read_topic


class Scene:
    def __init__(
        self, folder, *, url, servers, stack, fleet_url=None, fleet_servers=None, tables=create_table, copies=1, **fleet
    ):
        self.url, self.servers = url, servers
        self.name = f"scene-{uuid.uuid4().hex[:8]}"
        with psycopg.connect(url, autocommit=True) as connection:
            tables(connection)
        self.topic = create_topic(servers, 3, copies=copies)
        self.writers = []
        self.logs = []  # of the records that others have written
        self._stack = stack
        self.fleet = stack.enter_context(
            Fleet(folder, url=fleet_url or url, servers=fleet_servers or servers, name=self.name, **fleet)
        )

    def write(self, **options):
        """A writer that continues until `settle`."""
        writer = self._stack.enter_context(Writer(self.url, self.topic, seed=len(self.writers), **options))
        self.writers.append(writer)
        return writer

    def query(self, text):
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(text).fetchone()[0]

    def backlog(self):
        return self.query("SELECT count(*) FROM outbox")

    def wait_delivered(self, more=200, timeout_s=60):
        """Wait until records have left the table that were not delivered at the time of this call."""
        begun = self.query("SELECT coalesce(max(id), 0) FROM outbox") + more
        wait_until(
            lambda: (
                self.query("SELECT last_value FROM outbox_id_seq") > begun
                and self.query(f"SELECT count(*) FROM outbox WHERE id <= {begun}") == 0
            ),
            timeout_s,
            lambda: f"records up to id {begun} are delivered\n{self.fleet.logs()[-3000:]}",
        )

    def settle(self, timeout_s=60):
        """Stop the writers, wait until the backlog is empty, return the judge's result."""
        for writer in self.writers:
            writer.stop()
        wait_until(lambda: self.backlog() == 0, timeout_s, lambda: f"the backlog drains\n{self.fleet.logs()[-6000:]}")
        return judge([*self.logs, *(writer.log for writer in self.writers)], read_topic(self.servers, self.topic))


@contextmanager
def open_scene(folder, *, url, servers, **given):
    """A scene whose harvesters reach the database through `scene.proxy`."""
    with ExitStack() as stack:
        fresh = stack.enter_context(fresh_database(url))
        proxy = stack.enter_context(Proxy(target=urlsplit(url).port))
        scene = Scene(folder, url=fresh, servers=servers, stack=stack, fleet_url=proxy.rewrite(fresh), **given)
        scene.proxy = proxy
        yield scene


@pytest.fixture(scope="session")
def scenes(postgres, bootstrap_servers, tmp_path_factory):
    """Opens scenes on the servers that the whole run shares, also from several threads."""
    tmp_path_factory.getbasetemp()  # two threads must not create these at the same time
    return lambda: open_scene(
        tmp_path_factory.mktemp("scene"), url=os.environ["DATABASE_URL"], servers=bootstrap_servers
    )


@pytest.fixture
def scene(scenes):
    with scenes() as scene:
        yield scene


@pytest.fixture(scope="session")
def fragile_scenes(pytestconfig, tmp_path_factory):
    """Opens scenes on servers that the test may stop: `scene.kafka` and `scene.postgres`."""

    @contextmanager
    def open_fragile():
        with (
            Kafka(pytestconfig.getoption("kafka_version")) as kafka,
            Postgres() as server,
            open_scene(tmp_path_factory.mktemp("fragile"), url=server.url, servers=kafka.bootstrap_servers) as scene,
        ):
            scene.kafka, scene.postgres = kafka, server
            yield scene

    return open_fragile


@pytest.fixture
def fragile(fragile_scenes):
    with fragile_scenes() as scene:
        yield scene
