"""When a delivery has ended too many relays."""

import pytest

from outbox.core.relay.settlement import POISON_LEASES_MIN, is_poison
from outbox.core.relay.turns import Delivery


@pytest.mark.parametrize(
    ("leases", "attempts", "expected"),
    [(1, 2, False), (POISON_LEASES_MIN, 2, False), (POISON_LEASES_MIN + 1, 2, True), (10, 10, False), (11, 10, True)],
)
def test_poison_is_known_by_leases_that_no_relay_settled(leases, attempts, expected):
    assert is_poison(Delivery(1, "billing", "t", leases=leases), attempts) is expected


def test_a_second_lease_without_a_settlement_makes_a_suspect():
    assert not Delivery(1, "billing", "t", leases=1).is_suspect
    assert Delivery(1, "billing", "t", leases=2).is_suspect
