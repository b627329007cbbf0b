"""The typed object, and all errors at once."""

import dataclasses

import pytest
from django.test import override_settings

from outbox import conf
from tests.conf.kit import errors_of


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


def test_a_lane_is_given_back_within_the_session():
    assert conf.parse({}).revoke_timeout_s == 4.5
    assert conf.parse({"FLUSH_TIMEOUT": 1}).revoke_timeout_s == 1


def test_a_secret_may_be_a_function_that_is_asked_for_each_client():
    given = iter(["first", "second", "third", "fourth"])
    kafka = {"sasl.password": lambda: next(given), "oauth_cb": print}
    found = conf.parse({"NAME": "shop", "KAFKA": kafka, "PRODUCER": {"x": lambda: 1}})
    assert found.client_properties["sasl.password"] == "first"
    assert found.producer_properties["sasl.password"] == "second"
    assert found.producer_properties["x"] == 1
    assert found.client_properties["oauth_cb"] is print
