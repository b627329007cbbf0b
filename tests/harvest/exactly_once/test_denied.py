"""Rights withdrawn under a harvester at work, and given back: the topic waits as a whole, other topics go on."""

import os

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from outbox.core.scoreboard_values import RecordHeld
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
            assert host.worker.statistics().held == host.worker.statistics().parked == 1
            for future in admin.delete_acls([every]).values():
                future.result(10)
            bench.wait_empty(90)
        found = [int(record.headers[-1][1]) for record in bench.read(denied) if record.key == b"key-0"]
        assert found == [*before, *ids[::30]]
        assert len(bench.read(denied)) == 305
        bench.check()
