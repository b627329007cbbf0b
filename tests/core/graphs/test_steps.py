"""The identity of a step."""

from outbox.core.graphs.steps import step_hash
from outbox.core.steps import step
from tests.core.graphs.graphs import fetched


def test_it_is_made_of_positions_alone():
    order, stock = fetched("orders", 5), fetched("stock", 7)
    found = step_hash("g.p", (order, stock))
    assert found == step_hash("g.p", (order._replace(value=b"x", key=None, leader_epoch=9, timestamp_ms=0), stock))
    assert len(found) == 32
    int(found, 16)


def test_other_inputs_and_other_processors_have_others():
    order, stock = fetched("orders", 5), fetched("stock", 7)
    found = {
        step_hash("g.p", (order, stock)),
        step_hash("g.q", (order, stock)),
        step_hash("g.p", (order,)),
        step_hash("g.p", (order, stock._replace(offset=8))),
        step_hash("g.p", (order, stock._replace(partition=1))),
        step_hash("g.p", (order._replace(offset=7), stock._replace(offset=5))),
    }
    assert len(found) == 6


def test_the_order_of_a_declaration_does_not_matter():
    order, stock = fetched("orders", 5), fetched("stock", 7)
    assert step_hash("g.p", (order, stock)) == step_hash("g.p", (stock, order))


def test_a_step_of_one_message_has_the_identity_that_a_consumer_of_that_name_gives_it():
    assert step_hash("g.p", (fetched("orders", 5),)) == step("g.p", "orders", 0, 5)
