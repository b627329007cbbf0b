"""Every error of the installed client has exactly one meaning."""

import pytest
from confluent_kafka import KafkaError, libversion

from outbox.core import faults
from outbox.core.faults import Kind, in_plain_words, is_rejection, kind_of, may_hide_a_rejection


def codes_of_the_client():
    """By its attributes, and by asking it for every number: a code without an attribute would be one too."""
    named = {name for name in dir(KafkaError) if isinstance(getattr(KafkaError, name), int) and name.isupper()}
    described = {KafkaError(code).name() for code in range(-300, 1000)}
    return named | {name for name in described if not name.startswith("ERR_")}


def test_every_code_of_the_installed_client_is_classified_and_no_other():
    """When this fails after an update of confluent-kafka: put the new codes into `faults.TABLE`."""
    codes, version = codes_of_the_client(), libversion()[0]
    assert len(codes) > 180
    assert not codes - faults.KINDS.keys(), f"librdkafka {version} has codes that nobody has classified"
    assert not faults.KINDS.keys() - codes, f"librdkafka {version} has no such codes"


def test_no_code_has_two_kinds_and_every_kind_has_one():
    listed = [name for names in faults.TABLE.values() for name in names]
    assert len(listed) == len(set(listed)) == len(faults.KINDS)
    assert list(faults.TABLE) == list(Kind)
    assert all(faults.TABLE.values())


def test_any_number_that_a_broker_may_answer_has_a_kind_and_words():
    for code in range(-300, 1000):
        name = KafkaError(code).name()
        assert kind_of(name) in Kind
        assert all(in_plain_words(name))


def test_a_code_that_the_client_does_not_know_is_what_it_calls_unknown():
    assert KafkaError(999).name() == "ERR_999?"
    assert kind_of("ERR_999?") is kind_of("UNKNOWN") is Kind.UNFORESEEN
    assert not is_rejection("UNKNOWN")
    assert may_hide_a_rejection("UNKNOWN"), "the records are told apart next time"


def test_a_code_that_only_a_newer_client_knows_is_unforeseen():
    assert kind_of("_A_CODE_OF_NEXT_YEAR") is Kind.UNFORESEEN
    assert all(in_plain_words("_A_CODE_OF_NEXT_YEAR"))
    assert not is_rejection("_A_CODE_OF_NEXT_YEAR")


def test_a_time_that_a_topic_does_not_take_is_no_record_s_fault():
    assert kind_of("INVALID_TIMESTAMP") is Kind.TOPIC
    assert "clock" in in_plain_words("INVALID_TIMESTAMP")[1]


@pytest.mark.parametrize(
    "name", ["_TRANSPORT", "_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "_QUEUE_FULL"]
)
def test_an_outage_blames_nobody(name):
    assert kind_of(name) is Kind.OUTAGE
    assert not is_rejection(name)
    assert not may_hide_a_rejection(name)


def test_a_refusal_is_the_record_s_or_its_topic_s():
    assert kind_of("MSG_SIZE_TOO_LARGE") is Kind.BATCH
    assert kind_of("_INVALID_ARG") is Kind.RECORD
    assert kind_of("TOPIC_AUTHORIZATION_FAILED") is kind_of("UNKNOWN_TOPIC_OR_PART") is Kind.TOPIC
    assert all(is_rejection(name) for kind in faults.REJECTIONS for name in faults.TABLE[kind])


def test_wrong_credentials_are_no_record_s_fault():
    for name in ("SASL_AUTHENTICATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "_AUTHENTICATION"):
        assert kind_of(name) is Kind.DENIED
        assert not is_rejection(name)


def test_a_producer_in_a_wrong_state_may_hide_a_refused_record():
    """Without reports per record a refusal shows as an error of the ledger's entry or of the commit."""
    assert may_hide_a_rejection("_STATE")
    assert may_hide_a_rejection("MSG_SIZE_TOO_LARGE")
    assert not may_hide_a_rejection("_FENCED")


def test_every_refusal_has_a_next_step():
    for kind in faults.REJECTIONS | {Kind.DENIED}:
        for name in faults.TABLE[kind]:
            what, step = in_plain_words(name)
            assert what
            assert not step.startswith("do nothing"), name
    assert faults._BY_NAME.keys() <= faults.KINDS.keys()
    assert faults._BY_KIND.keys() == set(Kind)
