"""The names of reasons, and the pauses between attempts."""

from outbox.core.holds import values
from outbox.models import DeadLetter, Hold


def test_reasons_and_what_operators_want_are_those_of_the_tables():
    assert {*values.OF_RECORDS, *values.BY_OPERATORS} == set(Hold.Reason.values)
    assert {values.REJECTED, values.POISON, values.SKIPPED} == set(DeadLetter.Reason.values)
    assert {values.RETRY, values.SKIP, values.DISCARD} == set(Hold.Wanted.values)


def test_pauses_double_from_half_a_second_to_a_minute():
    assert [values.pause_s(attempts) for attempts in range(1, 10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert values.pause_s(0) == values.pause_s(1)  # not counted, as the record was not sent alone
    assert values.pause_s(1_000_000) == 60
    assert [values.pause_s(count, 0.1, 2) for count in (1, 5, 6)] == [0.1, 1.6, 2]


def test_a_record_is_given_up_after_as_many_attempts_as_its_topic_allows():
    assert not values.is_given_up(2, 3)
    assert values.is_given_up(3, 3)
    assert values.is_given_up(4, 3)
    assert not values.is_given_up(1_000, 0)  # never


def test_the_name_of_an_error_is_found_in_its_text():
    assert values.code_in("KafkaError{code=MSG_SIZE_TOO_LARGE,val=10}") == "MSG_SIZE_TOO_LARGE"
    assert values.code_in("unequal numbers of names and values") == ""
    assert values.code_in("A WORD IN CAPITALS is no name") == ""
