"""`outbox.journal` on a real PostgreSQL and folders: bytes commit with the caller's transaction, or not at all."""

import io
import json
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from django.db import DatabaseError, connection, connections, transaction

from outbox import journal
from outbox.core.journal.chain import genesis
from outbox.journal import api


def whole(name, *given, **more):
    return b"".join(journal.read(name, *given, **more))


def rows(text, *given):
    with connection.cursor() as cursor:
        cursor.execute(text, given)
        return cursor.fetchall() if cursor.description else None


def fragments(name):
    return rows('SELECT begin, "end", after, replicas FROM outbox_fragment WHERE journal = %s ORDER BY begin', name)


def test_bytes_are_there_when_the_transaction_has_committed(name):
    staged = journal.stage(name, b"hello ")
    assert staged.offsets() is None
    with transaction.atomic():
        staged.commit()
        assert whole(name) == b""
    assert staged.offsets() == (0, 6)
    journal.append(name, io.BytesIO(b"wor"))
    journal.append(name, iter([b"l", bytearray(b"d")]))
    assert whole(name) == b"hello world"
    assert journal.show(name).head == 11


def commit_and_raise(staged):
    staged.commit()
    raise ZeroDivisionError


@pytest.mark.parametrize("how", ["exception", "savepoint", "delete"])
def test_bytes_vanish_with_what_was_rolled_back(name, how):
    staged = journal.stage(name, b"gone")
    journal.append(name, b"before ")
    if how == "exception":
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            commit_and_raise(staged)
    elif how == "savepoint":
        with transaction.atomic():
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                commit_and_raise(staged)
            journal.append(name, b"inside ")
    else:
        with transaction.atomic():
            staged.commit()
            rows("DELETE FROM outbox_fragment WHERE append = %s", staged.append)
    journal.append(name, b"after")
    assert whole(name) == {"savepoint": b"before inside after"}.get(how, b"before after")


def test_several_appends_of_a_transaction_keep_their_order_and_journals(name):
    other = f"{name}-other"
    journal.create(other)
    with transaction.atomic():
        for number in range(5):
            journal.append(name, f"{number}".encode())
            journal.append(other, f"[{number}]".encode())
    assert (whole(name), whole(other)) == (b"01234", b"[0][1][2][3][4]")


def test_to_commit_again_does_nothing(name):
    staged = journal.stage(name, b"once")
    for _ in range(2):
        with transaction.atomic():
            staged.commit()
            staged.commit()
    assert whole(name) == b"once"


def test_a_staged_append_is_committed_by_another_process(name):
    again = pickle.loads(pickle.dumps(journal.stage(name, b"abc")))
    with transaction.atomic():
        again.commit()
    assert whole(name) == b"abc"


def test_commit_needs_a_transaction(name):
    with pytest.raises(journal.JournalError, match="outside a transaction"):
        journal.stage(name, b"x").commit()


def test_an_expired_stage_ends_the_transaction(name):
    staged = journal.stage(name, b"x")
    rows("UPDATE outbox_stage SET is_expired = true")
    with pytest.raises(journal.StageExpired, match="Stage the content again"), transaction.atomic():
        staged.commit()
    with transaction.atomic():
        with pytest.raises(journal.StageExpired):
            staged.commit()
        assert connection.needs_rollback
        transaction.set_rollback(True)


# ---- conditions


def test_registers_are_checked_and_set_with_the_bytes(name):
    journal.append(name, b"1", check={"author": "nobody"}, set={"author": "a", "epoch": "1"})
    assert journal.show(name).registers == {"author": "a", "epoch": "1"}
    journal.append(name, b"2", check={"author": "a", "other": None}, set={"epoch": "2"})
    with pytest.raises(journal.RegisterMismatch, match="'epoch': '2'"):
        journal.append(name, b"3", check={"epoch": "1"})
    journal.append(name, b"4", check={"author": "a"}, set={"new": "x"}, drop=["epoch", "new"])
    assert journal.show(name).registers == {"author": "a", "new": "x"}
    assert whole(name) == b"124"


def test_a_writer_that_was_replaced_is_refused_at_commit(name):
    journal.append(name, b"1", set={"author": "a"})
    old = journal.stage(name, b"old", check={"author": "a"})
    journal.append(name, b"2", check={"author": "a"}, set={"author": "b"})
    with pytest.raises(journal.RegisterMismatch, match='"author": "b"'), journal.refusals(), transaction.atomic():
        old.commit(check={"author": "a"})
    assert whole(name) == b"12"


def test_the_place_of_an_append_can_be_asked_for(name):
    journal.append(name, b"abc", expect_offset=0)
    with pytest.raises(journal.WrongOffset, match=r"offset 2 .* head is 3"):
        journal.append(name, b"x", expect_offset=2)
    staged = journal.stage(name, b"x", expect_offset=3)
    journal.append(name, b"y")
    with pytest.raises(journal.WrongOffset, match=r"offset 3 .* head is 4"), journal.refusals(), transaction.atomic():
        staged.commit(expect_offset=3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_read_only_journal_takes_nothing(name, when):
    staged = journal.stage(name, b"x") if when == "after" else None
    journal.change(name, read_only=True)
    with pytest.raises(journal.ReadOnlyJournal), journal.refusals(), transaction.atomic():
        staged.commit() if staged else journal.append(name, b"x")
    journal.change(name, read_only=False)
    journal.append(name, b"y")
    assert whole(name) == b"y"


def test_replicas_are_counted_again_at_commit(name):
    staged = journal.stage(name, b"x")
    rows("UPDATE outbox_journal SET replicas = 4")
    with pytest.raises(journal.TooFewStores, match="needs 4 replicas"), journal.refusals(), transaction.atomic():
        staged.commit()


def test_other_errors_of_the_database_stay_as_they_are(name):
    with pytest.raises(DatabaseError), journal.refusals(), transaction.atomic():
        rows("SELECT 1/0")


@pytest.mark.parametrize("content", [b"", io.BytesIO(), iter([]), iter([b"", b""])])
def test_an_append_has_content(name, content):
    with pytest.raises(journal.NoContent):
        journal.append(name, content)


def test_unknown_journals_are_named(name):
    for ask in (journal.show, journal.read, lambda other: journal.append(other, b"x"), journal.change):
        with pytest.raises(journal.UnknownJournal, match=r"'other'.*create"):
            ask("other")
    with pytest.raises(journal.UnknownJournal):
        journal.reset_head("other", 1)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "a b"}, "is no name"),
        ({"stores": ["a", "x"]}, r"\['x'\] .* not in STORES"),
        ({"replicas": 4}, "asks for 4 replicas"),
        ({"replicas": 2, "stores": ["a"]}, "asks for 2 replicas"),
        ({"replicas": 0}, "asks for 0 replicas"),
        ({"fragment_bytes": 7}, "below the limit"),
    ],
)
def test_a_journal_that_could_not_work_is_refused(stores, given, text):
    with pytest.raises(journal.JournalError, match=text):
        journal.create(**{"name": "x", **given})


def test_a_journal_is_created_once(name):
    assert not journal.create(name, replicas=1)
    assert journal.show(name).replicas == 2
    assert [state.name for state in journal.journals()] == [name]


# ---- content


def test_content_that_raises_leaves_nothing(name, roots):
    def content():
        yield b"x" * 3_000_000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        journal.append(name, content())
    assert fragments(name) == []
    assert journal.show(name).head == 0
    assert rows("SELECT count(*) FROM outbox_stage") == [(1,)], "the keeper finds what is left"


def test_a_long_append_is_several_fragments(name):
    other = f"{name}-small"
    journal.create(other, fragment_bytes=1 << 20)
    content = random.Random(1).randbytes((3 << 20) + 5)
    staged = journal.append(other, content)
    assert [end - begin for begin, end, *_ in fragments(other)] == [1 << 20] * 3 + [5]
    assert staged.offsets() == (0, len(content))
    assert whole(other) == content
    assert whole(other, 1_000_000, 2_500_000) == content[1_000_000:2_500_000]


def test_a_stage_inside_a_transaction_is_committed_before_its_bytes_are_sent(name):
    with transaction.atomic():
        staged = journal.stage(name, b"x")
        with psycopg.connect(**connection.get_connection_params()) as other:
            found = other.execute("SELECT append::text FROM outbox_stage").fetchall()
        assert found == [(staged.append,)]
        staged.commit()
    assert whole(name) == b"x"


# ---- replicas


def test_every_store_has_the_bytes_and_an_index_object(name, roots):
    staged = journal.append(name, b"abc")
    (placed,) = api._table(None).placed(staged.append)
    assert placed.fragment.replicas == ("a", "b", "c")
    for root in roots.values():
        assert (root / placed.fragment.path).read_bytes() == b"abc"
        index = json.loads((root / name / ".index" / f"{0:016x}").read_text())
        assert (index["begin"], index["end"], index["append"]) == (0, 3, staged.append)


def test_an_append_goes_on_without_a_store_and_fails_without_enough(name, roots, settings):
    roots["a"].write_text("not a folder")
    journal.append(name, b"abc")
    assert [one[3] for one in fragments(name)] == [["b", "c"]]
    roots["b"].rename(roots["b"].with_name("away"))
    roots["b"].write_text("not a folder")
    with pytest.raises(journal.TooFewStores, match=r"needs 2 replicas in 2 zones, and only \['c'\]"):
        journal.append(name, b"x")
    assert whole(name) == b"abc", "from the store that is left"


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(b"abX"), lambda path: path.write_bytes(b"ab"), Path.unlink]
)
def test_a_bad_replica_is_passed_over_and_without_a_good_one_nothing_is_given_out(name, roots, damage):
    staged = journal.append(name, b"abc")
    (placed,) = api._table(None).placed(staged.append)
    for store in "ab":
        damage(roots[store] / placed.fragment.path)
    assert whole(name) == b"abc"
    damage(roots["c"] / placed.fragment.path)
    with pytest.raises(journal.FragmentUnavailable, match=f"bytes 0 to 3 of the journal '{name}'"):
        whole(name)


# ---- reading


def test_a_journal_is_a_file(name):
    content = random.Random(2).randbytes(3_000_000)
    for start in range(0, len(content), 700_001):
        journal.append(name, content[start : start + 700_001])
    with journal.open_file(name) as file:
        assert file.seek(1_500_000) == 1_500_000
        assert file.read(1_000_000) == content[1_500_000:2_500_000]
        assert file.seek(-10, io.SEEK_END) == len(content) - 10
        assert file.read() == content[-10:]
        assert file.read(5) == b""
    with journal.open_file(name, 100, 2_000_000) as file:
        assert file.read() == content[100:2_000_000]
        file.seek(5)
        assert (file.read(3), file.tell()) == (content[105:108], 8)
        with pytest.raises(ValueError):
            file.seek(-1)


def test_a_reader_resumes_where_it_was_with_the_chained_hash(name):
    journal.append(name, b"abc")
    reader = journal.read(name, chain=genesis(name))
    assert b"".join(reader) == b"abc"
    journal.append(name, b"def")
    again = journal.read(name, reader.cursor.offset, chain=reader.cursor.chain)
    assert b"".join(again) == b"def"
    assert again.cursor.chain == journal.show(name).chain
    with pytest.raises(journal.JournalDiverged, match="does not follow what was read before"):
        whole(name, 3, chain=bytes(32))
    with pytest.raises(journal.JournalDiverged, match="its head is 6, and 7 was read before"):
        whole(name, 7)


def test_a_follower_gets_what_is_committed_and_nothing_else(name):
    def follow():
        try:
            return b"".join(journal.read(name, 0, 9, follow=True))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(follow)
        with transaction.atomic():
            journal.append(name, b"abc")
            threading.Event().wait(0.3)
            transaction.set_rollback(True)
        journal.append(name, b"def")
        journal.append(name, b"ghijkl")
        assert found.result(10) == b"defghijkl"


# ---- many writers


@pytest.mark.slow
def test_appends_of_many_writers_follow_each_other_exactly(name):
    def write(number):
        source = random.Random(number)
        try:
            for count in range(25):
                content = f"<{number}:{count}>".encode() * source.randrange(1, 20)
                try:
                    with transaction.atomic():
                        journal.stage(name, content).commit()
                        if source.random() < 0.3:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    continue
                written.append(content)
        finally:
            connections.close_all()

    written = []
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    found = fragments(name)
    assert [begin for begin, *_ in found] == [0, *(end for _, end, *_ in found[:-1])]
    assert [after for *_, after, _ in found] == [None, *(begin for begin, *_ in found[1:])]
    content = b"".join(journal.read(name, chain=genesis(name)))
    assert len(content) == journal.show(name).head == sum(map(len, written))
    assert sorted(content[begin:end] for begin, end, *_ in found) == sorted(written)


# ---- after a failover


def suspect(name, text="The store 'a' has bytes 3 to 9, and the head is 3."):
    rows("UPDATE outbox_journal SET suspect = %s WHERE name = %s", text, name)


def test_a_suspect_journal_takes_nothing_until_its_head_is_set(name, roots):
    journal.append(name, b"abc")
    for root in roots.values():
        (root / name / ".index" / f"{3:016x}").write_text(json.dumps({"end": 9}))
    staged = journal.stage(name, b"late")
    suspect(name)
    with pytest.raises(journal.SuspectJournal, match="has bytes 3 to 9"):
        journal.append(name, b"x")
    with pytest.raises(journal.SuspectJournal, match="has bytes 3 to 9"), journal.refusals(), transaction.atomic():
        staged.commit()
    for used in (2, 3, 8):
        with pytest.raises(journal.SuspectJournal, match="was used already"):
            journal.reset_head(name, used)
    assert whole(name) == b"abc"
    journal.reset_head(name, 9)
    journal.append(name, b"def")
    reader = journal.read(name, chain=genesis(name))
    assert b"".join(reader) == b"abcdef"
    assert reader.cursor.jumps == [(3, 9)]
    with journal.open_file(name) as file, pytest.raises(OSError, match="bytes 3 to 9 of the journal are gone"):
        file.read()


def test_the_head_of_a_healthy_journal_stays(name):
    journal.append(name, b"abc")
    journal.reset_head(name, 3)
    with pytest.raises(journal.JournalError, match="is not suspect"):
        journal.reset_head(name, 4)
    journal.append(name, b"d")
    assert whole(name) == b"abcd"


# ---- what the tables keep to


def test_a_placed_fragment_stays_as_it_is(name):
    journal.append(name, b"abc")
    journal.append(name, b"def")
    for change in ('begin = 7, "end" = 10, after = 7', "sha256 = ''", "path = 'x'", "chain = ''"):
        with pytest.raises(DatabaseError, match="gets its offsets at COMMIT and keeps them"):
            rows(f"UPDATE outbox_fragment SET {change} WHERE begin = 3")
    with pytest.raises(DatabaseError, match="gets its offsets at COMMIT"):
        rows(
            "INSERT INTO outbox_fragment (journal, append, part, path, length, sha256, blocks, replicas, zones, begin, "
            "\"end\", chain) VALUES (%s, gen_random_uuid(), 0, 'x', 1, '', '', '{}', 1, 6, 7, '')",
            name,
        )
    with pytest.raises(DatabaseError, match="foreign key"):
        rows("DELETE FROM outbox_fragment WHERE begin = 0")
    rows("UPDATE outbox_fragment SET replicas = '{a}', zones = 1")
    assert whole(name) == b"abcdef"


def test_a_row_of_no_journal_is_refused(name):
    with pytest.raises(journal.UnknownJournal), journal.refusals(), transaction.atomic():
        rows(
            "INSERT INTO outbox_fragment (journal, append, part, path, length, sha256, blocks, replicas, zones) "
            "VALUES ('none', gen_random_uuid(), 0, 'x', 1, '', '', '{}', 1)"
        )
