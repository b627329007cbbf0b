"""In which order leased deliveries begin."""

from outbox.core.relay.turns import Delivery, Turns


def delivery(id_, key=""):
    return Delivery(id_, "billing", "t", key=key)


def taken(turns):
    found = []
    while (one := turns.next()) is not None:
        found.append(one.id)
    return found


def test_deliveries_without_a_key_begin_in_the_order_of_the_lease():
    turns = Turns()
    turns.add([delivery(1), delivery(2), delivery(3)])
    assert taken(turns) == [1, 2, 3]
    assert turns.ended(delivery(1), is_through=True) == []


def test_of_a_key_one_is_under_way_at_a_time():
    turns = Turns()
    turns.add([delivery(1, "a"), delivery(2, "a"), delivery(3, "b"), delivery(4), delivery(5, "a")])
    assert taken(turns) == [1, 3, 4]
    assert turns.ended(delivery(1, "a"), is_through=True) == []
    assert taken(turns) == [2]
    assert turns.ended(delivery(2, "a"), is_through=True) == []
    assert taken(turns) == [5]
    assert turns.ended(delivery(5, "a"), is_through=True) == []
    assert len(turns) == 0


def test_a_failure_ends_the_run_of_its_key_alone():
    turns = Turns()
    turns.add([delivery(1, "a"), delivery(2, "a"), delivery(3, "a"), delivery(4, "b"), delivery(5, "b")])
    assert taken(turns) == [1, 4]
    assert [one.id for one in turns.ended(delivery(1, "a"), is_through=False)] == [2, 3]
    assert taken(turns) == []
    turns.ended(delivery(4, "b"), is_through=True)
    assert taken(turns) == [5]


def test_a_key_may_be_leased_again_once_its_run_has_ended():
    turns = Turns()
    turns.add([delivery(1, "a")])
    taken(turns)
    turns.ended(delivery(1, "a"), is_through=False)
    turns.add([delivery(1, "a"), delivery(2, "a")])
    assert taken(turns) == [1]


def test_all_that_has_not_begun_goes_back():
    turns = Turns()
    turns.add([delivery(1, "a"), delivery(2, "a"), delivery(3, "b"), delivery(4, "b"), delivery(5)])
    assert turns.next() == delivery(1, "a")
    assert sorted(one.id for one in turns.clear()) == [2, 3, 4, 5]
    assert len(turns) == 0
    assert turns.ended(delivery(1, "a"), is_through=True) == []
    turns.add([delivery(3, "b")])
    assert taken(turns) == [3], "its key is free"


def test_the_length_counts_what_has_not_begun():
    turns = Turns()
    turns.add([delivery(1, "a"), delivery(2, "a"), delivery(3)])
    assert len(turns) == 3
    turns.next()
    assert len(turns) == 2
