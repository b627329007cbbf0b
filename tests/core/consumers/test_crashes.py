"""Who is suspected after a death, and until when."""

import pytest

from outbox.core.consumers.crashes import (
    RELEASED,
    SUSPECT_MAX,
    Caution,
    PartitionOwner,
    Suspicion,
    after,
    mark_of,
    named,
    stopped,
)

CALM = Suspicion()


def owner(**given):
    return PartitionOwner(**{"owner": "other", "is_clean": False, "next": 10, **given})


@pytest.mark.parametrize(
    ("found", "position", "expected"),
    [
        (None, 10, CALM),
        (owner(is_clean=True), 10, CALM),
        (owner(is_alive=True), 10, CALM),
        (owner(owner="me"), 10, CALM),
        (owner(), 11, CALM),
        (owner(), 10, Suspicion(True)),
        (owner(begun=RELEASED), 50, Suspicion(True)),
        (owner(begun=12), 12, Suspicion(True, 12, 1)),
        (owner(begun=12, suspect=11, deaths=1), 12, Suspicion(True, 12, 1)),
        (owner(begun=12, suspect=12, deaths=1), 12, Suspicion(True, 12, 2, poison=12)),
        (owner(begun=3, suspect=3, deaths=1), 12, Suspicion(True, 3, 2, poison=3)),
        (owner(suspect=3, deaths=2, is_clean=True), 12, Suspicion(True, 3, 2, poison=3)),
        (owner(suspect=3, deaths=2, is_alive=True, begun=5), 12, Suspicion(True, 3, 2, poison=3)),
        (owner(suspect=12, deaths=1), 12, Suspicion(True, 12, 1)),
        (owner(suspect=12, deaths=1, is_clean=True), 12, Suspicion(True, 12, 1)),
        (owner(suspect=12, deaths=1, is_alive=True, begun=12), 12, Suspicion(True, 12, 1)),
        (owner(suspect=12, deaths=1, owner="me"), 12, Suspicion(True, 12, 1)),
    ],
)
def test_what_the_next_owner_concludes(found, position, expected):
    assert after(found, "me", position) == expected


def test_who_starts_a_consumer_again_that_stopped_at_poison_has_the_message_tried_once_more():
    written = stopped(Suspicion(True, 12, 2, poison=12))
    assert after(owner(suspect=written.suspect, deaths=written.deaths), "me", 12) == Suspicion(True, 12, 1)
    died = owner(begun=12, suspect=written.suspect, deaths=written.deaths)
    assert after(died, "me", 12).poison == 12


def test_messages_are_recorded_for_a_while():
    caution = Caution(2)
    caution.record(10)
    assert caution.recorded == 10
    assert not caution.clears(10)
    caution.passed(10)
    assert (caution.is_careful, caution.recorded, caution.clears(11)) == (True, None, True)
    caution.passed(11)
    assert not caution.is_careful
    assert not Caution().is_careful


def test_they_are_recorded_until_the_suspect_has_passed():
    caution = Caution(1, suspect=5)
    caution.passed(10)
    assert caution.is_careful
    assert (caution.clears(11), caution.clears(5)) == (False, True)
    caution.passed(5)
    assert not caution.is_careful


def test_a_suspect_that_never_comes_is_given_up():
    caution = Caution(1, suspect=5)
    for offset in range(10, 10 + SUSPECT_MAX + 1):
        assert caution.is_careful
        caution.passed(offset)
    assert not caution.is_careful


def test_a_held_message_has_a_name_that_no_offset_is():
    assert mark_of(1) < RELEASED
    assert [named(mark) for mark in (None, 0, 12, mark_of(1), mark_of(70))] == [None, "0", "12", "held-1", "held-70"]
    found = owner(begun=mark_of(7), suspect=mark_of(7), deaths=1)
    assert after(found, "me", 12) == Suspicion(True, mark_of(7), 2, poison=mark_of(7))
