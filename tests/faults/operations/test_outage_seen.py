"""Kafka is unavailable for longer than a session: the metrics show this, and the records that wait in the table."""

import os
import urllib.request

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harvest.exactly_once.bench import wait_until
from tests.harvest.processes import Harvest
from tests.support.databases import fresh_database
from tests.support.topics import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, 'k', 'v' FROM generate_series(1, %s)"
TIMES = {"OUTBOX_HEARTBEAT_TIMEOUT": "1", "OUTBOX_SESSION_TIMEOUT": "6"}


def test_an_outage_of_kafka_is_seen_and_the_backlog_is_still_measured(migrated_template, proxied_kafka, tmp_path):
    with fresh_database(os.environ["DATABASE_URL"], template=migrated_template) as url:
        topic = create_topic(proxied_kafka.address, 1)
        process = Harvest(
            tmp_path, url, "--metrics-port", "127.0.0.1:0", "--verbosity", "2",
            OUTBOX_NAME=f"seen-{topic}", OUTBOX_BOOTSTRAP_SERVERS=proxied_kafka.address, **TIMES,
        )  # fmt: skip
        try:
            address = process.says(r"metrics_served address=\S+ port=(\d+)")[1]

            def now():
                with urllib.request.urlopen(f"http://127.0.0.1:{address}/metrics", timeout=10) as answer:
                    families = text_string_to_metric_families(answer.read().decode())
                return {sample.name: sample.value for family in families for sample in family.samples}

            process.leads()
            wait_until(lambda: now().get("outbox_backlog_records") == 0, 60)
            assert now()["outbox_circuits_open"] == 0
            proxied_kafka.refuse()
            proxied_kafka.cut()
            process.says("leader_fenced lane=0 .*reason=heartbeat-timeout")
            process.says("partitions_lost")
            with psycopg.connect(url, autocommit=True) as database:
                database.execute(INSERT, [topic, 7])
            wait_until(lambda: now().get("outbox_backlog_records") == 7, 60)
            found = now()
            assert found["outbox_circuits_open"] >= 1
            assert found["outbox_oldest_record_age_seconds"] > 0
            assert found["outbox_sample_age_seconds"] < 30
        finally:
            process.discard()
            proxied_kafka.heal()
