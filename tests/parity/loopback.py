"""Kafka clients for the election whose coordinator obeys the test; heartbeats come back from a list.

They replace only the client library, at the seam `Clients`: everything behind it is the real code.
"""

import threading
import time
from collections import defaultdict
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import SimpleNamespace

from confluent_kafka import KafkaException, TopicPartition

from outbox.conf import parse
from outbox.harvest import Harvester


def settings(**changes):
    short = {"SESSION_TIMEOUT": 8, "FLUSH_TIMEOUT": 1}
    named = {"NAME": "loop", "BOOTSTRAP_SERVERS": "nowhere:1", "DELIVERY": "at-least-once"}
    return parse({**named, **short, **changes})


def wait_until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "the awaited condition did not come true in time"
        time.sleep(0.005)
    return found


def done(value):
    future = Future()
    future.set_result(value)
    return future


class Log:
    """The leader topic: the produced heartbeats, per partition. While `swallowing` it loses them."""

    def __init__(self):
        self.changed = threading.Condition()
        self.payloads = defaultdict(list)
        self.swallowing = False

    def append(self, partition, payload):
        with self.changed:
            if not self.swallowing:
                self.payloads[partition].append(payload)
                self.changed.notify_all()


class Message:
    def __init__(self, partition=0, offset=0, payload=None, error=None):
        self._found = partition, offset, payload, error

    def partition(self):
        return self._found[0]

    def offset(self):
        return self._found[1]

    def headers(self):
        return None

    def value(self):
        return self._found[2]

    def error(self):
        return self._found[3]


class Reader:
    def __init__(self, log):
        self.log, self.at, self.closed = log, {}, 0

    def list_topics(self, topic, timeout):
        return None

    def assign(self, partitions):
        with self.log.changed:
            self.at = {p.partition: len(self.log.payloads[p.partition]) for p in partitions}

    def assignment(self):
        return []

    def consume(self, count, timeout):
        with self.log.changed:
            found = []
            while len(found) < count and (message := self._next()) is not None:
                found.append(message)
            return found

    def close(self):
        self.closed += 1

    def _next(self):
        for partition, offset in self.at.items():
            if offset < len(self.log.payloads[partition]):
                self.at[partition] += 1
                return Message(partition, offset, self.log.payloads[partition][offset])
        return None


class Standing:
    """The consumer that is a member of the group."""

    def __init__(self, on_commit):
        self.on_commit, self.steps, self.assigned = on_commit, SimpleQueue(), set()
        self.subscribed, self.closed = [], 0
        self.close_error = self.subscribe_error = None
        self.is_member = True
        self.is_refused = False

    # ---- the test speaks

    def assign_lanes(self, *partitions):
        self._do(self._assign, partitions)

    def revoke_lanes(self, *partitions):
        self._do(self._revoke, partitions)

    def lose_lanes(self, *partitions):
        self._do(self._lose, partitions)

    def answer(self, error):
        """The next result or error of `poll`."""
        self.steps.put((None, error, threading.Event()))

    def _do(self, step, partitions):
        finished = threading.Event()
        self.steps.put((step, partitions, finished))
        assert finished.wait(20)

    # ---- the member speaks

    def subscribe(self, topics, *, on_assign, on_revoke, on_lost):
        self.subscribed += topics
        if self.subscribe_error:
            raise self.subscribe_error
        self.callbacks = on_assign, on_revoke, on_lost

    def poll(self, timeout):
        try:
            step, given, finished = self.steps.get(timeout=min(timeout, 0.01))
        except Empty:
            return None
        if step is not None:
            step(given)
            finished.set()
            return None
        if isinstance(given, BaseException):
            raise given
        return Message(error=given)

    def committed(self, partitions, timeout):
        if self.is_refused:
            raise KafkaException("refused")
        return partitions

    def commit(self, offsets, asynchronous):
        self.steps.put((lambda given: self.on_commit(None, given), offsets, threading.Event()))

    def close(self):
        self.closed += 1
        if self.assigned:
            self._revoke(tuple(self.assigned))
        if self.close_error:
            raise self.close_error

    def incremental_assign(self, partitions):
        pass

    assign = pause = incremental_assign

    def assignment(self):
        return []

    def _assign(self, partitions):
        self.assigned |= set(partitions)
        self.callbacks[0](self, [TopicPartition("loop.neli", p) for p in partitions])

    def _revoke(self, partitions):
        self.assigned -= set(partitions)
        self.callbacks[1](self, [TopicPartition("loop.neli", p) for p in partitions])

    def _lose(self, partitions):
        self.assigned -= set(partitions)
        self.callbacks[2](self, [TopicPartition("loop.neli", p) for p in partitions])


class Beats:
    """The producer of heartbeats."""

    def __init__(self, log):
        self.log, self.errors = log, []

    def list_topics(self, topic, timeout):
        return None

    def produce(self, topic, payload, partition, headers, on_delivery):
        if self.errors:
            raise self.errors.pop()
        self.log.append(partition, payload)

    def poll(self, timeout):
        return 0


class Admin:
    def __init__(self, partitions):
        self.partitions = partitions

    def list_topics(self, **options):
        return SimpleNamespace(brokers={1: None})

    def describe_configs(self, resources, **options):
        limits = {"group.min.session.timeout.ms": "1000", "group.max.session.timeout.ms": "60000"}
        return {r: done({name: SimpleNamespace(value=value) for name, value in limits.items()}) for r in resources}

    def describe_topics(self, names, **options):
        return defaultdict(lambda: done(SimpleNamespace(partitions=list(range(self.partitions)))))


class Loopback:
    """The clients of one member. `broken` names those that cannot be made."""

    def __init__(self, log=None, *, partitions=3, broken=()):
        self.log = log or Log()
        self.partitions, self.broken = partitions, broken
        self.standing = self.beats = self.heartbeats_read = None
        self.on_error = {}
        self.prepared = None

    def admin(self, on_error):
        return Admin(self.partitions)

    def member(self, on_error, on_commit):
        self._refuse("member")
        self.on_error["member"] = on_error
        self.standing = self.standing or Standing(on_commit)
        self.standing.on_commit = on_commit
        return self.standing

    def reader(self, on_error):
        self._refuse("reader")
        self.heartbeats_read = Reader(self.log)
        return self.heartbeats_read

    def producer(self, on_error):
        self._refuse("producer")
        self.on_error["producer"] = on_error
        self.beats = Beats(self.log)
        return self.beats

    def _refuse(self, kind):
        if kind in self.broken:
            raise RuntimeError(f"no {kind}: simulated")


class Worker:
    """Sends nothing, gives its lane back when asked, and records the calls."""

    made: list = []

    def __init__(self, conf, lane, leader_id, epoch, host):
        self.lane, self.host, self.told = lane, host, []
        Worker.made.append(self)

    def start(self):
        self.told.append("start")

    def refreshed(self, leader_id):
        self.told.append("refreshed")

    def finish(self, deadline):
        self.told.append("finish")
        self.host.finished(self.lane)

    def abandon(self):
        self.told.append("abandon")

    def join(self, timeout_s):
        return True

    def statistics(self):
        return SimpleNamespace(in_flight=0, in_flight_keys=(), delivered=0)


def harvester(clients, conf=None, **arguments):
    """A harvester on such clients, not started."""
    given = {"worker_factory": Worker, "check_table": lambda *_: None, "clients": clients, **arguments}
    return Harvester(conf or settings(), **given)
