"""`manage.py harvest --once` as a process of its own, exactly once on real servers, also killed at every point."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.databases import django, fresh_database
from tests.support.topics import create_topic, read_topic

RECORDS = 300


@pytest.fixture
def url(migrated_template):
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url:
        yield url


@pytest.fixture
def another_url(migrated_template):
    with fresh_database(os.environ["DATABASE_URL"], migrated_template) as url:
        yield url


@pytest.fixture
def topic(bootstrap_servers):
    return create_topic(bootstrap_servers, partitions=3)


def fill(url, topic, records=RECORDS):
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
            "SELECT %s, 'k' || n %% 7, n FROM generate_series(1, %s) n",
            [topic, records],
        )


def left(url):
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT count(*) FROM outbox").fetchone()[0]


def harvest(url, **environment):
    return django("harvest", "--once", url=url, OUTBOX_NAME=url.rpartition("/")[2], **environment)


def numbers(received):
    return [int(message.value) for message in received]


def assert_in_order(received):
    """Check that in each key the numbers rise."""
    for key in {message.key for message in received}:
        numbers_of_key = [int(message.value) for message in received if message.key == key]
        assert numbers_of_key == sorted(numbers_of_key)


@pytest.mark.part
def test_what_was_committed_arrives_once_in_order(url, topic, bootstrap_servers):
    fill(url, topic)
    done = harvest(url)
    assert done.returncode == 0, done.stderr
    received = read_topic(bootstrap_servers, topic)
    assert sorted(numbers(received)) == list(range(1, RECORDS + 1))
    assert_in_order(received)
    assert left(url) == 0


def test_an_empty_table_is_no_error(url, bootstrap_servers):
    done = harvest(url)
    assert done.returncode == 0, done.stderr


def test_values_keys_and_headers_arrive_byte_for_byte(url, topic, bootstrap_servers):
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_value_binary, kafka_header_keys, "
            "kafka_header_values) VALUES (%(t)s, 'text', 'zażółć', NULL, '{a,b,a}', '{1,\"\",3}'), "
            "(%(t)s, 'tombstone', NULL, NULL, '{}', '{}'), (%(t)s, 'empty', '', NULL, '{}', '{}'), "
            "(%(t)s, '', 'no key', NULL, '{}', '{}')",
            {"t": topic},
        )
    assert harvest(url).returncode == 0
    found = {message.key: message for message in read_topic(bootstrap_servers, topic)}
    assert found[b"text"].value == "zażółć".encode()
    assert found[b"text"].headers == [("a", b"1"), ("b", b""), ("a", b"3"), ("outbox-id", b"1")]
    assert found[b"tombstone"].value is None
    assert found[b"empty"].value == b""
    assert found[None].value == b"no key"


def test_killed_on_either_side_of_the_commit_it_loses_and_doubles_nothing(url, another_url, bootstrap_servers):
    def kill_and_harvest(url, failpoint):
        topic = create_topic(bootstrap_servers, partitions=3)
        fill(url, topic)
        killed = harvest(url, OUTBOX_FAILPOINTS=f"{failpoint}=kill")
        assert killed.returncode == -signal.SIGKILL
        assert left(url) == RECORDS, "the deletion must come after the commit"
        done = harvest(url)  # waits for the end of the dead member's session
        assert done.returncode == 0, done.stderr
        received = read_topic(bootstrap_servers, topic)
        assert sorted(numbers(received)) == list(range(1, RECORDS + 1))
        assert_in_order(received)
        assert left(url) == 0

    with ThreadPoolExecutor() as pool:
        list(pool.map(kill_and_harvest, [url, another_url], ["before-commit", "after-commit"]))


def test_two_at_the_same_time_deliver_once(url, topic, bootstrap_servers):
    fill(url, topic, 3000)
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(harvest, url, OUTBOX_LANES="3", OUTBOX_BATCH_MAX="100") for _ in range(2)]
    outputs = [one.result() for one in both]
    assert [done.returncode for done in outputs] == [0, 0], outputs
    received = read_topic(bootstrap_servers, topic)
    assert sorted(numbers(received)) == list(range(1, 3001))
    assert_in_order(received)
    assert left(url) == 0


def test_a_stopped_lane_ends_it_with_the_remedy(url, topic, bootstrap_servers):
    fill(url, topic, 3)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO outbox_purged (lane, batch) VALUES (0, 7)")
    done = harvest(url)
    assert done.returncode == 4, done.stderr
    assert "3 records stay in the table, because lane 0 is stopped" in done.stderr
    assert "outbox_resolve --lane 0" in done.stderr
    assert left(url) == 3


def test_a_rolled_back_record_never_appears(url, topic, bootstrap_servers):
    fill(url, topic, records=5)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, 'k', '999')", [topic])
        connection.rollback()
    assert harvest(url).returncode == 0
    assert sorted(numbers(read_topic(bootstrap_servers, topic))) == [1, 2, 3, 4, 5]


def test_without_brokers_the_remedy_is_named(url):
    done = harvest(url, OUTBOX_BOOTSTRAP_SERVERS="")
    assert done.returncode != 0
    assert 'BOOTSTRAP_SERVERS"] is empty. Set it to your brokers' in done.stderr
    assert "Traceback" not in done.stderr
