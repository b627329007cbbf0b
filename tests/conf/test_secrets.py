"""Secrets are known by the names of their properties, and found wherever they turn up."""

import pytest

from outbox.conf.secrets import HIDDEN, Redactor, is_secret, shown


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config", "sasl.jaas.config", "PASSWORD", "ssl.key",
        "sasl.oauthbearer.assertion.private.key.pem",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_name(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "bootstrap.servers", "sasl.username", "sasl.mechanism", "ssl.ca.location", "ssl.key.location",
        "ssl.keystore.location", "security.protocol", "message.max.bytes", "metadata.max.age.ms",
    ],
)  # fmt: skip
def test_the_rest_is_shown(name):
    assert not is_secret(name)


def test_properties_are_shown_without_secrets_and_functions():
    found = shown({"sasl.password": "hunter22", "error_cb": print, "linger.ms": 5, "a": ("x",)})
    assert found == {"a": "('x',)", "error_cb": "(callable)", "linger.ms": 5, "sasl.password": HIDDEN}


def test_the_value_of_a_secret_is_taken_out_of_every_text():
    redact = Redactor(
        {"sasl.password": "hunter22", "linger.ms": 5}, {"password": "hunter22-longer", "ssl.key.pem": "abc"}
    )
    assert redact("hunter22-longer, hunter22 and abc") == "*** and abc".replace("***", "***, ***", 1)
    assert redact.all({"a": ["x hunter22", 1, None, {"b": True}]}) == {"a": ["x ***", 1, None, {"b": True}]}
    assert Redactor({})("hunter22") == "hunter22"
