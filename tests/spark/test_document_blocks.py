"""The Python blocks of docs/spark.md run on the tests' own servers, one after another; see tests/document_blocks.

They run in one test, because a stream takes seconds to start. An error names the line of the page.
"""

import inspect
import json
import uuid
from dataclasses import replace

import psycopg

import outbox.spark
from tests.document_blocks.pages import blocks
from tests.document_blocks.running import defined_by
from tests.support.topics import create_topic, read_topic

PAGE = "docs/spark.md"
INSERT = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', %s)"


def test_the_blocks_of_the_page_run(spark, migrated, bootstrap_servers, tmp_path, monkeypatch):
    real = inspect.signature(outbox.spark.session)

    def session(*given, **named):
        real.bind(*given, **named)
        return spark

    monkeypatch.setattr(outbox.spark, "session", session, raising=False)
    topic, name = create_topic(bootstrap_servers), f"page-{uuid.uuid4().hex[:8]}"
    own = {
        "postgresql://shop@db/shop": migrated,
        "localhost:9092": bootstrap_servers,
        "/var/lib/shop": str(tmp_path),
        "large-orders": name,
    }
    insert(migrated, topic, 10, 2000)
    names = {}
    for block in blocks("python"):
        if block.page == PAGE:
            text = block.text
            for shown, ours in own.items():
                text = text.replace(shown, ours)
            new = defined_by(replace(block, text=text), names)
            if "query" in new:
                new["query"].processAllAvailable()
            if "large_orders" in new:
                insert(migrated, topic, 10, 2000)
                assert totals(new["large_orders"](table(spark, migrated)), name) == [2000]
    assert [json.loads(message.value)["total"] for message in read_topic(bootstrap_servers, topic)] == [2000]


def insert(url, topic, *totals):
    with psycopg.connect(url) as connection:
        for total in totals:
            connection.execute(INSERT, [topic, json.dumps({"total": total})])


def table(spark, url):
    return spark.read.format("outbox").option("url", url).load()


def totals(records, topic):
    return [json.loads(row.value)["total"] for row in records.collect() if row.topic == topic]
