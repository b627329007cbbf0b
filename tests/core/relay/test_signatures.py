"""Signatures of the specification Standard Webhooks."""

import pytest

from outbox.core.relay.signatures import (
    ID,
    SIGNATURE,
    SIGNATURES_MAX,
    TIMESTAMP,
    InvalidSecret,
    Objection,
    objection,
    secret_bytes,
    secret_text,
    sign,
    signed_headers,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
MESSAGE, TIME = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330
KEY, OTHER = secret_bytes(SECRET), bytes(range(32))


def headers(**changed):
    return {**signed_headers([KEY], MESSAGE, TIME, BODY), **changed}


def test_a_signature_is_that_of_the_specifications_example():
    assert sign([KEY], MESSAGE, TIME, BODY) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_secret_signs():
    assert sign([KEY, OTHER], MESSAGE, TIME, BODY).split(" ") == [
        sign([KEY], MESSAGE, TIME, BODY),
        sign([OTHER], MESSAGE, TIME, BODY),
    ]


@pytest.mark.parametrize("keys", [[KEY], [OTHER, KEY], [KEY, OTHER]])
def test_any_secret_of_a_receiver_fits(keys):
    assert objection(keys, headers(), BODY, TIME) is None


@pytest.mark.parametrize("keys", [[KEY], [OTHER]])
def test_a_receiver_with_the_old_or_the_new_secret_accepts_while_it_is_replaced(keys):
    assert objection(keys, signed_headers([OTHER, KEY], MESSAGE, TIME, BODY), BODY, TIME) is None


def test_signatures_of_other_versions_are_passed_over():
    given = "v1a,xyz v2,abc " + sign([KEY], MESSAGE, TIME, BODY)
    assert objection([KEY], headers(**{SIGNATURE: given}), BODY, TIME) is None


@pytest.mark.parametrize(
    ("changed", "body", "now", "found"),
    [
        ({ID: ""}, BODY, TIME, Objection.HEADER_MISSING),
        ({TIMESTAMP: ""}, BODY, TIME, Objection.HEADER_MISSING),
        ({SIGNATURE: ""}, BODY, TIME, Objection.HEADER_MISSING),
        ({ID: "other"}, BODY, TIME, Objection.NO_MATCH),
        ({ID: f"{MESSAGE}.{TIME}"}, BODY, TIME, Objection.ID_INVALID),
        ({TIMESTAMP: str(TIME + 1)}, BODY, TIME, Objection.NO_MATCH),
        ({TIMESTAMP: "-1"}, BODY, TIME, Objection.TIMESTAMP_INVALID),
        ({TIMESTAMP: "1e9"}, BODY, TIME, Objection.TIMESTAMP_INVALID),
        ({TIMESTAMP: "²"}, BODY, TIME, Objection.TIMESTAMP_INVALID),
        ({TIMESTAMP: "9" * 5_000}, BODY, TIME, Objection.TIMESTAMP_INVALID),
        ({}, BODY + b" ", TIME, Objection.NO_MATCH),
        ({SIGNATURE: "v1,"}, BODY, TIME, Objection.NO_MATCH),
        ({SIGNATURE: "v1,é"}, BODY, TIME, Objection.NO_MATCH),
        ({SIGNATURE: "v1a," + "A" * 43 + "="}, BODY, TIME, Objection.NO_MATCH),
        ({}, BODY, TIME + 300, None),
        ({}, BODY, TIME + 301, Objection.TOO_OLD),
        ({}, BODY, TIME - 300, None),
        ({}, BODY, TIME - 301, Objection.TOO_NEW),
    ],
)
def test_a_receiver_objects_to_what_is_not_genuine_or_not_recent(changed, body, now, found):
    assert objection([KEY], headers(**changed), body, now) is found


def test_a_part_of_a_signed_body_cannot_become_the_time():
    body = b"1614265330.rest"
    signed = sign([KEY], "a", 1, body)
    forged = {ID: "a.1", TIMESTAMP: "1614265330", SIGNATURE: signed}
    assert objection([KEY], forged, b"rest", TIME) is Objection.ID_INVALID


def test_a_receiver_compares_a_limited_number_of_signatures():
    wrong = ["v1," + "A" * 43 + "="] * SIGNATURES_MAX
    given = " ".join([*wrong, sign([KEY], MESSAGE, TIME, BODY)])
    assert objection([KEY], headers(**{SIGNATURE: given}), BODY, TIME) is Objection.NO_MATCH


def test_a_receiver_without_a_secret_accepts_nothing():
    assert objection([], headers(), BODY, TIME) is Objection.NO_MATCH


def test_a_secret_has_a_prefix_or_not_and_padding_or_not():
    assert secret_bytes(SECRET.removeprefix("whsec_")) == KEY
    assert secret_bytes(secret_text(OTHER).rstrip("=")) == OTHER
    assert secret_text(KEY) == SECRET


@pytest.mark.parametrize("secret", ["", "whsec_", "short", "whsec_" + "A" * 30, "A" * 90, "ß" * 40, "!" * 40])
def test_a_secret_that_is_unfit_is_refused_and_not_named(secret):
    with pytest.raises(InvalidSecret) as raised:
        secret_bytes(secret)
    assert not secret.removeprefix("whsec_") or secret not in str(raised.value)
