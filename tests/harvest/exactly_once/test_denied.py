"""Rights withdrawn under a harvester at work, and given back, and a clock that a topic does not take: the topic waits
as a whole, other topics go on."""

import os
import time

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from outbox.core.at_least_once.values import RecordHeld
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from tests.harvest.exactly_once.bench import Bench, wait_until
from tests.support.databases import fresh_database
from tests.support.topics import create_topic

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def rule(topic, operation, permission, kind=AclBinding):
    return kind(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)


@pytest.mark.slow
def test_a_withdrawn_right_holds_the_topic_as_one_and_comes_back(postgres, kafka_factory):
    kafka = kafka_factory(properties=AUTHORIZED)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    with fresh_database(os.environ["DATABASE_URL"]) as url, psycopg.connect(url, autocommit=True) as connection:
        bench = Bench(url, kafka.bootstrap_servers)
        bench.close()
        bench.db = connection
        denied = create_topic(bench.servers, 2)
        withdrawn = [
            rule(denied, AclOperation.WRITE, AclPermissionType.DENY),
            rule(denied, AclOperation.READ, AclPermissionType.ALLOW),
            rule(denied, AclOperation.DESCRIBE, AclPermissionType.ALLOW),
        ]
        every = rule(denied, AclOperation.ANY, AclPermissionType.ANY, AclBindingFilter)
        with bench.working() as host:
            before = bench.stash(["key-0"] * 5, topic=denied)
            bench.wait_empty()
            for future in admin.create_acls(withdrawn).values():
                future.result(10)
            wait_until(lambda: len(admin.describe_acls(every).result(10)) == len(withdrawn))
            ids = bench.stash([f"key-{number % 30}" for number in range(300)], topic=denied)
            bench.stash(["other"] * 300)
            wait_until(lambda: bench.count == 300)
            held = wait_until(lambda: host.of(RecordHeld))
            assert {(event.id, event.name) for event in held} == {(ids[0], (denied, "*"))}, "once, not key by key"
            assert "TOPIC_AUTHORIZATION_FAILED" in held[0].error
            assert host.worker.statistics().held == host.worker.statistics().held_keys == 1
            for future in admin.delete_acls([every]).values():
                future.result(10)
            bench.wait_empty(90)
        found = [int(record.headers[-1][1]) for record in bench.read(denied) if record.key == b"key-0"]
        assert found == [*before, *ids[::30]]
        assert len(bench.read(denied)) == 305
        bench.check()


def set_config(servers, topic, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(20)


class Ahead:
    """A client on a host whose clock is two hours ahead."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def produce(self, topic, value, key, partition=-1, report=None, callback=None, timestamp=0, headers=None):
        at = int((time.time() + 7200) * 1000)
        self._client.produce(topic, value, key, partition, report, callback, at, headers)


def test_a_clock_that_a_topic_does_not_take_holds_the_topic_and_blames_no_record(bench, monkeypatch):
    strict = create_topic(bench.servers, 2, **{"message.timestamp.after.max.ms": "3600000"})
    bench.stash(["first"])
    with bench.working():  # makes the ledger
        bench.wait_empty()
    for topic in (bench.topic, f"{bench.name}.ledger"):
        set_config(bench.servers, topic, "message.timestamp.after.max.ms", "9223372036854775807")
    client = TransactionalProducer.client.fget
    monkeypatch.setattr(TransactionalProducer, "client", property(lambda self: Ahead(client(self))))
    ids = bench.stash([f"key-{number % 3}" for number in range(30)], topic=strict)
    with bench.working() as host:
        bench.stash(["other"] * 300)
        wait_until(lambda: bench.count == 30)
        held = wait_until(lambda: host.of(RecordHeld))
        assert {(event.id, event.name) for event in held} == {(ids[0], (strict, "*"))}, "once, not key by key"
        assert "INVALID_TIMESTAMP" in held[0].error
        set_config(bench.servers, strict, "message.timestamp.after.max.ms", "9223372036854775807")
        bench.wait_empty(90)
    found = [(record.key, int(record.headers[-1][1])) for record in bench.read(strict)]
    assert sorted(id_ for _, id_ in found) == ids
    for key in {key for key, _ in found}:
        of_key = [id_ for other, id_ in found if other == key]
        assert of_key == sorted(of_key)
    bench.check()


def test_a_clock_that_the_ledger_alone_does_not_take_is_told_with_its_remedy(bench, monkeypatch, caplog):
    ledger, limit = f"{bench.name}.ledger", "message.timestamp.after.max.ms"
    bench.stash(["first"])
    with bench.working():  # makes the ledger
        bench.wait_empty()
    set_config(bench.servers, bench.topic, limit, "9223372036854775807")
    set_config(bench.servers, ledger, limit, "3600000")
    client = TransactionalProducer.client.fget
    monkeypatch.setattr(TransactionalProducer, "client", property(lambda self: Ahead(client(self))))
    bench.stash(["a", "b"])
    with bench.working() as host:
        told = f"ledger topic '{ledger}': INVALID_TIMESTAMP"
        line = wait_until(lambda: next((text for text in caplog.messages if told in text), None))
        assert f"Set this host's clock, or raise {limit} of the topic" in line
        assert "Allow the user" not in line
        assert host.of(RecordHeld) == []
        set_config(bench.servers, ledger, limit, "9223372036854775807")
        bench.wait_empty(90)
    bench.check()
