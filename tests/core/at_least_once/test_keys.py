import pytest

from outbox.core.at_least_once.keys import Key, KeyState
from outbox.core.region import UnexpectedEvent


def test_a_key_is_busy_from_its_first_record_to_the_purge_of_its_last():
    key = Key(("t", "k"), 0)
    key.take()
    key.wait("second", 1.0)
    assert key.purged(2.0) == "second"
    assert key.state is KeyState.BUSY
    assert key.purged(3.0) is None
    assert key.state is KeyState.IDLE


def test_what_is_fetched_behind_a_record_comes_next_when_that_is_purged():
    key = Key(("t", "k"), 0)
    key.take()
    for id_ in (1, 2, 3):
        key.defer(id_)
    assert key.wants_rows
    assert key.fetch(2) == [1, 2]
    assert (key.state, key.wants_rows) == (KeyState.FETCHING_BEHIND, False)
    assert key.purged(1.0) is None
    assert key.state is KeyState.FETCHING_NEXT
    key.not_fetched()
    assert (key.state, key.wants_rows) == (KeyState.IDLE, True)


def test_no_second_record_of_a_key_becomes_undecided():
    key = Key(("t", "k"), 0)
    key.take()
    with pytest.raises(KeyError):
        key.take()


def test_a_key_that_sleeps_fetches_nothing():
    key = Key(("t", "k"), 0)
    key.defer(1)
    key.sleep(5.0)
    assert not key.wants_rows
    with pytest.raises(UnexpectedEvent):
        key.fetch(1)
    key.wake()
    assert key.fetch(1) == [1]
