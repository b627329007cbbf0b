"""What outbox_check says of brokers and rights, on real brokers that have ACLs, and of versions."""

import pytest
from confluent_kafka import libversion
from confluent_kafka.admin import AclOperation, AclPermissionType, AdminClient

from outbox import conf
from outbox.operations import check, check_kafka
from outbox.operations.findings import Level
from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.exactly_once.test_denied import AUTHORIZED, rule
from tests.support.topics import create_topic


def found_by(servers, *topics):
    given = conf.parse({"NAME": "looks", "BOOTSTRAP_SERVERS": servers, "DELIVERY": "at-least-once"})
    return {finding.subject: finding for finding in check_kafka.examine(given, topics)}


@pytest.mark.slow
def test_a_right_to_write_that_is_missing_is_named_before_anything_is_sent(kafka_factory):
    kafka = kafka_factory(properties=AUTHORIZED)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    open_, closed, own = (create_topic(kafka.bootstrap_servers, 2, name) for name in ("open", "closed", "looks.neli"))
    rules = [
        rule(topic, operation, AclPermissionType.ALLOW)
        for topic in (closed, own)
        for operation in (AclOperation.READ, AclOperation.DESCRIBE)
    ]
    for future in admin.create_acls(rules).values():
        future.result(10)
    wait_until(lambda: found_by(kafka.bootstrap_servers, closed)["leader topic"].level is Level.ERROR)
    found = found_by(kafka.bootstrap_servers, open_, closed)
    assert found[f"topic {open_!r}"].level is not Level.ERROR
    denied = found[f"topic {closed!r}"]
    assert denied.level is Level.ERROR
    assert denied.text == "A harvester cannot use the topic: TOPIC_AUTHORIZATION_FAILED: the user lacks WRITE."
    assert denied.remedy
    leader = found["leader topic"]
    assert (leader.level, leader.text) == (Level.ERROR, f"The user lacks WRITE on the topic {own!r}.")


def test_the_versions_of_brokers_and_client_are_told(bootstrap_servers, pytestconfig):
    [finding] = [found_by(bootstrap_servers)["kafka"]]
    assert finding.level is Level.OK
    is_old = (pytestconfig.getoption("kafka_version") or "").startswith("3.9")
    spoken = "3.9 or 4.0" if is_old else "4.1 or newer"
    assert finding.text == (
        f"Kafka answers with version {spoken}, by 1 broker at {bootstrap_servers}. "
        f"The client is librdkafka {libversion()[0]}."
    )


def test_brokers_older_than_those_of_the_tests_are_a_warning():
    heard = check_kafka._Heard()
    heard.log(7, "APIVERSION [x]: ApiKey Produce (0) Versions 0..9")
    heard.log(7, "APIVERSION [x]: ApiKey Fetch (1) Versions 0..16")
    assert heard.fetch_versions == [16]
    assert [check_kafka._spoken(version) for version in (13, 16, 17, 18, 25)] == [
        "before 3.5", "3.7 or 3.8", "3.9 or 4.0", "4.1 or newer", "4.1 or newer",
    ]  # fmt: skip


@pytest.mark.parametrize(("major", "level"), [(13, Level.ERROR), (14, None), (18, None), (19, Level.WARNING)])
def test_the_version_of_postgresql_is_judged(major, level):
    assert [finding.level for finding in check._judged(major)] == ([level] if level else [])


def test_topics_that_were_asked_for_are_examined_however_many_wait(monkeypatch):
    asked = []
    monkeypatch.setattr(check, "system_checks", lambda alias: [])
    monkeypatch.setattr(check, "_database", lambda conf, alias, seen: seen.update(f"a{n:03}" for n in range(150)) or [])
    monkeypatch.setattr(check_kafka, "examine", lambda conf, topics: asked.extend(topics) or [])
    findings = check.examine(conf.parse({"DELIVERY": "at-least-once"}), "default", topics=("zzz", "a000", "zzz"))
    assert asked[:3] == ["zzz", "a000", "a001"]
    assert len(asked) == 102
    assert [(finding.level, finding.text) for finding in findings] == [
        (Level.SKIPPED, "The check left out 49 more topics. Name them with --topic.")
    ]
