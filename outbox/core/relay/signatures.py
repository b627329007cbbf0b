"""Signatures of the specification Standard Webhooks, version v1: HMAC-SHA256 over id, time and body. Pure.

While a secret is replaced there are several: the sender signs with each, and the receiver accepts any.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from enum import Enum

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64
TOLERANCE_S = 300
SIGNATURES_MAX = 16
"""Of one header; a receiver compares no more."""
_VERSION = "v1,"


class InvalidSecret(ValueError):
    """The text does not contain the secret: it may be logged."""


class Objection(Enum):
    """Why a receiver refuses a message."""

    HEADER_MISSING = "a header webhook-id, webhook-timestamp or webhook-signature is missing"
    ID_INVALID = "the header webhook-id contains a dot"
    TIMESTAMP_INVALID = "the header webhook-timestamp is not a number of seconds"
    TOO_OLD = "the time of the message is too long ago"
    TOO_NEW = "the time of the message is in the future"
    NO_MATCH = "no signature fits the message and the secrets"


def secret_bytes(secret: str) -> bytes:
    """The key of a secret as people write it: base64 of 24 to 64 bytes, with or without the prefix `whsec_`."""
    text = secret.removeprefix(PREFIX)
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSecret("The secret is not base64. Generate one with 24 to 64 random bytes.") from None
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        raise InvalidSecret(
            f"The secret has {len(key)} bytes. Generate one with {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} random bytes."
        )
    return key


def secret_text(key: bytes) -> str:
    return PREFIX + b64encode(key).decode()


def sign(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header, with one signature for each key."""
    assert keys, "a message without a signature is not sent"
    assert "." not in message_id, "the parts that are signed are separated by it"
    content = _content(message_id, timestamp, body)
    return " ".join(_VERSION + b64encode(_hmac(key, content)).decode() for key in keys)


def signed_headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: sign(keys, message_id, timestamp, body)}


def objection(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float, tolerance_s: float = TOLERANCE_S
) -> Objection | None:
    """None: the message is genuine and recent. `headers` have lower-case names.

    The time is part of what is signed, so its limits count only with a signature that fits. Every signature is compared
    with every key in constant time.
    """
    message_id, timestamp, given = (headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not (message_id and timestamp and given):
        return Objection.HEADER_MISSING
    if "." in message_id:  # a part of the body of another signed message could be its time
        return Objection.ID_INVALID
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return Objection.TIMESTAMP_INVALID
    if not _is_signed(keys, _content(message_id, timestamp, body), given):
        return Objection.NO_MATCH
    if int(timestamp) < now - tolerance_s:
        return Objection.TOO_OLD
    return Objection.TOO_NEW if int(timestamp) > now + tolerance_s else None


def _is_signed(keys: Sequence[bytes], content: bytes, given: str) -> bool:
    found = [text.removeprefix(_VERSION).encode() for text in given.split(" ") if text.startswith(_VERSION)]
    expected = [b64encode(_hmac(key, content)) for key in keys]
    matches = [hmac.compare_digest(one, two) for one in expected for two in found[:SIGNATURES_MAX]]
    return any(matches)


def _content(message_id: str, timestamp: int | str, body: bytes) -> bytes:
    return f"{message_id}.{timestamp}.".encode() + body


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()
