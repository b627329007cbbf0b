"""Which records are probably larger than their topic takes."""

import random

from outbox.core.sizes import Sizes

NOISE = "".join(random.Random(1).choices("0123456789abcdef", k=20_000))


def test_nothing_is_large_before_anything_was_refused():
    assert not Sizes()
    assert not Sizes().exceeds("t", ["x" * 10**7])


def test_a_limit_is_compared_with_what_zlib_makes_of_a_record():
    sizes = Sizes()
    sizes.limited("t", 9_000)
    assert sizes.exceeds("t", ["k", None, NOISE])
    assert not sizes.exceeds("t", ["k", "x" * 100_000])
    assert not sizes.exceeds("t", [NOISE[:9_000]])
    assert not sizes.exceeds("other", [NOISE])
    assert sizes.least_limit(["other"]) is None
    assert sizes.least_limit(["t", "other"]) == 9_000


def test_without_compression_every_byte_counts():
    sizes = Sizes(is_compressed=False)
    sizes.limited("t", 1_000)
    assert sizes.exceeds("t", ["x" * 1_000])
    assert sizes.exceeds("t", ["ä" * 500])
    assert not sizes.exceeds("t", [b"x" * 800])


def test_the_lightest_record_that_was_refused_is_the_measure_until_a_heavier_one_is_taken():
    sizes = Sizes(is_compressed=False)
    for size in (500, 300, 400):
        sizes.refused("t", ["x" * size])
    assert [sizes.exceeds("t", ["x" * size]) for size in (299, 300)] == [False, True]
    sizes.taken("t", ["x" * 299])
    assert sizes.exceeds("t", ["x" * 300])
    sizes.taken("t", ["x" * 300])
    assert not sizes


def test_only_a_record_that_was_delivered_alone_shows_what_its_topic_takes():
    row = (1, "t", "", "x" * 300, None, None, None, 0)
    sizes = Sizes(is_compressed=False)
    sizes.delivered([row])
    sizes.refused("t", ["x" * 300])
    sizes.delivered([row, row])
    assert sizes
    sizes.delivered([row])
    assert not sizes
