"""Every statement of mark, purge and reset on a real PostgreSQL."""

import itertools
import os
import signal
import threading
import time
import uuid

import psycopg
import pytest

from outbox.edges.postgres.at_least_once.marks import LaneBlocked, Marks, Scopes, StillThere, WrongTable
from outbox.edges.postgres.common.table import connect_bounded
from outbox.schema.adoption import guarded_default
from tests.harvest.hosts import wait_until
from tests.support.tables import create_table, insert

EPOCHS = itertools.count(1)


@pytest.fixture
def connect(url):
    opened = []

    def connect(**options):
        opened.append(connect_bounded({"conninfo": url, **options}, statement_timeout_s=5))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def db(connect):
    return connect()


def taken(connection, table="outbox", *, epoch=1, **options):
    marks = Marks(table, **options)
    assert marks.take(connection, epoch, 5)
    return marks


def test_mark_takes_the_lowest_ids_and_returns_every_column(db):
    db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, "
        "kafka_value_binary) VALUES ('a', 'k', 'vä', '{n}', '{w}', NULL), ('b', '', NULL, '{}', '{}', NULL), "
        "('c', 'k', NULL, '{}', '{}', '\\x00ff'), ('d', 'k', 'not yet', '{}', '{}', NULL)"
    )
    leader = uuid.uuid4()
    rows = sorted(taken(db).mark(db, leader, 3))
    assert [row[1:6] for row in rows] == [
        ("a", "k", "vä".encode(), ["n"], ["w"]),
        ("b", "", None, None, None),
        ("c", "k", b"\x00ff"[:1] + b"\xff", None, None),
    ]
    found = db.execute("SELECT leader_id FROM outbox ORDER BY id").fetchall()
    assert found == [(leader,)] * 3 + [(None,)]


def test_rows_of_other_leaders_are_taken_and_own_ones_are_not(db):
    insert(db, "t", ["a", "b"])
    marks, first, second = taken(db), uuid.uuid4(), uuid.uuid4()
    assert len(marks.mark(db, first, 10)) == 2
    assert marks.mark(db, first, 10) == []
    assert len(marks.mark(db, second, 10)) == 2


def test_excluded_keys_are_not_marked(db):
    insert(db, "t", ["a", "b", "c"])
    rows = taken(db).mark(db, uuid.uuid4(), 10, [("t", "a"), ("other", "b"), ("t", "c")])
    assert [row.kafka_key for row in rows] == ["b"]


def test_what_is_held_is_left_out(db):
    ids = insert(db, "t", ["a", "b", "", ""]) + insert(db, "u", ["a", ""])
    for held, free in [
        (Scopes(topics=frozenset("t")), ids[4:]),
        (Scopes(keys=frozenset({("t", "a"), ("u", "")})), ids[1:5]),
        (Scopes(ids=frozenset({ids[2]})), [*ids[:2], *ids[3:]]),
        (Scopes(is_all=True), []),
        (Scopes(), ids),
    ]:
        marks = taken(db, epoch=next(EPOCHS))
        marks.held = held
        assert sorted(row.id for row in marks.mark(db, uuid.uuid4(), 10)) == free
    assert sorted(marks.sweep(db, uuid.uuid4(), 10)) == []


PAUSED = Scopes(topics=frozenset({"paused"}))


def read_rows(connection):
    """Rows of the index that this session has walked over."""
    connection.execute("SELECT pg_stat_force_next_flush()" if connection.info.server_version >= 150000 else "SELECT")
    return connection.execute("SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'outbox'").fetchone()[
        0
    ]


def test_a_held_backlog_is_walked_over_once(db):
    guard(db)
    held = insert(db, "paused", ["k"] * 3000)
    marks, leader = taken(db, epoch=next(EPOCHS)), uuid.uuid4()
    marks.held = PAUSED

    def walked():
        insert(db, "t", ["k"])
        with db.transaction():
            before = read_rows(db)
            assert [row.kafka_topic for row in marks.mark(db, leader, 10)] == ["t"]
            return read_rows(db) - before

    give_up_at = time.monotonic() + 60
    while walked() >= 100:  # as long as a transaction of another test is open, nothing above it is settled
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    marks.held = Scopes()
    assert min(row.id for row in marks.mark(db, leader, 10)) == held[0]
    marks.held = PAUSED
    marks.mark(db, leader, 10)
    assert marks._settled.look == 0, "another scope is walked from the beginning"


def test_a_late_record_is_marked_before_a_later_one_of_its_key(db, connect):
    """It was invisible when the held backlog was walked over."""
    guard(db)
    late = connect()
    with late.transaction():
        [first] = insert(late, "t", ["k"])
        insert(db, "paused", ["k"] * 100)
        marks, leader = taken(db, epoch=next(EPOCHS)), uuid.uuid4()
        marks.held = PAUSED
        for _ in range(5):
            assert marks.mark(db, leader, 10) == []
            insert(db, "paused", ["k"])
    [second] = insert(db, "t", ["k"])
    assert sorted(row.id for row in marks.mark(db, leader, 10)) == [first, second]
    give_up_at = time.monotonic() + 60
    while marks._settled.look <= second:
        assert time.monotonic() < give_up_at
        insert(db, "t", ["k"])
        marks.mark(db, leader, 10)


def test_a_sequence_that_is_made_anew_during_a_mark_starts_the_walk_again(db, monkeypatch):
    """ALTER SEQUENCE … RESTART replaces its file and does not wait for readers. They may see a file without a row."""
    db.execute("CREATE TABLE without_row (last_value bigint, is_called boolean)")
    monkeypatch.setattr(Marks, "_sequence", lambda self, connection: "without_row")
    insert(db, "paused", ["k"])
    (free,) = insert(db, "t", ["k"])
    leader, marks = uuid.uuid4(), taken(db, epoch=next(EPOCHS))
    marks.held = PAUSED
    assert [row.id for row in marks.mark(db, leader, 10)] == [free]
    assert marks._settled.look == 0


def test_held_backlogs_are_left_out_without_a_sequence_too(db):
    db.execute("ALTER TABLE outbox ALTER id DROP DEFAULT; ALTER SEQUENCE outbox_id_seq OWNED BY NONE")
    db.execute("INSERT INTO outbox (id, kafka_topic, kafka_key) VALUES (7, 'paused', 'k'), (8, 't', 'k')")
    marks = taken(db, epoch=next(EPOCHS))
    marks.held = PAUSED
    assert [row.id for row in marks.mark(db, uuid.uuid4(), 10, [("u", "k")])] == [8]


def guard(connection):
    """Ids are drawn after the transaction ids, as in every table that was migrated."""
    connection.execute(f"ALTER TABLE outbox ALTER id SET DEFAULT {guarded_default('outbox_id_seq')}")


def test_a_mark_ends_early_when_its_values_are_large(db):
    insert(db, "t", ["k"] * 5)
    db.execute("UPDATE outbox SET kafka_value = repeat('x', 400)")
    marks = taken(db, bytes_max=1000)
    assert [len(marks.mark(db, leader, 10)) for leader in [uuid.uuid4()] for _ in range(2)] == [3, 2]
    marks = taken(db, bytes_max=1, epoch=2)
    assert len(marks.mark(db, uuid.uuid4(), 10)) == 1


def test_purge_reset_fetch_and_sweep_touch_only_rows_of_their_leader(db):
    ids = insert(db, "t", list("abcd"))
    marks, mine, other = taken(db), uuid.uuid4(), uuid.uuid4()
    marks.mark(db, mine, 10)
    db.execute("UPDATE outbox SET leader_id = %s WHERE id = %s", [other, ids[0]])
    assert sorted(row.id for row in marks.fetch(db, mine, ids)) == ids[1:]
    assert marks.sweep(db, mine, 10) == ids[1:]
    assert marks.purge(db, mine, ids[:2]) == [ids[1]]
    assert marks.purge(db, mine, ids[:2]) == []
    assert marks.reset(db, mine, ids) == 2
    assert db.execute("SELECT id, leader_id FROM outbox ORDER BY id").fetchall() == [
        (ids[0], other),
        (ids[2], None),
        (ids[3], None),
    ]


def test_the_sweep_of_a_large_backlog_goes_as_far_as_the_marks(db):
    insert(db, "t", ["k"] * 10)
    marks, leader = taken(db), uuid.uuid4()
    highest = max(row.id for row in marks.mark(db, leader, 5))
    db.execute("UPDATE outbox SET leader_id = %s", [leader])
    assert max(marks.sweep(db, leader, 100)) == highest
    assert marks.mark(db, leader, 5) == []
    assert len(marks.sweep(db, leader, 100)) == 10


def test_records_of_one_key_share_a_lane_and_every_record_has_one(db):
    insert(db, "t", [f"key-{n % 50}" for n in range(200)] + [""] * 20)
    lanes = [taken(db, lane=lane, lanes=3).mark(db, uuid.uuid4(), 1000) for lane in range(3)]
    assert sorted(len(rows) > 20 for rows in lanes) == [True] * 3
    keys = [{row.kafka_key for row in rows if row.kafka_key} for rows in lanes]
    assert sum(len(names) for names in keys) == 50
    assert sum(map(len, lanes)) == 220
    keeping = [taken(db, lane=n, lanes=3, keep_empty_key=True).mark(db, uuid.uuid4(), 1000) for n in range(3)]
    assert sorted(sum(row.kafka_key == "" for row in rows) for rows in keeping) == [0, 0, 20]


@pytest.mark.parametrize("name", ["outbox2", "Mixed Case", "select", "side.table"])
def test_any_name_and_the_goharvest_layout_work(db, name):
    db.execute("CREATE SCHEMA side")
    create_table(db, name, binary=False)
    insert(db, "t", ["a", "b"], name=name)
    marks, leader = taken(db, name), uuid.uuid4()
    rows = marks.mark(db, leader, 10)
    assert sorted(row.value for row in rows) == [b"1", b"2"]
    assert len(marks.fetch(db, leader, [row.id for row in rows])) == 2
    assert len(marks.purge(db, leader, [row.id for row in rows])) == 2


def test_a_wrong_table_is_explained(db):
    with pytest.raises(WrongTable, match=r'The table "nowhere" does not exist\. Run migrate'):
        Marks("nowhere").take(db, 1, 5)
    db.execute("CREATE TABLE half (id bigint, kafka_topic text, leader_id uuid)")
    with pytest.raises(WrongTable, match="lacks the columns create_time, kafka_key, kafka_value, "):
        Marks("half").take(db, 1, 5)


def test_a_claim_ends_the_sessions_of_older_owners(connect):
    older, newer = connect(), connect()
    taken(older, epoch=7)
    taken(newer, epoch=8)
    with pytest.raises(psycopg.OperationalError):
        older.execute("SELECT 1")


def test_a_lease_of_the_same_epoch_ends_the_session_before(connect):
    first, second = connect(), connect()
    taken(first, epoch=7)
    taken(second, epoch=7)
    assert first.pgconn.status is not None
    with pytest.raises(psycopg.OperationalError):
        first.execute("SELECT 1")


def test_a_claim_is_refused_while_a_newer_owner_is_there(connect):
    newer, older = connect(), connect()
    taken(newer, epoch=8)
    assert not Marks("outbox").take(older, 7, 5)
    newer.execute("SELECT 1")
    newer.close()
    wait_until(lambda: Marks("outbox").take(older, 7, 5))


def test_a_session_that_does_not_end_blocks_the_claim(connect, postgres):
    """It may be in the middle of a mark: nothing is taken before it is gone."""
    if postgres is None:
        pytest.skip("needs a server on this machine")
    older, newer = connect(), connect()
    taken(older, epoch=1)
    pid = older.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StillThere, match=f"An earlier owner .* pid {pid} "):
            Marks("outbox").take(newer, 2, 0.3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert Marks("outbox").take(newer, 2, 5)


@pytest.fixture
def stranger(db, url):
    """A connection of a role that may connect, and nothing else."""
    role = f"stranger_{os.getpid()}"
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    given = {"user": role, "password": "secret", "application_name": "psql", "autocommit": True}
    with psycopg.connect(url, **given) as connection:
        connection.role = role
        yield connection
    db.execute(f"DROP OWNED BY {role}")
    db.execute(f"DROP ROLE {role}")


def lock_space(db):
    marks = Marks("outbox")
    return marks._inspect(db)[0]


def test_a_claim_tells_who_holds_its_lock(url, db, stranger):
    stranger.execute("SELECT pg_advisory_lock(%s, -1)", [lock_space(db)])
    who = rf"pid {stranger.info.backend_pid} \(role '{stranger.role}', application_name 'psql', for 0 s\)"
    with (
        connect_bounded({"conninfo": url}, statement_timeout_s=0.4) as impatient,
        pytest.raises(LaneBlocked, match=rf"{who}.*pg_terminate_backend\({stranger.info.backend_pid}\)"),
    ):
        Marks("outbox").take(impatient, 1, 5)
    assert not db.closed


def test_a_refused_claim_tells_who_has_the_higher_epoch(db, stranger):
    stranger.execute("SELECT pg_advisory_lock(%s, 2147483646)", [lock_space(db)])
    marks = Marks("outbox")
    assert not marks.take(db, 1, 5)
    assert f"role '{stranger.role}'" in marks.refused_by
    assert marks.refused_by.endswith("Every role that may connect can take such a lock.")


def test_a_session_that_may_not_be_ended_is_told(url, db, connect, stranger):
    db.execute(f"GRANT SELECT ON outbox TO {stranger.role}")
    with connect_bounded({"conninfo": url}, statement_timeout_s=5) as owner:
        taken(owner, epoch=1)
        with pytest.raises(StillThere, match=f"pid {owner.info.backend_pid} .*pg_signal_backend"):
            Marks("outbox").take(stranger, 2, 5)


@pytest.mark.parametrize("keep_empty_key", [False, True])
def test_a_record_is_in_the_same_lane_in_every_way_of_delivery(db, keep_empty_key):
    lanes, formula = 7, "(hashtextextended(kafka_key, 0) & 9223372036854775807) % 7"
    if not keep_empty_key:
        formula = f"CASE WHEN kafka_key = '' THEN id % 7 ELSE {formula} END"
    for topic in ("one", "other"):
        insert(db, topic, [f"k{n}" for n in range(100)] + [""] * 20)
    expected = dict(db.execute(f"SELECT id, {formula} FROM outbox").fetchall())
    marked = {
        row.id: lane
        for lane in range(lanes)
        for row in taken(db, lane=lane, lanes=lanes, keep_empty_key=keep_empty_key).mark(db, uuid.uuid4(), 1000)
    }
    assert marked == expected


def test_other_lanes_and_tables_are_left_alone(connect):
    first, second, third = connect(), connect(), connect()
    create_table(first, "another")
    taken(first, epoch=1)
    taken(second, epoch=9, lane=1, lanes=2)
    taken(third, "another", epoch=9)
    first.execute("SELECT 1")


def test_a_mark_under_way_has_taken_effect_or_never_will_when_the_claim_returns(connect, db):
    """The older owner waits for a lock inside its mark; the takeover ends it before the newer owner marks."""
    insert(db, "t", ["a", "b"])
    older, newer, blocker = connect(), connect(), connect()
    marks = taken(older, epoch=1)
    outcome = []

    def mark():
        try:
            outcome.append(marks.mark(older, uuid.uuid4(), 10))
        except psycopg.Error as error:
            outcome.append(error)

    with blocker.transaction():
        blocker.execute("SELECT FROM outbox FOR UPDATE")
        thread = threading.Thread(target=mark)
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: db.execute(waiting).fetchone()[0])
        newest = taken(newer, epoch=2)
        thread.join(10)
    assert isinstance(outcome[0], psycopg.OperationalError)
    leader = uuid.uuid4()
    assert len(newest.mark(newer, leader, 10)) == 2
    assert db.execute("SELECT DISTINCT leader_id FROM outbox").fetchall() == [(leader,)]


def test_a_row_that_is_being_marked_by_another_harvester_is_waited_for(connect, db):
    """Skipping it would let a later record of its key overtake it."""
    insert(db, "t", ["k", "k"])
    marks, foreign, mine = taken(connect()), connect(), uuid.uuid4()
    marker = connect()
    assert marks.take(marker, 2, 5)
    rows = []
    with foreign.transaction():
        foreign.execute("UPDATE outbox SET leader_id = %s WHERE id = (SELECT min(id) FROM outbox)", [uuid.uuid4()])
        thread = threading.Thread(target=lambda: rows.extend(marks.mark(marker, mine, 10)))
        thread.start()
        wait_until(lambda: db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()[0])
    thread.join(10)
    assert len(rows) == 2


def test_marks_read_the_index_though_statistics_say_the_table_is_empty(db):
    db.execute("ANALYZE outbox")
    insert(db, "t", [f"k{n}" for n in range(5000)])
    marks = taken(db)
    given = {"leader": uuid.uuid4(), "limit": 100, "bytes": 1000, "topics": ["t"], "keys": ["k"], "backend": ""}
    for statement in (marks._mark, marks._mark_others):
        plan = "\n".join(row[0] for row in db.execute("EXPLAIN " + statement, given))
        assert "Index Scan using outbox_pkey" in plan
        assert "Seq Scan" not in plan
    given |= {"ids": "{1,2}"}
    for statement, found in ((marks._purge, None), (marks._fetch, given), (marks._look_up, None), (marks._reset, None)):
        rows = db.execute("EXPLAIN " + statement, found or ["{1,2}", uuid.uuid4()])
        plan = "\n".join(row[0] for row in rows)
        assert "outbox_pkey" in plan
        assert "Seq Scan" not in plan


def test_statements_are_named_and_leave_nothing_prepared(db):
    insert(db, "t", ["k"])
    marks = taken(db)
    for _ in range(10):
        marks.mark(db, uuid.uuid4(), 10)
    assert db.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    assert marks._mark.startswith("/* mark */")
    assert marks._purge.startswith("/* purge */")


def test_writers_that_do_not_wait_for_the_disk_are_flushed_with_the_mark(url, connect):
    eager = connect(options="-c synchronous_commit=off")
    taken(eager)
    assert eager.execute("SHOW synchronous_commit").fetchone() == ("on",)
    stricter = connect(options="-c synchronous_commit=remote_apply")
    taken(stricter, epoch=2)
    assert stricter.execute("SHOW synchronous_commit").fetchone() == ("remote_apply",)


def test_a_lock_is_waited_for_half_of_the_time_of_a_statement(url):
    with connect_bounded({"conninfo": url}, statement_timeout_s=0.4) as connection:
        assert connection.execute("SHOW lock_timeout").fetchone() == ("200ms",)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("400ms",)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(2)")
