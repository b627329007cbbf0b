"""What the result of an attempt speaks of."""

import pytest

from outbox.core.relay.results import AttemptCause, AttemptResult, Transport, cause_of

STATUSES = {
    AttemptCause.DELIVERED: (200, 201, 202, 204, 299),
    AttemptCause.DESTINATION: (301, 302, 307, 308, 408, 429, 502, 503, 504),
    AttemptCause.REJECTED: (400, 401, 403, 404, 405, 409, 413, 418, 422, 451, 499),
    AttemptCause.GONE: (410,),
    AttemptCause.MESSAGE: (425, 500, 501, 505, 507, 520, 599),
}
TRANSPORTS = {
    AttemptCause.DESTINATION: (Transport.RESOLVE, Transport.CONNECT, Transport.TLS, Transport.TIMEOUT),
    AttemptCause.MESSAGE: (Transport.BROKEN,),
    AttemptCause.FORBIDDEN: (Transport.FORBIDDEN,),
}


@pytest.mark.parametrize(
    ("cause", "status"), [(cause, status) for cause, found in STATUSES.items() for status in found]
)
def test_a_status_has_its_cause(cause, status):
    assert cause_of(status) is AttemptResult(status).cause is cause


@pytest.mark.parametrize("transport", Transport)
def test_an_attempt_without_a_status_has_its_cause(transport):
    assert transport in TRANSPORTS[AttemptResult(transport=transport).cause]


def test_an_error_names_what_was_seen():
    assert AttemptResult(503, text="try later").error == "HTTP status 503: try later"
    assert AttemptResult(500).error == "HTTP status 500"
    assert AttemptResult(transport=Transport.CONNECT, text="refused").error == "no connection was made: refused"
