"""What every test of a worker needs: a table of its own, a topic, and a way to look."""

import os
from collections import defaultdict
from functools import partial

import psycopg
import pytest

from outbox.devstack import Kafka
from tests.harvest import hosts
from tests.support.databases import fresh_database
from tests.support.proxy import Proxy
from tests.support.tables import create_table, insert
from tests.support.topics import create_topic, read_topic

WITHOUT_ELECTION = {"SESSION_TIMEOUT": 60, "IO_BACKOFF": 0.1}  # so that a test may deliver for as long as it likes


class Bench:
    """A table, a topic, and workers on them."""

    def __init__(self, url, servers):
        self.url, self.servers = url, servers
        self.topic = create_topic(servers, 3)
        self.db = psycopg.connect(url, autocommit=True)
        create_table(self.db)

    def working(self, *, url=None, servers=None, host=None, epoch=None, lane=0, seams=None, **settings):
        conf = hosts.settings(BOOTSTRAP_SERVERS=servers or self.servers, **{**WITHOUT_ELECTION, **settings})
        connect = hosts.connector(url or self.url, conf.harvest.statement_timeout_s)
        return hosts.working(conf, connect=connect, host=host, epoch=epoch, lane=lane, **(seams or {}))

    def insert(self, keys, topic=None):
        return insert(self.db, topic or self.topic, keys)

    @property
    def count(self):
        return self.db.execute("SELECT count(*) FROM outbox").fetchone()[0]

    def wait_empty(self, timeout_s=60):
        hosts.wait_until(lambda: self.count == 0, timeout_s)

    def read(self, topic=None):
        return read_topic(self.servers, topic or self.topic)

    def by_key(self, topic=None):
        """key → values in the order of the topic."""
        found = defaultdict(list)
        for record in self.read(topic):
            found[record.key.decode() if record.key is not None else None].append(int(record.value))
        return dict(found)


@pytest.fixture
def bench(postgres, bootstrap_servers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.db.close()


@pytest.fixture(scope="session")
def proxied_kafka(own_servers, request, pytestconfig):
    """A Kafka of these tests whose clients all come by way of a proxy; of the run's line, or of the parameter's."""
    version = getattr(request, "param", None) or pytestconfig.getoption("kafka_version")
    with Proxy(kafka=True) as proxy, Kafka(version, advertised_port=proxy.port) as kafka:
        proxy.target = kafka.brokers[0].port
        yield proxy


@pytest.fixture
def proxied(postgres, proxied_kafka):
    """A bench whose Kafka is reached by way of `proxied.proxy`."""
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, proxied_kafka.address)
        made.proxy = proxied_kafka
        yield made
        proxied_kafka.heal()
        made.db.close()


@pytest.fixture
def wait():
    return partial(hosts.wait_until, timeout_s=60)
