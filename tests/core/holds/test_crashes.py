"""Who is to blame when harvesters die."""

import pytest

from outbox.core.holds.crashes import Care, Watch, after


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
