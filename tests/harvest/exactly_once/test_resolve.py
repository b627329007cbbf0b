"""An operator settles a stopped lane: both sides are shown, rows that were sent go or stay, the lane goes on."""

import json
import re
import uuid
from collections import Counter

import pytest

from outbox.core.exactly_once.decisions import Why
from outbox.core.exactly_once.resolution import UNREADABLE, Resolution
from outbox.harvest.exactly_once.resolve import NotResolved, Resolver
from tests.harvest.exactly_once.bench import finish, stopped, wait_until
from tests.harvest.exactly_once.test_harvester import harvester
from tests.harvest.exactly_once.test_kills import wait_killed
from tests.harvest.exactly_once.test_lanes import working_lanes
from tests.support.databases import ROOT, django

PURGE_SENT, RESEND = Resolution(delete_sent=True), Resolution(resend=True)


def command(bench, *arguments, failpoints=""):
    return django(
        "outbox_resolve",
        *map(str, arguments),
        url=bench.url,
        OUTBOX_DELIVERY="exactly-once",
        OUTBOX_NAME=bench.name,
        OUTBOX_BOOTSTRAP_SERVERS=bench.servers,
        OUTBOX_FAILPOINTS=failpoints,
    )


def resolver(bench):
    return Resolver(bench.conf(), lambda: {"conninfo": bench.url})


def resolve(bench, decision, lane=0):
    with resolver(bench) as found:
        return found.resolve(lane, decision)


def examine(bench, lane=0):
    with resolver(bench) as found:
        return found.examine(lane)


def deliver(bench, count=300):
    """A table whose rows are kept beside it, delivered in several batches."""
    bench.stash([f"key-{n % 5}" for n in range(count)])
    bench.db.execute("CREATE TABLE saved AS SELECT * FROM outbox")
    with bench.working() as host:
        bench.wait_empty()
        finish(host)


def put_back(bench, batch, lane=0):
    """The table as it was when so many batches were purged; the number of rows written back."""
    ids = [id_ for entry in bench.entries() if entry.lane == lane and entry.batch > batch for id_ in entry.ids]
    bench.db.execute("INSERT INTO outbox SELECT * FROM saved WHERE id = ANY(%s)", [ids])
    bench.db.execute("DELETE FROM outbox_purged WHERE lane = %s", [lane])
    bench.db.execute("INSERT INTO outbox_purged VALUES (%s, %s)", [lane, batch])
    return len(ids)


def doubled(bench):
    return sum(count - 1 for count in Counter(record.value for record in bench.read()).values())


# ---- the database is older than the ledger


def test_after_a_restore_what_was_sent_is_purged_and_the_rejected_lane_goes_on(bench):
    deliver(bench)
    restored = put_back(bench, 1)
    bench.stash(["key-1", "new"])
    with bench.working() as host:
        assert "outbox_resolve --lane 0 with either --delete-sent" in stopped(host)
        shown = command(bench, "--lane", 0)
        assert shown.returncode == 4, shown.stderr
        assert f"last batch purged: 1\nledger: last batch: {bench.entries()[-1].batch}, of" in shown.stdout
        assert f"{restored} match and were sent, 0 do not" in shown.stdout
        dry = command(bench, "--lane", 0, "--delete-sent", "--dry-run")
        assert f"The command would delete {restored} rows" in dry.stdout
        assert bench.count == restored + 2
        done = command(bench, "--lane", 0, "--delete-sent")
        assert done.returncode == 0, done.stderr
        assert f"The command deleted {restored} rows." in done.stdout
        bench.wait_empty()
    bench.check()


def test_after_a_restore_everything_may_be_sent_once_more(bench):
    deliver(bench)
    restored = put_back(bench, 1)
    assert resolve(bench, RESEND).deleted == 0
    with bench.working():
        bench.wait_empty()
    assert doubled(bench) == restored


def test_rows_written_after_the_restore_under_old_ids_are_not_taken_for_sent_ones(bench):
    """The sequence went back too: of one batch some rows are old, some new, some missing."""
    deliver(bench)
    entry = bench.entries()[-1]
    put_back(bench, 1)
    bench.db.execute("DELETE FROM outbox WHERE id = ANY(%s)", [list(entry.ids[:10])])
    bench.db.execute("SELECT setval('outbox_id_seq', %s, false)", [entry.ids[0]])
    bench.stash([f"new-{n}" for n in range(5)])
    bench.db.execute("SELECT setval('outbox_id_seq', %s)", [entry.ids[-1]])
    resolve(bench, PURGE_SENT)
    assert bench.count == 5
    with bench.working():
        bench.wait_empty()
    bench.check()


def test_rows_changed_since_they_were_sent_are_kept(bench):
    deliver(bench, 20)
    put_back(bench, 0)
    put = bench.entries()[-1]
    bench.db.execute("UPDATE outbox SET kafka_value = 'edited' WHERE id = %s", [put.ids[0]])
    case = examine(bench)
    assert (case.found, case.sent) == (20, 20 - put.count)


def test_a_lagging_copy_takes_over_under_a_living_harvester(bench):
    deliver(bench)
    with harvester(bench) as living:
        bench.stash(["key-2"])
        bench.wait_empty(40)
        put_back(bench, 1)
        bench.stash(["key-1"])
        wait_until(lambda: living.statistics[0].phase == "stopped", 60)
        sent = len(bench.read())
        assert resolve(bench, PURGE_SENT).deleted == 300 - bench.entries()[0].count
        bench.wait_empty()
        assert len(bench.read()) == sent + 1
    bench.check()


def test_new_rows_under_old_ids_are_kept_and_sent(bench):
    bench.stash([f"key-{n}" for n in range(50)])
    wait_killed(bench.spawn("after-commit=kill"))
    bench.db.execute("TRUNCATE outbox RESTART IDENTITY")
    bench.stash([f"key-{n}" for n in range(50)])
    with bench.working() as host:
        assert "outbox_resolve --lane 0" in stopped(host)
        assert resolve(bench, PURGE_SENT).deleted == 0
        bench.wait_empty()
    bench.check()


def test_a_restore_from_before_a_change_of_the_count(bench):
    bench.stash([f"key-{n}" for n in range(40)])
    bench.db.execute("CREATE TABLE saved AS SELECT * FROM outbox")
    with working_lanes(bench, [0, 1], LANES=2):
        bench.wait_empty()
    restored = put_back(bench, 0, lane=1)
    bench.db.execute("UPDATE outbox_state SET lanes = 1")
    with bench.working() as host:
        assert "outbox_resolve --lane 1 with either --delete-sent" in stopped(host)
        assert resolve(bench, PURGE_SENT, lane=1).deleted == restored > 0
        bench.stash(["key-1"])
        bench.wait_empty()
    bench.check()


# ---- the ledger is older than the database, or another one


def test_a_ledger_deleted_under_a_living_harvester(bench):
    from confluent_kafka.admin import AdminClient

    deliver(bench)
    name = f"{bench.name}.ledger"
    with harvester(bench) as living:
        wait_until(lambda: living.statistics and living.statistics[0].takeovers, 60)
        admin = AdminClient({"bootstrap.servers": bench.servers})
        admin.delete_topics([name])[name].result(20)
        bench.stash(["a"])
        wait_until(lambda: living.statistics[0].phase == "stopped", 60)
        refused = command(bench, "--lane", 0, "--delete-sent")
        assert refused.returncode == 1
        assert "no entry lists what was sent. Use --resend" in refused.stderr
        done = command(bench, "--lane", 0, "--resend", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["settled"] is True
        bench.wait_empty()
    bench.check()
    assert bench.purged == 1


def test_the_ledger_of_another_database_is_adopted_only_when_told(bench):
    deliver(bench)
    put_back(bench, 1)
    bench.db.execute("UPDATE outbox_state SET database = %s", [uuid.uuid4()])
    with pytest.raises(NotResolved, match="add --adopt-ledger"):
        resolve(bench, PURGE_SENT)
    case = examine(bench)
    assert (case.sent, case.is_foreign) == (case.found, True)
    with bench.working() as host:
        assert "--adopt-ledger" in stopped(host)
        resolve(bench, Resolution(delete_sent=True, adopt=True))
        bench.stash(["a"])
        bench.wait_empty()
    bench.check()
    with bench.working() as host:
        wait_until(lambda: host.worker.statistics().takeovers)


def test_a_kill_between_table_and_ledger_leaves_what_can_be_repeated(bench):
    deliver(bench)
    put_back(bench, 1)
    bench.db.execute("UPDATE outbox_state SET database = %s", [uuid.uuid4()])
    arguments = ("--lane", 0, "--adopt-ledger", "--delete-sent")
    assert command(bench, *arguments, failpoints="before-copy=kill").returncode == -9
    assert command(bench, *arguments).returncode == 0
    with bench.working():
        bench.stash(["a"])
        bench.wait_empty()
    bench.check()


def test_single_rows_of_a_foreign_ledger_prove_nothing(bench):
    """Ids that two databases have both drawn, with rows older than the entry."""
    deliver(bench, 50)
    bench.db.execute("UPDATE outbox_state SET database = %s", [uuid.uuid4()])
    bench.db.execute("DELETE FROM outbox_purged")
    bench.db.execute("INSERT INTO outbox SELECT * FROM saved WHERE id % 2 = 0")
    assert (examine(bench).found, examine(bench).sent) == (25, 0)


def test_a_stranger_in_the_ledger(bench):
    from confluent_kafka import Producer

    deliver(bench, 10)
    producer = Producer({"bootstrap.servers": bench.servers})
    producer.produce(f"{bench.name}.ledger", b"hello", b"0")
    producer.flush(10)
    with bench.working() as host:
        assert "manage.py outbox_resolve --lane 0" in stopped(host)
        resolve(bench, RESEND)
        bench.stash(["a"])
        bench.wait_empty()
    bench.db.execute("DROP TABLE saved")


# ---- nothing to decide


def test_a_lane_at_work_is_neither_changed_nor_fenced_by_a_look(bench):
    with bench.working() as host:
        bench.stash(["a"])
        bench.wait_empty()
        shown = command(bench, "--lane", 0)
        assert (shown.returncode, "nothing to decide" in shown.stdout) == (0, True), shown.stderr
        assert resolve(bench, RESEND).case.reason is None
        bench.stash(["a"])
        bench.wait_empty()
        assert host.worker.statistics().takeovers == 1
    bench.check()


def test_what_does_not_fit_is_refused(bench):
    deliver(bench, 10)
    put_back(bench, 0)
    bench.db.execute("UPDATE outbox_purged SET batch = 99")
    for arguments, text in (
        (("--lane", 7), "There is no lane 7"),
        (("--lane", 0, "--adopt-ledger"), "--adopt-ledger needs --delete-sent or --resend"),
        (("--lane", 0, "--resend", "--adopt-ledger"), "was written for this database"),
    ):
        done = command(bench, *arguments)
        assert (done.returncode, text in done.stderr) == (1, True), done.stderr
    assert bench.purged == 99


def test_every_reason_is_explained_to_operators():
    text = (ROOT / "docs" / "resolve.md").read_text()
    assert set(re.findall("^### (.*)$", text, re.MULTILINE)) == {*(why.value for why in Why), UNREADABLE}
