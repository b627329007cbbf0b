"""Rows of held messages on a real PostgreSQL: kept in order, tried from the first one of each key, changed as operators
ask."""

import uuid

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from outbox.core.consumers.holding import (
    BYTES_MAX,
    DISCARD,
    FAILED,
    NOT_YET,
    RETRY,
    ROWS_MAX,
    SKIP,
    Fate,
    Kept,
    Release,
)
from outbox.core.consumers.values import DEAD_LETTER, ConsumerOptions, Fetched, Partition
from outbox.edges.postgres.consumers.held import HeldMessages
from outbox.models import ConsumerHold, OutboxRecord

ONE, TWO = Partition("orders", 0), Partition("orders", 1)
HELD = HeldMessages("outbox")
LATER, NEVER, NOW = 60.0, None, 0.0


@pytest.fixture
def options(transactional_db):
    return ConsumerOptions(f"shop.{uuid.uuid4().hex[:8]}")


def message(offset, key=b"k", *, partition=0, value=b"v", headers=()):
    return Fetched("orders", partition, offset, 3, key, value, headers, 1_700_000_000_000)


def failed(pause_s=NOW, *, attempts=1, reason=FAILED, error="it failed"):
    return Fate(reason, attempts, 0, error, pause_s)


def keep(options, *kept):
    """Pairs of message and fate; without a fate it waits."""
    with transaction.atomic():
        return HELD.keep(connection, options, [Kept(one, "id", fate) for one, fate in kept])


def take(options, partition=ONE, limit=50):
    with transaction.atomic():
        return HELD.take(connection, options.name, partition, limit)


def offsets(rows):
    return [row.message.offset for row in rows]


def change(options, partition=ONE, *, gone=(), **fates):
    """`fates` by offset, as `o5=...`."""
    with transaction.atomic():
        rows = HELD.take(connection, options.name, partition, 50)
        release = Release()
        release.taken(rows, is_full=False)
        for row in rows:
            if row.message.offset in gone:
                release.handled(row)
            elif fate := fates.get(f"o{row.message.offset}"):
                release.failed(row, fate, leaves=fate.pause_s is None and options.on_error != "hold")
        HELD.change(connection, options, partition, release)


def row(options, offset):
    return ConsumerHold.objects.get(consumer=options.name, offset=offset)


def want(options, what, *wanted):
    ConsumerHold.objects.filter(consumer=options.name, offset__in=wanted).update(wanted=what)


# ---- what is written


def test_a_message_is_kept_as_it_was_fetched(options):
    headers = (("a", b"\xff\x00"), ("b", None), ("a", b""))
    original = message(7, b"\xfe\x00key", value=b"\x00\xff", headers=headers)
    keep(options, (original, failed(attempts=2)))
    (found,) = take(options)
    assert found.message == original
    assert (found.tries.attempts, found.tries.delays) == (2, 0)


def test_a_tombstone_without_key_and_headers_is_kept_too(options):
    keep(options, (message(7, None, value=None), failed()))
    (found,) = take(options)
    assert (found.message.key, found.message.value, found.message.headers) == (None, None, ())


def test_texts_that_postgresql_does_not_take_are_made_fit(options):
    keep(options, (message(7, headers=(("na\x00me", b"v"),)), failed(error="nul \x00 and \ud800 lone")))
    assert row(options, 7).last_error == "nul \ufffd and ? lone"
    assert row(options, 7).header_names == ["na\ufffdme"]


def test_one_that_has_a_row_keeps_it(options):
    keep(options, (message(7), failed(LATER, attempts=3)))
    assert keep(options, (message(7), failed(NOW))) == []
    assert row(options, 7).attempts == 3


def test_a_dead_letter_that_is_handled_once_more_and_fails_is_held_again(options):
    dead = ConsumerOptions(options.name, on_error=DEAD_LETTER)
    keep(dead, (message(7), failed(NEVER, attempts=5)))
    assert keep(dead, (message(7), failed(NOW, attempts=1)), (message(8), None)) != []
    assert (row(options, 7).attempts, row(options, 7).died_at) == (1, None)
    assert offsets(take(options)) == [7, 8]


def test_many_are_kept_in_their_order(options):
    kept = [(message(offset), failed() if not offset else None) for offset in range(1_200)]
    ids = keep(options, *kept)
    assert ids == sorted(ids)
    assert offsets(take(options, limit=1_200)) == list(range(ROWS_MAX))


def test_a_key_longer_than_an_index_entry_is_kept(options):
    long = bytes(range(256)) * 40
    keep(options, (message(1, long), failed()), (message(2, long), None))
    assert offsets(take(options)) == [1, 2]
    with transaction.atomic():
        assert HELD.keys(connection, options.name, {ONE: [long, b"other"]}) == {ONE: frozenset({long})}


# ---- which keys are held


def test_keys_of_live_rows_are_held_in_their_own_partition_alone(options):
    keep(options, (message(1, b"a"), failed(LATER)), (message(2, b"b", partition=1), failed(NEVER)))
    dead = ConsumerOptions(options.name, on_error=DEAD_LETTER)
    keep(dead, (message(3, b"dead"), failed(NEVER)), (message(4, None), failed(LATER)))
    asked = {ONE: [b"a", b"b", b"dead"], TWO: [b"a", b"b"]}
    assert HELD.keys(connection, options.name, asked) == {ONE: frozenset({b"a"}), TWO: frozenset({b"b"})}
    assert HELD.keys(connection, "shop.another", asked) == {}


def test_whether_there_is_something_to_do(options):
    def look():
        return HELD.look(connection, options.name, [ONE, TWO])

    assert look() == {}
    keep(options, (message(1), failed(LATER)), (message(2), None))
    assert look() == {ONE: False}
    want(options, RETRY, 1)
    assert look() == {ONE: True}
    keep(options, (message(3, partition=1), failed(NOW)))
    assert look() == {ONE: True, TWO: True}


def test_one_behind_a_message_that_waits_for_an_operator_is_nothing_to_do(options):
    """A transaction would find nothing to try, and be repeated without an end."""
    dead = ConsumerOptions(options.name, on_error=DEAD_LETTER)
    keep(options, (message(1), failed(NEVER)))
    keep(dead, (message(2), failed(NEVER)), (message(3, b"other"), failed(NEVER)))
    want(options, RETRY, 2)
    assert take(options) == []
    assert HELD.look(connection, options.name, [ONE]) == {ONE: False}
    want(options, SKIP, 1)
    assert offsets(take(options)) == [2]
    assert HELD.look(connection, options.name, [ONE]) == {ONE: True}
    want(options, RETRY, 3)
    assert offsets(take(options)) == [2, 3]


def test_large_messages_are_kept_and_taken_in_parts(options):
    third = bytes(BYTES_MAX // 3 - 1_000)
    large = [message(offset, None if offset % 2 else b"k", value=third) for offset in range(1, 8)]
    huge = message(8, None, value=bytes(2 * BYTES_MAX))
    with CaptureQueriesContext(connection) as asked:
        keep(options, *((one, failed()) for one in (*large, huge)))
    assert sum("INSERT" in one["sql"] for one in asked) == 4, "three, three, one and the huge one"
    taken = []
    while rows := take(options):
        assert sum(len(row.message.value) for row in rows) <= BYTES_MAX or len(rows) == 1
        taken += offsets(rows)
        change(options, gone=offsets(rows))
    assert sorted(taken) == list(range(1, 9))
    assert [offset for offset in taken if offset in (2, 4, 6)] == [2, 4, 6]


def test_a_dead_letter_alone_is_nothing_to_do_until_it_is_wanted(options):
    dead = ConsumerOptions(options.name, on_error=DEAD_LETTER)
    keep(dead, (message(1), failed(NEVER)))
    assert HELD.look(connection, options.name, [ONE]) == {}
    want(options, RETRY, 1)
    assert HELD.look(connection, options.name, [ONE]) == {ONE: True}


# ---- which are tried


def test_the_first_of_each_key_is_tried_when_it_is_due_with_those_behind_it(options):
    keep(
        options,
        (message(1, b"a"), failed(LATER)),
        (message(2, b"b"), failed(NOW)),
        (message(3, b"a"), None),
        (message(4, b"b"), None),
        (message(5, None), failed(NOW)),
        (message(6, None), failed(LATER)),
    )
    assert sorted(offsets(take(options))) == [2, 4, 5]
    assert offsets([one for one in take(options) if one.message.key]) == [2, 4]


def test_a_limit_is_shared_by_the_keys_that_are_due(options):
    for key in range(4):
        name = f"k{key}".encode()
        keep(options, (message(key * 10, name), failed()), *[(message(key * 10 + n, name), None) for n in (1, 2, 3)])
    assert sorted(offsets(take(options, limit=8))) == [0, 1, 10, 11, 20, 21, 30, 31]
    assert len(take(options, limit=1)) == 1


def test_one_that_was_handled_lets_the_next_one_of_its_key_be_tried(options):
    keep(options, (message(1), failed()), (message(2), None), (message(3), None))
    change(options, gone=[1])
    assert offsets(take(options)) == [2, 3]
    change(options, gone=[2, 3])
    assert HELD.look(connection, options.name, [ONE]) == {}


def test_one_that_fails_again_waits_with_those_behind_it(options):
    keep(options, (message(1), failed()), (message(2), None))
    change(options, o1=failed(LATER, attempts=2, error="again"))
    assert take(options) == []
    found = row(options, 1)
    assert (found.attempts, found.last_error, [one["error"] for one in found.history]) == (2, "again", ["again"])


def test_the_history_keeps_the_latest_errors(options):
    keep(options, (message(1), failed()))
    for number in range(25):
        change(options, o1=failed(NOW, attempts=number, error=f"error {number}"))
    assert [one["error"] for one in row(options, 1).history] == [f"error {number}" for number in range(5, 25)]


def test_a_postponed_one_counts_from_when_it_was_tried_first(options):
    keep(options, (message(1), failed()), (message(2), None))
    ConsumerHold.objects.filter(consumer=options.name).update(since="2020-01-01T00:00:00Z")
    first, second = take(options)
    assert first.tries.age_s > 1e8
    assert second.tries.age_s == 0
    change(options, gone=[1], o2=failed(NOW, reason=NOT_YET))
    (found,) = take(options)
    assert 0 <= found.tries.age_s < 60


def test_attempts_that_were_not_theirs_are_given_back(options):
    dead = ConsumerOptions(options.name, on_error=DEAD_LETTER)
    ids = keep(dead, (message(1), failed(NEVER)), (message(2, b"x"), failed(LATER, attempts=3)), (message(3), None))
    HELD.give_back(connection, ids)
    assert [row(options, offset).attempts for offset in (1, 2, 3)] == [0, 2, 0]
    assert row(options, 1).died_at is None
    assert row(options, 3).next_try is None


# ---- what operators ask for


def test_a_retry_tries_at_once_also_a_dead_letter_before_its_key(options):
    dead = ConsumerOptions(options.name, on_error=DEAD_LETTER)
    keep(dead, (message(1), failed(NEVER)))
    keep(options, (message(2), failed(NOW)), (message(3), None))
    want(options, RETRY, 1)
    assert offsets(take(options)) == [1, 2, 3]
    assert (row(options, 1).wanted, row(options, 1).died_at) == ("", None)


def test_a_skip_makes_it_a_dead_letter_and_its_key_goes_on(options):
    keep(options, (message(1), failed(NEVER)), (message(2), None))
    want(options, SKIP, 1)
    assert offsets(take(options)) == [2]
    assert row(options, 1).died_at is not None


def test_a_discard_deletes_it_and_its_key_goes_on(options):
    keep(options, (message(1), failed(NEVER)), (message(2), None), (message(3, None), failed(NEVER)))
    want(options, DISCARD, 1, 3)
    assert offsets(take(options)) == [2]
    assert ConsumerHold.objects.filter(consumer=options.name).count() == 1


def test_a_skip_of_one_that_waits_leaves_the_first_alone(options):
    keep(options, (message(1), failed(LATER)), (message(2), None), (message(3), None))
    want(options, SKIP, 2)
    assert take(options) == []
    change_to_now = {"next_try": "2020-01-01T00:00:00Z"}
    ConsumerHold.objects.filter(consumer=options.name, offset=1).update(**change_to_now)
    assert offsets(take(options)) == [1, 3]


def test_requests_of_another_partition_and_consumer_are_left_alone(options):
    other = ConsumerOptions("shop.another-one")
    keep(options, (message(1, partition=1), failed(NEVER)))
    keep(other, (message(1), failed(NEVER)))
    ConsumerHold.objects.update(wanted=DISCARD)
    assert take(options) == []
    assert ConsumerHold.objects.count() == 2


# ---- a topic for errors


def test_a_message_for_the_topic_of_errors_is_stashed_with_where_it_came_from(options):
    errors = ConsumerOptions(options.name, on_error="", error_topic="errors")
    assert keep(errors, (message(7, headers=(("trace", b"t"),)), failed(NEVER, error="why"))) == []
    found = OutboxRecord.objects.get()
    headers = dict(zip(found.kafka_header_keys, found.kafka_header_values, strict=True))
    assert (found.kafka_topic, found.kafka_key, found.kafka_value) == ("errors", "k", "v")
    assert (headers["trace"], headers["error-topic"], headers["error-offset"]) == ("t", "orders", "7")
    assert (headers["error-consumer"], headers["error-reason"]) == (options.name, "why")


def test_one_that_the_topic_of_errors_cannot_take_becomes_a_dead_letter(options):
    errors = ConsumerOptions(options.name, on_error="", error_topic="errors")
    keep(errors, (message(7, b"\xff"), failed(NEVER, error="why")))
    assert OutboxRecord.objects.count() == 0
    found = row(options, 7)
    assert found.died_at is not None
    assert found.last_error.startswith("why. The topic 'errors' could not take it: ")


def test_one_whose_record_postgresql_refuses_becomes_a_dead_letter(options):
    errors = ConsumerOptions(options.name, on_error="", error_topic="errors")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE outbox ADD CONSTRAINT no_errors CHECK (kafka_topic <> 'errors')")
    try:
        keep(errors, (message(7), failed(NEVER, error="why")), (message(8, b"x"), failed(LATER)))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE outbox DROP CONSTRAINT no_errors")
    assert "no_errors" in row(options, 7).last_error
    assert row(options, 7).died_at is not None
    assert row(options, 8).died_at is None


def test_a_held_one_goes_to_the_topic_of_errors_in_the_end(options):
    errors = ConsumerOptions(options.name, on_error="", error_topic="errors")
    keep(errors, (message(1), failed(NOW)), (message(2), None))
    change(errors, o1=failed(NEVER, attempts=5))
    assert OutboxRecord.objects.get().kafka_topic == "errors"
    assert offsets(take(options)) == [2]


def test_messages_of_a_range_that_have_a_row_are_found_by_their_offsets(options):
    keep(options, (message(5), failed()), (message(7), None), (message(9), failed(NEVER)))
    keep(options, (message(5, partition=1), failed()))
    asked = [message(offset) for offset in range(5, 10)]
    found = HELD.of_offsets(connection, options.name, "orders", "id", asked)
    assert [one.offset for one in found] == [5, 7, 9]
    assert HELD.of_offsets(connection, options.name, "orders", "another id", asked) == []
    assert HELD.of_offsets(connection, options.name, "orders", "id", []) == []
