"""A scene: a topic, a database, and processes of `manage.py consume` as users run them."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack

import psycopg
import pytest
from confluent_kafka import Producer

from outbox.devstack import Kafka
from tests.support.databases import ROOT, django, fresh_database
from tests.support.topics import create_topic

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.consumers.settings"}
SESSION_S = 1.5


@pytest.fixture(scope="session")
def quick_kafka(pytestconfig, own_servers):
    """A broker that allows short sessions."""
    with Kafka(pytestconfig.getoption("kafka_version"), properties={"group.min.session.timeout.ms": "1000"}) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def shop_template(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        migrated = django("migrate", "-v0", "--run-syncdb", url=url, **SETTINGS)
        assert migrated.returncode == 0, migrated.stderr
        yield url.rpartition("/")[2]


class Process:
    """One `manage.py consume`, whose log is kept."""

    def __init__(self, scene, *arguments, failpoints="", **environment):
        self.log = scene.folder / f"consumer-{len(scene.processes)}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "consume", *arguments],
                cwd=ROOT,
                env={**scene.environment, "OUTBOX_FAILPOINTS": failpoints, **environment},
                stdout=log,
                stderr=log,
            )
        scene.processes.append(self)

    def text(self):
        return self.log.read_text()

    def wait(self, timeout_s=60):
        return self.process.wait(timeout_s)

    def send(self, number):
        self.process.send_signal(number)

    def stop(self):
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)


class Scene:
    def __init__(self, folder, url, servers):
        self.folder, self.url, self.servers = folder, url, servers
        self.topic = create_topic(servers, 3)
        self.processes = []
        self.sent = 0
        self.environment = {
            **os.environ,
            **SETTINGS,
            "DATABASE_URL": url,
            "OUTBOX_BOOTSTRAP_SERVERS": servers,
            "OUTBOX_NAME": f"shop-{uuid.uuid4().hex[:8]}",
            "OUTBOX_SESSION_TIMEOUT": str(SESSION_S),
            "OUTBOX_HEARTBEAT_TIMEOUT": "0.7",
            "SHOP_TOPIC": self.topic,
        }

    def produce(self, count, topic="", keys=7):
        """Numbers under keys, in the order of the numbers per key."""
        producer = Producer({"bootstrap.servers": self.servers, "partitioner": "murmur2_random"})
        for number in range(self.sent, self.sent + count):
            producer.produce(topic or self.topic, str(number), key=f"k{number % keys}")
        assert producer.flush(30) == 0
        self.sent += count

    def consume(self, *arguments, **given):
        return Process(self, *arguments, **given)

    def once(self, *names, **given):
        done = self.consume("--once", *(names or ("shop.record",)), **given)
        assert done.wait() == 0, done.text()
        return done

    def command(self, *arguments):
        return django(*arguments, url=self.url, **{**self.environment, "DATABASE_URL": self.url})

    def query(self, text, *given):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text, given)
            return cursor.fetchall() if cursor.description else []

    def effects(self, consumer="shop.record"):
        return self.query('SELECT key, value, "offset" FROM shop_effect WHERE consumer = %s ORDER BY id', consumer)

    def wait_for(self, count, consumer="shop.record", timeout_s=60):
        give_up_at = time.monotonic() + timeout_s
        while len(self.effects(consumer)) < count:
            assert time.monotonic() < give_up_at, (len(self.effects(consumer)), self.logs()[-3000:])
            time.sleep(0.1)

    def check(self, consumer="shop.record", receipts=True):
        """0 lost, 0 doubled, and the order of each key; the same of what was stashed with them."""
        found = self.effects(consumer)
        values = [int(value) for _, value, _ in found]
        lost, doubled = set(range(self.sent)) - set(values), len(values) - len(set(values))
        assert (len(lost), doubled) == (0, 0), self.logs()[-6000:]
        for key in {key for key, _, _ in found}:
            of_key = [int(value) for k, value, _ in found if k == key]
            assert of_key == sorted(of_key), key
        if receipts:
            stashed = self.query("SELECT kafka_value::jsonb->>'order' FROM outbox WHERE kafka_topic = 'receipts'")
            assert sorted(int(order) for (order,) in stashed) == sorted(values)

    def logs(self):
        return "\n".join(f"--- {one.log.name}\n{one.text()}" for one in self.processes)


@pytest.fixture
def scene(tmp_path, postgres, shop_template, quick_kafka):
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"], shop_template))
        found = Scene(tmp_path, url, quick_kafka.bootstrap_servers)
        stack.callback(lambda: print(found.logs()))
        stack.callback(lambda: [one.kill() for one in found.processes])
        yield found
