"""Which messages a lane takes, and what it gives back."""

from outbox.core.graphs.inputs import LaneInputs
from outbox.core.graphs.steps import Step  # noqa: F401
from tests.core.graphs.graphs import alts, fetched, join, many, offsets, processor

PIPE = processor(batch=10)


def inputs(of, positions=None, **messages):
    found = LaneInputs(of)
    found.place(positions or dict.fromkeys(of.topics, 0))
    for topic, numbers in messages.items():
        found.received(many(topic, *numbers))
    return found


def taken(found):
    return [] if found is None else offsets(found.steps)


def test_a_pipe_takes_each_message():
    found = inputs(PIPE, orders=[0, 1, 4])
    assert taken(found.take(2)) == [(("orders", 0),), (("orders", 1),)]
    assert taken(found.take(2)) == [(("orders", 4),)]
    assert found.take(2) is None


def test_a_join_waits_for_all_of_its_inputs():
    found = inputs(join(), orders=[0, 1, 2])
    assert found.take(10) is None
    found.received(many("stock", 5, 9))
    assert taken(found.take(10)) == [(("orders", 0), ("stock", 5)), (("orders", 1), ("stock", 9))]
    assert found.waiting == 1


def test_an_alts_takes_turns_and_remembers_them():
    found = inputs(alts(), web=[0, 1, 2], shop=[0])
    first = found.take(10)
    assert taken(first) == [(("shop", 0),), (("web", 0),), (("web", 1),), (("web", 2),)]
    assert first.choice == (("shop", 1), ("web", 3))
    found.received(many("shop", 1))
    found.received(many("web", 3))
    assert found.take(1).choice == (("shop", 1),)
    assert found.take(1).choice == (("web", 1),)


def test_a_choice_is_taken_again_whatever_else_is_there():
    found = inputs(alts(), shop=[0, 1, 2])
    choice = (("web", 1), ("shop", 1))
    assert found.take(10, choice) is None, "the message of web is not there yet"
    found.received(many("web", 0, 1))
    assert taken(found.take(10, choice)) == [(("web", 0),), (("shop", 0),)]


def test_of_a_choice_as_much_is_taken_as_is_wanted():
    found = inputs(alts(), web=[0, 1], shop=[0])
    assert taken(found.take(1, (("web", 2), ("shop", 1)))) == [(("web", 0),)]


def test_what_is_given_back_comes_first_again_all_inputs_together():
    found = inputs(join(), orders=[0, 1, 2], stock=[0, 1])
    first = found.take(10)
    found.give_back(first.steps, {"orders": 0, "stock": 0})
    found.received(many("stock", 2))
    assert taken(found.take(10)) == [(("orders", at), ("stock", at)) for at in range(3)]


def test_what_was_fetched_serves_after_a_takeover_if_it_reaches_back_far_enough():
    found = inputs(PIPE, orders=[0, 1, 2])
    found.give_back(found.take(2).steps, {"orders": 0})
    assert found.place({"orders": 1})
    assert taken(found.take(10)) == [(("orders", 1),), (("orders", 2),)]
    assert found.place({"orders": 3})
    assert not found.place({"orders": 2}), "that was consumed, and is not there any more"
    assert not found.place({"orders": 9})
    found.received(many("orders", 3, 9))
    assert taken(found.take(10)) == [(("orders", 9),)], "what is before the position is left out"


def test_an_input_that_was_consumed_makes_all_be_read_again():
    found = inputs(join(), orders=[0, 1], stock=[0, 1])
    found.take(1)
    assert not found.place({"orders": 0, "stock": 1})
    assert found.waiting == 0


def test_an_input_that_has_enough_is_full():
    found = inputs(processor(batch=2), orders=[0, 1, 2])
    assert found.full == frozenset()
    found.received(many("orders", 3))
    assert found.full == {"orders"}


def test_many_bytes_are_enough_too():
    found = inputs(join())
    found.received([fetched("orders", at, value=b"x" * 20_000_000) for at in (0, 1)])
    assert found.full == {"orders"}


def test_positions_are_behind_what_was_taken():
    found = inputs(join(), orders=[3, 5], stock=[0, 1])
    assert found.take(1).reached({"orders": 0, "stock": 0}) == {"orders": 4, "stock": 1}
