"""A migrated outbox of its own, a topic, workers on them without an election, and the one check: exactly once."""

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import uuid
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from outbox.conf import parse
from outbox.core.exactly_once import ledger
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.harvest.exactly_once.values import LaneStopped
from outbox.schema.adoption import guarded_default
from tests.harvest.hosts import Host, finish, wait_until
from tests.support.databases import ROOT
from tests.support.tables import create_companions, create_table
from tests.support.topics import create_topic, read_topic

_epochs = itertools.count(1)
SETTINGS = {"DELIVERY": "exactly-once", "BATCH_MAX": 100, "IO_BACKOFF": 0.1, "TRANSACTION_TIMEOUT": 10}


def create_tables(connection):
    create_table(connection)
    connection.execute(f"ALTER TABLE outbox ALTER id SET DEFAULT {guarded_default('outbox_id_seq')}")
    create_companions(connection)


@dataclass
class Stashed:
    """What writers have committed: per key, in order."""

    by_key: dict = field(default_factory=lambda: defaultdict(list))
    mutex: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self):
        with self.mutex:
            return sum(map(len, self.by_key.values()))


class Bench:
    def __init__(self, url, servers, partitions=3):
        self.url, self.servers = url, servers
        self.topic = create_topic(servers, partitions)
        self.name = f"name-{uuid.uuid4().hex[:8]}"
        self.db = psycopg.connect(url, autocommit=True)
        self.stashed = Stashed()
        self.spawned = []
        self._numbers = itertools.count(1)
        create_tables(self.db)

    # ---- writing

    def stash(self, keys, *, connection=None, topic=None, size=0):
        """One record per key in one statement; the ids."""
        pairs = [(key, str(next(self._numbers)).ljust(size, "x")) for key in keys]
        rows = (connection or self.db).execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, key, value "
            "FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS t(key, value, n) ORDER BY n RETURNING id",
            [topic or self.topic, [key for key, _ in pairs], [value for _, value in pairs]],
        )
        ids = sorted(row[0] for row in rows)
        if topic is None:
            with self.stashed.mutex:
                for key, value in pairs:
                    self.stashed.by_key[key].append(value)
        return ids

    @contextmanager
    def writing(self, writers=3, keys=5, pause_s=0.005):
        """Writers of keys of their own, with late commits and rollbacks."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._write, args=(stop, number, keys, pause_s), daemon=True)
            for number in range(writers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield stop
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)

    def _write(self, stop, number, keys, pause_s):
        chance = random.Random(number)
        with psycopg.connect(self.url) as connection:
            while not stop.is_set():
                written = [f"w{number}-{chance.randrange(keys)}" for _ in range(chance.randrange(1, 6))]
                values = [str(next(self._numbers)) for _ in written]
                for key, value in zip(written, values, strict=True):
                    connection.execute(
                        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                        [self.topic, key, value],
                    )
                    stop.wait(pause_s * chance.random())
                if chance.random() < 0.05:
                    connection.rollback()
                    continue
                connection.commit()
                with self.stashed.mutex:
                    for key, value in zip(written, values, strict=True):
                        self.stashed.by_key[key].append(value)

    # ---- harvesting

    def conf(self, servers=None, **settings):
        from django.conf import settings as django_settings

        return parse(
            {
                **django_settings.OUTBOX,
                **SETTINGS,
                "NAME": self.name,
                "BOOTSTRAP_SERVERS": servers or self.servers,
                **settings,
            }
        )

    @contextmanager
    def working(self, *, url=None, host=None, lane=0, factory=None, servers=None, **settings):
        """A trusted worker, abandoned at the end."""
        host = host or Host()
        factory = factory or ExactlyOnceFactory(source=lambda: {"conninfo": url or self.url, "connect_timeout": 2})
        host.worker = factory(self.conf(servers, **settings), lane, uuid.uuid4(), next(_epochs), host)
        host.worker.start()
        try:
            yield host
        finally:
            host.worker.abandon()
            assert host.worker.join(15)

    def spawn(self, failpoints="", lanes=1, *, die_of="", **settings):
        """Workers in a process of its own, without an election: of so many lanes, or of those listed. A record of the
        value `die_of` kills it."""
        lanes = list(range(lanes)) if isinstance(lanes, int) else lanes
        given = {"url": self.url, "lanes": lanes, "settings": {**SETTINGS, "NAME": self.name, **settings}}
        given["die_of"] = die_of
        given["settings"]["BOOTSTRAP_SERVERS"] = self.servers
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harvest.exactly_once.runner", json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, "OUTBOX_FAILPOINTS": failpoints, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        self.spawned.append(process)
        return process

    def close(self):
        """Also after a failure in the middle of a test."""
        for process in self.spawned:
            process.kill()
            process.wait()
        self.db.close()

    # ---- looking

    @property
    def count(self):
        return self.db.execute("SELECT count(*) FROM outbox").fetchone()[0]

    @property
    def purged(self):
        row = self.db.execute("SELECT batch FROM outbox_purged WHERE lane = 0").fetchone()
        return row[0] if row else 0

    @property
    def batches(self):
        """How many were sent and purged, of all lanes."""
        return self.db.execute("SELECT coalesce(sum(batch), 0) FROM outbox_purged").fetchone()[0]

    def wait_batches(self, more=20):
        """Until so many more are sent and purged."""
        before = self.batches
        wait_until(lambda: self.batches >= before + more)

    def wait_empty(self, timeout_s=60):
        wait_until(lambda: self.count == 0, timeout_s)

    def read(self, topic=None):
        return read_topic(self.servers, topic or self.topic)

    def entries(self):
        found = [record.value for record in read_topic(self.servers, f"{self.name}.ledger")]
        return [ledger.decode(value) for value in found if value != ledger.BEGINNING]

    def by_key(self):
        found = defaultdict(list)
        for record in self.read():
            found[record.key.decode() if record.key is not None else ""].append(record.value.decode())
        return dict(found)

    def check(self):
        """Every committed record once, in the order of its key, and nothing else."""
        found, stashed = self.by_key(), dict(self.stashed.by_key)
        flat = [value for values in found.values() for value in values]
        doubled = len(flat) - len(set(flat))
        lost = {v for values in stashed.values() for v in values} - set(flat)
        phantoms = set(flat) - {v for values in stashed.values() for v in values}
        assert (doubled, lost, phantoms) == (0, set(), set())
        assert found == stashed


def stopped(host, timeout_s=60):
    """The text with which a lane has stopped."""
    return wait_until(lambda: host.of(LaneStopped), timeout_s)[0].text


__all__ = ["Bench", "Host", "finish", "stopped", "wait_until"]
