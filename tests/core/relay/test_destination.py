"""One destination as one relay sees it."""

import pytest

from outbox.core.relay.charging import WINDOW_S
from outbox.core.relay.circuit import DISABLE_AFTER_S, Access, AccessEvent, DestinationRow
from outbox.core.relay.destination import NEVER, TRIP, Destination, DestinationOptions
from outbox.core.relay.results import AttemptResult, Transport
from outbox.core.relay.schedule import fixed
from outbox.core.relay.settlement import FAILED, POISON, POISON_LEASES_MIN, REJECTED, Refund, Settle
from outbox.core.relay.turns import Delivery

OK, BAD, NEVER_OK, GONE, BUSY = (
    AttemptResult(200),
    AttemptResult(500),
    AttemptResult(404),
    AttemptResult(410),
    AttemptResult(429, retry_after_s=90.0),
)
REFUSED = AttemptResult(transport=Transport.CONNECT, text="refused")
OPEN = DestinationRow(5, Access.OPEN, 2.0, 3, 10.0, "refused")
LEASE_S, DEADLINE_S = 60.0, 20.0


class Relay:
    """A destination, and the time."""

    def __init__(self, **options):
        options = {"schedule": fixed(3, 10.0, jitter=0.0), "concurrency": 4} | options
        self.it = Destination(DestinationOptions("billing", lease_s=LEASE_S, deadline_s=DEADLINE_S, **options))
        self.now = 1_000.0
        self.ids = 0
        self.of = {}

    def lease(self, count=1, **given):
        ids = range(self.ids + 1, self.ids + 1 + count)
        self.ids += count
        found = [self.delivery(id_, **given) for id_ in ids]
        self.it.leased(found, self.now)
        return found

    def delivery(self, id_, **given):
        return Delivery(id_, "billing", f"t{id_}", **{"until": self.now + LEASE_S} | given)

    def begin(self):
        found = []
        while (one := self.it.next(self.now)) is not None:
            self.of[one.id] = one
            found.append(one.id)
        return found

    def answer(self, id_, result, after_s=0.1):
        self.now += after_s
        self.it.answered(self.of[id_], result, self.now, 0.0)
        return self.settled()

    def settled(self):
        return [(one.delivery.id, one.settle, one.is_charged) for one in self.it.take_settlements()]

    def send(self, result, **given):
        """One delivery, from its lease to its settlement."""
        (delivery,) = self.lease(**given)
        assert self.begin() == [delivery.id]
        ((_, settle, is_charged),) = self.answer(delivery.id, result)
        return settle, is_charged

    def write(self):
        while self.it.change:
            self.it.written()


RETRY, DEAD, RETURNED, DELIVERED = Settle.RETRY, Settle.DEAD, Settle.RETURNED, Settle.DELIVERED


# ---- who pays


def test_a_delivery_that_is_accepted_is_deleted():
    assert Relay().send(OK) == (DELIVERED, False)


def test_a_lone_delivery_to_a_dead_receiver_costs_the_destination_and_no_attempt():
    relay = Relay()
    assert relay.send(REFUSED, attempts=2) == (RETRY, False)
    assert relay.it.row.access is Access.OPEN
    assert relay.it.row.reason == "no connection was made: refused"


def test_a_failure_while_others_pass_costs_an_attempt_if_it_is_not_the_first():
    relay = Relay()
    relay.send(OK)
    assert relay.send(REFUSED) == (RETRY, False)
    assert relay.it.row.access is Access.CLOSED
    relay.now += 1.0
    assert relay.send(REFUSED, leased_at=relay.now, failed_s=1.0) == (RETRY, False), "no other was accepted meanwhile"
    relay.send(OK)
    assert relay.send(REFUSED, leased_at=relay.now, failed_s=2.0) == (RETRY, True)
    assert relay.it.row.access is Access.CLOSED


def test_the_last_attempt_of_a_message_that_alone_times_out_is_its_death():
    relay = Relay()
    relay.send(OK)
    assert relay.send(REFUSED, attempts=2, leased_at=relay.now, failed_s=1.0) == (DEAD, True)


def test_an_old_success_says_nothing():
    relay = Relay()
    relay.send(OK)
    relay.now += WINDOW_S + 1
    assert relay.send(REFUSED, leased_at=relay.now, failed_s=40.0) == (RETRY, False)
    assert relay.it.row.access is Access.OPEN


def test_errors_of_the_receiver_cost_an_attempt_and_then_the_delivery_is_dead():
    relay = Relay()
    assert [relay.send(BAD, attempts=attempts) for attempts in range(3)] == [(RETRY, True), (RETRY, True), (DEAD, True)]


def test_a_dead_delivery_says_why():
    relay = Relay()
    for attempts, result in ((2, BAD), (0, NEVER_OK)):
        relay.lease(attempts=attempts)
        (id_,) = relay.begin()
        relay.it.answered(relay.of[id_], result, relay.now, 0.0)
    reasons = [(one.reason, one.error) for one in relay.it.take_settlements()]
    assert reasons == [(FAILED, "HTTP status 500"), (REJECTED, "HTTP status 404")]


def test_a_rejected_delivery_is_dead_at_once_and_the_destination_works():
    relay = Relay()
    assert relay.send(NEVER_OK) == (DEAD, True)
    assert relay.it.row.access is Access.CLOSED


def test_a_receiver_that_is_gone_gets_nothing_more_and_the_message_keeps_its_attempts():
    relay = Relay()
    relay.lease(3)
    relay.of[1] = relay.it.next(relay.now)
    assert relay.answer(1, GONE) == [(2, RETURNED, False), (3, RETURNED, False), (1, RETRY, False)]
    assert relay.it.row.access is Access.DISABLED
    assert relay.it.quota() == 0


def test_an_address_that_is_not_allowed_is_not_tried_again():
    relay = Relay()
    assert relay.send(AttemptResult(transport=Transport.FORBIDDEN, text="10.0.0.1")) == (RETRY, False)
    assert relay.it.row.access is Access.DISABLED


# ---- the circuit


def test_many_deliveries_that_fail_in_a_row_open_it_and_their_attempts_are_given_back():
    relay = Relay()
    assert [relay.send(BAD) for _ in range(TRIP - 1)] == [(RETRY, True)] * (TRIP - 1)
    assert relay.it.take_refunds() == []
    assert relay.send(BAD) == (RETRY, True)
    assert relay.it.row.access is Access.OPEN
    assert relay.it.take_refunds() == [Refund(id_, f"t{id_}") for id_ in range(1, TRIP + 1)]
    assert relay.it.take_refunds() == []


def test_one_delivery_that_fails_again_and_again_opens_nothing():
    relay = Relay(schedule=fixed(50, 1.0))
    for _ in range(40):
        relay.it.leased([relay.delivery(7)], relay.now)
        relay.begin()
        relay.answer(7, BAD)
    assert relay.it.row.access is Access.CLOSED


@pytest.mark.parametrize("answer", [OK, NEVER_OK])
def test_an_answer_ends_a_row_of_failures(answer):
    relay = Relay()
    for _ in range(3):
        for _ in range(TRIP - 1):
            relay.send(BAD)
        relay.send(answer)
    assert relay.it.row.access is Access.CLOSED
    assert relay.it.take_refunds() == []


def test_attempts_of_dead_deliveries_are_not_given_back():
    relay = Relay()
    relay.send(BAD, attempts=2)
    for _ in range(TRIP - 1):
        relay.send(BAD)
    assert [refund.id for refund in relay.it.take_refunds()] == [2, 3, 4, 5]


def test_attempts_are_given_back_also_when_another_relay_has_opened_it():
    relay = Relay()
    relay.send(BAD)
    relay.it.read(OPEN, relay.now)
    assert relay.it.take_refunds() == [Refund(1, "t1")]


def test_failures_from_before_it_was_open_do_not_count_when_it_is_closed_again():
    relay = Relay()
    relay.lease(4)
    relay.begin()
    relay.it.read(OPEN, relay.now)
    for id_ in (1, 2, 3, 4):
        assert relay.answer(id_, BAD) == [(id_, RETRY, False)]
    relay.it.read(DestinationRow(9), relay.now)
    assert relay.send(BAD) == (RETRY, True)
    assert relay.it.row.access is Access.CLOSED


def test_while_it_is_open_nothing_begins_and_what_was_leased_goes_back():
    relay = Relay()
    relay.lease(3)
    relay.it.read(OPEN, relay.now)
    assert relay.settled() == [(1, RETURNED, False), (2, RETURNED, False), (3, RETURNED, False)]
    relay.lease()
    assert relay.settled() == [(4, RETURNED, False)]
    assert relay.begin() == []
    assert relay.it.quota() == 0


def test_failures_while_it_is_open_cost_nothing_and_change_nothing():
    relay = Relay()
    relay.lease(2)
    relay.begin()
    relay.it.read(OPEN, relay.now)
    assert relay.answer(1, REFUSED) == [(1, RETRY, False)]
    assert relay.answer(2, BAD) == [(2, RETRY, False)]
    assert (relay.it.row, relay.it.change) == (OPEN, None)


def test_a_success_that_was_under_way_closes_it():
    relay = Relay()
    relay.lease()
    relay.begin()
    relay.it.read(OPEN, relay.now)
    relay.answer(1, OK)
    assert relay.it.row == DestinationRow(6)
    assert relay.it.change.event is AccessEvent.SUCCEEDED


def test_a_receiver_that_asks_for_a_pause_gets_it():
    relay = Relay()
    relay.lease()
    relay.begin()
    relay.it.answered(relay.of[1], BUSY, relay.now, 0.0)
    (settlement,) = relay.it.take_settlements()
    assert (settlement.pause_s, relay.it.row.wait_s) == (90.0, 90.0)


def test_a_message_that_is_not_charged_waits_for_the_first_pause_of_its_schedule():
    relay = Relay(schedule=fixed(3, 7.0, jitter=0.0))
    relay.lease(attempts=2)
    relay.begin()
    relay.it.answered(relay.of[1], REFUSED, relay.now, 0.0)
    (settlement,) = relay.it.take_settlements()
    assert (settlement.is_charged, settlement.pause_s, settlement.error) == (
        False,
        7.0,
        "no connection was made: refused",
    )


# ---- the probe


def probing():
    relay = Relay()
    relay.it.read(OPEN, relay.now)
    relay.now += OPEN.wait_s
    change = relay.it.wants_probe(relay.now)
    relay.it.probe_taken(change, relay.now)
    return relay


def test_a_probe_begins_after_the_pause_and_not_before():
    relay = Relay()
    relay.it.read(OPEN, relay.now)
    assert relay.it.wants_probe(relay.now + OPEN.wait_s - 0.1) is None
    change = relay.it.wants_probe(relay.now + OPEN.wait_s)
    assert (change.expected, change.event, change.after.wait_s) == (5, AccessEvent.PROBED, LEASE_S)


def test_a_destination_that_works_needs_no_probe():
    relay = Relay()
    relay.it.read(DestinationRow(3), relay.now)
    assert relay.it.wants_probe(relay.now) is None


def test_the_probe_of_another_relay_is_waited_for_as_long_as_its_lease():
    relay = Relay()
    relay.it.read(DestinationRow(6, Access.PROBING, LEASE_S, 3, 10.0), relay.now)
    assert relay.it.quota() == 0
    assert relay.it.wants_probe(relay.now + LEASE_S - 1) is None
    assert relay.it.wants_probe(relay.now + LEASE_S) is not None


def test_of_a_probe_one_delivery_is_sent():
    relay = probing()
    assert relay.it.quota() == 1
    relay.lease(3)
    assert relay.begin() == [1]
    assert relay.it.quota() == 0
    assert relay.it.wants_probe(relay.now + 1_000) is None


def test_a_probe_that_is_accepted_lets_everything_go_on():
    relay = probing()
    relay.lease()
    relay.begin()
    assert relay.answer(1, OK) == [(1, DELIVERED, False)]
    assert relay.it.row == DestinationRow(7)
    assert relay.it.quota() > 1


def test_a_rejected_probe_shows_that_the_receiver_answers():
    relay = probing()
    relay.lease()
    relay.begin()
    assert relay.answer(1, NEVER_OK) == [(1, DEAD, True)]
    assert relay.it.row.access is Access.CLOSED


@pytest.mark.parametrize("result", [REFUSED, BAD])
def test_a_probe_that_fails_costs_no_attempt_and_the_next_one_is_later(result):
    relay = probing()
    relay.lease(attempts=2)
    relay.begin()
    assert relay.answer(1, result) == [(1, RETRY, False)]
    assert (relay.it.row.access, relay.it.row.failures) == (Access.OPEN, OPEN.failures + 1)
    assert relay.it.quota() == 0


def test_a_failure_from_before_is_not_the_probes():
    relay = Relay()
    relay.lease()
    relay.begin()
    relay.it.read(OPEN, relay.now)
    relay.now += OPEN.wait_s
    relay.it.probe_taken(relay.it.wants_probe(relay.now), relay.now)
    relay.lease()
    assert relay.begin() == [2]
    relay.answer(1, REFUSED)
    assert relay.it.row.access is Access.PROBING
    relay.answer(2, OK)
    assert relay.it.row.access is Access.CLOSED


def test_a_probe_without_a_delivery_goes_back():
    relay = probing()
    relay.it.leased([], relay.now)
    assert relay.it.change.event is AccessEvent.RETURNED
    assert relay.it.row.access is Access.OPEN
    relay.write()
    assert relay.it.wants_probe(relay.now) is not None


def test_days_of_nothing_but_failures_disable_it_at_the_next_failed_probe():
    relay = Relay()
    relay.it.read(OPEN, relay.now)
    relay.now += DISABLE_AFTER_S
    relay.it.probe_taken(relay.it.wants_probe(relay.now), relay.now)
    relay.lease()
    relay.begin()
    assert relay.answer(1, REFUSED) == [(1, RETRY, False)]
    assert relay.it.row.access is Access.DISABLED
    assert relay.it.wants_probe(relay.now + 1e9) is None


# ---- the row


def test_what_is_read_does_not_undo_a_change_that_is_not_written_yet():
    relay = Relay()
    relay.send(REFUSED)
    relay.it.read(DestinationRow(), relay.now)
    assert relay.it.row.access is Access.OPEN
    relay.write()
    relay.it.read(DestinationRow(2), relay.now)
    assert relay.it.row == DestinationRow(2)


def test_changes_are_written_in_order_each_on_the_one_before():
    relay = Relay()
    relay.lease(2)
    relay.begin()
    relay.answer(1, REFUSED)
    relay.answer(2, OK)
    found = []
    while relay.it.change:
        found.append((relay.it.change.expected, relay.it.change.event))
        relay.it.written()
    assert found == [(0, AccessEvent.FAILED), (1, AccessEvent.SUCCEEDED)]


def test_after_another_relay_has_written_the_row_its_view_counts():
    relay = probing()
    relay.lease()
    relay.begin()
    relay.answer(1, OK)
    relay.it.overtaken()
    assert relay.it.change is None
    relay.it.read(DestinationRow(9, Access.OPEN, 5.0, 4, 1.0), relay.now)
    assert relay.it.quota() == 0


def test_a_probe_that_another_relay_has_taken_over_is_ours_no_more():
    relay = probing()
    relay.it.read(DestinationRow(8, Access.PROBING, LEASE_S, 3, 10.0), relay.now)
    assert relay.it.quota() == 0


# ---- leases


def test_a_delivery_that_could_not_end_within_its_lease_goes_back():
    relay = Relay()
    relay.lease(2)
    relay.now += LEASE_S - DEADLINE_S
    assert relay.begin() == []
    assert relay.settled() == [(1, RETURNED, False), (2, RETURNED, False)]


def test_its_key_goes_back_with_it_in_order():
    relay = Relay()
    relay.lease(2, key="k")
    relay.now += LEASE_S - DEADLINE_S
    assert relay.begin() == []
    assert [id_ for id_, *_ in relay.settled()] == [1, 2]


def test_a_lease_is_at_least_twice_the_deadline():
    with pytest.raises(AssertionError):
        DestinationOptions("billing", deadline_s=31.0, lease_s=60.0)


def test_no_more_are_under_way_than_the_destination_allows():
    relay = Relay(concurrency=2)
    relay.lease(5)
    assert relay.begin() == [1, 2]
    relay.answer(1, OK)
    assert relay.begin() == [3]
    assert (relay.it.under_way, relay.it.held) == (2, 4)


def test_the_quota_follows_how_fast_the_destination_is():
    relay = Relay(concurrency=2)
    assert relay.it.quota() == 2
    relay.lease()
    relay.begin()
    relay.answer(1, OK, after_s=1.0)
    assert relay.it.quota() == 30


def test_a_delivery_that_has_ended_many_relays_is_dead_before_it_is_sent():
    relay = Relay()
    relay.it.leased([relay.delivery(1, leases=POISON_LEASES_MIN + 1)], relay.now)
    (settlement,) = relay.it.take_settlements()
    assert (settlement.settle, settlement.reason) == (DEAD, POISON)
    assert relay.begin() == []


def test_a_delivery_that_the_relay_still_sends_may_be_leased_by_it_once_more():
    """The relay stood still for longer than its lease."""
    relay = Relay()
    relay.it.leased([relay.delivery(1)], relay.now)
    first = relay.it.next(relay.now)
    again = Delivery(1, "billing", "other", until=relay.now + LEASE_S, leases=2)
    relay.it.leased([again], relay.now)
    assert relay.it.next(relay.now) == again
    for one in (first, again):
        relay.it.answered(one, OK, relay.now, 0.0)
    assert [one.delivery for one in relay.it.take_settlements()] == [first, again]


# ---- ordered keys


def test_of_a_key_the_next_begins_when_the_one_before_is_accepted():
    relay = Relay()
    relay.lease(3, key="k")
    assert relay.begin() == [1]
    relay.answer(1, OK)
    assert relay.begin() == [2]


def test_a_failure_sends_the_later_ones_of_its_key_back():
    relay = Relay()
    relay.lease(3, key="k")
    relay.begin()
    assert relay.answer(1, BAD) == [(1, RETRY, True), (2, RETURNED, False), (3, RETURNED, False)]


@pytest.mark.parametrize(("blocks", "begun"), [(True, []), (False, [2])])
def test_a_dead_delivery_blocks_its_key_or_not(blocks, begun):
    relay = Relay(dead_blocks_key=blocks)
    relay.lease(2, key="k")
    relay.begin()
    relay.answer(1, NEVER_OK)
    assert relay.begin() == begun


# ---- rate


def test_a_rate_limit_spaces_deliveries():
    relay = Relay(rate=10.0)
    granted = relay.it.grant(3, 0.5)
    relay.it.leased([relay.delivery(1), relay.delivery(2), relay.delivery(3)], relay.now, granted)
    assert relay.begin() == []
    assert relay.it.next_at == relay.now + 0.5
    relay.now += 0.5
    assert relay.begin() == [1]
    relay.now += 0.11
    assert relay.begin() == [2]
    relay.now += 5.0
    assert relay.begin() == [3], "and not several at once after a pause"


def test_a_later_lease_does_not_delay_an_earlier_one():
    relay = Relay(rate=10.0)
    relay.it.leased([relay.delivery(1), relay.delivery(2)], relay.now, relay.it.grant(2, 0.0))
    relay.it.leased([relay.delivery(3)], relay.now, relay.it.grant(1, 5.0))
    assert relay.begin() == [1]
    relay.now += 0.11
    assert relay.begin() == [2]
    relay.now += 1.0
    assert relay.begin() == []
    relay.now += 4.0
    assert relay.begin() == [3]


def test_what_waits_for_a_place_does_not_wait_for_a_time():
    relay = Relay(rate=10.0, concurrency=1)
    relay.lease(2)
    assert relay.begin() == [1]
    relay.now += 5.0
    assert relay.it.next_at == NEVER
    relay.answer(1, OK)
    assert relay.it.next_at <= relay.now


def test_without_a_rate_limit_nothing_waits_for_a_time():
    relay = Relay()
    assert relay.it.grant(3, 0.5) is None
    relay.lease(2)
    assert relay.it.next_at == NEVER
