"""What one relay has leased, of all its destinations."""

from outbox.core.relay.circuit import Access, DestinationRow
from outbox.core.relay.destination import Destination, DestinationOptions
from outbox.core.relay.load import RelayLoad
from outbox.core.relay.quotas import LEASED_MAX
from outbox.core.relay.results import AttemptResult
from outbox.core.relay.settlement import Settle
from outbox.core.relay.turns import Delivery

OK, BAD = AttemptResult(200), AttemptResult(500)
NOW = 100.0


def load(under_way_max=1_000, **options):
    return RelayLoad(lambda name: DestinationOptions(name, **{"concurrency": 4} | options), under_way_max)


def lease(relay, name, *ids, **given):
    relay.leased(name, [Delivery(id_, name, "t", until=NOW + 60.0, **given) for id_ in ids], NOW)


def begun(relay):
    return [one.id for one in relay.begin(NOW)]


def answer(relay, name, id_, result):
    relay.answered(Delivery(id_, name, "t"), result, NOW, 0.0)


def test_every_destination_that_is_due_has_its_quota():
    relay = load()
    relay.destination("down").read(DestinationRow(2, Access.OPEN, 5.0), NOW)
    assert relay.quotas(["one", "down", "two"]) == {"one": 4, "two": 4}


def test_a_statement_leases_a_limited_number():
    relay = load(concurrency=400)
    assert relay.quotas(["a", "b", "c", "d"]) == {"a": 400, "b": 400, "c": LEASED_MAX - 800}


def test_destinations_take_turns():
    relay = load()
    lease(relay, "one", 1, 2, 3)
    lease(relay, "two", 11, 12)
    assert begun(relay) == [1, 11, 2, 12, 3]


def test_the_process_has_a_limit_and_whoever_was_first_is_last_the_next_time():
    relay = load(under_way_max=3)
    lease(relay, "one", 1, 2, 3, 4)
    lease(relay, "two", 11, 12, 13)
    assert begun(relay) == [1, 11, 2]
    assert begun(relay) == []
    for name, id_ in (("one", 1), ("two", 11), ("one", 2)):
        answer(relay, name, id_, OK)
    assert begun(relay) == [3, 12, 4]


def test_destinations_that_are_idle_are_not_asked(monkeypatch):
    relay = load()
    for number in range(50):
        relay.destination(f"idle{number}")
    lease(relay, "one", 1)
    asked = []
    next_of = Destination.next
    monkeypatch.setattr(Destination, "next", lambda one, now: asked.append(one.options.name) or next_of(one, now))
    assert begun(relay) == [1]
    assert set(asked) == {"one"}


def test_what_is_to_be_written_of_an_idle_destination_is_not_forgotten():
    relay = load()
    lease(relay, "one", 1)
    begun(relay)
    answer(relay, "one", 1, BAD)
    relay.take_settlements()
    begun(relay)
    relay.destination("one").read(DestinationRow(2, Access.OPEN, 5.0), NOW)
    begun(relay)
    assert [refund.id for refund in relay.take_refunds()] == [1]


def test_changes_of_destinations_are_collected():
    relay = load()
    lease(relay, "one", 1)
    begun(relay)
    assert relay.changes() == []
    answer(relay, "one", 1, AttemptResult(410))
    relay.take_settlements()
    begun(relay)
    assert [(name, change.after.access) for _, name, change in relay.changes()] == [("one", Access.DISABLED)]
    relay.destination("one").written()
    assert relay.changes() == []


def test_suspects_are_leased_one_by_one():
    relay = load()
    assert relay.wants_suspect
    lease(relay, "one", 1, leases=2)
    assert not relay.wants_suspect
    lease(relay, "one", 2)
    assert begun(relay) == [1, 2]
    answer(relay, "one", 2, OK)
    relay.take_settlements()
    assert not relay.wants_suspect
    answer(relay, "one", 1, BAD)
    relay.take_settlements()
    assert relay.wants_suspect


def test_a_suspect_that_goes_back_makes_way_for_another():
    relay = load()
    lease(relay, "one", 1, leases=2)
    relay.destination("one").read(DestinationRow(2, Access.OPEN, 5.0), NOW)
    assert [one.settle for one in relay.take_settlements()] == [Settle.RETURNED]
    assert relay.wants_suspect


def test_a_relay_that_stops_leases_nothing_and_gives_back_what_has_not_begun():
    relay = load(concurrency=1)
    lease(relay, "one", 1, 2)
    assert begun(relay) == [1]
    relay.stop()
    lease(relay, "two", 11)
    assert begun(relay) == []
    assert relay.quotas(["one", "two"]) == {}
    assert not relay.wants_suspect
    assert {one.delivery.id: one.settle for one in relay.take_settlements()} == dict.fromkeys((2, 11), Settle.RETURNED)
    assert (relay.held, relay.under_way) == (1, 1)
    answer(relay, "one", 1, OK)
    assert [one.settle for one in relay.take_settlements()] == [Settle.DELIVERED]
    assert relay.held == 0


def test_refunds_of_all_destinations_are_collected():
    relay = load()
    for name in ("one", "two"):
        lease(relay, name, *range(1, 6))
        begun(relay)
        for id_ in range(1, 5):
            answer(relay, name, id_, BAD)
        begun(relay)
        answer(relay, name, 5, BAD)
    assert len(relay.take_refunds()) == 10


def test_the_next_time_of_all_rate_limits_is_known():
    relay = load(rate=10.0)
    assert relay.next_at() is None
    lease(relay, "one", 1, 2)
    assert begun(relay) == [1]
    assert relay.next_at() == NOW + 0.1


def test_what_waits_for_a_place_in_the_process_does_not_wait_for_a_time():
    relay = load(under_way_max=1, rate=10.0)
    lease(relay, "one", 1, 2)
    assert begun(relay) == [1]
    assert relay.next_at() is None
