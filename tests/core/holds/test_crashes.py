"""Who is to blame when harvesters die."""

import pytest

from outbox.core.holds.book import Holds
from outbox.core.holds.crashes import Care, CrashNote, CrashReport, Watch, after, note_of, report_of


def died(*started, suspected=(), crashes=1):
    return Watch("a", False, crashes, started, suspected)


def test_in_health_nobody_is_careful():
    assert after(None, "b") == Care()
    assert after(Watch("a", True, 0, ()), "b") == Care()


def test_the_first_death_makes_careful_and_blames_nobody():
    assert after(died(crashes=0), "b") == Care(True, 1)
    assert after(died(), "b") == Care(True, 1), "nor do more of them, as long as no batch was begun"


def test_what_a_careful_owner_had_begun_is_suspected():
    assert after(died(4, 5, 6), "b") == Care(True, 2, (4, 5, 6))
    assert after(died(4, suspected=(4, 5, 6), crashes=2), "b") == Care(True, 3, (4,))


def test_a_death_between_two_batches_leaves_the_suspects():
    assert after(died(suspected=(4, 5), crashes=2), "b") == Care(True, 2, (4, 5))


def test_a_record_alone_is_blamed_for_its_second_death():
    once = after(died(4), "b")
    assert once == Care(True, 2, (4,)), "operators and machines kill too"
    assert after(died(4, suspected=once.suspects, crashes=once.crashes), "c").poison == 4
    assert after(died(5, suspected=once.suspects, crashes=once.crashes), "c").poison is None, "another one"


def test_an_owner_that_takes_its_own_lane_over_again_blames_nobody():
    assert after(Watch("b", False, 2, (4,), (4,)), "b") == Care(True, 2), "it knows by itself what it suspects"


@pytest.mark.parametrize(
    "found",
    [
        Watch("a", False, 2, (4,), (4, 5), is_alive=True),
        Watch("a", True, 2, (4,), (4, 5)),
        Watch("b", True, 2, (), (4, 5)),
    ],
)
def test_an_owner_that_lives_or_ended_well_blames_nobody_and_clears_nobody(found):
    assert after(found, "b") == Care(True, 2, (4, 5))


def died_of(poison, batch):
    """Deaths until the poison record is known, when every batch that holds it is the end of its owner."""
    found, deaths = Watch("0", False, 0, ()), 1
    while (care := after(found, str(deaths))).poison is None:
        suspects = care.suspects or batch
        half = suspects if len(suspects) == 1 or not care.suspects else suspects[: len(suspects) // 2]
        if poison not in half:
            half = suspects[len(half) :]
        found, deaths = Watch(str(deaths), False, care.crashes, half, care.suspects), deaths + 1
    return care.poison, deaths


@pytest.mark.parametrize("poison", [1, 37, 100])
def test_every_cause_is_found_in_few_deaths(poison):
    blamed, deaths = died_of(poison, tuple(range(1, 101)))
    assert blamed == poison
    assert deaths <= 3 + 7


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (None, CrashNote.OWNS),
        (Watch("a", True, 0, ()), CrashNote.OWNS),
        (Watch("a", False, 2, (4,)), CrashNote.OWNS),
        (Watch("b", True, 0, ()), CrashNote.OWNS),
        (Watch("b", False, 1, (4,)), CrashNote.BEGAN_NOTHING),
        (Watch("b", False, 1, ()), CrashNote.NONE),
    ],
)
def test_the_table_says_who_owns_the_lane_and_that_it_has_begun_nothing(found, note):
    assert note_of(found, "b") is note


@pytest.mark.parametrize(
    ("found", "care", "is_first", "report"),
    [
        (died(4), Care(True, 3, (), 4), False, CrashReport.POISON),
        (died(), Care(True, 1), True, CrashReport.UNCLEAN),
        (died(), Care(True, 1), False, CrashReport.NONE),
        (died(crashes=0), Care(), True, CrashReport.NONE),
        (Watch("a", True, 2, ()), Care(True, 2), True, CrashReport.NONE),
        (None, Care(), True, CrashReport.NONE),
    ],
)
def test_an_unclean_end_is_reported_once_and_a_poison_record_always(found, care, is_first, report):
    assert report_of(found, care, is_first=is_first) is report


@pytest.mark.parametrize(
    ("is_careful", "suspects", "delivered", "expected"),
    [(True, (), 1, True), (True, (), 0, False), (True, (4, 5), 1, False), (False, (), 1, False)],
)
def test_a_lane_calms_down_after_records_of_which_none_is_suspected(is_careful, suspects, delivered, expected):
    holds = Holds()
    holds.be_careful(is_careful)
    if suspects:
        holds.suspect(suspects)
    assert holds.may_calm_down(delivered) is expected
    assert holds.must_record is is_careful
