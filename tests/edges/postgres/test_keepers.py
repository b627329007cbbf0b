"""What is found of a table before anything is sent: what keeps its rows, and how its ids are drawn. Every change of the
table is rolled back."""

import os

import psycopg
import pytest

from outbox.edges.postgres.preflight import keepers, numbering
from outbox.edges.postgres.preflight.keepers import RowsKept
from outbox.edges.postgres.preflight.numbering import UnorderedIds
from tests.harvest.exactly_once.bench import create_tables
from tests.support.databases import fresh_database
from tests.support.tables import create_table, insert

FUNCTION = "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {}\nEND $$;"
TRIGGER = "CREATE TRIGGER soft BEFORE {} ON outbox FOR EACH {} EXECUTE FUNCTION keep()"
ROLE = f"keeper_{os.getpid()}"


@pytest.fixture(scope="module")
def tables(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url, psycopg.connect(url, autocommit=True) as connection:
        create_tables(connection)
        create_table(connection, "goharvest", binary=False)
        yield connection


@pytest.fixture
def db(tables):
    with tables.transaction(force_rollback=True):
        yield tables


def judged(db, *, marks):
    """Whether rows are kept for certain; else what may keep some."""
    try:
        return keepers.check(db, "outbox", marks=marks)
    except RowsKept as error:
        return str(error)


POLICIES = [
    (["s FOR SELECT USING (true)"], "DELETE"),
    (["s USING (kafka_key = 'a')", "d FOR DELETE USING (kafka_key = 'c')"], "hides"),
    (["a USING (true)", "d AS RESTRICTIVE FOR DELETE USING (kafka_key = 'a')"], "DELETE"),
    (["s FOR SELECT USING (true)", "d FOR DELETE USING (true)"], "UPDATE"),
    (["a USING (true)", "u FOR UPDATE USING (true) WITH CHECK (kafka_key = 'a')"], ""),
    (["a USING (true)", "u USING (kafka_key = 'a') WITH CHECK (kafka_key = 'a')"], ""),
    (["a USING (true) WITH CHECK (kafka_key = 'a')"], "UPDATE"),
    (["a USING (true)", "u AS RESTRICTIVE FOR UPDATE USING (true) WITH CHECK (kafka_key = 'a')"], "UPDATE"),
    (["a USING (true)"], ""),
    (["a TO pg_monitor USING (true)"], "DELETE"),
    ([], "DELETE"),
]


@pytest.mark.parametrize(("policies", "kept"), POLICIES, ids=str)
def test_row_level_security_is_judged_by_what_it_lets_the_role_do(db, policies, kept):
    db.execute(f"CREATE ROLE {ROLE}; GRANT ALL ON outbox TO {ROLE}; ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
    for policy in policies:
        name, _, rest = policy.partition(" ")
        db.execute(f"CREATE POLICY {name} ON outbox {rest}")
    assert judged(db, marks=True) == [], "a superuser passes it by"
    insert(db, "t", ["a", "b"])
    db.execute(f"SET LOCAL ROLE {ROLE}")
    for marks in (False, True):
        found = judged(db, marks=marks)
        if kept == "DELETE" or (kept == "UPDATE" and marks):
            assert f"the role may not {kept}, or no rows: run, as a superuser: ALTER ROLE {ROLE} BYPASSRLS" in found
        elif kept == "hides":
            assert "hides rows" in found[0]
        else:
            assert found == []
    if kept == "":
        assert db.execute("UPDATE outbox SET leader_id = gen_random_uuid()").rowcount == 2
        assert db.execute("DELETE FROM outbox").rowcount == 2


SKIPS, MAY_SKIP = "the trigger 'soft' skips each", "the trigger 'soft' may skip a"
TRIGGERS = [
    ("DELETE", "ROW", "RETURN OLD;", ""),
    ("DELETE", "ROW", "/* RETURN NULL */ RETURN OLD; -- RETURN NULL", ""),
    ("DELETE", "ROW", "RETURN NULL;", f"{SKIPS} DELETE: let it return OLD, or drop it"),
    ("DELETE", "ROW", "UPDATE outbox SET kafka_key = ''; return new;", f"{SKIPS} DELETE"),
    ("DELETE", "ROW", "IF OLD.kafka_key = 'b' THEN RETURN NULL; END IF; RETURN OLD;", f"{MAY_SKIP} DELETE"),
    ("DELETE", "ROW", "RETURN coalesce(NEW, OLD);", f"{MAY_SKIP} DELETE"),
    ("DELETE", "ROW", "IF OLD.kafka_key = 'b' THEN RETURN NULL; END IF; RETURN (OLD);", f"{MAY_SKIP} DELETE"),
    ("DELETE", "STATEMENT", "RETURN NULL;", ""),
    ("INSERT", "ROW", "RETURN NULL;", ""),
    ("UPDATE", "ROW", "RETURN NEW;", ""),
    ("UPDATE", "ROW", "RETURN NULL;", f"{SKIPS} UPDATE"),
    ("UPDATE", "ROW", "RETURN OLD;", f"{SKIPS} UPDATE: let it return NEW, or drop it"),
    ("UPDATE", "ROW", "IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW;", ""),
    ("UPDATE OF leader_id", "ROW", "RETURN NULL;", f"{SKIPS} UPDATE"),
    ("UPDATE OF kafka_key", "ROW", "RETURN NULL;", ""),
]


@pytest.mark.parametrize(("event", "unit", "body", "told"), TRIGGERS, ids=str)
def test_a_trigger_is_judged_by_what_it_returns(db, event, unit, body, told):
    db.execute(FUNCTION.format(body) + TRIGGER.format(event, unit))
    if event != "DELETE":
        assert judged(db, marks=False) == []
    found = judged(db, marks=True)
    assert told in "".join(found)
    assert isinstance(found, str) == told.startswith(SKIPS)
    db.execute("ALTER TABLE outbox DISABLE TRIGGER soft")
    assert judged(db, marks=True) == []


def test_a_trigger_with_a_condition_may_keep_rows(db):
    db.execute(FUNCTION.format("RETURN NULL;") + TRIGGER.format("DELETE", "ROW WHEN (OLD.kafka_key = 'a')"))
    assert MAY_SKIP in "".join(judged(db, marks=False))


@pytest.mark.parametrize("command", ["DELETE", "UPDATE"])
@pytest.mark.parametrize("action", ["INSTEAD NOTHING", "ALSO NOTIFY x"])
def test_a_rule_is_refused(db, command, action):
    db.execute(f"CREATE RULE soft AS ON {command} TO outbox DO {action}")
    told = f'the rule \'soft\' acts on each {command}: DROP RULE "soft" ON "outbox"'
    assert told in judged(db, marks=True)
    assert bool(judged(db, marks=False)) == (command == "DELETE")


CHANGES = [
    ("ALTER SEQUENCE {}_id_seq CACHE 50", "has CACHE 50, INCREMENT 1; it must", "sequence"),
    ("ALTER SEQUENCE {}_id_seq INCREMENT 2", "INCREMENT 2", "sequence"),
    ("ALTER SEQUENCE {}_id_seq CYCLE", "INCREMENT 1, CYCLE", "sequence"),
    ("ALTER SEQUENCE {0}_id_seq CACHE 50; ALTER SEQUENCE {0}_id_seq OWNED BY NONE", "CACHE 50", "sequence"),
    ("ALTER TABLE {0} ALTER id SET DEFAULT nextval('{0}_id_seq')", "not guarded by pg_current_xact_id()", "default"),
    ("ALTER TABLE {} ALTER id DROP DEFAULT", "not guarded", "default"),
    ("ALTER SEQUENCE {}_id_seq OWNED BY NONE", "No sequence belongs", "owner"),
]


@pytest.mark.parametrize(("change", "told", "what"), CHANGES)
def test_how_ids_are_drawn_is_an_error_where_a_promise_needs_it(db, change, told, what):
    assert numbering.check(db, "outbox", exactly_once=True) == numbering.check(db, "outbox", exactly_once=False) == []
    db.execute(change.format("outbox"))
    with pytest.raises(UnorderedIds) as caught:
        numbering.check(db, "outbox", exactly_once=True)
    assert told in str(caught.value)
    if what == "sequence":
        with pytest.raises(UnorderedIds):
            numbering.check(db, "outbox", exactly_once=False)
        statement = str(caught.value).partition("ALTER SEQUENCE")[2].partition(".")[0]
        db.execute(f"ALTER SEQUENCE {statement}")
        assert numbering.look(db.cursor(), '"outbox"').sequence == ""
    else:
        (note,) = numbering.check(db, "outbox", exactly_once=False)
        assert told in note


@pytest.mark.parametrize(("change", "told", "what"), CHANGES)
def test_a_table_of_others_keeps_its_default(db, change, told, what):
    assert numbering.check(db, "goharvest", exactly_once=False) == [], "as goharvest-compatible programs make it"
    db.execute(change.format("goharvest"))
    notes = numbering.check(db, "goharvest", exactly_once=False)
    assert [told in note for note in notes] == ([True] if what == "sequence" else [])
