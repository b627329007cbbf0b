"""Long fault runs that need no process of their own: queries on the session that all tests share, each fault twenty
times over one table. A consumer and the verification check the result."""

import random
import shutil
import time

import pytest

from outbox.spark import KafkaSink
from tests.spark import transforms
from tests.spark.engines import Running, judge, verified
from tests.spark.killing import Killer
from tests.spark.tables import make_outbox
from tests.support.databases import django
from tests.support.topics import create_topic

RUNS = 20
pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


@pytest.fixture
def run(spark, outbox_table, bootstrap_servers, tmp_path):
    made = []

    def make(outbox=outbox_table, servers=bootstrap_servers, place=tmp_path / "checkpoint", **given):
        made.append(Running(spark, outbox, servers, place, **{"max_records": 100, **given}))
        return made[-1]

    yield make
    for found in made:
        found.discard()


@pytest.mark.parametrize("server", ["kafka", "postgres"])
def test_restarts_of_a_server_lose_and_double_nothing(spark, run, postgres_factory, kafka_factory, tmp_path, server):
    """Cleanly or by a kill, under load, with pauses of up to three seconds."""
    servers = {"postgres": postgres_factory(), "kafka": kafka_factory()}
    assert django("migrate", "outbox", url=servers["postgres"].url).returncode == 0
    table, brokers = make_outbox(servers["postgres"].url), servers["kafka"].bootstrap_servers
    topic, chance = create_topic(brokers, 3), random.Random(1)
    running, expected = run(table, brokers), []
    for number in range(RUNS):
        expected += insert(table, topic)
        delivered = len(running.channel.of("epoch"))
        running.until(lambda delivered=delivered: len(running.channel.of("epoch")) > delivered)
        time.sleep(chance.uniform(0, 0.7))
        (servers[server].kill if number % 2 else servers[server].stop)()
        time.sleep(chance.choice((0, 0, 1, 3)))
        servers[server].start()
    running.drain().finish()
    judge(brokers, [topic], expected)
    verified(spark, table, brokers, [topic])


def insert(table, topic):
    """Their ids: a PostgreSQL that is killed leaves some out."""
    found = table.run(
        "INSERT INTO {table} (kafka_topic, kafka_key, kafka_value) "
        "SELECT %s, 'k' || n %% 7, 'value' FROM generate_series(1, 500) AS t(n) RETURNING id",
        topic,
    )
    return [row[0] for row in found]


def test_epochs_delivered_in_part_are_completed_with_other_shuffle_partitions(
    spark, run, outbox_table, bootstrap_servers
):
    """One key goes to a topic that does not exist yet: its slice fails, the other one may be delivered."""
    topics = [create_topic(bootstrap_servers, 3)]
    running = run()
    try:
        for number in range(RUNS):
            topics.append(f"{topics[0]}-{number}")
            failed = len(running.channel.of("retry"))
            outbox_table.run(
                "INSERT INTO {table} (kafka_topic, kafka_key, kafka_value) SELECT "
                "CASE n %% 7 WHEN 1 THEN %s ELSE %s END, 'k' || n %% 7, 'value' FROM generate_series(1, 150) AS t(n)",
                topics[-1], topics[0],
            )  # fmt: skip
            running.until(lambda failed=failed: len(running.channel.of("retry")) > failed)
            spark.conf.set("spark.sql.shuffle.partitions", str(1 + number % 5))
            create_topic(bootstrap_servers, 1, name=topics[-1])
            running.drain()
        running.finish()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert sum(said["skipped"] for said in running.channel.of("epoch")) > 0
    judge(bootstrap_servers, topics, range(1, 150 * RUNS + 1))
    verified(spark, outbox_table, bootstrap_servers, topics)


def test_a_checkpoint_that_is_gone_is_refused_and_the_restored_one_goes_on(
    spark, run, outbox_table, bootstrap_servers, tmp_path, monkeypatch
):
    """After a clean end; or with an unfinished batch, which another sink would deliver too."""
    topic, place, copy = create_topic(bootstrap_servers, 3), tmp_path / "checkpoint", tmp_path / "copy"
    broken = tmp_path / "broken"
    monkeypatch.setattr(transforms, "fails_while", str(broken))
    given = {"transform": "tests.spark.transforms.failing_for_now"}
    for number in range(RUNS):
        outbox_table.insert(topic, 150)
        found = run(**given).drain()
        if number % 2:
            broken.touch()
            outbox_table.insert(topic, 50)
            found.until(lambda found=found: found.channel.of("retry"))
        found.finish()
        broken.unlink(missing_ok=True)
        place.rename(copy)
        outbox_table.insert(topic, 50)
        if number % 2:
            refusal = run(**given, name=f"{outbox_table.table}-{number}").refusal()
            assert "Start with that checkpoint again" in refusal
        else:
            assert "the checkpoint was deleted or moved, restore it" in run(**given).refusal()
        shutil.rmtree(place, ignore_errors=True)
        copy.rename(place)
        run(**given).drain().finish()
    judge(bootstrap_servers, [topic], range(1, 200 * RUNS + 50 * RUNS // 2 + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def test_tasks_that_spark_kills_lose_and_double_nothing(spark, outbox_table, bootstrap_servers):
    """The input of a killed task ends early and without an error. Two tasks of every epoch are killed, while they read
    or before they commit."""
    topic, context = create_topic(bootstrap_servers, 3), spark.sparkContext
    sink = KafkaSink(outbox_table.table, bootstrap_servers, slices=2, id_header="outbox-id")
    try:
        for number in range(RUNS):
            frame = spark.range(1 + 200 * number, 1 + 200 * (number + 1), 1, 2).selectExpr(
                "id", f"'{topic}' AS topic", "concat('k', id % 7) AS key", "concat('value ', id) AS value"
            )
            if number % 2:
                context.environment["OUTBOX_FAILPOINTS"] = "before-commit=sleep:2"
            else:
                context.environment.pop("OUTBOX_FAILPOINTS", None)
                frame = frame.mapInPandas(_slowly, "id long, topic string, key string, value string")
            with Killer(spark, after_s=0.2 + 0.05 * (number % 8)) as killer:
                sink.write(frame, number)
            assert killer.killed
    finally:
        context.environment.pop("OUTBOX_FAILPOINTS", None)
    judge(bootstrap_servers, [topic], range(1, 200 * RUNS + 1))
    verified(spark, outbox_table, bootstrap_servers, [topic])


def _slowly(batches):
    for batch in batches:
        for start in range(0, len(batch), 5):
            time.sleep(0.1)
            yield batch[start : start + 5]
