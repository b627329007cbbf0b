"""The typed object, and all errors at once."""

import dataclasses

import pytest
from django.test import override_settings

from outbox import conf
from tests.conf.kit import errors_of, text_of


def test_every_setting_is_optional_and_described():
    parsed = conf.parse({})
    for key, spec in conf.SPECS.items():
        assert spec.metadata["help"].endswith("."), key
        assert conf.by_key(parsed)[key] is not None, key


def test_all_errors_are_reported_at_once_each_with_its_remedy():
    errors = errors_of({"TABEL": "x", "KEY_MAX_BYTES": "many", "NAME": "a b", "DELIVERY": "maybe"})
    assert set(errors) == {"TABEL", "KEY_MAX_BYTES", "NAME", "DELIVERY"}
    assert errors["TABEL"] == 'OUTBOX["TABEL"] is unknown. Did you mean "TABLE"?'
    assert errors["KEY_MAX_BYTES"].endswith("Set a whole number from 1 to 1,000,000.")
    assert "exactly-once, at-least-once" in errors["DELIVERY"]


def test_producers_can_send_what_stash_accepts():
    assert conf.parse({"MAX_MESSAGE_BYTES": 5_000_000}).producer_properties["message.max.bytes"] == 5_000_000
    assert conf.parse({"MAX_MESSAGE_BYTES": 5_000}).producer_properties["message.max.bytes"] == 1_000_000
    assert (
        conf.parse({"PRODUCER": {"message.max.bytes": "2000000"}}).producer_properties["message.max.bytes"] == "2000000"
    )


def test_secrets_appear_neither_in_the_repr_nor_in_errors():
    raw = {"KAFKA": {"sasl.password": "hunter2"}, "PRODUCER": {"ssl.key.password": "hunter2"}}
    assert "hunter2" not in repr(conf.parse(raw))
    assert "hunter2" not in str(errors_of({**raw, "WRONG": 1}))
    assert "hunter2" not in str(errors_of({"KAFKA": "sasl.password=hunter2"}))
    events = {"leader_acquired": {"task": "a.b", "headers": {"authorization": "hunter2"}}}
    assert "hunter2" not in repr(conf.parse({"CELERY_EVENTS": events}))


def test_errors_come_in_the_order_of_the_settings_whatever_the_order_in_the_dict():
    keys = [key for key in conf.SPECS if text_of(key, object())]
    with pytest.raises(conf.ConfErrors) as caught:
        conf.parse({key: object() for key in [*reversed(keys), "TABEL"]})
    assert [error.key for error in caught.value.errors] == ["TABEL", *keys]


def test_no_two_fields_have_one_key():
    def count(section):
        return sum(count(f.type) if dataclasses.is_dataclass(f.type) else 1 for f in dataclasses.fields(section))

    assert len(conf.SPECS) == count(conf.Conf)


def test_settings_are_frozen_and_refreshed():
    first = conf.current()
    assert conf.current() is first
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.table = "x"
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.stash.key_max_bytes = 7
    with override_settings(OUTBOX={"KEY_MAX_BYTES": 7}):
        assert conf.current().stash.key_max_bytes == 7
    assert conf.current().stash.key_max_bytes == first.stash.key_max_bytes


def test_settings_that_are_no_dict_are_refused():
    with override_settings(OUTBOX=["x"]), pytest.raises(conf.ConfErrors, match=r"^OUTBOX is not a dict"):
        conf.current()


def test_a_lane_is_given_back_within_the_session():
    assert conf.parse({}).election.revoke_timeout_s == 4.5
    assert conf.parse({"FLUSH_TIMEOUT": 1}).election.revoke_timeout_s == 1


def test_a_secret_may_be_a_function_that_is_asked_for_each_client():
    given = iter(["first", "second", "third", "fourth"])
    kafka = {"sasl.password": lambda: next(given), "oauth_cb": print}
    found = conf.parse({"NAME": "shop", "KAFKA": kafka, "PRODUCER": {"x": lambda: 1}})
    assert found.kafka.client_properties["sasl.password"] == "first"
    assert found.producer_properties["sasl.password"] == "second"
    assert found.producer_properties["x"] == 1
    assert found.kafka.client_properties["oauth_cb"] is print
