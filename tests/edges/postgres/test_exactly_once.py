"""The statements of exactly-once delivery on a real PostgreSQL: ids in binary, the guarded purge, the read."""

import json
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import psycopg
import pytest

from outbox.core import frontier as core_frontier
from outbox.core.frontier import Frontier
from outbox.core.times import INFINITE, NONE, time_of
from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.common.int8_arrays import Ids
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.edges.postgres.exactly_once.reader import LeftOut, Reader, UnknownAges, UnorderedPage, check_ages
from outbox.edges.postgres.exactly_once.sweeper import Below, Sweeper
from outbox.schema.adoption import guarded_default
from tests.support.tables import create_companions, insert


@contextmanager
def connected(url, statement_timeout_s=20):
    given = {"statement_timeout_s": statement_timeout_s, "application_name": "test"}
    with companions.connect({"conninfo": url}, **given) as connection:
        connection.execute(f"ALTER TABLE outbox ALTER id SET DEFAULT {guarded_default('outbox_id_seq')}")
        create_companions(connection)
        yield connection


@pytest.fixture
def db(url):
    with connected(url) as connection:
        yield connection


@pytest.fixture
def statements(db):
    return Companions("outbox", companions.sequence_of(db, "outbox"))


@pytest.fixture
def reader(db):
    return Reader("outbox", companions.sequence_of(db, "outbox"))


def filenode(db):
    return db.execute("SELECT pg_relation_filenode('outbox')").fetchone()[0]


def count(db):
    return db.execute("SELECT count(*) FROM outbox").fetchone()[0]


@pytest.mark.parametrize("ids", [[], [1], [-1, 0, 255, 256, 2**31, 2**63 - 1], list(range(5000))])
def test_ids_travel_in_binary(db, ids):
    assert db.execute("SELECT %s::bigint[]", [Ids(ids)]).fetchone() == (ids,)


def test_a_purge_deletes_and_moves_both_or_neither(db, statements):
    ids = insert(db, "t", ["k"] * 10)
    assert statements.purged(db, 0) == 0
    assert statements.purge(db, 0, 1, ids[:5], filenode(db)) == 5
    assert statements.purged(db, 0) == 1
    assert statements.purge(db, 0, 1, ids[5:], filenode(db)) == 0, "batch 1 was purged before"
    assert statements.purge(db, 0, 3, ids[5:], filenode(db)) == 0, "batch 2 is missing"
    assert statements.purge(db, 1, 1, ids[5:], filenode(db)) == 0, "the lane never started"
    assert statements.purge(db, 0, 2, ids[5:], filenode(db) + 1) == 0, "another file"
    assert (count(db), statements.purged(db, 0)) == (5, 1)
    assert statements.purge(db, 0, 2, ids[5:], filenode(db)) == 5
    assert db.execute("SELECT lane, batch FROM outbox_purged").fetchall() == [(0, 2)]


DOES_NOTHING = "EXECUTE FUNCTION suppress_redundant_updates_trigger()"


@pytest.mark.parametrize(
    "keeper",
    [
        "CREATE RULE keep AS ON DELETE TO outbox WHERE OLD.id = 0 DO INSTEAD NOTHING",
        "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE child () INHERITS (outbox)",
        f"CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW {DOES_NOTHING}",
    ],
)
def test_a_plain_purge_does_nothing_where_a_row_might_survive_it(url, db, statements, keeper):
    ids, purged = insert(db, "t", ["k"] * 10), statements.purged(db, 0)
    db.execute(f"CREATE TRIGGER other AFTER DELETE ON outbox {DOES_NOTHING}")
    db.execute("ALTER TABLE outbox DISABLE TRIGGER other")
    assert statements.purge_plain(db, 0, purged + 1, ids[:5], filenode(db)) == 5
    with db.transaction(force_rollback=True):
        db.execute(keeper)
        assert statements.purge_plain(db, 0, purged + 2, ids[5:], filenode(db)) == 0
        assert (count(db), statements.purged(db, 0)) == (5, purged + 1)


def test_the_locks_of_a_process_that_stands_still_in_a_transaction_are_given_up(url, db, statements):
    ids = insert(db, "t", ["k"] * 5)
    statements.purged(db, 0)
    with suppress(psycopg.InternalError), connected(url, 0.5) as stopped:
        stopped.execute("BEGIN")
        assert statements.purge(stopped, 0, 1, ids, filenode(db)) == 5
        assert statements.purge(db, 0, 1, ids, filenode(db)) == 5, "after as long as a statement may take"


def test_a_purge_of_ids_above_the_sequence_needs_a_comparison(db, statements):
    ids = insert(db, "t", ["k"] * 10)
    statements.purged(db, 0)
    db.execute("SELECT setval('outbox_id_seq', 5)")
    assert statements.purge(db, 0, 1, ids, filenode(db)) == 0
    assert statements.purge(db, 0, 1, ids, filenode(db), compared=True) == 10


def test_the_same_purge_twice_at_once_moves_once(url, db, statements):
    ids = insert(db, "t", ["k"] * 10)
    statements.purged(db, 0)
    with companions.connect({"conninfo": url}, statement_timeout_s=20, application_name="other") as other:
        with db.transaction():
            assert statements.purge(db, 0, 1, ids, filenode(db)) == 10
            import threading

            found = []
            node = filenode(db)
            thread = threading.Thread(target=lambda: found.append(statements.purge(other, 0, 1, ids, node)))
            thread.start()
            time.sleep(0.2)
        thread.join(10)
        assert found == [0]


def test_the_number_stays_cheap_under_a_pinned_horizon(url, db, statements):
    """Rows of purged batches that nobody may vacuum are not walked."""
    statements.purged(db, 0)
    node = filenode(db)
    with psycopg.connect(url) as pin:
        pin.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        pin.execute("SELECT count(*) FROM outbox")
        for batch in range(1, 2001):
            db.execute("INSERT INTO outbox_purged VALUES (0, %s)", [batch])
            db.execute("DELETE FROM outbox_purged WHERE lane = 0 AND batch = %s", [batch - 1])
        plan = db.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT batch FROM outbox_purged WHERE lane = 0 "
            "ORDER BY batch DESC LIMIT 1"
        ).fetchone()[0]
        assert plan[0]["Plan"]["Shared Hit Blocks"] < 10
        ids = insert(db, "t", ["k"])
        assert statements.purge(db, 0, 2001, ids, node) == 1


def outlive_an_empty_table(db, statements, reader, rows):
    """Plans that were made for three rows are used for many."""
    insert(db, "t", ["k"] * 3)
    db.execute("VACUUM ANALYZE outbox")
    for _ in range(8):
        reader.read(db, 0, (0,), (), 5000)
        statements.purge(db, 0, 999, [1, 2, 3], filenode(db))
    db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT 't', 'k', n FROM generate_series(1, %s) n",
        [rows],
    )
    statements.purged(db, 0)
    page = reader.read(db, rows // 2, (0,), (), 5000)
    ids = [row[0] for row in page.rows]
    assert len(ids) == 5000
    begun = time.monotonic()
    reader.read(db, 3 * rows // 4, (0,), (), 5000)
    assert statements.purge(db, 0, 1, ids, page.filenode) == 5000
    seconds = time.monotonic() - begun
    print(f"a read and a purge of 5,000 among {rows:,} records: {1000 * seconds:.1f} ms")
    assert seconds < 10, "a sequential scan per id takes twenty seconds and more"


def test_no_plan_forgets_the_index_when_statistics_are_of_an_empty_table(db, statements, reader):
    outlive_an_empty_table(db, statements, reader, 300_000)


@pytest.mark.torture
def test_no_plan_forgets_the_index_of_a_million_records(url):
    """Filling the table takes longer than a statement of ours may."""
    with connected(url, statement_timeout_s=600) as db:
        sequence = companions.sequence_of(db, "outbox")
        outlive_an_empty_table(db, Companions("outbox", sequence), Reader("outbox", sequence), 1_000_000)


def test_a_page_has_its_header_from_the_same_snapshot(db, statements, reader):
    ids = insert(db, "t", ["a", "b", "c"])
    statements.purged(db, 0)
    page = reader.read(db, 0, (0, 7), (), 2)
    assert [row[0] for row in page.rows] == ids[:2]
    assert page.rows[0][:7] == (ids[0], "t", "a", "1", None, None, None)
    assert (page.sequence, page.purged, page.filenode) == (ids[-1], {0: 0, 7: 0}, filenode(db))
    now = db.execute("SELECT clock_timestamp(), pg_current_xact_id()::text::bigint").fetchone()
    assert page.read_at < now[0]
    assert page.snapshot.next_xid == now[1]


@pytest.mark.parametrize("off_by", [-(1 << 31), 1 << 32])
def test_a_server_that_tells_its_next_transaction_id_in_another_way_is_refused(db, monkeypatch, off_by):
    check_ages(db)
    told = core_frontier.next_xid
    monkeypatch.setattr(core_frontier, "next_xid", lambda xmax, age: told(xmax, age) + off_by)
    with pytest.raises(UnknownAges, match="14 to 18"):
        check_ages(db)


def test_the_late_form_leaves_out_what_is_in_flight(db, reader):
    ids = insert(db, "t", ["k"] * 20)
    page = reader.read(db, ids[4], (0,), ids[6:12], 5000)
    assert [row[0] for row in page.rows] == [ids[5], *ids[12:]]
    assert reader.read(db, ids[-1], (0,), (), 5000).rows == []


@pytest.mark.parametrize("keep_empty_key", [False, True])
def test_every_row_has_one_lane_and_a_key_always_the_same(db, keep_empty_key):
    insert(db, "t", [f"k{n % 30}" for n in range(300)] + [""] * 60)
    reader = Reader("outbox", "outbox_id_seq", 3, keep_empty_key=keep_empty_key)
    every = reader.read(db, 0, (0, 1, 2), (), 5000).rows
    shares = [reader.read(db, 0, (lane,), (), 5000).rows for lane in range(3)]
    assert sorted(row for share in shares for row in share) == sorted(every)
    lanes = {}
    for row in every:
        lanes.setdefault(row[2], set()).add(row[8])
    keyless = lanes.pop("")
    assert all(len(found) == 1 for found in lanes.values())
    assert set().union(*lanes.values()) == {0, 1, 2}
    assert len(keyless) == (1 if keep_empty_key else 3)


@pytest.mark.parametrize("is_sized", [False, True])
def test_rows_of_a_lane_come_together_and_in_order(db, is_sized):
    ids = insert(db, "t", [f"k{n % 30}" for n in range(300)] + [""] * 60)
    reader = Reader("outbox", "outbox_id_seq", 3)
    reader._step, reader._pages_left = (2, 100) if is_sized else (0, 0)
    page = reader.read(db, ids[9], (0, 1, 2), (), 200)
    lanes = [row[8] for row in page.rows]
    assert lanes == sorted(lanes), "apart in the list is apart in memory"
    for lane in range(3):
        share = [row[0] for row in page.rows if row[8] == lane]
        assert share == sorted(share)
    assert sorted(row[0] for row in page.rows) == ids[10:210], "the first of the table, not of a lane"
    assert page.last_id == ids[209]


@pytest.mark.parametrize("after", [1 << 60, (1 << 63) - 51])
def test_ids_far_apart_keep_their_order(db, after):
    ids = insert(db, "t", [f"k{n % 10}" for n in range(50)])
    db.execute("SELECT setval('outbox_id_seq', %s)", [after])
    ids += insert(db, "t", [f"k{n % 10}" for n in range(50)])
    page = Reader("outbox", "outbox_id_seq", 3).read(db, 0, (0, 1, 2), (), 200)
    assert page.last_id == ids[-1]
    for lane in range(3):
        share = [row[0] for row in page.rows if row[8] == lane]
        assert share == sorted(share)
    assert sorted(row[0] for row in page.rows) == ids


def test_ids_of_a_writer_near_the_lowest_number_have_a_lane_and_keep_their_order(db):
    lowest = -(1 << 63)
    ids = [*range(lowest, lowest + 20), *range(lowest + (3 << 48) - 10, lowest + (3 << 48) + 10), *range(-10, 0)]
    statement = "INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (%s, 't', %s)"
    for n, id_ in enumerate(reversed(ids)):
        db.execute(statement, [id_, f"k{n % 7}" if n % 3 else ""])
    ids += insert(db, "t", [f"k{n}" for n in range(10)])
    page = Reader("outbox", "outbox_id_seq", 3).read(db, lowest - 1, (0, 1, 2), (), 200)
    for lane in range(3):
        share = [row[0] for row in page.rows if row[8] == lane]
        assert share == sorted(share)
    assert sorted(row[0] for row in page.rows) == ids


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_page_in_another_order_than_asked_for_is_refused(db, monkeypatch, lanes):
    insert(db, "t", [f"k{n}" for n in range(20)])
    reader, fetch = Reader("outbox", "outbox_id_seq", lanes), Reader._fetch

    def unordered(*given, **options):
        header, *rows = fetch(*given, **options)
        return [header, *reversed(rows)]

    monkeypatch.setattr(reader, "_fetch", unordered)
    with pytest.raises(UnorderedPage, match="The harvester sent nothing of it"):
        reader.read(db, 0, range(lanes), (), 100)


def read_all(db, reader, frontier, excluded=()):
    """A complete page, as the rounds read it."""
    look = frontier.start()
    while look is not None:
        page = reader.read(db, look, (0,), [i for i in excluded if i > look], 5000)
        look = frontier.missed_from(look, page.snapshot, page.sequence)
    ids = [row[0] for row in page.rows]
    frontier.accept(ids[-1] if ids else None, False, page.snapshot, page.sequence)
    return ids


def test_the_frontier_finds_late_rows_restarted_and_explicit_ids(url, db, reader):
    frontier = Frontier()
    with psycopg.connect(url) as late:
        (first,) = insert(late, "t", ["late"])
        others = insert(db, "t", ["k"] * 5)
        assert read_all(db, reader, frontier) == others
        assert read_all(db, reader, frontier, others) == []
        late.commit()
    assert read_all(db, reader, frontier, others) == [first]
    db.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (1000000000, 't', 'explicit')")
    assert read_all(db, reader, frontier, [first, *others])[-1] == 1_000_000_000
    db.execute("TRUNCATE outbox RESTART IDENTITY")
    assert insert(db, "t", ["k"]) == [1]
    assert read_all(db, reader, frontier) == [1]


def test_a_sequence_that_is_made_anew_meanwhile_fails_the_read_as_an_outage(db):
    """ALTER SEQUENCE … RESTART replaces its file and does not wait for readers. They may see a file without a row."""
    db.execute("CREATE TABLE without_row (last_value bigint, is_called boolean)")
    insert(db, "t", ["k"])
    with pytest.raises(psycopg.OperationalError, match="restarted the sequence"):
        Reader("outbox", "without_row").read(db, 0, [0], [], 10)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("is_sized", [False, True])
def test_held_topics_and_lanes_are_passed_over(db, lanes, is_sized):
    ids = insert(db, "t", ["a", "b", ""] * 5) + insert(db, "u", ["a", ""])
    reader, every = Reader("outbox", "outbox_id_seq", lanes), tuple(range(lanes))
    reader._step, reader._pages_left = (2, 100) if is_sized else (0, 0)

    def read(excluded=(), **left_out):
        page = reader.read(db, 0, every, excluded, 100, left_out=LeftOut(**left_out))
        assert set(page.purged) == set(every), "also of a lane that is passed over"
        return page.rows

    topics = frozenset({"t", "not there"})
    assert [row[0] for row in read(topics=topics)] == ids[-2:]
    assert [row[0] for row in read(ids[-2:-1], topics=topics)] == ids[-1:]
    of_lane = [row for row in read() if lanes == 1 or row[8] == 0]
    assert not any(row in of_lane for row in read(lanes=frozenset({0})))
    assert read(lanes=frozenset(every)) == []


def test_what_is_missing_is_named(db):
    with pytest.raises(WrongTable, match='table "nowhere" does not exist'):
        companions.sequence_of(db, "nowhere")
    db.execute("DROP TABLE outbox_lane")
    with pytest.raises(WrongTable, match="migrate outbox"):
        companions.sequence_of(db, "outbox")


def test_looking_up_tells_count_digest_and_youngest(db, statements, reader):
    from outbox.core.exactly_once.ledger import digest

    ids = insert(db, "t", ["a", "b"])
    page = reader.read(db, 0, (0,), (), 10)
    found = statements.look_up(db, ids)
    assert (found.count, found.digest, found.filenode) == (2, digest(page.rows), filenode(db))
    assert found.newest == max(row[7] for row in page.rows) <= time_of(page.read_at)
    assert statements.look_up(db, [10**9]).count == 0


@pytest.mark.parametrize("is_sized", [False, True])
def test_every_time_of_a_record_has_a_number(db, statements, reader, is_sized):
    microseconds = {
        "'2000-01-01 UTC'": 0,
        "'1999-12-31 23:59:59.999999 UTC'": -1,
        "'9999-12-31 UTC'": time_of(datetime(9999, 12, 31, tzinfo=UTC)),
        "'20000-01-01 UTC'": time_of(datetime(4000, 1, 1, tzinfo=UTC)) + 16_000 * 365_242_500 * 86_400,
        "'infinity'": INFINITE,
        "'-infinity'": NONE,
        "NULL": NONE,
    }
    db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    ids = insert(db, "t", ["k"] * len(microseconds))
    for id_, created in zip(ids, microseconds, strict=True):
        db.execute(f"UPDATE outbox SET create_time = {created} WHERE id = %s", [id_])
    reader._step, reader._pages_left = (2, 100) if is_sized else (0, 0)
    assert [row[7] for row in reader.read(db, 0, (0,), (), 100).rows] == [*microseconds.values()]
    for id_, number in zip(ids, microseconds.values(), strict=True):
        assert statements.look_up(db, [id_]).newest == number


def test_single_rows_are_taken_for_sent_up_to_the_newest_of_their_batch(db, statements):
    db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL")
    given = "'2026-01-01'", "'2026-01-02'", "'0044-03-15 BC'", "'20000-01-01'", "NULL", "'infinity'", "'-infinity'"
    for created in given:
        db.execute(f"INSERT INTO outbox (kafka_topic, kafka_key, create_time) VALUES ('t', 'k', {created})")
    ids = [row[0] for row in db.execute("SELECT id FROM outbox ORDER BY id")]
    up_to = statements.look_up(db, ids[:1]).newest
    assert statements.sent(db, ids, INFINITE) == statements.sent(db, ids, NONE) == 0
    assert statements.sent(db, ids, up_to) == statements.delete_sent(db, ids, up_to) == 2
    assert statements.sent(db, ids, statements.look_up(db, ids[3:4]).newest) == 2
    assert statements.delete_sent(db, ids, None) == 5


def _sizes(page):
    return [len(row[3] or row[6]) for row in page.rows]


def test_a_page_of_large_records_ends_before_it_outgrows_its_bytes(db, reader):
    """The first page, whatever the limit says; of both columns; one record however large."""
    db.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT 't', 'k', repeat('x', 300000) "
               "FROM generate_series(1, 20)")  # fmt: skip
    db.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value_binary) SELECT 't', 'k', "
               "convert_to(repeat('x', 300000), 'UTF8') FROM generate_series(1, 20)")  # fmt: skip
    page = reader.read(db, 0, (0,), (), 5000, 1_000_000)
    assert (_sizes(page), page.is_full) == ([300_000] * 4, True)
    page = reader.read(db, 30, (0,), (), 5000, 1_000_000)
    assert (_sizes(page), page.is_full) == ([300_000] * 4, True)
    page = reader.read(db, 30, (0,), (), 5000, 1)
    assert (_sizes(page), page.is_full) == ([300_000], True)
    assert reader.read(db, 40, (0,), (), 5000, 1).is_full is False


def test_large_records_behind_small_ones_are_neither_lost_nor_reordered(db, reader):
    insert(db, "t", ["k"] * 300)
    db.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT 't', 'k', repeat('x', 300000) "
               "FROM generate_series(1, 5)")  # fmt: skip
    insert(db, "t", ["k"] * 300)
    ids, look, largest = [], 0, 0
    while rows := reader.read(db, look, (0,), ids[-1:], 200, 700_000).rows:
        assert all(row[1] == "t" and row[3] for row in rows)
        largest = max(largest, sum(len(row[3]) for row in rows))
        ids += [row[0] for row in rows]
        look = ids[-1]
    assert ids == list(range(1, 606))
    assert largest < 1_000_000


LARGE = {
    "key": "kafka_key = repeat('x', 90000)",
    "value": "kafka_value = repeat('x', 90000)",
    "names": "kafka_header_keys = ARRAY[repeat('x', 90000)], kafka_header_values = '{v}'",
    "values": "kafka_header_keys = '{h}', kafka_header_values = ARRAY[repeat('x', 90000)]",
    "many small values": "kafka_header_keys = array_fill('n'::text, '{5600}'), "
    "kafka_header_values = array_fill('v'::text, '{5600}')",
}


@pytest.mark.parametrize("part", LARGE)
@pytest.mark.parametrize("storage", ["EXTENDED", "EXTERNAL"])
def test_every_part_of_a_record_counts_as_it_leaves_the_server(db, reader, storage, part):
    """However small it is on disk."""
    for column in ("kafka_key", "kafka_value", "kafka_header_keys", "kafka_header_values"):
        db.execute(f"ALTER TABLE outbox ALTER {column} SET STORAGE {storage}")
    insert(db, "t", ["k"] * 30)
    db.execute(f"UPDATE outbox SET {LARGE[part]} WHERE id <= 20")
    assert [len(reader.read(db, look, (0,), (), 5000, 250_000).rows) for look in (0, 10, 19, 20)] == [3, 3, 11, 10]


def test_a_page_of_small_records_ends_before_it_outgrows_its_bytes(db, reader):
    insert(db, "t", ["k"] * 3000)
    db.execute("UPDATE outbox SET kafka_value = repeat('x', 900)")
    found = [_sizes(reader.read(db, 0, (0,), (), limit, 100_000)) for limit in (3000, 100, 3000, 3000)]
    assert [len(sizes) for sizes in found] == [100] * 4
    assert found == [[900] * len(sizes) for sizes in found]


def test_a_dearer_way_to_read_a_page_is_left_again(db, reader):
    insert(db, "t", ["k"] * 10)
    db.execute("UPDATE outbox SET kafka_value = repeat('x', 5000) WHERE id = 1")
    reader.read(db, 0, (0,), (), 1000)
    assert reader._step == 2
    for _ in range(40):
        assert len(reader.read(db, 1, (0,), (), 1000).rows) == 9
    assert reader._step == 0


@pytest.mark.parametrize("values", ["ARRAY[repeat('x', 100000)]", "NULL"])
def test_headers_count_and_a_table_of_others_may_have_none(db, reader, values):
    db.execute("ALTER TABLE outbox ALTER kafka_header_values DROP NOT NULL, ALTER kafka_header_keys DROP NOT NULL, "
               "ALTER kafka_header_values SET STORAGE EXTERNAL")  # fmt: skip
    names = "NULL" if values == "NULL" else "ARRAY['h']"
    db.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
               f"SELECT 't', 'k', {names}, {values} FROM generate_series(1, 20)")  # fmt: skip
    page = reader.read(db, 0, (0,), (), 5000, 250_000)
    assert len(page.rows) == (20 if values == "NULL" else 3)
    db.execute("UPDATE outbox SET kafka_value = repeat('x', 2000)")
    page = reader.read(db, 0, (0,), (), 5000, 250_000)
    assert len(page.rows) == (20 if values == "NULL" else 3)
    assert [row[1] for row in page.rows] == ["t"] * len(page.rows)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_sweep_looks_at_so_many_blocks_and_at_nothing_else(url, db, lanes):
    ids = insert(db, "t", [f"k{n}" for n in range(2000)])
    hidden = insert(db, "held", ["k"])
    sweeper = Sweeper("outbox", lanes)
    with companions.connect({"conninfo": url}, statement_timeout_s=20, application_name="test") as connection:
        Sweeper.prepare(connection)
        every = list(range(lanes))
        below = Below(ids[1499], every, ids[:10], LeftOut(frozenset({"held"})))
        plan = connection.execute(f"EXPLAIN (FORMAT JSON) {sweeper.text}", sweeper.given(0, 4, below)).fetchone()[0]
        assert "Tid Range Scan" in json.dumps(plan)
        found, size = sweeper.look(connection, 0, 4, below)
        assert 4 < size < 200
        assert 10 < len(found) < 1000
        assert found[0][:3] == (ids[10], "t", "k10")
        rest, _ = sweeper.look(connection, 4, 4096, below)
        assert [row[0] for row in found + rest] == ids[10:1500]
        assert {row[3] for row in found} == set(every)
        above = Below(hidden[0], [lanes - 1], (), LeftOut(frozenset(), frozenset({lanes - 1})))
        assert sweeper.look(connection, 0, 4096, above)[0] == []
