"""One slice in an executor, without Spark around it: the functions that tasks run, on a real Kafka."""

import dataclasses
import os
import time
import uuid
import zlib

import pyarrow as pa
import pytest

from outbox.core.exactly_once import ledger
from outbox.spark.engine.failure_kinds import FailureKind, judge
from outbox.spark.sink import producers, slice_ledger, slice_writer
from outbox.spark.sink.plan import CHECKSUM, PART, RecordUnfit, RejectedByKafka, SliceFailed, SlicePlan, Superseded
from outbox.spark.source.statements import Fenced
from tests.spark.source.test_datasource import Query
from tests.support.topics import create_topic, read_topic


@pytest.fixture
def topic(bootstrap_servers):
    return create_topic(bootstrap_servers, 1)


@pytest.fixture
def plan(bootstrap_servers):
    name = f"w-{uuid.uuid4().hex[:8]}"
    properties = {"bootstrap.servers": bootstrap_servers}
    found = SlicePlan(name, "query", 0, 2, 0, f"outbox-spark-{name}", properties, {}, has_ids=True, id_header="id")
    producers.ledger_of(properties, found.ledger).prepare_slices(2, 3600)
    yield found
    forget(found)


def forget(plan):
    """As if the Python worker had ended."""
    for slice_ in range(plan.slices):
        if held := producers.held.pop(plan.transactional_id(slice_), None):
            held.producer.drop_and_wait()


def after(plan, **changes):
    """The plan of the next epoch."""
    last = dict.fromkeys(range(plan.slices), plan.epoch)
    return dataclasses.replace(plan, epoch=plan.epoch + 1, slices_before=plan.slices, last=last, **changes)


def batch(topic, slice_, ids, *, sentinel=True, value="value"):
    rows = [
        {
            PART: 2 * slice_,
            CHECKSUM: zlib.crc32(ledger.record_bytes((id_, topic, "k", f"{value} {id_}", None, None, None))),
            "id": id_,
            "topic": topic,
            "key": "k",
            "value": f"{value} {id_}".encode(),
            "headers": None,
        }
        for id_ in ids
    ]
    if sentinel:
        rows.append({PART: 2 * slice_ + 1})
    fields = [(PART, pa.int32()), (CHECKSUM, pa.int64()), ("id", pa.int64()), ("topic", pa.string())]
    fields += [("key", pa.string()), ("value", pa.binary()), ("headers", pa.string())]
    return pa.RecordBatch.from_pylist(rows, pa.schema(fields))


def write(plan, *batches):
    return [row for found in slice_writer.write(plan, iter(batches)) for row in found.to_pylist()]


def ids_on(servers, topic):
    return [int(dict(message.headers)["id"]) for message in read_topic(servers, topic)]


def last_entry(plan, slice_):
    return producers.ledger_of(plan.properties, plan.ledger).last_entry(slice_, time.monotonic() + 30)


def test_slices_of_one_task_are_kept_apart(plan, topic, bootstrap_servers):
    whole = pa.Table.from_batches([batch(topic, 0, [1, 2]), batch(topic, 1, [3])]).combine_chunks().to_batches()
    results = write(plan, *whole)
    assert [(row["slice"], row["count"]) for row in results] == [(0, 2), (1, 1)]
    assert ids_on(bootstrap_servers, topic) == [1, 2, 3]
    found = last_entry(plan, 0)
    assert (found.epoch, found.count, found.ids, found.digest) == (0, 2, (1, 2), results[0]["digest"])


def test_a_slice_spread_over_batches_is_one_transaction(plan, topic, bootstrap_servers):
    parts = [batch(topic, 1, [1], sentinel=False), batch(topic, 1, [2], sentinel=False), batch(topic, 1, [3])]
    assert [row["count"] for row in write(plan, *parts)] == [3]
    assert ids_on(bootstrap_servers, topic) == [1, 2, 3]


def test_an_empty_slice_has_an_entry_too(plan, topic):
    assert [row["count"] for row in write(plan, batch(topic, 0, []))] == [0]
    assert last_entry(plan, 0).count == 0


def test_an_input_that_ends_early_is_not_committed(plan, topic, bootstrap_servers):
    with pytest.raises(SliceFailed, match="without its sentinel"):
        write(plan, batch(topic, 0, [1, 2], sentinel=False))
    assert last_entry(plan, 0) is None
    assert [row["count"] for row in write(plan, batch(topic, 0, [1, 2, 3]))] == [3]
    assert ids_on(bootstrap_servers, topic) == [1, 2, 3]


def test_without_the_sentinel_a_truncated_input_would_be_lost(plan, topic, bootstrap_servers):
    """The form without the guard, for comparison: a part that was committed at the input's end counts as the whole
    slice later."""
    unguarded = slice_writer._Slice(plan, 0)
    unguarded.take(batch(topic, 0, [1, 2], sentinel=False))
    unguarded.finish()
    forget(plan)
    with pytest.raises(slice_ledger.ReplayDiffers):
        write(plan, batch(topic, 0, [1, 2, 3]))
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_a_task_run_twice_delivers_once(plan, topic, bootstrap_servers):
    write(plan, batch(topic, 0, [1, 2]))
    forget(plan)
    assert [row["skipped"] for row in write(plan, batch(topic, 0, [1, 2]))] == [True]
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_a_replay_with_other_records_is_refused(plan, topic, bootstrap_servers):
    write(plan, batch(topic, 0, [1, 2]))
    forget(plan)
    with pytest.raises(slice_ledger.ReplayDiffers, match=r"remove rand\(\)"):
        write(plan, batch(topic, 0, [1, 2], value="other"))
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_the_producer_lives_on(plan, topic, bootstrap_servers):
    assert [row["renewed"] for row in write(plan, batch(topic, 0, [1]))] == [True]
    following = after(plan)
    assert [row["renewed"] for row in write(following, batch(topic, 0, [2]))] == [False]
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_a_producer_that_missed_an_epoch_is_renewed(plan, topic, bootstrap_servers):
    write(plan, batch(topic, 0, [1]))
    elsewhere, producers.held = producers.held, {}
    write(following := after(plan), batch(topic, 0, [2]))
    forget(following)
    producers.held = elsewhere
    assert [row["renewed"] for row in write(after(following), batch(topic, 0, [3]))] == [True]
    assert ids_on(bootstrap_servers, topic) == [1, 2, 3]


def test_a_producer_is_renewed_after_an_error(plan, topic, bootstrap_servers):
    write(plan, batch(topic, 0, [1]))
    producers.held[plan.transactional_id(0)].producer._log.trouble = "FAIL a connection that was up"
    assert [row["renewed"] for row in write(after(plan), batch(topic, 0, [2]))] == [True]
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_two_copies_of_a_task_deliver_once(plan, topic, bootstrap_servers):
    """The last one fences the other, which starts again and finds the slice delivered."""
    straggler = slice_writer._Slice(plan, 0)
    straggler.take(batch(topic, 0, [1, 2], sentinel=False))
    assert [row["skipped"] for row in write(plan, batch(topic, 0, [1, 2]))] == [False]
    assert straggler.finish()["skipped"] == [True]
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_a_copy_with_too_many_rows_to_begin_again_is_left_to_spark(plan, topic, bootstrap_servers, monkeypatch):
    monkeypatch.setattr(slice_writer, "_ROWS_AT_HAND_MAX", 1)
    straggler = slice_writer._Slice(plan, 0)
    straggler.take(batch(topic, 0, [1, 2], sentinel=False))
    write(plan, batch(topic, 0, [1, 2]))
    with pytest.raises(Exception, match="_FENCED"):
        straggler.finish()
    straggler.abandon()
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_a_kept_producer_that_was_fenced_begins_again(plan, topic, bootstrap_servers):
    """Another worker has had the slice in between and found it delivered."""
    write(plan, batch(topic, 0, [1]))
    elsewhere, kept = dict(producers.held), producers.held
    producers.held = {}
    write(plan, batch(topic, 0, [1]))
    forget(plan)
    producers.held = kept
    producers.held.update(elsewhere)
    assert [row["renewed"] for row in write(after(plan), batch(topic, 0, [2, 3]))] == [True]
    assert ids_on(bootstrap_servers, topic) == [1, 2, 3]


class ReadsBeforeItFences(slice_writer._Slice):
    """The form without the guard: another copy of the task delivers after this one has read the ledger and before it
    fences."""

    def _open(self):
        self._entry = self._look_up()
        write(self.plan, self.others)
        forget(self.plan)
        return producers.HeldProducer(producers.initialise(self.plan, self.number, self._give_up_at), self.plan)


def test_reading_the_ledger_before_the_fence_would_double(plan, topic, bootstrap_servers):
    """The form without the guard, for comparison: its reading is out of date, and its fence hits nobody. In the other
    order the copy that comes last finds the slice delivered."""
    ReadsBeforeItFences.others = batch(topic, 0, [1, 2])
    unguarded = ReadsBeforeItFences(plan, 0)
    unguarded.take(batch(topic, 0, [1, 2], sentinel=False))
    assert unguarded.finish()["skipped"] == [False]
    forget(plan)
    assert ids_on(bootstrap_servers, topic) == [1, 2, 1, 2]
    assert [row["skipped"] for row in write(plan, batch(topic, 0, [1, 2]))] == [True]
    assert ids_on(bootstrap_servers, topic) == [1, 2, 1, 2]


def test_a_mark_without_compare_and_set_would_lose(plan, topic, bootstrap_servers, outbox_table):
    """A driver is paused just before it marks. Another one delivers and deletes that batch, and more records come in.
    The form without the guard, for comparison: the first one continues, marks the new records under the old number,
    finds that number delivered, and deletes. With the comparison of owners it marks nothing; if it did, the digest
    would differ."""
    outbox_table.insert(topic, 5)
    paused = Query(outbox_table)
    paused.start()
    write(plan, batch(topic, 0, paused.step()))
    outbox_table.insert(topic, 5)
    successor = Query(outbox_table)
    successor.offsets, successor.committed = [*paused.offsets], paused.committed
    successor.start()
    write(second := after(plan), batch(topic, 0, successor.step()))
    assert not successor.plan()
    assert outbox_table.count() == 0
    outbox_table.insert(topic, 5)
    forget(plan)

    def unguarded(epoch):
        """Mark, deliver the epochs that the ledger lacks, delete."""
        outbox_table.run("UPDATE {table} SET leader_id = %s WHERE leader_id IS NULL", leader := uuid.uuid4())
        if last_entry(epoch, 0).epoch < epoch.epoch:
            raise AssertionError("not delivered yet")
        outbox_table.run("DELETE FROM {table} WHERE leader_id = %s", leader)

    with pytest.raises(Fenced):
        paused.plan()
    with pytest.raises(slice_ledger.ReplayDiffers):
        write(second, batch(topic, 0, range(11, 16)))
    assert outbox_table.count() == 5
    unguarded(second)
    assert successor.drain() == []
    assert outbox_table.count() == 0
    assert ids_on(bootstrap_servers, topic) == list(range(1, 11)), "11 to 15 are lost"
    for query in (paused, successor):
        query.reader._drop()


def test_a_resumed_driver_finds_that_another_has_gone_on(plan, topic, bootstrap_servers):
    write(plan, batch(topic, 0, [1]))
    write(after(plan), batch(topic, 0, [2]))
    forget(plan)
    with pytest.raises(Superseded, match="Another driver has continued"):
        write(plan, batch(topic, 0, [1]))
    assert ids_on(bootstrap_servers, topic) == [1, 2]


def test_a_topic_that_does_not_exist_is_named_before_anything_is_sent(plan, topic, bootstrap_servers):
    with pytest.raises(SliceFailed, match=r"'nowhere'.*Create these topics"):
        write(plan, batch("nowhere", 0, [1]))


@pytest.mark.parametrize("column", ["topic", "id"])
def test_a_record_that_can_never_be_sent_is_not_tried_again(plan, topic, column):
    rows = pa.Table.from_batches([batch(topic, 0, [1, 2, 3])]).to_pylist()
    rows[1][column] = None
    unfit = pa.RecordBatch.from_pylist(rows, schema=batch(topic, 0, [1]).schema)
    with pytest.raises(RecordUnfit, match=rf"no {column}: .*Correct or filter it") as error:
        write(plan, unfit)
    assert judge(f"outbox.spark.sink.plan.{type(error.value).__name__}: {error.value}").kind == FailureKind.REFUSED
    assert last_entry(plan, 0) is None


@pytest.mark.parametrize("size", [20_000, 17_000_000])
def test_a_record_that_kafka_refuses_is_named(plan, bootstrap_servers, size):
    """By the broker, or by the client, which takes no more than 16 MB."""
    topic = create_topic(bootstrap_servers, 1, **{"max.message.bytes": "10000"})
    rows = pa.Table.from_batches([batch(topic, 0, [1, 2, 3])]).to_pylist()
    rows[1]["value"] = os.urandom(size)
    large = pa.RecordBatch.from_pylist(rows, schema=batch(topic, 0, [1]).schema)
    with pytest.raises(
        RejectedByKafka, match=rf"record with id 2 .*\({size + 1:,} bytes.*MSG_SIZE_TOO_LARGE.* raise max"
    ):
        write(plan, large)
    assert ids_on(bootstrap_servers, topic) == []
    assert [row["count"] for row in write(plan, batch(topic, 0, [1, 3]))] == [2]


def test_a_plan_pickles(plan):
    import pickle

    assert pickle.loads(pickle.dumps(plan)) == plan
