"""A scene: topics of one graph, and processes of `manage.py outbox_graph` as users run them."""

import os
import time
import uuid
from collections import Counter

import pytest

from outbox.devstack import Kafka
from outbox.edges.kafka.common.clients import idempotent_producer
from tests.consumers.conftest import QUICK, SESSION_S, Process, shop_template, wait_until
from tests.support.databases import django
from tests.support.topics import create_topic, read_topic

TOPICS = (
    "orders", "priced", "left", "right", "joined", "web", "shop", "all", "eu", "us", "log", "errors",
)  # fmt: skip


@pytest.fixture(scope="session")
def graph_kafka(pytestconfig, own_servers):
    """A broker that allows short sessions."""
    with Kafka(pytestconfig.getoption("kafka_version"), properties=QUICK) as kafka:
        yield kafka


class Scene:
    def __init__(self, folder, servers):
        self.folder, self.servers = folder, servers
        self.name = f"g{uuid.uuid4().hex[:8]}"
        self.processes = []
        self.sent = 0
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.graphs.settings",
            "OUTBOX_BOOTSTRAP_SERVERS": servers,
            "OUTBOX_SESSION_TIMEOUT": str(SESSION_S),
            "OUTBOX_HEARTBEAT_TIMEOUT": "0.7",
            "OUTBOX_TRANSACTION_TIMEOUT": "10",
            "GRAPH_NAME": self.name,
        }

    def create(self, partitions=3, *names, **config):
        for name in names or TOPICS:
            create_topic(self.servers, partitions, self.topic(name), **config)

    def topic(self, name):
        return f"{self.name}.{name}"

    def produce(self, name, count, *, keys=7, does=None, partition=-1):
        """Numbers under keys. `does`: what the function does with the number at that place."""
        producer = idempotent_producer({"bootstrap.servers": self.servers})
        numbers = range(self.sent, self.sent + count)
        for place, number in enumerate(numbers):
            headers = [(header, str(value).encode()) for header, value in ((does or {}).get(place) or {}).items()]
            producer.produce(
                self.topic(name), str(number), key=f"k{number % keys}", partition=partition, headers=headers
            )
            producer.poll(0)
        assert producer.flush(30) == 0
        self.sent += count
        return numbers

    def run(self, *only, **given):
        chosen = [word for name in only for word in ("--only", name)]
        return Process(self, "run", self.name, *chosen, command="outbox_graph", **given)

    def command(self, *arguments, **environment):
        return django(
            "outbox_graph", *arguments, url=os.environ.get("DATABASE_URL", ""), **{**self.environment, **environment}
        )

    def read(self, name, *, committed=True):
        """By a consumer that has nothing in common with the graph."""
        return read_topic(self.servers, self.topic(name), committed=committed)

    def values(self, name):
        return [found.value.decode() for found in self.read(name)]

    def wait_for(self, name, count, timeout_s=60):
        give_up_at = time.monotonic() + timeout_s
        while len(found := self.read(name)) < count:
            is_late = time.monotonic() > give_up_at or not any(one.is_running for one in self.processes)
            assert not is_late, f"{name}: {len(found)} of {count}\n{self.logs()[-6000:]}"
            time.sleep(0.1)
        return found

    def check(self, name, expected):
        """0 lost, 0 doubled."""
        expected, found = Counter(map(str, expected)), Counter(self.values(name))
        lost, doubled = sorted((expected - found).elements()), sorted((found - expected).elements())
        assert found == expected, f"lost {lost[:20]}, too many {doubled[:20]}\n{self.logs()[-6000:]}"

    def logs(self):
        return "\n".join(f"--- {one.log.name}\n{one.text()}" for one in self.processes)


@pytest.fixture
def scene(tmp_path, graph_kafka):
    found = Scene(tmp_path, graph_kafka.bootstrap_servers)
    try:
        yield found
    finally:
        for one in found.processes:
            one.kill()
        print(found.logs())


__all__ = ["scene", "shop_template", "wait_until"]
