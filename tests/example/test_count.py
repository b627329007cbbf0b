"""The count of the demo of two services: it finds each fault that it is there for."""

from decimal import Decimal

import pytest

from example_project.chain.count import Counted, Found, compare

ORDERS = {1: Decimal("1.00"), 2: Decimal("2.00")}
BOTH = [(1, Decimal("1.00")), (2, Decimal("2.00"))]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (BOTH, Found(2, 0, 0, 0, 0)),
        (BOTH[:1], Found(1, 1, 0, 0, 0)),
        ([*BOTH, BOTH[1], BOTH[1]], Found(4, 0, 2, 0, 0)),
        ([*BOTH, (3, Decimal("3.00"))], Found(3, 0, 0, 1, 0)),
        ([BOTH[0], (2, Decimal("1.99"))], Found(2, 0, 0, 0, 1)),
    ],
)
def test_rows_are_compared_with_the_orders(rows, found):
    assert compare(ORDERS, rows) == found
    assert found.is_right == (rows is BOTH)


def counted(**changes):
    right = compare(ORDERS, BOTH)
    return Counted(**{"orders": 2, "not_paid": 0, "payments": right, "receipts": right, "seconds": 4.0, **changes})


def test_all_must_be_right():
    wrong = compare(ORDERS, BOTH[:1])
    assert counted(delays_s=[]).is_right(2)
    assert not counted(delays_s=[]).is_right(3)
    for fault in ({"not_paid": 1}, {"payments": wrong}, {"receipts": wrong}):
        assert not counted(delays_s=[], **fault).is_right(2)


def test_rate_and_delays():
    found = counted(delays_s=[number / 100 for number in range(101)])
    assert found.rate == 0.5
    assert (found.delay_s(0.5), found.delay_s(0.99)) == (0.5, 0.99)
