"""Which lines of the client's log mean that an EndTxn may still be under way. No broker: the lines are the client's."""

import pytest

from outbox.edges.kafka.exactly_once.transactional import Witness, is_trouble

STATES = (
    *("INIT", "DOWN", "TRY_CONNECT", "CONNECT", "SSL_HANDSHAKE", "APIVERSION_QUERY", "AUTH_LEGACY", "AUTH_HANDSHAKE"),
    *("AUTH_REQ", "UP", "UPDATE", "REAUTH"),
)
NOT_CONNECTED = {"INIT", "DOWN", "TRY_CONNECT", "CONNECT"}
UP = {"UP", "UPDATE", "REAUTH"}


def failed(state, broker="TxnCoordinator"):
    return f"[thrd:{broker}]: {broker}: Disconnected: connection reset by peer (after 3ms in state {state})"


def logged(*lines):
    log = Witness()
    for line in lines:
        if line == "begin":
            log.is_in_use = True
        else:
            log.log(6, "%s %s %s", "FAIL", "rdkafka#producer-1", line)
    return log


@pytest.mark.parametrize("state", STATES)
def test_the_coordinator_counts_as_soon_as_there_was_a_connection(state):
    assert is_trouble("FAIL", failed(state), False) == (state not in NOT_CONNECTED)


@pytest.mark.parametrize("state", STATES)
def test_another_broker_counts_when_it_was_up(state):
    assert is_trouble("FAIL", failed(state, "127.0.0.1:9092/1"), False) == (state in UP)


def test_a_request_that_timed_out_counts_and_other_lines_do_not():
    assert is_trouble("REQTMOUT", "[thrd:TxnCoordinator]: Timed out EndTxnRequest in flight", False)
    assert not is_trouble("GETPID", failed("UP"), True)


def test_down_counts_after_a_connection():
    assert not logged("begin", failed("DOWN")).trouble
    assert not logged("begin", failed("CONNECT"), failed("DOWN")).trouble
    after = logged("begin", failed("APIVERSION_QUERY", "127.0.0.1:9092/1"), failed("DOWN"))
    assert "in state DOWN" in after.trouble
    assert not logged("begin", failed("APIVERSION_QUERY", "127.0.0.1:9092/1"), failed("CONNECT")).trouble


def test_a_line_before_the_first_transaction_hides_its_equal_and_is_kept_apart():
    early = logged(failed("APIVERSION_QUERY"))
    assert (early.trouble, "APIVERSION_QUERY" in early.hides) == ("", True)
    assert "in state UP" in logged(failed("UP")).trouble
    assert "APIVERSION_QUERY" in logged("begin", failed("APIVERSION_QUERY")).trouble


def test_the_first_line_of_trouble_is_kept():
    assert "in state UP" in logged("begin", failed("UP"), failed("AUTH_REQ")).trouble
