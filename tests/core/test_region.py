from enum import Enum

import pytest

from outbox.core.region import Region, Transitions, UnexpectedEvent


class Lamp(Enum):
    OFF = "off"
    ON = "on"
    BROKEN = "broken"
    LOST = "lost"


class Did(Enum):
    PRESS = "press"
    TOUCH = "touch"
    DROP = "drop"


LAMP = Transitions(
    "lamp",
    Lamp.OFF,
    {
        (Lamp.OFF, Did.PRESS): Lamp.ON,
        (Lamp.OFF, Did.TOUCH): Lamp.ON,
        (Lamp.ON, Did.PRESS): Lamp.OFF,
        (Lamp.ON, Did.DROP): Lamp.BROKEN,
    },
)


def test_a_region_follows_its_table():
    lamp = Region(LAMP)
    assert lamp.state is Lamp.OFF
    assert lamp.on(Did.PRESS) is Lamp.ON
    assert lamp.expects(Did.DROP)
    assert lamp.on(Did.DROP) is Lamp.BROKEN


def test_an_event_that_the_state_does_not_expect_is_refused_and_changes_nothing():
    lamp = Region(LAMP)
    assert not lamp.expects(Did.DROP)
    with pytest.raises(UnexpectedEvent, match="lamp: DROP cannot happen in OFF"):
        lamp.on(Did.DROP)
    assert lamp.state is Lamp.OFF


def test_a_table_names_states_that_cannot_be_reached():
    assert LAMP.unreachable() == {Lamp.LOST}


def test_a_drawing_has_one_arrow_from_a_state_to_another():
    assert list(LAMP.edges()) == [
        (Lamp.OFF, "PRESS, TOUCH", Lamp.ON),
        (Lamp.ON, "PRESS", Lamp.OFF),
        (Lamp.ON, "DROP", Lamp.BROKEN),
    ]
