"""What becomes of a message that has failed, and in which order held messages are tried."""

from itertools import pairwise

import pytest

from outbox.core.consumers import holding
from outbox.core.consumers.blame import MessageFailed
from outbox.core.consumers.holding import (
    BACKOFF_MAX_S,
    FAILED,
    NOT_YET,
    POISON,
    Fate,
    Release,
    StoredMessage,
    Tries,
    fate,
    holds,
    is_dead,
    is_published,
    pause,
)
from outbox.core.consumers.values import DEAD_LETTER, HOLD, STOP, ConsumerOptions, Fetched

OPTIONS = ConsumerOptions("shop.orders", attempts=3, backoff_s=2.0)
NO = MessageFailed("no")
LATER = MessageFailed("later", until_s=60.0)


# ---- what becomes of it


@pytest.mark.parametrize(
    ("tries", "failed", "expected"),
    [
        (Tries(), NO, Fate(FAILED, 1, 0, "no", 2.0)),
        (Tries(1), NO, Fate(FAILED, 2, 0, "no", 4.0)),
        (Tries(2), NO, Fate(FAILED, 3, 0, "no", None)),
        (Tries(7), NO, Fate(FAILED, 8, 0, "no", None)),
        (Tries(), LATER, Fate(NOT_YET, 0, 1, "later", 2.0)),
        (Tries(1, 4, 59.9), LATER, Fate(NOT_YET, 1, 5, "later", 32.0)),
        (Tries(1, 4, 60.0), LATER, Fate(FAILED, 2, 4, "later", 4.0)),
        (Tries(2, 4, 60.0), LATER, Fate(FAILED, 3, 4, "later", None)),
        (Tries(), MessageFailed("died", is_poison=True), Fate(POISON, 1, 0, "died", None)),
        (Tries(), MessageFailed("later", 60.0, retry_s=0.5), Fate(NOT_YET, 0, 1, "later", 0.5)),
    ],
)
def test_a_failure_costs_an_attempt_and_a_delay_does_not(tries, failed, expected):
    assert fate(OPTIONS, tries, failed, 1.0) == expected


def test_pauses_grow_to_a_limit_and_are_scattered():
    pauses = [pause(2.0, before, 1.0) for before in range(40)]
    assert all(earlier <= later for earlier, later in pairwise(pauses))
    assert pauses[-1] == BACKOFF_MAX_S
    assert pause(2.0, 0, 0.0) == 1.0


REST, AGAIN = Fate(FAILED, 3, 0, "no", None), Fate(FAILED, 1, 0, "no", 2.0)
POISONED = Fate(POISON, 3, 0, "no", None)


@pytest.mark.parametrize(
    ("given", "leaves", "dies", "is_sent"),
    [
        ({"on_error": HOLD}, True, False, False),
        ({"on_error": DEAD_LETTER}, True, True, False),
        ({"on_error": "", "error_topic": "errors"}, True, True, True),
        ({"on_error": STOP}, False, False, False),
    ],
)
def test_on_error_decides_when_it_is_not_tried_again(given, leaves, dies, is_sent):
    options = ConsumerOptions("shop.orders", **given)
    assert (holds(options), is_dead(options, REST), is_published(options, REST)) == (leaves, dies, is_sent)
    for found in (AGAIN, POISONED):
        assert not is_dead(options, found)
        assert not is_published(options, found)


# ---- a release


def row(id_, key=b"k"):
    return StoredMessage(id_, Fetched("orders", 0, id_, 0, key, b"", (), 0), Tries())


def test_later_ones_of_a_key_wait_for_one_that_fails_again():
    release, rows = Release(), [row(1), row(2), row(3, b"x"), row(4, None), row(5, None)]
    release.taken(rows, is_full=False)
    release.failed(rows[0], AGAIN, leaves=False)
    release.failed(rows[3], AGAIN, leaves=False)
    assert [one.id for one in rows[1:] if release.is_blocked(one)] == [2]
    assert (release.changes.failed, release.changes.heads) == ({1: AGAIN, 4: AGAIN}, {})


def test_the_next_one_of_a_key_is_tried_when_the_one_before_is_gone():
    release, rows = Release(), [row(1), row(2, b"x"), row(3, None)]
    release.handled(rows[0])
    release.failed(rows[1], REST, leaves=True)
    release.handled(rows[2])
    assert release.changes.gone == [1, 3]
    assert list(release.changes.heads) == [b"k", b"x"]
    assert not any(map(release.is_blocked, rows))


def test_parts_are_bounded_by_their_bytes_and_rows():
    third = holding.BYTES_MAX // 3
    sizes = [third] * 4 + [10 * third, 1, third]
    parts = [list(part) for part in holding.in_parts(iter(sizes), int)]
    assert parts == [[third] * 3, [third], [10 * third], [1, third]]
    assert [len(part) for part in holding.in_parts([1] * 1_001, int)] == [500, 500, 1]
    assert list(holding.in_parts([], int)) == []


def test_there_may_be_more_when_half_of_what_is_asked_for_was_taken():
    row = holding.StoredMessage(1, Fetched("t", 0, 0, 0, None, b"v", (), 0), Tries())
    large = row._replace(message=row.message._replace(value=bytes(holding.BYTES_MAX // 2)))
    assert [holding.is_full(rows, 4) for rows in ([], [row], [row] * 2, [large])] == [False, False, True, True]
