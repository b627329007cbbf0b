"""What is checked before a member joins."""

import threading

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from outbox.conf import parse
from outbox.election import topic
from outbox.election.clients import Clients, member_properties
from outbox.election.errors import ElectionRefused, KafkaUnreachable
from outbox.election.topic import TOPIC_CONFIG, LeaderTopic
from outbox.exceptions import OutboxError
from tests.support.topics import create_topic


def topic_of(servers, name, **settings):
    conf = parse({"NAME": name, "BOOTSTRAP_SERVERS": servers, **settings})
    return LeaderTopic(Clients(conf), conf, threading.Event())


@pytest.fixture
def name(request):
    return f"n{abs(hash(request.node.nodeid))}"


def test_an_absent_topic_is_created_with_the_lanes_of_the_settings(bootstrap_servers, name):
    assert topic_of(bootstrap_servers, name, LANES=3).prepare() == 3
    assert topic_of(bootstrap_servers, name, LANES=2).prepare() == 3
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, f"{name}.neli")
    found = admin.describe_configs([resource])[resource].result(10)
    assert {key: found[key].value for key in TOPIC_CONFIG} == TOPIC_CONFIG


def test_two_may_create_it_at_the_same_moment(bootstrap_servers, name):
    results = []
    topics = [topic_of(bootstrap_servers, name) for _ in range(4)]
    threads = [threading.Thread(target=lambda t=t: results.append(t.prepare())) for t in topics]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [1] * 4


def test_fewer_partitions_than_lanes_are_refused_where_the_setting_says_how_many(bootstrap_servers, name):
    create_topic(bootstrap_servers, 1, f"{name}.neli")
    with pytest.raises(ElectionRefused, match=r"has 1 partitions, but LANES is 2.*--partitions 2"):
        topic_of(bootstrap_servers, name, LANES=2, DELIVERY="at-least-once").prepare()
    assert topic_of(bootstrap_servers, name, LANES=2, DELIVERY="exactly-once").prepare() == 1  # the database says it


@pytest.mark.parametrize("session", [5.9, 1801])
def test_a_session_outside_the_limits_of_the_brokers_is_refused(bootstrap_servers, name, session):
    with pytest.raises(ElectionRefused, match=r"SESSION_TIMEOUT.*accept 6 to 1800 s"):
        topic_of(bootstrap_servers, name, SESSION_TIMEOUT=session).prepare()


def test_brokers_that_are_away_are_told_from_brokers_that_refuse(name, monkeypatch):
    monkeypatch.setattr(topic, "REQUEST_TIMEOUT_S", 1.0)
    with pytest.raises(KafkaUnreachable, match=r"127.0.0.1:1.*refused"):
        topic_of("127.0.0.1:1", name).prepare()


def test_a_stop_ends_the_waiting(name):
    conf = parse({"NAME": name, "BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(KafkaUnreachable):
        LeaderTopic(Clients(conf), conf, stopping).prepare()


def test_no_servers_are_an_error_that_names_the_setting():
    with pytest.raises(OutboxError, match="BOOTSTRAP_SERVERS"):
        Clients(parse({"NAME": "x"}))


def test_a_property_that_the_client_refuses_is_named(name):
    with pytest.raises(OutboxError, match=r"no\.such\.property.*KAFKA"):
        topic_of("127.0.0.1:1", name, KAFKA={"no.such.property": "x"})


@pytest.mark.slow
def test_a_forbidden_creation_names_the_command(kafka_factory, name):
    kafka = kafka_factory(
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    denied = [(ResourceType.BROKER, "kafka-cluster"), (ResourceType.TOPIC, f"{name}.neli")]
    everybody = [
        AclBinding(kind, of, ResourcePatternType.LITERAL, "User:*", "*", operation, permission)
        for kind, of in denied
        for operation, permission in (
            (AclOperation.CREATE, AclPermissionType.DENY),
            (AclOperation.DESCRIBE, AclPermissionType.ALLOW),
        )
    ]
    for future in admin.create_acls(everybody).values():
        future.result(10)
    with pytest.raises(ElectionRefused, match=r"cannot create it.*kafka-topics.sh --create"):
        topic_of(kafka.bootstrap_servers, name).prepare()


def test_the_membership_follows_the_settings():
    conf = parse({"NAME": "shop", "SESSION_TIMEOUT": 15, "HEARTBEAT_TIMEOUT": 5, "ASSIGNOR": "range"})
    found = member_properties(conf)
    assert found["group.id"] == "shop"
    assert found["session.timeout.ms"] == 15_000
    assert found["heartbeat.interval.ms"] == 625
    assert found["partition.assignment.strategy"] == "range"
    assert found["group.protocol"] == "classic"
    assert found["enable.auto.commit"] is False
