"""What a Kafka client raises."""

import ctypes
import weakref

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from outbox.edges.kafka.common.clients import make, raising


def raise_no_exception():
    """As the client does it in C."""
    set_error = ctypes.pythonapi.PyErr_SetObject
    set_error.argtypes, set_error.restype = [ctypes.py_object, ctypes.py_object], None
    set_error(KafkaError, KafkaError(KafkaError._FENCED, "fenced", fatal=True))


@pytest.mark.skipif("sys.version_info >= (3, 12)", reason="nothing but exceptions can be raised there")
def test_an_error_that_is_no_exception_can_be_caught():
    uncaught = True
    try:
        try:
            raise_no_exception()
        except BaseException:
            uncaught = False
    except:  # noqa: E722
        pass
    assert uncaught, "the control"
    with pytest.raises(KafkaException) as caught:
        raising(raise_no_exception)()
    assert caught.value.args[0].name() == "_FENCED"
    assert caught.value.__context__ is None


def test_other_errors_and_results_pass():
    assert raising(int)("7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        raising(int)("x")


def test_an_error_does_not_keep_its_client():
    client = make(Producer, {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "x", "log_level": 0})
    with pytest.raises(KafkaException) as caught:
        client.init_transactions(0.01)
    is_gone = weakref.ref(client)
    del client
    assert is_gone() is None, caught


def test_every_call_that_serves_callbacks_is_guarded():
    client = make(Producer, {"bootstrap.servers": "127.0.0.1:1", "log.connection.close": False})
    assert isinstance(client, Producer)
    for name in ("poll", "flush", "init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"):
        assert getattr(type(client), name) is not getattr(Producer, name)
