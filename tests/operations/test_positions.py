"""Which database is asked for the positions of a consumer."""

import pytest
from django.utils.connection import ConnectionDoesNotExist

from outbox import conf
from outbox.operations import positions

DECLARED = {"shop.record": "default", "shop.other": "nowhere"}


def set_latest(consumer, **given):
    return positions.set_positions(conf.current(), DECLARED, consumer, "orders", "latest", actor="me", **given)


def test_the_alias_of_the_consumer_is_asked(transactional_db):
    current = conf.current()
    assert positions.show(current, DECLARED, "shop.record") == []
    assert positions.show(current, DECLARED, "shop.other", database="default") == []
    for asked in (None, "shop.other", "shop.unknown"):
        with pytest.raises(ConnectionDoesNotExist, match="nowhere"):
            positions.show(current, DECLARED, asked)
    with pytest.raises(ConnectionDoesNotExist, match="nowhere"):
        set_latest("shop.other")


def test_a_name_that_nothing_has_is_refused(transactional_db):
    for ask in (
        lambda: positions.show(conf.current(), DECLARED, "shop.recrod", database="default"),
        lambda: set_latest("shop.recrod"),
    ):
        with pytest.raises(
            positions.PositionRefused, match=r"called 'shop.recrod'. Known consumers: shop.other, shop.rec"
        ):
            ask()
