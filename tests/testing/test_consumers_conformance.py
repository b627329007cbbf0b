"""One suite on both: the kit's consumers, and a harvester, a Kafka and the threads of `manage.py consume`."""

import json
import logging
import os
import re
import uuid
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction
from django.test import override_settings

import outbox
from outbox import conf
from outbox.consumers import registry
from outbox.consumers.daemon import Consumers, LeftBehind
from outbox.consumers.servers import Preflight, run_of
from outbox.consumers.work.worker import ConsumerStopped
from outbox.core.steps import step
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from outbox.messages.consumed import Identity
from outbox.models import OutboxRecord
from outbox.testing import MemoryBroker, OutboxKit, TransactionRefused
from tests.harvest.hosts import Host, wait_until
from tests.support.databases import fresh_database, leading
from tests.support.topics import create_topic

MESSAGE, CONSUMER = "the message fails", "the consumer stops"


class MemoryWorld:
    def __init__(self):
        self.kit = OutboxKit(broker=MemoryBroker(auto_create_topics=False))

    def create(self, topic, partitions=1):
        self.kit.broker.create_topic(topic, partitions)

    def deliver(self, name, value=None, *, attempts=1, **given):
        for attempt in range(1, attempts):
            with pytest.raises(ValueError, match="not yet"):
                self.kit.deliver(name, value, attempt=attempt, **given)
        self.kit.deliver(name, value, attempt=attempts, **given)

    def chain(self, count):
        found = self.kit.run_chain()
        assert sum(len(one.messages) for handled in found.values() for one in handled) == count

    def refusals(self, names):
        return {name: self._refusal(name) for name in names}

    def _refusal(self, name):
        try:
            self.kit.deliver(name, "v", key="k")
        except ConsumerStopped as error:
            return CONSUMER, str(error)
        except TransactionRefused as error:
            return MESSAGE, str(error)
        except Exception as error:
            return MESSAGE, f"{type(error).__name__}: {error}"


class KafkaWorld:
    def __init__(self, url, servers, caplog):
        self.url, self.servers, self.caplog = url, servers, caplog
        self.topics = {}

    def create(self, topic, partitions=1):
        create_topic(self.servers, partitions, topic)

    def deliver(self, name, value=None, *, attempts=1, key=None, headers=(), time=None):
        self._produce(name, value, key, headers, time)
        assert self._consume_once([name]) is None

    def _produce(self, name, value, key=None, headers=(), time=None):
        producer = Producer({"bootstrap.servers": self.servers})
        given = {"timestamp": round(time.timestamp() * 1000)} if time else {}
        [topic] = registry.registered()[name].names
        producer.produce(topic, value, key, headers=list(headers), **given)
        assert producer.flush(30) == 0

    def _daemon(self, names, **given):
        settings, consumers = conf.current(), registry.registered()
        found = [consumers[name] for name in names]
        prepare = Preflight(settings, found, list(consumers), topics=True)
        return Consumers([run_of(settings, one) for one in found], prepare=prepare, fail_fast=True, **given)

    def _consume_once(self, names):
        """What it has stopped for."""
        daemon = self._daemon(names, once=True)
        try:
            with daemon:
                assert daemon.wait(60)
        except (LeftBehind, ConsumerStopped) as error:
            return error
        return None

    def chain(self, count):
        with self._harvesting(), self._daemon(registry.registered()) as daemon:
            wait_until(lambda: sum(daemon.handled.values()) >= count and not OutboxRecord.objects.exists())
        assert sum(daemon.handled.values()) == count

    @contextmanager
    def _harvesting(self):
        host = Host()
        factory = ExactlyOnceFactory(source=lambda: {"conninfo": self.url, "connect_timeout": 2})
        host.worker = factory(conf.current(), 0, uuid.uuid4(), 1, host)
        host.worker.start()
        try:
            yield
        finally:
            host.worker.abandon()
            assert host.worker.join(15)
            assert not host.errors

    def refusals(self, names):
        for name in names:
            self._produce(name, "v", "k")
        with ExitStack() as stack:  # one stops all consumers of its process
            daemons = {name: self._daemon([name], once=True).start() for name in names}
            for daemon in daemons.values():
                stack.callback(daemon.stop)
            return {name: self._refusal(name, daemon) for name, daemon in daemons.items()}

    def _refusal(self, name, daemon):
        try:
            assert daemon.wait(60)
        except ConsumerStopped as error:
            return CONSUMER, str(error)
        except LeftBehind:
            pass
        [failed] = [
            one for one in self.caplog.records if one.getMessage().startswith("message_failed") and one.args[0] == name
        ]
        return MESSAGE, failed.args[-1]


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.django_db), "kafka"])
def world(request, postgres, django_db_setup, django_db_blocker, monkeypatch, caplog):
    registry.registered()  # those of installed apps stay registered
    monkeypatch.setattr(registry, "_consumers", {})
    caplog.set_level(logging.INFO, "outbox")
    if request.param == "memory":
        yield MemoryWorld()
        return
    servers = request.getfixturevalue("bootstrap_servers")
    template = request.getfixturevalue("migrated_template")
    given = {"NAME": f"kit-{uuid.uuid4().hex[:8]}", "BOOTSTRAP_SERVERS": servers, "IO_BACKOFF": 0.1}
    with (
        fresh_database(os.environ["DATABASE_URL"], template) as url,
        leading(url, django_db_blocker),
        override_settings(OUTBOX={**settings.OUTBOX, **given}),
    ):
        yield KafkaWorld(url, servers, caplog)


@pytest.fixture
def topic(world):
    return f"t-{uuid.uuid4().hex[:12]}"


def attributes(message):
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "value": message.value,
        "headers": message.headers,
        "time": message.time,
        "identity": message.identity,
        "step": message.step,
        "attempt": message.attempt,
        "raw": message.raw._replace(header_source=message.raw.headers),
    }


@pytest.mark.part
def test_the_function_sees_the_same_message(world, topic):
    seen = []
    outbox.consumer(topic, name="shop.record", decoder=json.loads)(lambda message: seen.append(attributes(message)))
    world.create(topic)
    time = datetime(2024, 2, 29, 12, 0, 0, 250_000, tzinfo=UTC)
    headers = [("a", "1"), ("a", "ü"), ("binary", b"\xff"), ("none", None), ("outbox-id", "17")]
    world.deliver("shop.record", '{"total": 10}', key="ü", headers=headers, time=time)
    world.deliver("shop.record", time=time)
    raw = (topic, 0, 0, 0, "ü".encode(), b'{"total": 10}')
    pairs = (("a", b"1"), ("a", "ü".encode()), ("binary", b"\xff"), ("none", None), ("outbox-id", b"17"))
    assert seen == [
        {
            "topic": topic,
            "partition": 0,
            "offset": 0,
            "key": "ü",
            "value": {"total": 10},
            "headers": (("a", "1"), ("a", "ü"), ("binary", "\udcff"), ("none", None), ("outbox-id", "17")),
            "time": time,
            "identity": Identity(17),
            "step": step("shop.record", topic, 0, 0),
            "attempt": 1,
            "raw": (*raw, pairs, 1_709_208_000_250),
        },
        {
            "topic": topic,
            "partition": 0,
            "offset": 1,
            "key": None,
            "value": None,
            "headers": (),
            "time": time,
            "identity": None,
            "step": step("shop.record", topic, 0, 1),
            "attempt": 1,
            "raw": (topic, 0, 1, 0, None, None, (), 1_709_208_000_250),
        },
    ]


def test_attempts_are_counted_and_leave_nothing_behind(world, topic):
    seen = []

    def record(message):
        seen.append((message.attempt, message.step))
        Group.objects.create(name=f"attempt {message.attempt}")
        outbox.stash("receipts", str(message.attempt))
        if message.attempt < 3:
            raise ValueError("not yet")

    outbox.consumer(topic, name="shop.record", on_error="stop", attempts=3, backoff=0.1)(record)
    world.create(topic)
    world.deliver("shop.record", "v", attempts=3)
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert list(Group.objects.values_list("name", flat=True)) == ["attempt 3"]
    assert list(OutboxRecord.objects.values_list("kafka_value", flat=True)) == ["3"]


def test_a_chain_of_services(world, topic):
    """Orders are stashed, payments answer them, and two others handle both."""
    seen = {"shop.pay": [], "shop.book": [], "shop.all": []}
    receipts = f"{topic}.receipts"

    @outbox.consumer(topic, name="shop.pay")
    def pay(message):
        seen["shop.pay"].append(message)
        Group.objects.create(name=f"paid {message.identity.id}")
        outbox.stash(receipts, {"of": message.value}, key=message.key or "", headers={"step": message.step})

    @outbox.consumer(receipts, name="shop.book", many=True, batch=2)
    def book(messages):
        assert 1 <= len(messages) <= 2
        seen["shop.book"] += messages
        for message in messages:
            Group.objects.create(name=f"booked {message.json()['of']}")

    @outbox.consumer(re.compile(re.escape(topic) + r"(\.\w+)?"), name="shop.all", decoder=bytes)
    def count(message):
        seen["shop.all"].append(message)

    world.create(topic, partitions=3)
    world.create(receipts)
    with transaction.atomic():
        ids = [
            outbox.stash(topic, "ü€", key="k", headers=[("a", "1"), ("a", "2")], message_id="m1"),
            outbox.stash(topic, b"binary", key="l", message_id="m2"),
            outbox.stash(topic, {"total": 3}, key="k", message_id="m3"),
            outbox.stash(topic, message_id="m4"),
        ]
    world.chain(4 + 4 + 8)
    paid = sorted(seen["shop.pay"], key=lambda message: message.identity)
    assert [message.identity for message in paid] == [Identity(id_) for id_ in ids]
    assert [(message.key, message.value, message.headers) for message in paid] == [
        ("k", "ü€", (("a", "1"), ("a", "2"), ("message-id", "m1"), ("outbox-id", str(ids[0])))),
        ("l", "binary", (("message-id", "m2"), ("outbox-id", str(ids[1])))),
        ("k", '{"total":3}', (("message-id", "m3"), ("outbox-id", str(ids[2])))),
        (None, None, (("message-id", "m4"), ("outbox-id", str(ids[3])))),
    ]
    assert paid[0].partition == paid[2].partition
    assert seen["shop.pay"].index(paid[0]) < seen["shop.pay"].index(paid[2])
    booked = {message.json()["of"]: message for message in seen["shop.book"]}
    assert {of: message.header("step") for of, message in booked.items()} == {one.value: one.step for one in paid}
    assert [booked[message.value].key for message in paid] == ["k", "l", "k", None]
    assert sorted(message.raw.value or b"" for message in seen["shop.all"]) == sorted(
        message.raw.value or b"" for message in [*paid, *seen["shop.book"]]
    )
    names = [f"paid {id_}" for id_ in ids] + [f"booked {message.value}" for message in paid]
    assert sorted(Group.objects.values_list("name", flat=True)) == sorted(names)


def test_hooks_run_one_by_one_after_the_message(world, topic, caplog):
    seen = []

    def fail():
        raise ValueError("of a hook")

    def record(message):
        transaction.on_commit(lambda: seen.append(("hook", Group.objects.count())))
        transaction.on_commit(fail)
        transaction.on_commit(lambda: transaction.on_commit(lambda: seen.append(("nested", 1))))
        Group.objects.create(name="effect")
        with suppress(IntegrityError), transaction.atomic():
            transaction.on_commit(lambda: seen.append("never"))
            Group.objects.create(name="effect")
        seen.append("function")

    outbox.consumer(topic, name="shop.record")(record)
    world.create(topic)
    world.deliver("shop.record", "v")
    assert seen == ["function", ("hook", 1), ("nested", 1)]
    [failed] = [record for record in caplog.records if record.getMessage() == "hook_failed consumer=shop.record"]
    assert str(failed.exc_info[1]) == "of a hook"


def raises(message):
    raise ValueError("no such order")


def cannot_decode(message):
    assert message.value


def swallows(message):
    with suppress(IntegrityError):
        Group.objects.create(name="effect")


def sets_rollback(message):
    transaction.set_rollback(True)


def opens_a_block(message):
    transaction.atomic().__enter__()


def closes(message):
    connection.close()


def defers(message):
    Group.permissions.through.objects.create(group_id=1_000_000, permission_id=1_000_000)


def is_durable(message):
    with transaction.atomic(durable=True):
        pass


def names_an_alias(message):
    connections["nowhere"].cursor()


def returns_a_coroutine(message):
    async def later(): ...

    return later()


def imports(message):
    import no_such_module  # noqa: F401


def commits(message):
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


def rolls_back(message):
    with suppress(Exception), connection.cursor() as cursor:
        cursor.execute("rollback work")


REFUSED = {
    raises: (MESSAGE, "ValueError: no such order"),
    cannot_decode: (MESSAGE, "UnicodeDecodeError: 'utf-8' codec can't decode"),
    swallows: (MESSAGE, "an error of the database was caught and swallowed; wrap what may fail in"),
    sets_rollback: (MESSAGE, "the transaction was marked for rollback, by set_rollback(True) or by an error"),
    opens_a_block: (MESSAGE, "an atomic() block was entered and never left"),
    closes: (MESSAGE, "the connection was closed inside of the transaction"),
    defers: (MESSAGE, 'insert or update on table "auth_group_permissions" violates foreign key constraint'),
    is_durable: (CONSUMER, "A durable atomic block cannot be nested within another atomic block.. Leave durable=True"),
    names_an_alias: (CONSUMER, "The connection 'nowhere' doesn't exist.. Name an alias that DATABASES has."),
    returns_a_coroutine: (CONSUMER, "returned a coroutine and did nothing. Write it with def and without yield"),
    imports: (CONSUMER, "No module named 'no_such_module'. Install the module, or correct the import."),
    commits: (CONSUMER, "the function has ended the transaction itself: it began as "),
    rolls_back: (CONSUMER, "the function has ended the transaction itself: it began as "),
}


def test_what_a_consumer_refuses_is_refused_with_the_same_words(world, topic):
    def of(function):
        def record(message):
            if function not in (commits, rolls_back):
                Group.objects.create(name="effect")
                outbox.stash("receipts", "never")
            return function(message)

        return record

    names = {function: f"shop.{function.__name__}" for function in REFUSED}
    for function, name in names.items():
        decoder = {"decoder": lambda value: b"\xff".decode()} if function is cannot_decode else {}
        outbox.consumer(f"{topic}-{function.__name__}", name=name, attempts=1, **decoder)(of(function))
        world.create(f"{topic}-{function.__name__}")
    found = world.refusals(names.values())
    assert {name: kind for name, (kind, _) in found.items()} == {
        names[function]: kind for function, (kind, _) in REFUSED.items()
    }
    for function, (kind, words) in REFUSED.items():
        assert words in found[names[function]][1]
        if kind is CONSUMER:
            assert found[names[function]][1].startswith(f"Consumer {names[function]!r}: ")
    positions = rf"The positions are {topic}-commits\[0\] 0\. Take COMMIT and ROLLBACK, .* kept some of them\.$"
    assert re.search(positions, found["shop.commits"][1])
    assert not Group.objects.exists()
    assert not OutboxRecord.objects.exists()
