"""The streaming side of the source, called as Spark calls it, on a real PostgreSQL; no JVM."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from outbox.edges.postgres.common.backends import SessionShared
from outbox.edges.postgres.common.leases import OtherMode, TableLease
from outbox.edges.postgres.preflight.keepers import RowsKept
from outbox.edges.postgres.preflight.numbering import UnorderedIds
from outbox.spark.engine.failure_kinds import FailureKind, judge
from outbox.spark.source import statements
from outbox.spark.source.datasource import OutboxSource, OutboxStreamReader
from outbox.spark.source.options import Options, WrongOptions
from outbox.spark.source.statements import CheckpointLost, Fenced, RecordsMissing
from tests.support.pooler import Pooler


class Query:
    """Spark's part of a stream, its checkpoint included; `reader` is the process beside the driver."""

    def __init__(self, outbox, **options):
        self.options = {"url": outbox.url, "table": outbox.table, "maxRecords": "10", "slices": "3", **options}
        self.offsets, self.committed, self.reader = [], 0, None

    def start(self):
        """A new driver with the same checkpoint. Like Spark, it first repeats the batch that was logged and not
        finished."""
        self.end()
        self.reader = pickle.loads(pickle.dumps(OutboxStreamReader(Options.parse(self.options))))
        self.start_offset = None
        if self.offsets:
            self.reader.partitions(self.offsets[-1], self.offsets[-1])
            if self.committed < len(self.offsets):
                return self.run()
        return None

    def end(self):
        if self.reader is not None:
            with suppress(Exception):  # of a job whose result nobody reads any more
                self.reader._beside.wait()
            self.reader._drop()

    def plan(self):
        """Log the next batch. False when the table has no new record."""
        if not self.offsets and self.start_offset is None:
            self.start_offset = self.reader.initialOffset()
        end = self.reader.latestOffset()
        if end == (self.offsets[-1] if self.offsets else self.start_offset):
            return False
        self.offsets.append(end)
        if len(self.offsets) > 1:
            self.reader.commit(self.offsets[-2])
        return True

    def run(self):
        """Process the batch logged last; its ids."""
        ids = self.read()
        self.committed = len(self.offsets)
        return ids

    def read(self):
        if len(self.offsets) == 1 and self.start_offset is None:
            self.start_offset = self.reader.initialOffset()
        start = self.offsets[-2] if len(self.offsets) > 1 else self.start_offset
        executor = pickle.loads(pickle.dumps(self.reader))
        ranges = self.reader.partitions(start, self.offsets[-1])
        return [id_ for range_ in ranges for found in executor.read(range_) for id_ in found.column("id").to_pylist()]

    def step(self):
        return self.run() if self.plan() else []

    def drain(self):
        found = []
        for _ in range(100):
            ids = self.step()
            if not ids:
                return found
            found += ids
        raise AssertionError("never ends")


@pytest.fixture
def query(outbox_table):
    queries = []

    def make(**options):
        queries.append(Query(outbox_table, **options))
        queries[-1].start()
        return queries[-1]

    yield make
    for made in queries:
        made.end()


def test_batches_come_in_order_of_ids_and_are_purged(query, outbox_table):
    outbox_table.insert("t", 25)
    running = query()
    assert running.step() == list(range(1, 11))
    assert outbox_table.count() == 25
    assert running.step() == list(range(11, 21))
    assert outbox_table.count() == 15
    assert running.step() == list(range(21, 26))


def test_an_idle_query_purges_its_last_batch(query, outbox_table):
    outbox_table.insert("t", 5)
    running = query()
    running.step()
    assert outbox_table.count() == 5
    assert running.plan() is False
    assert outbox_table.count() == 0


def test_a_full_batch_is_followed_by_a_mark_while_it_runs(query, outbox_table):
    """The batch before is deleted too; a batch that was not full is followed by neither."""
    outbox_table.insert("t", 25)
    running = query()

    def marked():
        running.reader._beside.wait()
        return outbox_table.run("SELECT count(*), count(leader_id), count(DISTINCT leader_id) FROM {table}")[0]

    running.plan()
    assert marked() == (25, 10, 1)
    running.read()
    assert marked() == (25, 20, 2)
    running.plan()
    assert marked() == (25, 20, 2)
    assert running.read() == list(range(11, 21))
    assert marked() == (15, 15, 2)
    running.plan()
    outbox_table.insert("t", 3)
    assert running.read() == list(range(21, 26))
    assert marked() == (8, 5, 1)
    assert running.drain() == [26, 27, 28]


def test_an_error_beside_a_batch_is_raised_at_the_next_question(query, outbox_table):
    outbox_table.insert("t", 25)
    running = query()
    running.plan()
    outbox_table.run("UPDATE {spark} SET owner = 'another'")
    running.reader._must_look = True
    running.reader._beside.begin(lambda: running.reader._once(running.reader._advance))
    with pytest.raises(Fenced):
        running.reader.latestOffset()


def test_a_batch_is_cut_into_slices(query, outbox_table):
    outbox_table.insert("t", 10)
    running = query()
    running.plan()
    found = running.reader.partitions(running.start_offset, running.offsets[0])
    assert [(range_.lowest, range_.highest, range_.count) for range_ in found] == [(1, 4, 4), (5, 8, 4), (9, 10, 2)]


@pytest.mark.parametrize("slices", [1, 2, 3, 4, 7, 20])
def test_a_mark_cuts_the_batch_as_a_later_read_would(query, outbox_table, slices):
    outbox_table.insert("t", 30)
    outbox_table.run("DELETE FROM {table} WHERE id IN (1, 7, 13)")
    running = query(slices=str(slices))
    running.plan()
    running.read()
    running.reader._beside.wait()
    batch, cut = running.reader._cut
    assert batch.count == 10
    with statements.connect(outbox_table.url, 30) as connection:
        assert cut == running.reader._stream.starts(connection, batch, slices)


def test_values_come_as_they_were_written(query, outbox_table):
    outbox_table.run(
        "INSERT INTO {table} (kafka_topic, kafka_key, kafka_value, kafka_value_binary, kafka_header_keys, "
        "kafka_header_values, create_time) VALUES "
        "('t', 'ü', 'é', NULL, '{{a,b}}', '{{1,ß}}', '2024-02-03 04:05:06.789'), "
        "('t', '', NULL, NULL, '{{}}', '{{}}', '1969-01-01'), ('t', '', NULL, '\\x00ff', '{{}}', '{{}}', now())"
    )
    running = query(slices="1")
    running.plan()
    (range_,) = running.reader.partitions(running.start_offset, running.offsets[0])
    rows = [row for found in running.reader.read(range_) for row in found.to_pylist()]
    assert [(row["key"], row["value"]) for row in rows] == [("ü", "é".encode()), ("", None), ("", b"\x00\xff")]
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": "ß".encode()}]
    assert [row["headers"] for row in rows] == [headers, None, None]
    times = outbox_table.run("SELECT create_time FROM {table} ORDER BY id")
    assert [row["create_time"].to_pydatetime() if hasattr(row["create_time"], "to_pydatetime") else row["create_time"]
            for row in rows] == [row[0] for row in times]  # fmt: skip


@pytest.mark.parametrize("is_by_row", [False, True])
def test_a_time_that_spark_has_no_date_for_is_null(query, outbox_table, is_by_row):
    outbox_table.insert("t", 7)
    outbox_table.run("ALTER TABLE {table} ALTER create_time DROP NOT NULL")
    for id_, time in enumerate(("NULL", "'infinity'", "'-infinity'", "'20000-01-01'", "'0044-03-15 BC'"), 2):
        outbox_table.run(f"UPDATE {{table}} SET create_time = {time} WHERE id = {id_}")
    if is_by_row:
        outbox_table.run("UPDATE {table} SET kafka_header_keys = '{{a}}', kafka_header_values = '{{1}}' WHERE id = 1")
    running = query(slices="1")
    running.plan()
    (range_,) = running.reader.partitions(running.start_offset, running.offsets[0])
    rows = [row for found in running.reader.read(range_) for row in found.to_pylist()]
    assert [row["id"] for row in rows if row["create_time"] is None] == [2, 3, 4, 5, 6]
    assert len(rows) == 7


def test_records_of_every_kind_come_in_order(query, outbox_table):
    """Small records by the page, then a large one and all later ones row by row; also in the goharvest-compatible
    layout."""
    outbox_table.insert("t", 6)
    outbox_table.run("UPDATE {table} SET kafka_value = NULL WHERE id = 2")
    outbox_table.run("UPDATE {table} SET kafka_value = 'é', kafka_key = '' WHERE id = 3")
    outbox_table.run("UPDATE {table} SET kafka_value = repeat('x', 1001) WHERE id = 5")

    def values():
        reader = OutboxSource({"url": outbox_table.url, "table": outbox_table.table, "slices": "1"}).reader(None)
        (whole,) = reader.partitions()
        return [row for found in reader.read(whole) for row in found.to_pylist()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outbox.spark.source.arrow._ROWS_AT_ONCE", 2)
        found = values()
        outbox_table.run("ALTER TABLE {table} DROP kafka_value_binary")
        assert values() == found
    assert [row["id"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert [row["value"] for row in found[:4]] == [b"value 0", None, "é".encode(), b"value 3"]
    assert [(row["topic"], row["key"], row["headers"]) for row in found[:3]] == [
        ("t", "k0", None), ("t", "k1", None), ("t", "", None),
    ]  # fmt: skip
    assert (len(found[4]["value"]), found[5]["value"]) == (1001, b"value 5")


def test_a_record_that_commits_late_joins_a_later_batch(query, outbox_table):
    with psycopg.connect(outbox_table.url) as late:
        late.execute(
            f"INSERT INTO {outbox_table.table} (kafka_topic, kafka_key, kafka_value) VALUES ('t', 'k', 'late')"
        )
        outbox_table.insert("t", 3)
        running = query()
        assert running.step() == [2, 3, 4]
        late.commit()
    assert running.step() == [1]


@pytest.mark.parametrize("stage", ["after the mark", "after the log", "after the read", "after the commit"])
def test_a_driver_that_dies_loses_and_doubles_nothing(query, outbox_table, stage):
    """Delivered are the records of a committed batch, or of one that is recognised when it is repeated: the same
    rows."""
    outbox_table.insert("t", 25)
    running = query()
    delivered = [running.step()]
    if stage == "after the mark":
        running.reader.latestOffset()
    else:
        running.plan()
        if stage != "after the log":
            delivered.append(running.read())
        if stage == "after the commit":
            running.committed = len(running.offsets)
    replayed = running.start()
    if stage == "after the read":
        assert replayed == delivered[-1]
    elif replayed:
        delivered.append(replayed)
    rest = running.drain()
    assert [id_ for ids in delivered for id_ in ids] + rest == list(range(1, 26))
    assert outbox_table.count() == 0


def test_a_driver_that_dies_before_its_first_batch_was_planned_needs_no_operator(query, outbox_table):
    outbox_table.insert("t", 5)
    query().reader.latestOffset()
    anew = query()
    assert anew.drain() == [1, 2, 3, 4, 5]


def test_available_now_asks_before_it_repeats(query, outbox_table):
    """That trigger first asks once for the latest offset, then repeats the unfinished batch."""
    outbox_table.insert("t", 15)
    running = query()
    running.plan()
    unfinished = running.read()
    running.end()
    reader = running.reader = OutboxStreamReader(Options.parse(running.options))
    latest = reader.latestOffset()
    assert outbox_table.count() == 15
    reader.partitions(running.offsets[-1], running.offsets[-1])
    assert running.run() == unfinished == list(range(1, 11))
    running.offsets.append(latest)
    reader.commit(running.offsets[-2])
    assert running.run() == list(range(11, 16))
    assert outbox_table.count() == 5
    running.start()
    assert running.plan() is running.plan() is False
    assert outbox_table.count() == 0


def test_a_finished_batch_is_purged_after_a_restart_into_idleness(query, outbox_table):
    outbox_table.insert("t", 5)
    running = query()
    running.step()
    running.start()
    assert running.plan() is running.plan() is False
    assert outbox_table.count() == 0


def test_marks_of_others_are_taken_over(query, outbox_table):
    outbox_table.insert("t", 5)
    outbox_table.run("UPDATE {table} SET leader_id = gen_random_uuid() WHERE id < 4")
    assert query().drain() == [1, 2, 3, 4, 5]


def test_a_resumed_driver_marks_plans_and_purges_nothing(query, outbox_table):
    outbox_table.insert("t", 25)
    paused = query()
    paused.step()
    paused.plan()
    successor = Query(outbox_table)
    successor.offsets, successor.committed = [*paused.offsets], paused.committed
    assert successor.start() == list(range(11, 21))
    count = outbox_table.count()
    with pytest.raises(Fenced, match="Another driver has taken over"):
        paused.read()
    paused.reader._unpurged = [statements.MarkedBatch.of(paused.offsets[-1])]
    paused.reader._finished = 99
    ahead, paused.reader._cut = paused.reader._cut, (statements.MarkedBatch(0), [])
    with pytest.raises(Fenced):
        paused.reader.latestOffset()
    paused.reader._cut = ahead  # marked while the batch before ran
    paused.reader._beaten_at = float("-inf")
    with pytest.raises(Fenced):
        paused.reader.latestOffset()
    assert outbox_table.count() == count
    assert successor.drain() == list(range(21, 26))
    successor.end()


def test_without_the_comparison_a_resumed_driver_would_mark(query, outbox_table):
    """For comparison: without the owner in the comparison, the mark takes records of the successor."""
    outbox_table.insert("t", 5)
    paused = query()
    paused.reader.initialOffset()
    successor = query()
    successor.reader.initialOffset()
    paused.reader.owner = successor.reader.owner
    assert paused.reader.latestOffset()["count"] == 5


def test_a_lost_checkpoint_is_refused_while_records_may_be_delivered(query, outbox_table):
    outbox_table.insert("t", 5)
    query().step()
    with pytest.raises(CheckpointLost, match=r'5 records of batch 1 .*resend="true"'):
        query().plan()
    assert query(resend="true").drain() == [1, 2, 3, 4, 5]
    assert outbox_table.count() == 0


def test_a_new_checkpoint_is_welcome_when_everything_is_purged(query, outbox_table):
    outbox_table.insert("t", 5)
    query().drain()
    outbox_table.insert("t", 2)
    assert query().drain() == [6, 7]


def test_an_old_copy_of_the_checkpoint_is_refused(query, outbox_table):
    outbox_table.insert("t", 30)
    running = query()
    running.step()
    old = [*running.offsets]
    running.step()
    running.step()
    running.offsets, running.committed = old, 1
    with pytest.raises(CheckpointLost, match="one of them is an old copy"):
        running.start()


def test_a_batch_that_another_checkpoint_has_planned_is_sent_again_when_that_is_wanted(query, outbox_table):
    """The sink has refused a query with a new checkpoint: the right checkpoint does not know its batch."""
    outbox_table.insert("t", 15)
    right = query()
    assert right.drain() == list(range(1, 16))
    outbox_table.insert("t", 5)
    wrong = query()
    wrong.plan()
    wrong.read()
    with pytest.raises(CheckpointLost, match=r'set the option resend="true" to send it again'):
        right.start()
    right.options["resend"] = "true"
    assert right.start() is None
    assert right.drain() == list(range(16, 21))
    assert outbox_table.count() == 0


def test_records_that_vanish_are_noticed(query, outbox_table):
    outbox_table.insert("t", 5)
    running = query()
    running.plan()
    outbox_table.run("DELETE FROM {table} WHERE id = 3")
    with pytest.raises(RecordsMissing, match=r"with 5 records, but the table has 4 of them.*resend=\"true\""):
        running.read()
    # The remedy that it names.
    assert query(resend="true").drain() == [1, 2, 4, 5]
    assert outbox_table.count() == 0


def test_records_that_vanish_while_they_are_read_are_noticed(query, outbox_table):
    outbox_table.insert("t", 5)
    running = query(slices="1")
    running.plan()
    (range_,) = running.reader.partitions(running.start_offset, running.offsets[0])
    outbox_table.run("UPDATE {table} SET leader_id = NULL WHERE id = 3")
    with pytest.raises(RecordsMissing):
        list(running.reader.read(range_))


def test_a_lost_connection_is_survived_at_every_question(query, outbox_table):
    outbox_table.insert("t", 15)
    running = query()

    def cut():
        outbox_table.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox spark' "
            "AND datname = current_database()"
        )

    found = []
    for _ in range(4):
        cut()
        running.plan() or running.plan()
        cut()
        if len(running.offsets) > running.committed:
            found += running.run()
    assert found == list(range(1, 16))
    cut()
    running.plan()
    running.plan()
    assert outbox_table.count() == 0


def test_an_answer_that_was_lost_does_not_lose_the_mark(query, outbox_table):
    outbox_table.insert("t", 15)
    running = query()
    running.reader.initialOffset()
    mark = running.reader._stream.mark

    def mark_and_lose(*given, **options):
        mark(*given, **options)
        running.reader._stream.mark = mark
        raise psycopg.OperationalError("the answer was lost")

    running.reader._stream.mark = mark_and_lose
    assert running.plan() is False
    assert running.drain() == list(range(1, 16))


def test_another_mode_is_refused_while_the_query_runs_and_while_a_batch_is_not_purged(query, outbox_table):
    outbox_table.insert("t", 5)
    running = query()
    running.step()
    with psycopg.connect(outbox_table.url, autocommit=True) as connection:
        other = TableLease(outbox_table.table, "exactly-once", "somebody", 0.0)
        running.reader.stop()
        with pytest.raises(OtherMode):
            other.take(connection)
        running.start()
        running.drain()
        running.plan()
        running.reader.stop()
        assert other.take(connection)
        TableLease(outbox_table.table, "exactly-once", "somebody", 30.0).take(connection)
        with pytest.raises(OtherMode):
            query().plan()


def test_finish_waits_for_the_current_batch_and_for_its_purge(query, outbox_table):
    outbox_table.insert("t", 15)
    running = query()
    running.plan()
    assert statements.finish(outbox_table.url, outbox_table.table, timeout_s=0.2) is False
    with ThreadPoolExecutor(1) as pool:
        finished = pool.submit(statements.finish, outbox_table.url, outbox_table.table, 30)
        assert running.run() == list(range(1, 11))
        while not finished.done():
            assert running.plan() is False
        assert finished.result() is True
    assert outbox_table.count() == 5
    running.start()
    assert running.drain() == list(range(11, 16))


def hold(outbox, reason, topic="", key=None, **given):
    columns = {"reason": reason, "topic": topic, "key": key, **given}
    outbox.run(
        f"INSERT INTO {{hold}} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})", *columns.values()
    )


def look_again(running):
    """The source asks for holds once a second."""
    running.reader._beaten_at = running.reader._mark_at = float("-inf")


def confirmed(outbox):
    return outbox.run("SELECT topic, key, confirmed_by FROM {hold} WHERE reason IN ('paused', 'editing') ORDER BY id")


def test_held_records_are_left_out_and_reported(query, outbox_table):
    """A key, a topic, a record without key and a lane; rejected in another mode, paused, or in an edit."""
    outbox_table.insert("t", 14)
    outbox_table.insert("u", 2)
    outbox_table.run("INSERT INTO {table} (kafka_topic, kafka_key) VALUES ('t', ''), ('t', '')")
    hold(outbox_table, "rejected", "t", "k1", record_id=2)
    hold(outbox_table, "rejected", "t", "k2", record_id=3, wanted="retry")
    hold(outbox_table, "poison", "t", "k3", record_id=999)
    hold(outbox_table, "paused", "t", "k4")
    hold(outbox_table, "paused", "u")
    hold(outbox_table, "editing", "t", "", record_id=17)
    running = query(maxRecords="100")
    ids = [id_ for id_ in range(1, 15) if (id_ - 1) % 7 not in (1, 4)]
    assert running.drain() == [*ids, 18]
    look_again(running)
    running.plan()
    assert outbox_table.run("SELECT topic, key FROM {hold} WHERE record_id IN (3, 999)") == []
    assert confirmed(outbox_table) == [("t", "k4", [0]), ("u", None, [0]), ("t", "", [0])]
    outbox_table.run("DELETE FROM {hold} WHERE reason <> 'rejected'")
    outbox_table.run("UPDATE {hold} SET wanted = 'retry'")
    hold(outbox_table, "paused", lane=0)
    look_again(running)
    assert running.drain() == []
    outbox_table.run("DELETE FROM {hold} WHERE reason = 'paused'")
    look_again(running)
    assert running.drain() == [2, 5, 9, 12, 15, 16, 17]
    look_again(running)
    running.plan()
    assert outbox_table.run("SELECT * FROM {hold}") == []


def test_a_kept_empty_key_is_held_like_any_other(query, outbox_table):
    """By the formula of the harvester that had the table before."""
    with psycopg.connect(outbox_table.url, autocommit=True) as connection:
        TableLease(outbox_table.table, "exactly-once", "somebody", 0.0, keep_empty_key=True).take(connection)
    outbox_table.run("UPDATE {state} SET lease_mode = ''")
    outbox_table.run("INSERT INTO {table} (kafka_topic, kafka_key) VALUES ('t', ''), ('t', ''), ('t', ''), ('u', '')")
    hold(outbox_table, "rejected", "t", "", record_id=2)
    running = query()
    assert running.drain() == [4]
    outbox_table.run("UPDATE {hold} SET wanted = 'retry'")
    look_again(running)
    assert running.drain() == [1, 2, 3]


def test_a_hold_concerns_no_other_record_with_the_id_of_its_own(query, outbox_table):
    outbox_table.insert("t", 1)
    hold(outbox_table, "rejected", "t", "k0", record_id=1, stashed_at=datetime.now(UTC) - timedelta(days=1))
    running = query()
    assert running.drain() == [1]
    assert outbox_table.run("SELECT * FROM {hold}") == []


def test_a_pause_is_confirmed_when_none_of_its_records_is_in_flight(query, outbox_table):
    outbox_table.insert("t", 14)
    running = query()
    running.plan()
    hold(outbox_table, "paused", "t", "k1")
    hold(outbox_table, "paused", "v")
    look_again(running)
    running.reader.latestOffset()
    assert [row[2] for row in confirmed(outbox_table)] == [[], [0]]
    assert running.run() == list(range(1, 11))
    assert running.drain() == [11, 12, 13, 14]
    look_again(running)
    running.reader.latestOffset()
    assert [row[2] for row in confirmed(outbox_table)] == [[0], [0]]


def test_options_are_checked_all_at_once():
    with pytest.raises(WrongOptions) as error:
        OutboxSource({"Table": "o", "slices": "0", "maxrecords": "many", "resend": "yes", "color": "red"}).schema()
    for part in ("color: unknown", "slices='0'", "maxrecords='many'", "resend='yes': set \"true\"", "url is missing"):
        assert part in str(error.value)


def test_tables_that_are_not_there_are_named(outbox_table):
    outbox_table.run("DROP TABLE {spark}")
    reader = OutboxStreamReader(Options(outbox_table.url, outbox_table.table))
    with pytest.raises(statements.WrongTable, match=f"{outbox_table.table}_spark.*migrate"):
        reader.initialOffset()
    reader._drop()


@pytest.mark.parametrize("rotates", [False, True])
def test_a_pooler_of_transactions_is_refused(query, outbox_table, rotates):
    outbox_table.insert("t", 5)
    refused = pytest.raises(SessionShared, match="Connect to the server directly")
    with Pooler(outbox_table.url, rotates=rotates) as pooler, refused as caught:
        query(url=pooler.url).step()
    assert judge(f"{type(caught.value).__name__}: {caught.value}").kind is FailureKind.REFUSED
    assert outbox_table.run("SELECT count(leader_id) FROM {table}") == [(0,)]


@pytest.mark.parametrize("body", ["RETURN NULL;", "IF OLD.kafka_key = 'k1' THEN RETURN NULL; END IF; RETURN OLD;"])
def test_a_batch_that_survives_its_delete_is_not_sent_again(query, outbox_table, body):
    """The trigger came while the query ran. When it is removed, the batch is deleted, and the query continues."""
    outbox_table.insert("t", 5)
    running = query()
    assert running.step() == list(range(1, 6))
    outbox_table.insert("t", 5)
    name = f"keep_{outbox_table.table}"
    outbox_table.run(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    outbox_table.run(f"CREATE TRIGGER soft BEFORE DELETE ON {{table}} FOR EACH ROW EXECUTE FUNCTION {name}()")
    for _ in range(2):
        with pytest.raises(RowsKept, match="survived their DELETE: the trigger 'soft'") as caught:
            running.plan()
        assert outbox_table.count() == 10
    assert judge(f"{type(caught.value).__name__}: {caught.value}").kind is FailureKind.REFUSED
    if "OLD" not in body:
        with pytest.raises(RowsKept, match="the trigger 'soft' skips each DELETE"):
            running.start()
    outbox_table.run("DROP TRIGGER soft ON {table}")
    running.start()
    assert running.drain() == list(range(6, 11))
    outbox_table.run(f"DROP FUNCTION {name}()")


def test_how_ids_are_drawn_is_looked_at_before_anything_is_marked(query, outbox_table, caplog):
    outbox_table.insert("t", 5)
    outbox_table.run(f"ALTER SEQUENCE {outbox_table.table}_id_seq CACHE 50")
    with pytest.raises(UnorderedIds, match="has CACHE 50"):
        query().step()
    outbox_table.run(f"ALTER SEQUENCE {outbox_table.table}_id_seq CACHE 1")
    assert query().step() == list(range(1, 6))
    assert "table_warning" in caplog.text, "its default is not guarded"
