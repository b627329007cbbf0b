"""The ledger's codec, the digest, and the decisions as total functions."""

import itertools
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.core.exactly_once import decisions as v
from outbox.core.exactly_once.ledger import (
    DamagedEntry,
    Entry,
    ForeignEntry,
    LedgerEntryError,
    Row,
    UnknownEntryVersion,
    decode,
    digest,
    encode,
    entry_key,
    headers,
    record_bytes,
)
from outbox.core.times import INFINITE, NONE, time_of

HERE, ELSEWHERE = UUID(int=1), UUID(int=2)
NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def entry(batch: int = 1, lane: int = 0, database: UUID = HERE, ids: tuple[int, ...] = (1, 2, 3)) -> Entry:
    return Entry(lane, batch, UUID(int=9), database, ids, 77, NOON)


int64s = st.integers(-(2**63), 2**63 - 1)
entries = st.builds(
    Entry,
    lane=st.integers(0, 10_000),
    batch=st.integers(1, 2**63 - 1),
    owner=st.uuids(),
    database=st.uuids(),
    ids=st.one_of(
        st.lists(int64s, min_size=1, max_size=60, unique=True).map(sorted).map(tuple),
        st.builds(lambda first, count: tuple(range(first, first + count)), st.integers(1, 10**12), st.integers(1, 400)),
    ),
    digest=st.integers(0, 2**63 - 1),
    read_at=st.datetimes(timezones=st.just(UTC)),
    change=st.one_of(st.just(0), st.integers(0, 2**63 - 1)),
    newest=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
)


@given(entries)
def test_an_entry_survives_the_codec(written: Entry) -> None:
    assert decode(encode(written), headers(written)) == written


@given(entries)
def test_a_release_that_does_not_look_at_headers_reads_the_rest_of_an_entry(written: Entry) -> None:
    assert decode(encode(written)) == replace(written, newest=None)


@pytest.mark.parametrize(
    "text", [None, b"", b"soon", b"-", b"--1", b"1.5", b"9" * 5_000, b"%d" % 2**63, b"%d" % -(2**63 + 1)]
)
def test_a_newest_time_that_is_none_is_damage(text: bytes | None) -> None:
    with pytest.raises(DamagedEntry, match="newest-create-time"):
        decode(encode(entry()), [("other", b"soon"), ("newest-create-time", text)])


@given(entries, st.data())
def test_a_truncated_entry_is_refused(written: Entry, data: st.DataObject) -> None:
    payload = encode(written)
    with pytest.raises(LedgerEntryError):
        decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


@given(entries, st.data())
def test_an_altered_byte_is_refused(written: Entry, data: st.DataObject) -> None:
    payload = bytearray(encode(written))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LedgerEntryError):
        decode(bytes(payload))


@given(st.binary(max_size=200))
def test_bytes_of_others_are_refused(payload: bytes) -> None:
    with pytest.raises(LedgerEntryError):
        decode(payload)


def sealed(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "big")


@given(st.binary(max_size=60))
@settings(max_examples=300)
@pytest.mark.parametrize("version", [b"\x01", b"\x02"])
def test_a_body_with_a_right_seal_is_read_canonically_or_refused(version: bytes, tail: bytes) -> None:
    payload = sealed(b"OBL" + version + struct.pack(">16s16sq", HERE.bytes, HERE.bytes, 0) + tail)
    try:
        read = decode(payload)
    except DamagedEntry:
        return
    assert encode(read) == payload, "one meaning, one spelling"


@pytest.mark.parametrize(
    ("payload", "error", "text"),
    [
        (None, ForeignEntry, "Another program writes to the ledger topic"),
        (b"", ForeignEntry, "Another program writes to the ledger topic"),
        (b'{"lane": 0}', ForeignEntry, "ledger topic of its own"),
        (b"OBL\x03" + bytes(60), UnknownEntryVersion, "format version 3, but this release reads versions up to 2"),
        (b"OBL\x01" + bytes(60), DamagedEntry, "checksum does not match"),
        (encode(entry()) + b"\0", DamagedEntry, "checksum does not match"),
        (sealed(encode(entry())[:-4] + b"\x01"), DamagedEntry, "1 bytes too many"),
        (sealed(encode(entry())[:-5]), DamagedEntry, "middle of a number"),
    ],
)
def test_each_wrong_payload_is_named(payload: bytes | None, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        decode(payload)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(entry(), ids=(2, 1)),
        replace(entry(), ids=(1, 1)),
        replace(entry(), batch=0),
        replace(entry(), batch=0, change=1),
        replace(entry(), batch=0, ids=()),
        replace(entry(), change=-1),
        replace(entry(), change=2**63),
        replace(entry(), lane=-1),
        replace(entry(), digest=2**63),
        replace(entry(), ids=(1, 2**63)),
        replace(entry(), ids=(-(2**63) - 1, 1)),
        replace(entry(), read_at=NOON.replace(tzinfo=None)),
    ],
)
def test_what_could_not_be_read_back_is_not_written(wrong: Entry) -> None:
    with pytest.raises(ValueError):
        encode(wrong)


def test_an_entry_of_5000_ids_stays_small() -> None:
    neighbours = tuple(range(10**9, 10**9 + 5_000))
    scattered = tuple(range(10**9, 10**9 + 5_000 * 2_000_000, 2_000_000))
    assert len(encode(entry(ids=neighbours))) < 5_200
    assert len(encode(entry(ids=scattered))) < 15_200


def test_the_format_is_pinned() -> None:
    """Entries of older releases stay in the topic for ever: a change of these bytes needs a new version."""
    pinned = Entry(3, 300, UUID(int=9), UUID(int=8), (5, 7, 1000), 4_000_000_000, NOON)
    assert encode(pinned).hex() == (
        "4f424c01"
        "00000000000000000000000000000009"
        "00000000000000000000000000000008"
        "00064752550dd240"
        "03ac0280d0acf30e030a02e107"
        "56477f54"
    )
    assert encode(replace(pinned, change=300)).hex() == (
        "4f424c02"
        "00000000000000000000000000000009"
        "00000000000000000000000000000008"
        "00064752550dd240"
        "03ac0280d0acf30e03ac020a02e107"
        "68fa2513"
    )
    assert entry_key(3) == b"3"


@pytest.mark.parametrize("change", [0, 7])
def test_a_batch_of_no_row_shows_who_owns_the_lane(change: int) -> None:
    hold_actions = replace(entry(), ids=(), digest=0, change=change)
    assert decode(encode(hold_actions)) == hold_actions


def test_a_change_leaves_an_entry_where_no_batch_was() -> None:
    empty = replace(entry(batch=0, ids=()), change=7)
    assert decode(encode(empty)) == empty


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    ["", ",", ":", "-", "1", "1:", "é"]
)
rows = st.builds(
    lambda id_, topic, key, value, headers, binary: (
        id_,
        topic,
        key,
        None if binary is not None else value,
        [name for name, _ in headers],
        [text for _, text in headers],
        binary,
    ),
    st.integers(-3, 12),
    texts,
    texts,
    st.none() | texts,
    st.lists(st.tuples(texts, texts), max_size=2),
    st.none() | st.binary(max_size=3),
)


def meaning(row: Row) -> tuple[object, ...]:
    """What a record says: text and binary values are the same bytes in Kafka."""
    id_, topic, key, value, names, headers, binary = row
    return id_, topic, key, binary if value is None else value.encode(), tuple(names or ()), tuple(headers or ())


@given(rows, rows)
@settings(max_examples=500)
def test_different_records_have_different_bytes(one: Row, other: Row) -> None:
    assert (record_bytes(one) == record_bytes(other)) == (meaning(one) == meaning(other))


@given(st.lists(rows, max_size=6), st.randoms())
def test_the_digest_is_the_sum_of_the_checksums_in_any_order(batch: list[Row], random: object) -> None:
    assert digest(batch) == digest(batch[::-1]) == sum(crc32(record_bytes(row)) for row in batch)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((7, "t", "k", "v", None, None, None), b"7,1,1:tkv"),
        ((7, "t", "", "", None, None, None), b"7,1,0:t"),
        ((7, "t", "", None, [], [], None), b"7,1,0-t"),
        ((7, "t", "é", "ü", None, None, None), "7,1,1:téü".encode()),
        ((7, "t", "k", "v", ["h", "hh"], ["", "x"], None), b"7,1,1,1,0,2,1:tkhhhxv"),
        ((7, "t", "k", None, None, None, b"\xff\x00"), b"7,1,1:tk\xff\x00"),
    ],
)
def test_the_bytes_of_a_record_are_pinned(row: Row, expected: bytes) -> None:
    assert record_bytes(row) == expected
    assert digest([row]) == crc32(expected)


# Decisions

OPEN = v.StateRow(lane_count=1)


def facts(purged: int, found: Entry | None, again: int | None = None, rows: v.Rows | None = None) -> v.Facts:
    return v.Facts(0, HERE, OPEN, purged, found, purged if again is None else again, rows)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (facts(0, None), v.NothingToDo(0)),
        (facts(4, entry(4)), v.NothingToDo(4)),
        (facts(4, entry(5)), v.LookUpRows(entry(5))),
        (facts(4, entry(5), rows=v.Rows.ALL), v.PurgeEntry(entry(5))),
        (facts(4, entry(5), rows=v.Rows.NONE), v.MoveOnly(entry(5))),
        (facts(4, entry(6), again=5), v.AskElection()),
        (facts(4, None, again=5), v.AskElection()),
        (facts(4, entry(4, database=ELSEWHERE), again=5), v.AskElection()),
        (replace(facts(4, entry(4)), state=v.StateRow(1, resize_to=3)), v.Closed(3)),
        (replace(facts(4, entry(4)), state=v.StateRow(1, resize_to=3), settling=True), v.NothingToDo(4)),
        (replace(facts(4, entry(4)), newest_change=1), v.Closed(1)),
        (replace(facts(4, entry(4)), newest_change=1, settling=True), v.NothingToDo(4)),
        (replace(facts(4, entry(4)), newest_change=1, state=v.StateRow(1, resize_no=1)), v.NothingToDo(4)),
        (replace(facts(0, None), lane=1), v.Idle(1)),
        (replace(facts(0, None), lane=1, settling=True), v.NothingToDo(0)),
    ],
)
def test_the_decision_of_a_takeover(read: v.Facts, expected: v.Decision) -> None:
    assert v.takeover(read) == expected


@pytest.mark.parametrize(
    ("read", "why", "both_sides", "option", "absent"),
    [
        (facts(4, None), v.Why.LEDGER_WENT_BACK, ["batch 4", "no entry"], "--resend", "with either"),
        (facts(4, entry(3)), v.Why.LEDGER_WENT_BACK, ["batch 4", "batch 3"], "--resend", "with either"),
        (facts(4, entry(6)), v.Why.DATABASE_WENT_BACK, ["batch 4", "batch 6"], "--delete-sent", "--adopt"),
        (facts(0, entry(2)), v.Why.DATABASE_WENT_BACK, ["batch 0", "batch 2"], "--delete-sent", "--adopt"),
        (facts(4, entry(4, database=ELSEWHERE)), v.Why.FOREIGN_DATABASE, [str(HERE), str(ELSEWHERE)], "--adopt", "?"),
        (facts(4, entry(4, lane=2)), v.Why.OTHER_LANE, ["lane 0", "lane 2"], "--resend", "with either"),
        (
            facts(4, entry(5), rows=v.Rows.SOME),
            v.Why.ROWS_INCOMPLETE,
            ["3 rows", "only some"],
            "--delete-sent",
            "--adopt",
        ),
        (facts(4, entry(5), rows=v.Rows.DIFFERENT), v.Why.ROWS_DIFFERENT, ["3 ids", "77"], "--delete-sent", "--adopt"),
    ],
)
def test_a_stop_names_both_sides_and_the_remedy(
    read: v.Facts, why: v.Why, both_sides: list[str], option: str, absent: str
) -> None:
    stop = v.takeover(read)
    assert isinstance(stop, v.Stop)
    assert stop.why is why
    assert all(side in stop.text for side in both_sides), stop.text
    assert "manage.py outbox_resolve --lane 0 with " in stop.text
    assert option in stop.text
    assert absent not in stop.text


def test_the_number_of_a_change_counts_only_in_its_own_database() -> None:
    written = replace(entry(), change=7)
    assert v.change_of(written, HERE) == 7
    assert v.change_of(written, ELSEWHERE) == v.change_of(None, HERE) == 0


def test_the_decision_is_total_and_acts_only_one_batch_ahead() -> None:
    numbers = range(5)
    ledger = [None, *(entry(n, lane, db) for n in (1, 2, 3, 4) for lane in (0, 1) for db in (HERE, ELSEWHERE))]
    states = [v.StateRow(1), v.StateRow(1, resize_to=2)]
    for m, found, again, rows_found, state, settling, lane in itertools.product(
        numbers, ledger, numbers, [None, *v.Rows], states, [False, True], [0, 1]
    ):
        read = v.Facts(lane, HERE, state, m, found, again, rows_found, settling)
        answer = v.takeover(read)
        assert isinstance(answer, v.Decision)
        if isinstance(answer, v.PurgeEntry | v.MoveOnly | v.LookUpRows):
            assert found is answer.entry
            assert (answer.entry.batch, answer.entry.database, answer.entry.lane) == (m + 1, HERE, lane)
            assert m == again
        if isinstance(answer, v.NothingToDo):
            assert m == again == answer.batch


@pytest.mark.parametrize(
    ("count", "found_digest", "newest", "expected"),
    [
        (0, 0, None, v.Rows.NONE),
        (2, 77, 5, v.Rows.SOME),
        (3, 77, 5, v.Rows.ALL),
        (3, 77, 4, v.Rows.DIFFERENT),
        (3, 77, 6, v.Rows.DIFFERENT),
        (3, 78, 5, v.Rows.DIFFERENT),
    ],
)
def test_rows_are_the_entrys_only_if_all_agrees(
    count: int, found_digest: int, newest: int | None, expected: v.Rows
) -> None:
    assert v.found_rows(replace(entry(), newest=5), count, found_digest, newest) is expected


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("found_digest", "newest", "expected"),
    [
        (77, time_of(NOON), v.Rows.ALL),
        (77, time_of(NOON - SECOND), v.Rows.ALL),
        (77, time_of(NOON + SECOND), v.Rows.DIFFERENT),
        (77, NONE, v.Rows.ALL),
        (77, INFINITE, v.Rows.DIFFERENT),
        (78, time_of(NOON), v.Rows.DIFFERENT),
    ],
)
def test_rows_of_an_entry_without_a_newest_time_are_no_younger_than_its_reading(
    found_digest: int, newest: int, expected: v.Rows
) -> None:
    assert v.found_rows(entry(), 3, found_digest, newest) is expected


def test_a_purge_that_moved_nothing_is_judged_by_the_purged_number() -> None:
    assert v.after_purge(entry(5), 5) == v.Purged(5)
    assert v.after_purge(entry(5), 9) == v.Purged(5)
    assert v.after_purge(entry(5), 4) == v.LookUpRows(entry(5))
    went_back = v.after_purge(entry(5), 3)
    assert isinstance(went_back, v.Stop)
    assert went_back.why is v.Why.DATABASE_WENT_BACK


@pytest.mark.parametrize(
    ("purged", "in_flight", "expected"),
    [(4, None, v.GoOn()), (4, 5, v.GoOn()), (5, 5, v.GoOn()), (5, None, v.AskElection()), (6, 5, v.AskElection())],
)
def test_a_round_goes_on_only_with_its_own_number(purged: int, in_flight: int | None, expected: object) -> None:
    assert v.round_check(0, purged, acknowledged=4, in_flight=in_flight) == expected


def test_a_round_stops_when_the_database_went_back() -> None:
    stop = v.round_check(2, 3, acknowledged=4, in_flight=5)
    assert isinstance(stop, v.Stop)
    assert stop.why is v.Why.DATABASE_WENT_BACK
    assert "batch 3" in stop.text
    assert "batch 4" in stop.text
    assert "outbox_resolve --lane 2" in stop.text


def test_ids_may_lie_as_far_apart_as_64_bits_allow() -> None:
    written = entry(ids=(-(2**63) + 1, 1, 2**63 - 1))
    assert decode(encode(written)) == written
