"""Where a reader is, what it gives out, and what it says of gaps and of bytes that are gone."""

from hashlib import sha256

import pytest

from outbox.core.journal import reading
from outbox.core.journal.chain import chained, genesis
from outbox.core.journal.fragments import Content, cut
from outbox.core.journal.reading import EMPTY, ReadCursor
from outbox.core.journal.values import Fragment, Placed


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4)


def journal(*contents):
    """Fragments one after the other; None is a gap of ten bytes."""
    rows, offset, chain = [], 0, genesis("j")
    for number, content in enumerate(contents):
        hashes = Content()
        for block in cut([content or b""], 4):
            hashes.add(block)
        end = offset + (10 if content is None else len(content))
        chain = chained(chain, offset, end, hashes.sha256)
        path = "" if content is None else f"path-{number}"
        fragment = Fragment(0, path, end - offset, hashes.sha256, hashes.report.blocks, ("a", "b"), 2)
        rows.append((Placed(f"append-{number}", fragment, offset, end, chain), content))
        offset = end
    return rows


def ask(rows, offset):
    return next((row for row in rows if row[0].end > offset), None)


def read(rows, cursor, spoil=lambda store, block: block):
    found = b""
    content = b""
    while not cursor.is_done:
        if cursor.needs:
            row = ask(rows, cursor.offset)
            if row is None:
                break
            assert cursor.found(row[0]) is None
            content = row[1]
            continue
        wanted = cursor.read
        store = cursor.replicas[0]
        given = cursor.given(store, spoil(store, content[wanted.start : wanted.start + wanted.length]))
        found += given or b""
    return found


@pytest.mark.parametrize("start", range(14))
@pytest.mark.parametrize("end", [None, *range(14)])
def test_any_range_is_read_exactly(start, end):
    rows, whole = journal(b"abcdefg", b"h", b"ijklm"), b"abcdefghijklm"
    assert read(rows, ReadCursor(start, end)) == whole[start:end]


def test_what_was_read_chains_to_what_the_journal_has():
    rows = journal(b"abcdefg", b"h")
    cursor = ReadCursor(0, chain=genesis("j"))
    read(rows, cursor)
    assert (cursor.offset, cursor.chain) == (8, rows[-1][0].chain)


def test_a_reader_resumes_within_a_fragment():
    rows = journal(b"ab", b"cdefghi")
    first = ReadCursor(0, 5, genesis("j"))
    assert read(rows, first) == b"abcde"
    again = ReadCursor(first.offset, None, first.chain)
    assert read(rows, again) == b"fghi"
    assert again.chain == rows[-1][0].chain


def test_another_journal_under_the_same_name_is_noticed():
    cursor = ReadCursor(0, chain=genesis("j"))
    read(journal(b"abc"), cursor)
    other = journal(b"abd", b"ef")
    error = cursor.found(other[1][0])
    assert error is not None
    assert "from 3 to 5 does not follow what was read before" in error


def test_a_journal_that_went_back_is_noticed():
    cursor = ReadCursor(5)
    assert cursor.missing(5) is None
    assert cursor.missing(4) == "its head is 4, and 5 was read before"


def test_a_gap_is_jumped_over_and_reported():
    cursor = ReadCursor(0, chain=genesis("j"))
    rows = journal(b"abc", None, b"d")
    assert read(rows, cursor) == b"abcd"
    assert cursor.jumps == [(3, 13)]
    assert cursor.chain == rows[-1][0].chain
    assert sha256().digest() == EMPTY


def test_what_retention_removed_is_jumped_over_and_reported():
    cursor = ReadCursor(1, chain=b"x" * 32)
    rows = journal(b"abc", b"def")[1:]
    assert read(rows, cursor) == b"def"
    assert cursor.jumps == [(1, 3)]
    assert cursor.chain == rows[0][0].chain


def test_a_jump_stops_at_the_end_of_the_range():
    cursor = ReadCursor(1, 2)
    assert read(journal(b"abc", b"def")[1:], cursor) == b""
    assert (cursor.offset, cursor.jumps) == (2, [(1, 2)])


def test_bytes_that_differ_are_never_given_out_and_another_replica_is_asked():
    rows = journal(b"abcdefg")
    cursor = ReadCursor(0)

    def spoil(store, block):
        return block if store == "b" or block == b"abcd" else b"xyz"

    assert read(rows, cursor, spoil) == b"abcdefg"


@pytest.mark.parametrize("wrong", [b"", b"abc", b"abcde", b"abcx"])
def test_a_block_is_whole_or_it_does_not_count(wrong):
    ((placed, _),) = journal(b"abcd")
    cursor = ReadCursor(0)
    cursor.found(placed)
    assert cursor.given("a", wrong) is None
    assert cursor.replicas == ["b"]
    cursor.failed("b", "404")
    assert cursor.replicas == []
    assert set(cursor.errors) == {"a", "b"}
    assert cursor.offset == 0
