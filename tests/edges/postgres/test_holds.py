"""Holds know their record by more than its id: TRUNCATE … RESTART IDENTITY draws ids a second time."""

import pytest

from outbox.core.holds.book import Holds
from outbox.core.holds.crashes import Care
from outbox.core.holds.values import DeadRecord, HoldActions, HoldRow, rejected
from outbox.core.names import held_key
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.holds import HoldTable
from tests.support.tables import create_companions, insert

HELD = "SELECT record_id, wanted, attempts, jsonb_array_length(history) FROM outbox_hold"


@pytest.fixture
def db(url):
    with companions.connect({"conninfo": url}, statement_timeout_s=20, application_name="test") as connection:
        create_companions(connection)
        yield connection


@pytest.fixture
def table():
    return HoldTable("outbox")


def hold(id_, attempts=1):
    return rejected(id_, "t", "k", attempts, "MSG_SIZE_TOO_LARGE: too large", 1.0)


def skipped(id_):
    return DeadRecord(HoldRow(1, "t", "k", record_id=id_), "skipped")


def run(db, table, **hold_actions):
    with db.transaction():
        return table.run(db, 0, HoldActions(**hold_actions))


@pytest.mark.parametrize("wanted", ["skip", "discard"])
@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_request_about_a_record_does_not_hit_another_with_its_id(db, table, wanted, is_replaced):
    [id_] = insert(db, "t", ["k"])
    table.write(db, [hold(id_)], [])
    db.execute("UPDATE outbox_hold SET wanted = %s", [wanted])
    if is_replaced:
        db.execute("TRUNCATE outbox RESTART IDENTITY")
        assert insert(db, "t", ["k"]) == [id_]
    assert [row.is_there for row in table.load(db, 1)] == [not is_replaced]
    dead_record = skipped(id_)
    gone = run(db, table, **({"dead_records": (dead_record,)} if wanted == "skip" else {"discarded": (id_,)}))
    assert gone == (set() if is_replaced else {id_})
    assert db.execute("SELECT count(*) FROM outbox").fetchone() == (int(is_replaced),)
    assert db.execute("SELECT count(*) FROM outbox_dead").fetchone() == (int(wanted == "skip" and not is_replaced),)


def test_another_record_with_the_id_begins_with_a_history_of_its_own(db, table):
    [id_] = insert(db, "t", ["k"])
    table.write(db, [hold(id_)], [])
    table.write(db, [hold(id_, 2)], [])
    db.execute("UPDATE outbox_hold SET wanted = 'discard'")
    assert db.execute(HELD).fetchall() == [(id_, "discard", 2, 2)]
    db.execute("TRUNCATE outbox RESTART IDENTITY")
    assert insert(db, "t", ["k"]) == [id_]
    table.write(db, [hold(id_)], [])
    assert db.execute(HELD).fetchall() == [(id_, "", 1, 1)]
    assert [row.is_there for row in table.load(db, 1)] == [True]


def test_a_long_key_is_loaded_as_the_digest_that_lanes_remember(db, table):
    key = "ключ" * 3000
    [id_] = insert(db, "t", [key])
    table.write(db, [rejected(id_, "t", held_key("t", key), 1, "", 1.0)], [])
    assert db.execute("SELECT key FROM outbox_hold").fetchall() == [(key,)]
    assert [row.key for row in table.load(db, 1)] == [held_key("t", key)]
    assert len(held_key("t", key)) == 32
    holds = Holds()
    holds.load(table.load(db, 1), 0.0)
    assert holds.keep([(id_, "t", key), (id_ + 1, "t", "other"), (id_ + 2, "t", key + "x")]) == [
        (id_ + 1, "t", "other"), (id_ + 2, "t", key + "x"),
    ]  # fmt: skip


def test_a_hold_of_an_older_release_goes_by_the_id(db, table):
    [id_] = insert(db, "t", ["k"])
    table.write(db, [hold(id_)], [])
    db.execute("UPDATE outbox_hold SET stashed_at = NULL")
    assert [row.is_there for row in table.load(db, 1)] == [True]
    run(db, table, dead_records=(skipped(id_),))
    assert db.execute("SELECT count(*) FROM outbox").fetchone() == (0,)


ROWS = 20_000
READ = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'outbox'"
STATEMENTS = {
    "hold": lambda db, table, id_: table.write(db, [hold(id_)], []),
    "load": lambda db, table, id_: table.load(db, 3),
    "dead_letter": lambda db, table, id_: table.run(db, 0, HoldActions(dead_records=(skipped(id_),))),
    "discard": lambda db, table, id_: table.run(db, 0, HoldActions(discarded=(id_,))),
    "poison": lambda db, table, id_: table.own(db, 0, "somebody", Care(poison=id_, crashes=2)),
}


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("is_analysed", [True, False])
def test_no_statement_reads_more_of_a_large_table_than_its_records(db, table, name, is_analysed):
    ids = insert(db, "t", [f"k{n}" for n in range(ROWS)])
    if is_analysed:
        db.execute("ANALYZE outbox")
    middle = ids[ROWS // 2]
    table.write(db, [hold(middle)], [])
    db.execute("UPDATE outbox_hold SET wanted = 'discard'")
    with db.transaction():
        STATEMENTS[name](db, table, middle)
        [read] = db.execute(READ).fetchone()
    assert read <= 5, f"{read} rows were read"
