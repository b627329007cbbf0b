"""The keeper on a real PostgreSQL and folders, and its command."""

import json
from io import StringIO

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from outbox import journal
from outbox.core.journal.values import ObjectMissing
from outbox.edges.postgres.journal.keeper import KEEPER_LOCK, KeeperTable
from outbox.journal import api, stores
from tests.journal.test_api import rows, whole


def keep():
    out = StringIO()
    try:
        call_command("journal", "--once", "--json", stdout=out, verbosity=0)
    except CommandError as error:
        return json.loads(out.getvalue()) | {"error": str(error), "code": error.returncode}
    return json.loads(out.getvalue())


def age(table, column, journal_name, by="2 days"):
    rows(f"UPDATE {table} SET {column} = {column} - %s::interval WHERE journal = %s", by, journal_name)


def objects(roots, name):
    return [sorted(stores.stores()[store].list(f"{name}/20")) for store in roots]


def placed(name):
    return api._table(None).at(name, 0)[0]


def test_there_is_nothing_to_do(name):
    journal.append(name, b"abc")
    assert keep() == {"done": {"indexed": 1}, "failing": {}, "suspect": []}
    assert keep() == {"done": {}, "failing": {}, "suspect": []}


def test_what_is_not_committed_goes_when_it_is_old(name, roots):
    staged = journal.stage(name, b"abc")
    assert keep()["done"] == {}
    age("outbox_stage", "used_at", name)
    assert keep()["done"] == {"swept": 1}
    assert objects(roots, name) == [[], [], []]
    assert rows("SELECT count(*) FROM outbox_stage") == [(0,)]
    with pytest.raises(journal.StageExpired), transaction.atomic():
        staged.commit()


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
def test_a_stage_that_a_transaction_uses_stays(name, roots, ends):
    """Also for days, and when no session holds the transaction any more."""
    staged = journal.stage(name, b"abc")
    age("outbox_stage", "used_at", name)
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        other.execute("BEGIN")
        other.execute("DELETE FROM outbox_stage WHERE append = %s", [staged.append])
        assert keep()["done"] == {}
        other.execute(ends)
    assert keep()["done"] == ({"strangers": 3} if ends == "COMMIT" else {"swept": 1})


def test_objects_of_an_open_transaction_stay(name, roots):
    staged = journal.stage(name, b"abc")
    age("outbox_stage", "used_at", name)
    with transaction.atomic():
        staged.commit()
        assert keep()["done"] == {}, "it has a connection of its own"
    assert whole(name) == b"abc"


def test_a_sweep_that_ended_halfway_cannot_be_overtaken(name):
    """The objects may be gone: the append must not commit."""
    staged = journal.stage(name, b"abc")
    age("outbox_stage", "used_at", name)
    assert KeeperTable(connection, "outbox").expire(3600, []).append == staged.append
    with pytest.raises(journal.StageExpired), transaction.atomic():
        staged.commit()
    assert keep()["done"] == {"swept": 1}


def test_missing_index_objects_are_written(name, roots):
    journal.append(name, b"abc")
    for root in roots.values():
        (root / name / ".index" / f"{0:016x}").unlink()
    assert keep()["done"] == {"indexed": 1}
    assert all((root / name / ".index" / f"{0:016x}").exists() for root in roots.values())


@pytest.mark.parametrize("damage", ["bits", "short", "long", "gone"])
def test_a_bad_replica_is_found_and_repaired(name, roots, damage):
    journal.append(name, b"abc")
    path = placed(name).fragment.path
    for store in "ab":  # two of three, so that one is left
        file = roots[store] / path
        file.unlink() if damage == "gone" else file.write_bytes(
            {"bits": b"abX", "short": b"ab", "long": b"abcd"}[damage]
        )
    age("outbox_fragment", "scrubbed_at", name, "60 days")
    assert keep()["done"] == {"bad_replicas": 2, "indexed": 1, "scrubbed": 1}
    assert placed(name).fragment.replicas == ("c",)
    assert keep()["done"]["repaired"] == 1
    replicas = placed(name).fragment.replicas
    assert len(replicas) == 2
    assert all((roots[store] / path).read_bytes() == b"abc" for store in replicas)
    left = ({*"abc"} - set(replicas)).pop()
    with pytest.raises(ObjectMissing):
        stores.stores()[left].read(path, 0, 1)


def test_the_last_replica_is_never_given_up(name, roots):
    journal.append(name, b"abc")
    for root in roots.values():
        (root / placed(name).fragment.path).write_bytes(b"abX")
    age("outbox_fragment", "scrubbed_at", name, "60 days")
    keep()
    assert len(placed(name).fragment.replicas) == 3
    with pytest.raises(journal.FragmentUnavailable):
        whole(name)


def test_what_is_older_than_the_retention_goes_with_its_objects(name, roots):
    journal.append(name, b"old")
    journal.append(name, b"older")
    journal.change(name, retention_s=86_400)
    age("outbox_fragment", "placed_at", name)
    journal.append(name, b"new")
    assert keep()["done"] == {"indexed": 1, "pruned": 2, "swept": 2}
    reader = journal.read(name)
    assert b"".join(reader) == b"new"
    assert reader.cursor.jumps == [(0, 8)]
    assert [len(found) for found in objects(roots, name)] == [1, 1, 1]
    assert [len(list((root / name / ".index").iterdir())) for root in roots.values()] == [1, 1, 1]
    age("outbox_fragment", "placed_at", name)
    assert keep()["done"] == {"pruned": 1, "swept": 1}
    journal.append(name, b"again")
    reader = journal.read(name)
    assert (b"".join(reader), reader.cursor.jumps, journal.show(name).head) == (b"again", [(0, 11)], 16)


def test_objects_that_no_row_names_go(name, roots):
    journal.append(name, b"abc")
    stranger = f"{name}/2026/01/02/00000000-0000-4000-8000-000000000000-0000"
    foreign = f"{name}/2026/01/02/readme"
    for path in (stranger, foreign):
        stores.stores()["a"].put(path, b"x")
    assert keep()["done"] == {"indexed": 1, "strangers": 1}
    assert stores.stores()["a"].get(foreign) == b"x"
    assert whole(name) == b"abc"


def test_a_store_that_is_ahead_makes_the_journal_suspect(name, roots):
    """As after a failover to a copy that lagged behind."""
    journal.append(name, b"abc")
    journal.append(name, b"lost")
    keep()
    rows("DELETE FROM outbox_fragment WHERE begin = 3")
    rows("UPDATE outbox_journal SET head = 3, chain = (SELECT chain FROM outbox_fragment WHERE journal = %s)", name)
    found = keep()
    assert found["suspect"] == [name]
    assert (found["code"], found["error"]) == (4, f"the journal {name} is suspect.")
    assert "strangers" not in found["done"], "what may be the only copy stays"
    with pytest.raises(journal.SuspectJournal, match="has bytes 3 to 7, and the head is 3"):
        journal.append(name, b"x")
    journal.reset_head(name, 7)
    journal.append(name, b"next")
    assert whole(name) == b"abcnext"
    assert keep()["suspect"] == []


def test_another_index_object_at_an_offset_makes_the_journal_suspect(name, roots):
    (roots["a"] / name / ".index").mkdir(parents=True)
    (roots["a"] / name / ".index" / f"{0:016x}").write_text("{}")
    journal.append(name, b"abc")
    assert keep()["suspect"] == [name]
    assert "another index object at offset 0" in journal.show(name).suspect


def test_a_store_that_fails_is_named(name, roots):
    journal.append(name, b"abc")
    age("outbox_fragment", "scrubbed_at", name, "60 days")
    path = roots["a"] / placed(name).fragment.path
    path.unlink()
    path.mkdir()
    found = keep()
    assert list(found["failing"]) == ["a"]
    assert found["code"] == 4
    assert {*placed(name).fragment.replicas} == {*"abc"}, "it may come back with it"


def test_one_keeper_works(name):
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        other.cursor_factory = psycopg.Cursor
        assert other.execute("SELECT pg_try_advisory_lock(%s, hashtext('outbox'))", [KEEPER_LOCK]).fetchone() == (True,)
        found = keep()
        assert (found["code"], found["error"]) == (4, "another keeper works.")
    assert "error" not in keep()
