"""How a client ends, and what becomes of its words. No broker."""

import logging
import sys
import threading
import weakref

from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.disposal import dispose

TIMEOUT_S = 20.0


class Client:
    """Tells where it is destroyed."""

    ended = []

    def __del__(self):
        self.ended.append((threading.current_thread().name, sys.exc_info()[1]))


def disposed(first=lambda client: None):
    Client.ended = []
    held = [Client()]
    gone = weakref.ref(held[0])
    try:
        raise KeyError("is being handled by the caller")
    except KeyError:
        dispose(held, first).join(TIMEOUT_S)
    assert gone() is None
    return Client.ended


def test_a_client_ends_in_a_thread_of_its_own_where_no_exception_is_handled():
    assert disposed() == [("outbox-disposal", None)]


def test_it_ends_too_when_its_last_call_fails(caplog):
    def fail(client):
        raise ValueError("no more")

    with caplog.at_level(logging.DEBUG, "outbox"):
        assert disposed(fail) == [("outbox-disposal", None)]
    assert caplog.messages == ["dropped_client error=ValueError('no more')"]


def test_words_of_a_client_are_for_debugging_unless_they_reach_a_level(caplog):
    with caplog.at_level(logging.DEBUG, "outbox"):
        ClientLog().log(logging.CRITICAL, "%s", "a")
        ClientLog("outbox.election.librdkafka", shown_from=logging.CRITICAL).log(logging.ERROR, "%s", "b")
        ClientLog(shown_from=logging.CRITICAL).log(logging.CRITICAL, "%s", "c")
    assert caplog.record_tuples == [
        ("outbox.kafka", logging.DEBUG, "a"),
        ("outbox.election.librdkafka", logging.DEBUG, "b"),
        ("outbox.kafka", logging.CRITICAL, "c"),
    ]
