"""The lease of a delivery mode on a table, on a real PostgreSQL."""

import os
import uuid

import psycopg
import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.edges.postgres.common.leases import NoPrivileges, OtherMode, TableLease, settled_after
from tests.harvest.exactly_once.bench import create_tables
from tests.support.databases import fresh_database
from tests.support.tables import create_table

MODES = (EXACTLY_ONCE, AT_LEAST_ONCE, "spark")
PAIRS = [(one, other) for one in MODES for other in MODES if one != other]


@pytest.fixture(scope="module")
def url(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        yield url


@pytest.fixture
def db(url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        create_tables(connection)
        yield connection


def lease(way, owner, patience_s=60.0):
    return TableLease("outbox", way, owner, patience_s)


def row(db):
    return db.execute("SELECT lease_mode, lease_owner, lanes FROM outbox_state").fetchone()


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_another_way_is_refused_while_a_lease_is_fresh_and_may_begin_when_it_is_old(db, one, other):
    assert lease(one, "host_1").take(db, lanes=3)
    assert row(db) == (one, "host_1", 3)
    for quietly in (False, True):
        with pytest.raises(
            OtherMode, match=f"'host_1' harvests the table .* with DELIVERY='{one}'.*This process is for '{other}'"
        ):
            lease(other, "host_2").take(db, quietly=quietly, owned={0: uuid.uuid4()})
    assert row(db) == (one, "host_1", 3)
    db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '59 s'")
    with pytest.raises(OtherMode, match=r"heartbeat is 59\.\d s old"):
        lease(other, "host_2").take(db)
    db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '61 s'")
    assert lease(other, "host_2").take(db)
    assert row(db) == (other, "host_2", 3)
    with pytest.raises(OtherMode):
        lease(one, "host_1").take(db)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_released_table_can_be_had_at_once(db, one, other):
    first = lease(one, "host_1")
    first.take(db, owned={0: uuid.uuid4()})
    first.release(db)
    assert lease(other, "host_2").take(db)


def test_two_formulas_of_lanes_are_refused_while_the_other_is_in_use(db):
    """Else a record without key has two lanes, in one of which each process looks for it."""

    def using(keep, owner):
        return TableLease("outbox", EXACTLY_ONCE, owner, 60.0, keep_empty_key=keep)

    first, same, other = using(False, "host_1"), using(False, "host_2"), using(True, "host_3")
    first.take(db, owned={0: uuid.uuid4()})
    same.take(db)
    for quietly in (False, True):
        with pytest.raises(
            OtherMode,
            match=r"'host_2' harvests .* with KEEP_EMPTY_KEY=False.*This process has KEEP_EMPTY_KEY=True.*the same",
        ):
            other.take(db, quietly=quietly, owned={1: uuid.uuid4()})
    assert row(db)[1] == "host_2"
    first.release(db)
    other.take(db)
    with pytest.raises(OtherMode, match=r"'host_3' harvests .* with KEEP_EMPTY_KEY=True"):
        first.take(db)


def test_processes_of_one_way_share_it_and_the_last_one_releases_it(db):
    first, second = lease(EXACTLY_ONCE, "host_1"), lease(EXACTLY_ONCE, "host_2")
    for number, each in enumerate((first, second)):
        assert each.take(db, owned={number: uuid.uuid4()})
    assert row(db)[:2] == (EXACTLY_ONCE, "host_2")
    second.release(db)
    with pytest.raises(OtherMode):
        lease(AT_LEAST_ONCE, "host_3").take(db)
    first.release(db)
    assert lease(AT_LEAST_ONCE, "host_3").take(db)


def test_a_lane_of_a_process_that_died_holds_up_a_release_no_longer_than_its_lease(db):
    dead, living = lease(EXACTLY_ONCE, "host_1", 6), lease(EXACTLY_ONCE, "host_2", 6)
    dead.take(db, owned={1: uuid.uuid4()})
    living.take(db)
    db.execute("UPDATE outbox_lane SET heartbeat = clock_timestamp() - interval '7 s'")
    living.release(db)
    assert lease(AT_LEAST_ONCE, "host_3").take(db)


def test_a_standby_leaves_the_owner_in_place_but_renews_an_old_lease(db):
    lease(EXACTLY_ONCE, "host_1").take(db)
    lease(EXACTLY_ONCE, "host_2").take(db, quietly=True)
    assert row(db)[1] == "host_1"
    db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '61 s'")
    lease(EXACTLY_ONCE, "host_2").take(db, quietly=True)
    assert row(db)[1] == "host_2"


def test_of_two_ways_at_the_same_moment_one_has_the_table(url, db):
    """The second one waits for the row and then sees what the first one wrote."""
    lease(EXACTLY_ONCE, "host_1").take(db)
    db.execute("UPDATE outbox_state SET lease_time = '-infinity'")
    with psycopg.connect(url) as first, psycopg.connect(url, autocommit=True) as second:
        lease(AT_LEAST_ONCE, "host_2").take(first)
        second.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lease(EXACTLY_ONCE, "host_3").take(second)
        first.commit()
        with pytest.raises(OtherMode):
            lease(EXACTLY_ONCE, "host_3").take(second)


def test_a_goharvest_table_has_nothing_to_lease_until_it_is_migrated(db):
    db.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    create_table(db)
    one = lease(AT_LEAST_ONCE, "host_1")
    assert not one.take(db)
    one.release(db)
    db.execute("DROP TABLE outbox")
    create_tables(db)
    assert one.take(db)
    assert row(db)[0] == AT_LEAST_ONCE
    db.execute("DROP TABLE outbox_state")
    with pytest.raises(psycopg.errors.UndefinedTable):
        one.take(db)
    assert not one.take(db)


def test_missing_rights_are_named_with_the_statement_that_gives_them(db):
    db.execute("DROP ROLE IF EXISTS nobody_much")
    db.execute("CREATE ROLE nobody_much")
    db.execute("GRANT USAGE ON SCHEMA public TO nobody_much")
    try:
        db.execute("SET ROLE nobody_much")
        with pytest.raises(
            NoPrivileges, match='GRANT SELECT, INSERT, UPDATE, DELETE ON "outbox_state", "outbox_lane" TO'
        ):
            lease(AT_LEAST_ONCE, "host_1").take(db)
    finally:
        db.execute("RESET ROLE")
        db.execute("DROP OWNED BY nobody_much")
        db.execute("DROP ROLE nobody_much")


@pytest.mark.parametrize("way", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_another_name_is_refused_by_name_while_a_lease_is_fresh(db, way):
    """Two settings modules of one project, each with a default of its own, are enough for that."""

    def of(name, owner):
        return TableLease("outbox", way, owner, 6.0, keep_empty_key=False, settled_s=settled_after(10.0), name=name)

    assert of("shop.outbox", "host_1").take(db)
    assert of("shop.outbox", "host_2").take(db), "of the same name: they share it"
    with pytest.raises(
        OtherMode, match=r"'host_2' harvests .* with NAME='shop.outbox'.*This process has NAME='other'.*the same"
    ):
        of("other", "host_3").take(db, quietly=True)
    db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '7 s'")
    if way == EXACTLY_ONCE:
        with pytest.raises(OtherMode, match="26 s after"):
            of("other", "host_3").take(db)
        db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '27 s'")
    assert of("other", "host_3").take(db)
    with pytest.raises(OtherMode, match="NAME='other'"):
        of("shop.outbox", "host_1").take(db)


def test_a_row_that_another_process_makes_meanwhile_is_taken(db):
    """Two harvesters that start at once on a table which nobody has taken yet."""

    class Meanwhile(TableLease):
        def _run(self, connection, text, given=None):
            if text.startswith("SELECT way"):
                connection.execute("INSERT INTO outbox_state (lanes) VALUES (1) ON CONFLICT DO NOTHING")
            return super()._run(connection, text, given)

    assert db.execute("SELECT count(*) FROM outbox_state").fetchone() == (0,)
    assert Meanwhile("outbox", EXACTLY_ONCE, "host_1", 6.0).take(db)
    assert row(db)[1] == "host_1"


def test_a_lease_of_exactly_once_counts_for_others_as_long_as_its_transaction_may_be_committed(db):
    """An owner that was paused before its commit goes on with it when it wakes up."""

    def of(way, **given):
        return TableLease("outbox", way, "host_2", 6.0, settled_s=settled_after(10.0), **given)

    paused = TableLease("outbox", EXACTLY_ONCE, "host_1", 6.0, keep_empty_key=False)
    others = of(AT_LEAST_ONCE), of("spark"), of(EXACTLY_ONCE, keep_empty_key=True)
    for other in others:
        assert paused.take(db)
        db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '25 s'")
        with pytest.raises(OtherMode, match="26 s after"):
            other.take(db, quietly=True)
        assert of(EXACTLY_ONCE, keep_empty_key=False).take(db, quietly=True), "of the same mode: it fences"
        assert row(db)[1] == "host_2"
        db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '27 s'")
        assert other.take(db)
        other.release(db)
    assert paused.take(db)
    paused.release(db)
    assert others[0].take(db), "released cleanly"
    db.execute("UPDATE outbox_state SET lease_time = clock_timestamp() - interval '7 s'")
    assert paused.take(db), "nothing of at-least-once outlives its lease"
