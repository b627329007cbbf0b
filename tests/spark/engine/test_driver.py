"""The engine's driver on the session that all tests share: the faults that a query survives, and its refusals."""

import shutil

import pytest

from outbox.spark.engine import driver as driver_module
from outbox.spark.engine.driver import Driver, QueryRefused, resolve
from outbox.spark.engine.failure_kinds import FailureKind, Trouble
from outbox.spark.engine.job import Job
from tests.spark import transforms
from tests.spark.engines import Channel, Running, judge, verified
from tests.spark.tables import make_outbox
from tests.support.databases import django
from tests.support.topics import create_topic


@pytest.fixture
def run(spark, outbox_table, bootstrap_servers, tmp_path):
    made = []

    def make(outbox=outbox_table, servers=bootstrap_servers, place=tmp_path / "checkpoint", **given):
        made.append(Running(spark, outbox, servers, place, **given))
        return made[-1]

    yield make
    for found in made:
        found.discard()


def test_an_epoch_that_fails_is_repeated_with_other_shuffle_partitions(
    spark, run, outbox_table, bootstrap_servers, tmp_path, monkeypatch
):
    topic = create_topic(bootstrap_servers, 3)
    outbox_table.insert(topic, 500)
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setattr(transforms, "fails_while", str(broken))
    running = run(transform="tests.spark.transforms.failing_for_now")
    running.until(lambda: running.channel.of("retry"))
    running.until(lambda: any(said["text"] == "ValueError: not now" for said in running.channel.of("retry")))
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        broken.unlink()
        running.drain().finish()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    judge(bootstrap_servers, [topic], range(1, 501))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_epochs_without_a_record_are_purged_too_and_a_lost_checkpoint_is_refused(
    spark, run, outbox_table, bootstrap_servers, tmp_path, monkeypatch
):
    broken = tmp_path / "broken"
    monkeypatch.setattr(transforms, "fails_while", str(broken))
    topic = create_topic(bootstrap_servers, 1)
    outbox_table.insert(topic, 400, keys=6)
    first = run(transform="tests.spark.transforms.only_some").drain()
    outbox_table.insert(topic, 7)
    first.drain().finish()
    counts = {said["epoch"]: said["count"] for said in first.channel.of("epoch")}  # a repeated one is reported twice
    assert counts == {0: 0, 1: 0, 2: 1}
    judge(bootstrap_servers, [topic], [407])
    assert verified(spark, outbox_table, bootstrap_servers, [topic]).absent == 0
    assert not first.channel.of("holds")

    # The driver refuses before it marks: the checkpoint that is restored still fits.
    (tmp_path / "checkpoint").rename(tmp_path / "copy")
    outbox_table.insert(topic, 7)
    refusal = run().refusal()
    assert "If the checkpoint was deleted or moved, restore it, or use another sink name" in refusal
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    restored = run(transform="tests.spark.transforms.failing_for_now").drain()

    # With an unfinished batch.
    broken.touch()
    outbox_table.insert(topic, 7)
    restored.until(lambda: restored.channel.of("retry"))
    restored.finish()
    refusal = run(place=tmp_path / "another", name=f"{outbox_table.table}-again").refusal()
    assert "7 records of batch" in refusal
    assert 'set the option resend="true" to send those records again' in refusal
    run(place=tmp_path / "third", name=f"{outbox_table.table}-third", resend=True).drain().finish()
    judge(bootstrap_servers, [topic], range(407, 422))


@pytest.mark.part
def test_held_records_count_as_left_when_the_rest_is_delivered(spark, run, outbox_table, bootstrap_servers):
    """`harvest --once` exits when only held records are left, but not before the first batch."""
    topic, paused = create_topic(bootstrap_servers, 1), create_topic(bootstrap_servers, 1)
    outbox_table.insert(paused, 5)
    outbox_table.insert(topic, 900)
    outbox_table.run("INSERT INTO {hold} (topic, reason) VALUES (%s, 'paused')", paused)
    running = run()
    running.until(lambda: any(said["is_idle"] for said in running.channel.of("holds")))
    assert outbox_table.count() == 5
    names = [name for name, said in running.channel.said if name == "epoch" or (name == "holds" and said["is_idle"])]
    assert names == ["epoch"] * (len(names) - 1) + ["holds"]
    assert {said["count"] for said in running.channel.of("holds")} == {1}
    running.finish()
    judge(bootstrap_servers, [topic], range(6, 906))
    assert verified(spark, outbox_table, bootstrap_servers, [topic]).waiting == 5


def test_a_marked_record_that_was_deleted_is_refused_and_the_remedy_works(
    spark, run, outbox_table, bootstrap_servers, tmp_path, monkeypatch
):
    """As the error says: a new checkpoint, another sink name and resend."""
    topic, broken = create_topic(bootstrap_servers, 1), tmp_path / "broken"
    monkeypatch.setattr(transforms, "fails_while", str(broken))
    broken.touch()
    outbox_table.insert(topic, 20)
    running = run(transform="tests.spark.transforms.failing_for_now")
    running.until(lambda: running.channel.of("retry"))
    outbox_table.run("DELETE FROM {table} WHERE id = 3")
    refusal = running.refusal()
    assert "20 records, but the table has 19" in refusal
    assert 'a new checkpoint and another sink name, and set the option resend="true"' in refusal
    broken.unlink()
    assert "but the table has 19" in run().refusal()
    again = f"{outbox_table.table}-again"
    run(place=tmp_path / "new", name=again, resend=True).drain().finish()
    judge(bootstrap_servers, [topic], {*range(1, 21)} - {3})


def test_a_record_that_can_never_be_sent_ends_the_query(run, outbox_table, bootstrap_servers):
    outbox_table.insert(create_topic(bootstrap_servers, 1), 3)
    assert "A record has no topic" in run(transform="tests.spark.transforms.without_topics").refusal()
    assert outbox_table.count() == 3


def test_an_error_of_a_transformation_is_one_line(run):
    refusal = run(transform="tests.spark.transforms.failing").refusal()
    assert refusal.startswith("Spark cannot start the query: AnalysisException: [UNRESOLVED_COLUMN")
    assert "\n" not in refusal
    for path in (
        "tests.spark.transforms.not_there",
        "nowhere.at_all",
        "shaped",
        "tests.spark.transforms.not_a_function",
    ):
        with pytest.raises(
            Exception, match=r"(cannot import the transformation '|The transformation '.*' is int\.)"
        ) as error:
            resolve(path)
        assert not isinstance(error.value, QueryRefused)


def test_a_driver_that_has_lost_its_table_does_not_take_it_again(outbox_table):
    """The driver was paused, and then meets any error: in the checkpoint, for instance, which the other one writes
    too."""
    channel = Channel()
    channel.finishing.set()
    job = Job(outbox_table.url, outbox_table.table, name="n", checkpoint="", properties={}, owner="mine")
    driver, trouble = Driver(job, channel), Trouble(FailureKind.OUTAGE, "a file is there already")
    outbox_table.run("INSERT INTO {spark} (owner) VALUES ('another')")
    driver._consider(trouble)
    outbox_table.run("UPDATE {spark} SET owner = 'mine 1'")
    driver._consider(trouble)
    outbox_table.run("UPDATE {spark} SET owner = 'another'")
    with pytest.raises(QueryRefused, match="Another driver has taken over") as refused:
        driver._consider(trouble)
    assert refused.value.kind == FailureKind.FENCED
    assert len(channel.of("retry")) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_restarts_of_both_servers_lose_and_double_nothing(spark, run, postgres_factory, kafka_factory, tmp_path):
    postgres, kafka = postgres_factory(), kafka_factory()
    assert django("migrate", "outbox", url=postgres.url).returncode == 0
    table = make_outbox(postgres.url)
    topic = create_topic(kafka.bootstrap_servers, 3)
    table.insert(topic, 600)
    running = run(table, kafka.bootstrap_servers)
    running.until(lambda: running.channel.of("epoch"))
    for server in (kafka, postgres):
        table.insert(topic, 600)
        server.restart()
    running.drain().finish()
    judge(kafka.bootstrap_servers, [topic], range(1, 1801))
    verified(spark, table, kafka.bootstrap_servers, [topic])


def test_after_a_long_outage_a_driver_ends_so_that_the_next_one_reads_its_secrets_again(outbox_table, monkeypatch):
    channel, now = Channel(), [1000.0]
    channel.finishing.set()
    monkeypatch.setattr(driver_module.time, "monotonic", lambda: now[0])
    driver = Driver(Job(outbox_table.url, outbox_table.table, name="n", checkpoint="", properties={}), channel)
    trouble = Trouble(FailureKind.OUTAGE, "password authentication failed")
    for passed_s in (0, 3600, 60):  # an hour later it is another outage
        now[0] += passed_s
        driver._consider(trouble)
    now[0] += 60
    with pytest.raises(QueryRefused, match="its secrets again: password") as refused:
        driver._consider(trouble)
    assert refused.value.kind == FailureKind.OUTAGE
