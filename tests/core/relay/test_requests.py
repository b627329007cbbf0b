"""The HTTP request of a delivery."""

import pytest

from outbox.core.relay.requests import InvalidHeader, request_headers, require_header
from outbox.core.relay.signatures import objection

KEY = bytes(range(32))
GIVEN = {"content_type": "application/json", "event": "order.paid", "attempt": 3, "others": {}}


def test_a_request_is_signed_and_says_what_it_is():
    headers = request_headers([KEY], "id-1", 1_700_000_000, b"{}", **{**GIVEN, "others": {"X-Tenant": "a"}})
    assert objection([KEY], headers, b"{}", 1_700_000_000) is None
    del headers["webhook-signature"]
    assert headers == {
        "User-Agent": "outbox-relay",
        "X-Tenant": "a",
        "Content-Type": "application/json",
        "webhook-id": "id-1",
        "webhook-timestamp": "1700000000",
        "Idempotency-Key": "id-1",
        "Outbox-Event": "order.paid",
        "Outbox-Attempt": "3",
    }


def test_an_endpoint_may_replace_the_user_agent():
    headers = request_headers([KEY], "id", 1, b"", **{**GIVEN, "others": {"user-agent": "shop"}})
    assert [value for name, value in headers.items() if name.lower() == "user-agent"] == ["shop"]


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "Expect", "Connection", "Webhook-Id", "webhook-signature",
     "Outbox-Event", "Content-Type", "idempotency-key", "Proxy-Authorization", "", "a b", "a:b", "a\r\nb", "ä"],
)  # fmt: skip
def test_headers_of_the_relay_and_invalid_names_are_refused(name):
    with pytest.raises(InvalidHeader):
        require_header(name, "x")


@pytest.mark.parametrize("value", ["a\r\nHost: evil", "a\nb", "\0", "ä", "\x7f"])
def test_a_value_that_could_end_the_header_is_refused_and_not_named(value):
    with pytest.raises(InvalidHeader, match="The value of the header X-Key contains") as raised:
        require_header("X-Key", value)
    assert value not in str(raised.value)


@pytest.mark.parametrize("field", ["content_type", "event"])
def test_the_same_is_true_of_the_type_and_the_event_of_a_message(field):
    with pytest.raises(InvalidHeader):
        request_headers([KEY], "id", 1, b"", **{**GIVEN, field: "a\r\nHost: evil"})


def test_a_header_of_an_endpoint_is_checked_with_the_request():
    with pytest.raises(InvalidHeader):
        request_headers([KEY], "id", 1, b"", **{**GIVEN, "others": {"Host": "evil"}})
