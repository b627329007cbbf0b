"""The questions to both tables of relays. The test compares answers and rows call by call. A case states the expected
answer only if it is the point of the case.
"""

from __future__ import annotations

from outbox.core.relay import circuit
from outbox.core.relay.circuit import DestinationRow
from outbox.core.relay.settlement import FAILED, REJECTED, Refund, Settle, Settlement
from outbox.core.relay.turns import Delivery
from tests.simulation.conformance.relay import LEASE_S, TOKENS, Script

LATER_S = 60.0


def ids(deliveries: list[Delivery]) -> list[int]:
    return [one.id for one in deliveries]


def retry(delivery: Delivery, *, is_charged: bool = True, pause_s: float = 0.0) -> Settlement:
    return Settlement(delivery, Settle.RETRY, is_charged, pause_s, "no")


def dead(delivery: Delivery, reason: str = FAILED, *, blocks_key: bool = False) -> Settlement:
    return Settlement(delivery, Settle.DEAD, True, error="no", reason=reason, blocks_key=blocks_key)


def delivered(delivery: Delivery) -> Settlement:
    return Settlement(delivery, Settle.DELIVERED)


def returned(delivery: Delivery) -> Settlement:
    return Settlement(delivery, Settle.RETURNED)


def a_lease_takes_the_longest_due(script: Script) -> None:
    script.post(delay_s=-5.0)
    script.post(delay_s=-9.0)
    script.post(delay_s=LATER_S)
    script.post(delay_s=-7.0)
    assert ids(script.lease(2)) == [2, 4]
    assert ids(script.lease(5, token=2)) == [1]
    assert script.lease() == []


def a_lease_takes_of_each_destination_what_is_wanted(script: Script) -> None:
    for name in ("a", "b", "c"):
        script.post(name, count=3)
    script.ask("lease", TOKENS[1], LEASE_S, {"a": 1, "c": 2, "d": 5})


def due_destinations_are_found_in_pages(script: Script) -> None:
    for name in ("a", "b", "c", "d"):
        script.post(name, delay_s=LATER_S if name == "b" else -1.0)
    script.post("c", "k")
    script.ask("due", "", 2)
    script.ask("due", "b", 2)
    script.ask("due", "d", 2)
    script.ask("due", "", 10)


def a_destination_of_which_all_is_leased_or_dead_is_not_due(script: Script) -> None:
    script.post(count=2)
    one, two = script.lease()
    script.ask("due", "", 10)
    script.ask("settle", [dead(one)])
    script.ask("due", "", 10)
    script.ask("settle", [returned(two)])
    script.ask("due", "", 10)


def a_delivery_that_is_accepted_is_gone(script: Script) -> None:
    script.post(count=3)
    one, two, three = script.lease()
    assert script.ask("settle", [delivered(one), delivered(two)]) == {1, 2}
    assert script.ask("settle", [delivered(one), delivered(three)]) == {3}


def a_delivery_that_failed_waits_for_its_next_attempt(script: Script) -> None:
    script.post(count=3)
    one, two, three = script.lease()
    script.ask("settle", [retry(one, pause_s=LATER_S), retry(two), retry(three, is_charged=False)])
    again = script.lease(token=2)
    assert [(one.id, one.attempts) for one in again] == [(2, 1), (3, 0)]
    assert all(one.failed_s is not None for one in again)


def a_dead_delivery_stays_and_is_not_leased(script: Script) -> None:
    script.post(count=2)
    one, two = script.lease()
    script.ask("settle", [dead(one), dead(two, REJECTED)])
    assert script.lease(token=2) == []
    assert script.ask("expire") == 0


def a_delivery_that_was_returned_is_as_before(script: Script) -> None:
    script.post()
    for token in (1, 2):
        (one,) = script.lease(token=token)
        assert one.leases == 1
        script.ask("settle", [returned(one)])


def an_older_token_settles_nothing(script: Script) -> None:
    script.post(count=4)
    older = script.lease(token=1)
    script.side.end_leases()
    script.ask("expire")
    for _ in older:
        script.lease_suspect(token=2)
    results = (delivered, retry, dead, returned)
    assert script.ask("settle", [result(one) for result, one in zip(results, older, strict=True)]) == set()


def a_lease_that_has_ended_makes_a_suspect(script: Script) -> None:
    script.post(count=2)
    script.lease()
    assert script.ask("expire") == 0
    script.side.end_leases()
    assert script.ask("expire") == 2
    script.ask("due", "", 10)
    assert script.lease(token=2) == []
    assert [one.leases for one in script.lease_suspect("b", "a", token=2)] == [2]
    assert script.lease_suspect("b", token=3) == []
    (one,) = script.lease_suspect(token=3)
    script.ask("settle", [returned(one)])
    (one,) = script.lease_suspect(token=4)
    script.ask("settle", [retry(one)])
    assert [one.leases for one in script.lease(token=5)] == [1]


def a_delivery_that_was_deleted_is_settled_by_nobody(script: Script) -> None:
    script.post()
    (one,) = script.lease()
    script.side.delete(one.id)
    assert script.ask("settle", [retry(one)]) == set()


def a_key_is_leased_from_its_first_delivery_on(script: Script) -> None:
    script.post(key="k", count=4)
    script.post(key="l", count=4)
    script.post()
    assert ids(script.lease_keys(4)) == [1, 2, 5, 6]
    assert script.lease_keys(token=2) == [], "the keys are taken"
    assert ids(script.lease(token=2)) == [9]


def fewer_keys_are_leased_than_there_are(script: Script) -> None:
    for key in ("c", "a", "b"):
        script.post(key=key, count=2)
    assert ids(script.lease_keys(2)) == [1, 3]


def a_first_delivery_that_waits_keeps_its_key_waiting(script: Script) -> None:
    script.post(key="k", count=3)
    one, *others = script.lease_keys()
    script.ask("settle", [*map(returned, others), retry(one, pause_s=LATER_S)])
    script.ask("due", "", 10)
    assert script.lease_keys(token=2) == []


def a_run_ends_before_a_delivery_that_is_not_due(script: Script) -> None:
    script.post(key="k", count=2)
    script.post(key="k", delay_s=LATER_S)
    script.post(key="k")
    assert ids(script.lease_keys()) == [1, 2]


def a_run_ends_before_a_delivery_that_is_leased(script: Script) -> None:
    script.post(key="k", count=3)
    one, *_ = script.lease_keys()
    script.ask("settle", [returned(one)])
    assert ids(script.lease_keys(token=2)) == [1]


def a_dead_first_delivery_blocks_its_key(script: Script) -> None:
    script.post(key="k", count=3)
    one, *others = script.lease_keys()
    script.ask("settle", [*map(returned, others), dead(one, blocks_key=True)])
    assert script.lease_keys(token=2) == []
    script.side.delete(one.id)
    assert ids(script.lease_keys(token=2)) == [2, 3]


def a_dead_first_delivery_lets_its_key_go_on(script: Script) -> None:
    script.post(key="k", count=3)
    one, *others = script.lease_keys()
    script.ask("settle", [*map(returned, others), dead(one)])
    assert ids(script.lease_keys(token=2)) == [2, 3]


def a_suspect_of_a_key_is_leased_when_it_is_the_first(script: Script) -> None:
    script.post(key="k", count=2)
    script.post(key="l", delay_s=LATER_S)
    script.lease_keys()
    script.side.end_leases()
    script.ask("expire")
    assert script.lease_keys(token=2) == []
    (one,) = script.lease_suspect(token=2)
    assert one.id == 1
    assert script.lease_suspect(token=3) == [], "the one before it is on its way"
    script.ask("settle", [delivered(one)])
    assert ids(script.lease_suspect(token=3)) == [2]


def an_attempt_is_given_back_once(script: Script) -> None:
    script.post()
    (one,) = script.lease()
    script.ask("settle", [retry(one)])
    assert script.ask("refund", [Refund(one.id, TOKENS[2])]) == 0
    assert script.ask("refund", [Refund(one.id, one.token)]) == 1
    assert script.ask("refund", [Refund(one.id, one.token)]) == 0


def an_attempt_is_not_given_back_after_another_lease(script: Script) -> None:
    script.post()
    (one,) = script.lease()
    script.ask("settle", [retry(one)])
    script.lease(token=2)
    assert script.ask("refund", [Refund(one.id, one.token)]) == 0


def an_attempt_that_was_not_charged_is_not_given_back(script: Script) -> None:
    script.post(count=2)
    one, two = script.lease()
    script.ask("settle", [retry(one, is_charged=False)])
    script.side.end_leases()
    script.ask("expire")
    assert script.ask("refund", [Refund(one.id, one.token), Refund(two.id, two.token)]) == 0


def a_dead_delivery_gets_no_attempt_back(script: Script) -> None:
    script.post()
    (one,) = script.lease()
    script.ask("settle", [dead(one)])
    assert script.ask("refund", [Refund(one.id, one.token)]) == 0


def a_destination_is_changed_by_who_has_read_its_version(script: Script) -> None:
    script.post()
    opened = circuit.failed(DestinationRow(), 1.0, "refused", 50.0)
    assert script.ask("change", "a", opened)
    assert not script.ask("change", "a", opened)
    script.ask("due", "", 10)
    later = circuit.failed(DestinationRow(5, circuit.Access.PROBING), 1.0, "refused")
    assert not script.ask("change", "a", later)
    assert not script.ask("change", "b", later), "it has no row"
    assert script.ask("change", "a", circuit.succeeded(opened.after))
    script.ask("due", "", 10)


def one_relay_gets_the_probe_when_the_pause_is_over(script: Script) -> None:
    script.post()
    opened = circuit.failed(DestinationRow(), 1.0, "refused", 50.0)
    script.ask("change", "a", opened)
    probe = circuit.probed(opened.after, LEASE_S)
    assert not script.ask("change", "a", probe)
    script.side.end_waits()
    assert script.ask("change", "a", probe)
    assert not script.ask("change", "a", probe)
    again = circuit.probed(probe.after, LEASE_S)
    assert not script.ask("change", "a", again)
    script.side.end_waits()
    assert script.ask("change", "a", again)
    assert script.ask("change", "a", circuit.failed(again.after, 1.0, "timeout"))
    script.ask("due", "", 10)


def a_rate_is_shared(script: Script) -> None:
    script.post()
    script.ask("reserve", "a", 10, 5.0)
    script.ask("due", "", 10)
    script.ask("reserve", "a", 1, 1.0)
    opened = circuit.failed(DestinationRow(), 1.0, "refused")
    assert script.ask("change", "a", opened)
    script.ask("due", "", 10)


CASES = (
    a_lease_takes_the_longest_due,
    a_lease_takes_of_each_destination_what_is_wanted,
    due_destinations_are_found_in_pages,
    a_destination_of_which_all_is_leased_or_dead_is_not_due,
    a_delivery_that_is_accepted_is_gone,
    a_delivery_that_failed_waits_for_its_next_attempt,
    a_dead_delivery_stays_and_is_not_leased,
    a_delivery_that_was_returned_is_as_before,
    an_older_token_settles_nothing,
    a_lease_that_has_ended_makes_a_suspect,
    a_delivery_that_was_deleted_is_settled_by_nobody,
    a_key_is_leased_from_its_first_delivery_on,
    fewer_keys_are_leased_than_there_are,
    a_first_delivery_that_waits_keeps_its_key_waiting,
    a_run_ends_before_a_delivery_that_is_not_due,
    a_run_ends_before_a_delivery_that_is_leased,
    a_dead_first_delivery_blocks_its_key,
    a_dead_first_delivery_lets_its_key_go_on,
    a_suspect_of_a_key_is_leased_when_it_is_the_first,
    an_attempt_is_given_back_once,
    an_attempt_is_not_given_back_after_another_lease,
    an_attempt_that_was_not_charged_is_not_given_back,
    a_dead_delivery_gets_no_attempt_back,
    a_destination_is_changed_by_who_has_read_its_version,
    one_relay_gets_the_probe_when_the_pause_is_over,
    a_rate_is_shared,
)
