"""Settings that must agree, and defaults that follow from others."""

import pytest
from django.conf import settings

from outbox import conf
from tests.conf.kit import errors_of


def test_bootstrap_servers_is_short_for_the_property():
    assert conf.parse({"BOOTSTRAP_SERVERS": "a:1"}).kafka.client_properties == {"bootstrap.servers": "a:1"}
    assert conf.parse({"KAFKA": {"bootstrap.servers": "a:1"}}).kafka.bootstrap_servers == "a:1"
    both = {"BOOTSTRAP_SERVERS": "a:1", "KAFKA": {"bootstrap.servers": "a:1"}}
    assert conf.parse(both).kafka.bootstrap_servers == "a:1"
    several = {"BOOTSTRAP_SERVERS": ["a:1", "b:2"], "KAFKA": {"bootstrap.servers": "a:1, b:2"}}
    assert conf.parse(several).kafka.client_properties == {"bootstrap.servers": "a:1,b:2"}
    assert conf.parse({"KAFKA": {"bootstrap.servers": ["a:1", "b:2"]}}).kafka.bootstrap_servers == "a:1,b:2"
    both["KAFKA"] = {"bootstrap.servers": "b:1"}
    assert "Set one of the two only" in errors_of(both)["BOOTSTRAP_SERVERS"]


@pytest.mark.parametrize(
    ("where", "properties"),
    [
        ("KAFKA", {"enable.idempotence": False}),
        ("PRODUCER", {"acks": 1}),
        ("PRODUCER", {"transactional.id": "mine"}),
        ("KAFKA", {"group.id": "mine"}),
        ("PRODUCER", {"bootstrap.servers": "a:1"}),
        ("KAFKA", {"bootstrap.servers": 5}),
        ("KAFKA", {"metadata.broker.list": "a:1"}),
        ("PRODUCER", {"max.in.flight": 6}),
        ("PRODUCER", {"max.in.flight.requests.per.connection": "10"}),
        ("KAFKA", {"queuing.strategy": "lifo"}),
        ("PRODUCER", {"message.max.bytes": 999_999}),
        ("KAFKA", {"message.max.bytes": "many"}),
    ],
)
def test_a_property_that_contradicts_the_protocol_is_refused(where, properties):
    assert where in errors_of({where: properties})


def test_a_property_that_agrees_with_the_protocol_is_accepted():
    parsed = conf.parse({"KAFKA": {"enable.idempotence": True}, "PRODUCER": {"acks": "all", "linger.ms": 5}})
    expected = {"enable.idempotence": True, "acks": "all", "linger.ms": 5, "message.max.bytes": 1_000_000}
    assert parsed.producer_properties == expected


def test_the_default_name_is_that_of_database_and_table_whatever_the_settings_module(monkeypatch):
    monkeypatch.setattr(settings, "DATABASES", {"default": {"NAME": "shop db"}})
    for module in ("shop.settings.web", "worker.settings"):
        monkeypatch.setattr(settings, "SETTINGS_MODULE", module)
        assert conf.parse({"TABLE": "Order"}).name == "shop_db.Order"


def test_a_long_default_name_stays_unique_and_usable(monkeypatch):
    names = set()
    for last in "ab":
        monkeypatch.setattr(settings, "DATABASES", {"default": {"NAME": "x" * 300 + last}})
        names.add(conf.parse({}).name)
    assert len(names) == 2
    assert all(len(name) <= conf.NAME_MAX for name in names)


@pytest.mark.parametrize(("delivery", "binary"), [("exactly-once", True), ("at-least-once", False)])
def test_binary_values_follow_the_delivery_unless_set(delivery, binary):
    assert conf.parse({"DELIVERY": delivery}).stash.binary_values is binary
    assert conf.parse({"DELIVERY": delivery, "BINARY_VALUES": not binary}).stash.binary_values is not binary


def test_the_headers_of_the_two_ids_differ():
    same = {"MESSAGE_ID_HEADER": "id", "CORRELATION_ID_HEADER": "id"}
    assert "MESSAGE_ID_HEADER" in errors_of(same)["CORRELATION_ID_HEADER"]
    assert conf.parse({"MESSAGE_ID_HEADER": None, "CORRELATION_ID_HEADER": None}).stash.message_id_header == ""


def test_a_leader_fences_itself_before_its_session_ends():
    assert conf.parse({"HEARTBEAT_TIMEOUT": 3}).election.heartbeat_timeout_s == 3
    text = errors_of({"HEARTBEAT_TIMEOUT": 5, "SESSION_TIMEOUT": 6})["HEARTBEAT_TIMEOUT"]
    assert text.endswith("is 5 s with a SESSION_TIMEOUT of 6 s. Set at most 3, or SESSION_TIMEOUT to 10 or more.")


def test_what_a_leader_sent_is_decided_before_its_session_ends():
    assert conf.parse({}).at_least_once.delivery_timeout_s == 3.5
    assert conf.parse({"DELIVERY_TIMEOUT": 4}).at_least_once.delivery_timeout_s == 4
    assert conf.parse({"HEARTBEAT_TIMEOUT": 3}).at_least_once.delivery_timeout_s == pytest.approx(2.7)
    text = errors_of({"DELIVERY_TIMEOUT": 5})["DELIVERY_TIMEOUT"]
    assert text.endswith("Set at most 4, or SESSION_TIMEOUT to 7 or more.")


def test_the_leader_topic_is_named_after_the_application():
    assert conf.parse({"NAME": "shop"}).election.leader_topic == "shop.neli"
    assert conf.parse({"NAME": "shop", "LEADER_TOPIC": "own"}).election.leader_topic == "own"


@pytest.mark.parametrize(
    ("name", "setting"), [("session.timeout.ms", "SESSION_TIMEOUT"), ("partition.assignment.strategy", "ASSIGNOR")]
)
def test_a_property_with_a_setting_of_its_own_is_refused(name, setting):
    assert f"derives from {setting}: leave it out" in errors_of({"KAFKA": {name: "x"}})["KAFKA"]
