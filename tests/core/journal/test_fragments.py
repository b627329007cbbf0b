"""Names of objects, index objects, and how bytes become blocks."""

import random

import pytest

from outbox.core.journal import fragments
from outbox.core.journal.chain import chained, genesis
from outbox.core.journal.fragments import append_of, cut, digest, index_begin, index_end, index_path, index_text
from outbox.core.journal.values import Fragment, Placed

ID = "0192e4b1-0000-7000-8000-000000000001"


@pytest.mark.parametrize("name", ["orders", "a/b", "Orders-2.raw_x", "a" * 200])
def test_names(name):
    assert fragments.is_name(name)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".index", "a/.index", "../a", "a b", "é", "a" * 201])
def test_names_that_are_refused(name):
    assert not fragments.is_name(name)


def test_a_path_names_its_append_and_its_part():
    path = fragments.path_of("a/b", "2026/01/02", ID, 3)
    assert path == f"a/b/2026/01/02/{ID}-0003"
    assert path.startswith(fragments.prefix_of("a/b", "2026/01/02", ID))
    assert append_of(path) == (ID, 3)


@pytest.mark.parametrize("path", ["a/b/2026/01/02/readme", f"a/{ID}", f"a/{ID}-0001.tmp", f"a/x{ID}-0001", ""])
def test_objects_of_others_are_left_alone(path):
    assert append_of(path) is None


def placed(begin=16, end=19):
    fragment = Fragment(0, "orders/2026/01/02/x", end - begin, digest(b"abc"), digest(b"abc"), ("a",), 1)
    return Placed(ID, fragment, begin, end, b"c" * 32)


def test_an_index_object_is_named_by_its_begin_and_says_its_end():
    path = index_path("orders", 16)
    assert path == "orders/.index/0000000000000010"
    assert index_begin(path) == 16
    text = index_text("orders", placed())
    assert index_end(text) == 19
    assert text == index_text("orders", placed())
    assert text != index_text("orders", placed(end=20))


@pytest.mark.parametrize("path", ["orders/.index/10", "orders/0000000000000010", "orders/.index/000000000000001g"])
def test_other_objects_are_no_index_objects(path):
    assert index_begin(path) is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"end": "1"}', b"\xff"])
def test_a_damaged_index_object_is_noticed(text):
    assert index_end(text) is None


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_cut_into_blocks_of_one_size(seed):
    source = random.Random(seed)
    chunks = [source.randbytes(source.choice((0, 1, 3, 4, 5, 8, 13))) for _ in range(source.randrange(6))]
    blocks = list(cut(chunks, 4))
    assert b"".join(blocks) == b"".join(chunks)
    assert all(len(block) == 4 for block in blocks[:-1])
    assert all(blocks)


def test_chunks_may_be_views_of_anything():
    assert list(cut([memoryview(bytearray(b"abcd")).cast("H"), bytearray(b"e")], 3)) == [b"abc", b"de"]


def test_the_chained_hash_stands_for_journal_order_offsets_and_content():
    start = genesis("orders")
    one = chained(start, 0, 3, digest(b"abc"))
    found = {
        one,
        chained(genesis("other"), 0, 3, digest(b"abc")),
        chained(start, 1, 3, digest(b"abc")),
        chained(start, 0, 4, digest(b"abc")),
        chained(start, 0, 3, digest(b"abd")),
        chained(one, 0, 3, digest(b"abc")),
    }
    assert len(found) == 6
