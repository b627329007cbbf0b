"""The HTTP request of a delivery. Pure: the time is an argument."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from outbox.core.relay.signatures import signed_headers

USER_AGENT = "outbox-relay"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_OURS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "expect",
        "upgrade",
        "te",
        "trailer",
        "idempotency-key",
    }
)


class InvalidHeader(ValueError):
    """Names the header, and not its value, which may be a secret."""


def require_header(name: str, value: str) -> None:
    """Raises `InvalidHeader` unless an endpoint may have this header."""
    if not _NAME.fullmatch(name):
        raise InvalidHeader(f"{name!r} is not a name of an HTTP header. Use letters, digits and hyphens.")
    if name.lower() in _OURS or name.lower().startswith(("webhook-", "outbox-", "proxy-")):
        raise InvalidHeader(f"The relay sets the header {name} itself. Remove it from the endpoint.")
    if not _VALUE.fullmatch(value):
        raise InvalidHeader(f"The value of the header {name} contains a control character or is not ASCII.")


def request_headers(
    keys: Sequence[bytes],
    message_id: str,
    timestamp: int,
    body: bytes,
    *,
    content_type: str,
    event: str,
    attempt: int,
    others: Mapping[str, str],
) -> dict[str, str]:
    """All headers of the request, but Host and Content-Length. Raises `InvalidHeader`."""
    for name, value in others.items():
        require_header(name, value)
    for name, value in (("Content-Type", content_type), ("Outbox-Event", event)):
        if not _VALUE.fullmatch(value):
            raise InvalidHeader(f"The value of the header {name} contains a control character or is not ASCII.")
    own = {} if any(name.lower() == "user-agent" for name in others) else {"User-Agent": USER_AGENT}
    return {
        **own,
        **others,
        "Content-Type": content_type,
        **signed_headers(keys, message_id, timestamp, body),
        "Idempotency-Key": message_id,
        "Outbox-Event": event,
        "Outbox-Attempt": str(attempt),
    }
