"""A scene: a topic, a database, and processes of `manage.py consume` as users run them."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from outbox.devstack import Kafka
from outbox.edges.kafka.common.clients import idempotent_producer
from tests.support.databases import ROOT, django, fresh_database
from tests.support.topics import create_topic

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.consumers.settings"}
SESSION_S = 1.5
QUICK = {"group.min.session.timeout.ms": "1000"}


@pytest.fixture(scope="session")
def quick_kafka(pytestconfig, own_servers):
    """A broker that allows short sessions."""
    with Kafka(pytestconfig.getoption("kafka_version"), properties=QUICK) as kafka:
        yield kafka


def migrate(url):
    migrated = django("migrate", "-v0", "--run-syncdb", url=url, **SETTINGS)
    assert migrated.returncode == 0, migrated.stderr


@pytest.fixture(scope="session")
def shop_template(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        migrate(url)
        yield url.rpartition("/")[2]


class Process:
    """One `manage.py consume`, or another command, whose log is kept."""

    def __init__(self, scene, *arguments, command="consume", failpoints="", **environment):
        self.log = scene.folder / f"consumer-{len(scene.processes)}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", command, *arguments],
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

    @property
    def is_running(self):
        return self.process.poll() is None

    @property
    def stands_still(self):
        """SIGSTOP has stopped it; a failpoint may send that."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def send(self, number):
        self.process.send_signal(number)

    def stop(self):
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self):
        if self.is_running:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)


class Scene:
    def __init__(self, folder, url, servers):
        self.folder, self.url, self.servers = folder, url, servers
        self.topic = create_topic(servers, 3)
        self.admin = AdminClient({"bootstrap.servers": servers})
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

    def use(self, partitions):
        """Another topic, with so many."""
        self.topic = self.environment["SHOP_TOPIC"] = create_topic(self.servers, partitions)

    def produce(self, count, topic="", keys=7):
        """Numbers under keys, in the order of the numbers per key."""
        self._send((topic or self.topic, number, f"k{number % keys}", -1, "") for number in self._next(count))

    def fill(self, topic, partition, deeds):
        """Five numbers under two keys. `deeds`: what the function does with the number at that place."""
        numbers = self._next(5)
        keys = [f"{topic[-6:]}-{partition}-{place % 2}" for place in range(5)]
        self._send(
            (topic, number, keys[place], partition, deeds.get(place, "")) for place, number in enumerate(numbers)
        )
        return numbers

    def produce_held(self, count):
        """So many that fail, each with a key of its own, and behind each of them one that does not."""
        self._send(
            (
                self.topic,
                number,
                f"good-{at // 2 % 3}" if at % 2 else f"held-{number}",
                at // 2 % 3,
                "" if at % 2 else "fail",
            )
            for at, number in enumerate(self._next(2 * count))
        )

    def _next(self, count):
        self.sent += count
        return range(self.sent - count, self.sent)

    def _send(self, messages):
        # Another one might change their order when it repeats a request.
        producer = idempotent_producer({"bootstrap.servers": self.servers})
        for topic, number, key, partition, does in messages:
            headers = [("does", does.encode())] if does else []
            producer.produce(topic, str(number), key=key, partition=partition, headers=headers)
            producer.poll(0)
        assert producer.flush(30) == 0

    def create_again(self, topic, partitions=1):
        self.admin.delete_topics([topic])[topic].result(20)
        give_up_at = time.monotonic() + 20
        while True:
            try:
                return create_topic(self.servers, partitions, topic)
            except KafkaException:  # it is still being deleted
                assert time.monotonic() < give_up_at
                time.sleep(0.1)

    def consume(self, *arguments, **given):
        return Process(self, *arguments, **given)

    def replay(self, *arguments, consumer="shop.record", topic="", **given):
        given = {"command": "outbox_replay", **given}
        return self.consume(consumer, "--topic", topic or self.topic, "--from", *arguments, **given)

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

    def query_when_it_answers(self, text):
        """A server that was killed may still be recovering."""
        give_up_at = time.monotonic() + 60
        while True:
            try:
                return self.query(text)
            except psycopg.OperationalError:
                assert time.monotonic() < give_up_at
                time.sleep(0.1)

    def retry_poison(self):
        """As an operator asks for it, who knows that the messages are innocent."""
        self.query("UPDATE outbox_held SET wanted = 'retry' WHERE reason = 'poison' AND wanted = ''")

    def effects(self, consumer="shop.record"):
        text = 'SELECT key, value, "offset" FROM shop_effect WHERE consumer = %s ORDER BY id'
        return self.query(text, consumer)

    def wait_for(self, count, consumer="shop.record", timeout_s=60):
        give_up_at = time.monotonic() + timeout_s
        while len(self.effects(consumer)) < count:
            assert time.monotonic() < give_up_at, (len(self.effects(consumer)), self.logs()[-3000:])
            time.sleep(0.1)

    def check(self, consumer="shop.record", receipts=True, lost=(), doubled=()):
        """0 lost, 0 doubled, and the order of each key; the same of what was stashed with them. `lost` and `doubled`
        are numbers of which that is documented."""
        found = self.query(
            "SELECT topic || ' ' || key, value::int, \"offset\" FROM shop_effect WHERE consumer = %s ORDER BY id",
            consumer,
        )
        values = [value for _, value, _ in found]
        expected, counted = Counter({*range(self.sent)} - {*lost}) + Counter(doubled), Counter(values)
        assert counted == expected, (
            f"lost {sorted((expected - counted).elements())}, too many {sorted((counted - expected).elements())}\n"
            f"{self.logs()[-6000:]}"
        )
        last = {value: at for at, value in enumerate(values)}
        of_key = defaultdict(list)
        for at, (key, value, offset) in enumerate(found):
            if last[value] == at:
                of_key[key].append((value, offset))
        for key, numbers in of_key.items():
            assert numbers == sorted(numbers), key
        if receipts:
            stashed = self.query("SELECT kafka_value::jsonb->>'order' FROM outbox WHERE kafka_topic = 'receipts'")
            assert sorted(int(order) for (order,) in stashed) == sorted(values)

    def logs(self):
        return "\n".join(f"--- {one.log.name}\n{one.text()}" for one in self.processes)


@contextmanager
def open_scene(folder, url, servers):
    found = Scene(folder, url, servers)
    try:
        yield found
    finally:
        for one in found.processes:
            one.kill()
        print(found.logs())


@pytest.fixture
def scene(tmp_path, postgres, shop_template, quick_kafka):
    with (
        fresh_database(os.environ["DATABASE_URL"], shop_template) as url,
        open_scene(tmp_path, url, quick_kafka.bootstrap_servers) as found,
    ):
        yield found


@pytest.fixture
def fragile(tmp_path, quick_kafka, postgres_factory):
    """A scene on servers that the test may stop: `fragile.kafka` and `fragile.postgres`."""
    server = postgres_factory()
    migrate(server.url)
    with open_scene(tmp_path, server.url, quick_kafka.bootstrap_servers) as found:
        found.kafka, found.postgres = quick_kafka, server
        yield found
        if not quick_kafka.is_running:
            quick_kafka.start()


def wait_until(condition, timeout_s, what):
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up_at, what
        time.sleep(0.05)
    return found
