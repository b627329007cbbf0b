"""A topic is deleted under a running harvester, and created again: its records wait, all others are sent."""

import pytest
from confluent_kafka.admin import AdminClient

from tests.harvest.exactly_once.bench import wait_until
from tests.support.topics import create_topic

pytestmark = pytest.mark.slow  # time for the whole file


def delete_topic(servers, topic):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics)


def held_topics(bench):
    query = "SELECT topic FROM outbox_hold WHERE key IS NULL AND reason = 'rejected'"
    return [topic for (topic,) in bench.db.execute(query)]


@pytest.mark.parametrize("is_missed", [True, False], ids=["missed", "at once"])
def test_a_topic_is_deleted_and_made_again(bench, is_missed):
    """Records stashed while the topic is absent arrive once, in the order of their keys. Those that it held are lost
    with it."""
    lost = create_topic(bench.servers, 3)
    with bench.working() as host:
        bench.stash(["a", "b"] * 10, topic=lost)
        bench.wait_empty()
        delete_topic(bench.servers, lost)
        if not is_missed:
            create_topic(bench.servers, 3, lost)
        ids = bench.stash([f"k{n % 5}" for n in range(50)], topic=lost)
        bench.stash([f"k{n % 5}" for n in range(50)])
        if is_missed:
            wait_until(lambda: held_topics(bench) == [lost], 90)
            wait_until(lambda: bench.count == 50, 90)
            create_topic(bench.servers, 3, lost)
            bench.db.execute("UPDATE outbox_hold SET wanted = 'retry'")
        bench.wait_empty(90)
        wait_until(lambda: held_topics(bench) == [])
        assert host.errors == []
    bench.check()
    for key in range(5):
        found = [int(record.headers[-1][1]) for record in bench.read(lost) if record.key == b"k%d" % key]
        assert found == ids[key::5]
