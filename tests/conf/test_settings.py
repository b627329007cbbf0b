import dataclasses
from datetime import timedelta

import environ
import pytest
from django.conf import settings
from django.test import override_settings

from outbox import conf


def errors_of(raw):
    with pytest.raises(conf.ConfErrors) as caught:
        conf.parse(raw)
    return {error.key: str(error) for error in caught.value.errors}


def told_of(key, value):
    try:
        conf.parse({key: value})
    except conf.ConfErrors as errors:
        return str(errors)
    return ""  # some take any text


def test_every_setting_is_optional_and_described():
    parsed = conf.parse({})
    for key, spec in conf.SPECS.items():
        assert spec.metadata["help"].endswith("."), key
        assert getattr(parsed, spec.name) is not None, key


def test_all_errors_are_reported_at_once_each_with_its_remedy():
    errors = errors_of({"TABEL": "x", "KEY_MAX_BYTES": "many", "NAME": "a b", "DELIVERY": "maybe"})
    assert set(errors) == {"TABEL", "KEY_MAX_BYTES", "NAME", "DELIVERY"}
    assert errors["TABEL"] == 'OUTBOX["TABEL"] is unknown. Did you mean "TABLE"?'
    assert errors["KEY_MAX_BYTES"].endswith("Set a whole number from 1 to 1,000,000.")
    assert "exactly-once, at-least-once" in errors["DELIVERY"]


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, None])
def test_a_count_outside_its_limits_is_refused(value):
    assert "KEY_MAX_BYTES" in errors_of({"KEY_MAX_BYTES": value})


@pytest.mark.parametrize(("value", "seconds"), [(5, 5.0), (0.25, 0.25), (timedelta(minutes=1), 60.0)])
def test_durations_are_seconds_or_timedeltas(value, seconds):
    assert conf.parse({"FLUSH_TIMEOUT": value}).flush_timeout_s == seconds


@pytest.mark.parametrize("value", ["5s", -1, timedelta(0), True])
def test_a_duration_that_is_none_is_refused(value):
    assert "FLUSH_TIMEOUT" in errors_of({"FLUSH_TIMEOUT": value})


@pytest.mark.parametrize("table", ["", "a.b", 'a"b', "a%b", "a\nb", "é" * 29, 7, "\ud800", "a$b"])
def test_a_table_name_that_cannot_be_quoted_everywhere_is_refused(table):
    assert "TABLE" in errors_of({"TABLE": table})
    with override_settings(OUTBOX={"TABLE": table}):
        assert conf.table_name() == "outbox"


def test_bootstrap_servers_is_short_for_the_property():
    assert conf.parse({"BOOTSTRAP_SERVERS": "a:1"}).client_properties == {"bootstrap.servers": "a:1"}
    assert conf.parse({"KAFKA": {"bootstrap.servers": "a:1"}}).bootstrap_servers == "a:1"
    both = {"BOOTSTRAP_SERVERS": "a:1", "KAFKA": {"bootstrap.servers": "a:1"}}
    assert conf.parse(both).bootstrap_servers == "a:1"
    several = {"BOOTSTRAP_SERVERS": ["a:1", "b:2"], "KAFKA": {"bootstrap.servers": "a:1, b:2"}}
    assert conf.parse(several).client_properties == {"bootstrap.servers": "a:1,b:2"}
    assert conf.parse({"KAFKA": {"bootstrap.servers": ["a:1", "b:2"]}}).bootstrap_servers == "a:1,b:2"
    both["KAFKA"] = {"bootstrap.servers": "b:1"}
    assert "Set one of the two" in errors_of(both)["BOOTSTRAP_SERVERS"]


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


def test_producers_can_send_what_stash_accepts():
    assert conf.parse({"MAX_MESSAGE_BYTES": 5_000_000}).producer_properties["message.max.bytes"] == 5_000_000
    assert conf.parse({"MAX_MESSAGE_BYTES": 5_000}).producer_properties["message.max.bytes"] == 1_000_000
    assert (
        conf.parse({"PRODUCER": {"message.max.bytes": "2000000"}}).producer_properties["message.max.bytes"] == "2000000"
    )


@pytest.mark.parametrize("servers", ["http//x", "a b:9", "host:port", "a:1:2"])
def test_servers_are_host_and_port(servers):
    assert "BOOTSTRAP_SERVERS" in errors_of({"BOOTSTRAP_SERVERS": servers})


def test_secrets_appear_neither_in_the_repr_nor_in_errors():
    raw = {"KAFKA": {"sasl.password": "hunter2"}, "PRODUCER": {"ssl.key.password": "hunter2"}}
    assert "hunter2" not in repr(conf.parse(raw))
    assert "hunter2" not in str(errors_of({**raw, "WRONG": 1}))
    assert "hunter2" not in str(errors_of({"KAFKA": "sasl.password=hunter2"}))
    events = {"leader_acquired": {"task": "a.b", "headers": {"authorization": "hunter2"}}}
    assert "hunter2" not in repr(conf.parse({"CELERY_EVENTS": events}))


@pytest.mark.parametrize(
    "misplaced",
    [
        "user:hunter2@host:9092",
        "SASL_SSL://user:hun@ter2,hunter2@host:9092",
        "postgresql://user:hunter2@host/database",
        "sasl.username=user\nsasl.password=hunter2",
        "sasl.password=hunter2",
        '{"sasl.password": "hunter2"}',
        {"sasl.password": "hunter2"},
        [{"sasl.password": "hunter2"}],
        b"hunter2",
    ],
    ids=repr,
)
@pytest.mark.parametrize("key", conf.SPECS)
def test_no_error_quotes_a_secret_that_was_set_under_the_wrong_key(key, misplaced):
    assert "hunter2" not in told_of(key, misplaced)


@pytest.mark.parametrize(
    "value", [10**5000, "\ud800", float("nan"), object(), "x" * 100_000], ids=["huge", "half", "nan", "object", "long"]
)
@pytest.mark.parametrize("key", conf.SPECS)
def test_no_value_is_too_odd_for_an_error(key, value):
    assert len(told_of(key, value)) < 1_000


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
    assert conf.parse({"DELIVERY": delivery}).binary_values is binary
    assert conf.parse({"DELIVERY": delivery, "BINARY_VALUES": not binary}).binary_values is not binary


def test_settings_are_frozen_and_refreshed():
    first = conf.current()
    assert conf.current() is first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.table = "x"
    with override_settings(OUTBOX={"KEY_MAX_BYTES": 7}):
        assert conf.current().key_max_bytes == 7
    assert conf.current().key_max_bytes == first.key_max_bytes


def test_settings_that_are_no_dict_are_refused():
    with override_settings(OUTBOX=["x"]), pytest.raises(conf.ConfErrors, match=r"^OUTBOX is not a dict"):
        conf.current()


def test_from_env_gives_every_kind_its_shape():
    env = environ.Env()
    env.ENVIRON = {
        "OUTBOX_NAME": "shop",
        "OUTBOX_KEY_MAX_BYTES": "99",
        "OUTBOX_AUTOCOMMIT_STASH": "yes",
        "OUTBOX_BINARY_VALUES": "off",
        "OUTBOX_FLUSH_TIMEOUT": "2.5",
        "OUTBOX_KAFKA": '{"ssl.ca.location": "a,b=c"}',
        "OUTBOX_PRODUCER": "linger.ms=5,compression.type=lz4",
        "OUTBOX_FAILPOINTS": "not a setting",
        "PATH": "/bin",
    }
    raw = conf.from_env(env)
    assert raw == {
        "NAME": "shop",
        "KEY_MAX_BYTES": 99,
        "AUTOCOMMIT_STASH": True,
        "BINARY_VALUES": False,
        "FLUSH_TIMEOUT": 2.5,
        "KAFKA": {"ssl.ca.location": "a,b=c"},
        "PRODUCER": {"linger.ms": "5", "compression.type": "lz4"},
    }
    assert conf.parse(raw).flush_timeout_s == 2.5


def test_from_env_leaves_nonsense_to_the_parser():
    env = environ.Env()
    env.ENVIRON = {"OUTBOX_KEY_MAX_BYTES": "ten", "OUTBOX_AUTOCOMMIT_STASH": "maybe", "OUTBOX_TABEL": "x"}
    assert set(errors_of(conf.from_env(env))) == {"KEY_MAX_BYTES", "AUTOCOMMIT_STASH", "TABEL"}


def test_the_headers_of_the_two_ids_differ():
    same = {"MESSAGE_ID_HEADER": "id", "CORRELATION_ID_HEADER": "id"}
    assert "MESSAGE_ID_HEADER" in errors_of(same)["CORRELATION_ID_HEADER"]
    assert conf.parse({"MESSAGE_ID_HEADER": None, "CORRELATION_ID_HEADER": None}).message_id_header == ""


def test_a_leader_fences_itself_before_its_session_ends():
    assert conf.parse({"HEARTBEAT_TIMEOUT": 3}).heartbeat_timeout_s == 3
    told = errors_of({"HEARTBEAT_TIMEOUT": 5, "SESSION_TIMEOUT": 6})["HEARTBEAT_TIMEOUT"]
    assert told.endswith("is 5 s with a SESSION_TIMEOUT of 6 s. Set at most 3, or SESSION_TIMEOUT to 10 or more.")


def test_what_a_leader_sent_is_decided_before_its_session_ends():
    assert conf.parse({}).delivery_timeout_s == 3.5
    assert conf.parse({"DELIVERY_TIMEOUT": 4}).delivery_timeout_s == 4
    assert conf.parse({"HEARTBEAT_TIMEOUT": 3}).delivery_timeout_s == pytest.approx(2.7)
    told = errors_of({"DELIVERY_TIMEOUT": 5})["DELIVERY_TIMEOUT"]
    assert told.endswith("Set at most 4, or SESSION_TIMEOUT to 7 or more.")


def test_a_lane_is_given_back_within_the_session():
    assert conf.parse({}).revoke_timeout_s == 4.5
    assert conf.parse({"FLUSH_TIMEOUT": 1}).revoke_timeout_s == 1


def test_the_leader_topic_is_named_after_the_application():
    assert conf.parse({"NAME": "shop"}).leader_topic == "shop.neli"
    assert conf.parse({"NAME": "shop", "LEADER_TOPIC": "own"}).leader_topic == "own"


@pytest.mark.parametrize(
    ("name", "setting"), [("session.timeout.ms", "SESSION_TIMEOUT"), ("partition.assignment.strategy", "ASSIGNOR")]
)
def test_a_property_with_a_setting_of_its_own_is_refused(name, setting):
    assert f"derives from {setting}: leave it out" in errors_of({"KAFKA": {name: "x"}})["KAFKA"]


def test_a_secret_may_be_a_function_that_is_asked_for_each_client():
    given = iter(["first", "second", "third", "fourth"])
    kafka = {"sasl.password": lambda: next(given), "oauth_cb": print}
    found = conf.parse({"NAME": "shop", "KAFKA": kafka, "PRODUCER": {"x": lambda: 1}})
    assert found.client_properties["sasl.password"] == "first"
    assert found.producer_properties["sasl.password"] == "second"
    assert found.producer_properties["x"] == 1
    assert found.client_properties["oauth_cb"] is print
