"""Kafka of both lines, alone and as three brokers."""

import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from outbox.devstack import Kafka
from outbox.devstack.processes import exists
from outbox.downloads.errors import DevstackError, StartError
from tests.support.topics import read_topic


def create_topic(servers, *, copies=1):
    name = uuid.uuid4().hex
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1, copies)])[name].result(30)
    return name


def produce(servers, topic, value):
    producer = Producer({"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex, "acks": "all"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(30)


def consume(servers, topic):
    return [message.value for message in read_topic(servers, topic)]


def configuration(servers):
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.describe_configs([resource])[resource].result(30)
    return {name: entry.value for name, entry in found.items()}


@pytest.fixture(scope="module")
def cluster(own_servers):
    """One broker of the default line; every test leaves it running."""
    with Kafka(properties={"message.max.bytes": "2000000"}) as cluster:
        yield cluster


def assert_commits_transactions(cluster):
    servers = cluster.bootstrap_servers
    topic = create_topic(servers)
    produce(servers, topic, b"value")
    assert consume(servers, topic) == [b"value"]
    found = configuration(servers)
    assert found["message.max.bytes"] == "2000000"
    assert found["auto.create.topics.enable"] == "false"
    assert found["group.min.session.timeout.ms"] == "6000"


def test_the_default_line_commits_transactions(cluster):
    assert cluster.version.startswith("4.1.")
    assert_commits_transactions(cluster)


def test_the_older_line_commits_transactions_and_leaves_nothing(own_servers):
    with Kafka("3.9", properties={"message.max.bytes": "2000000"}) as older:
        assert older.version.startswith("3.9.")
        assert_commits_transactions(older)
    assert not older.folder.exists()


def test_a_committed_transaction_survives_a_kill_of_the_broker(cluster):
    servers, pids = cluster.bootstrap_servers, cluster.pids
    topic = create_topic(servers)
    produce(servers, topic, b"before")
    cluster.kill()
    assert not [pid for pid in pids if exists(pid)]
    cluster.start()
    assert cluster.bootstrap_servers == servers
    produce(servers, topic, b"after")
    assert consume(servers, topic) == [b"before", b"after"]


@pytest.mark.slow
def test_three_brokers_work_on_without_one_of_them(own_servers):
    with Kafka(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        assert len(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).brokers) == 3
        topic = create_topic(servers, copies=3)
        produce(servers, topic, b"three")
        cluster.brokers[0].kill()
        produce(servers, topic, b"two")
        cluster.brokers[0].start()
        assert len(cluster.pids) == 3
        assert consume(servers, topic) == [b"three", b"two"]


def test_a_graceful_restart_of_one_broker_is_orderly_and_keeps_topics(cluster):
    topic = create_topic(cluster.bootstrap_servers)
    begun = len(cluster.logs[0].read_text())
    cluster.brokers[0].restart()
    assert "shut down completed" in cluster.logs[0].read_text()[begun:]
    assert topic in AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(timeout=10).topics


def test_new_clusters_have_the_features_of_an_ordinary_installation(own_servers):
    from outbox.devstack import kafka_install

    # The names stand as text among the records that Kafka's own tool wrote.
    assert b"transaction.version" in kafka_install.bootstrap_checkpoint(kafka_install.install("4.1"))


def test_a_paused_broker_answers_when_resumed(cluster):
    broker = cluster.brokers[0]
    admin = AdminClient({"bootstrap.servers": broker.address})
    assert admin.list_topics(timeout=10)
    broker.pause()
    with pytest.raises(Exception, match=r"(?i)timed out|transport"):
        admin.list_topics(timeout=0.5)
    broker.resume()
    assert admin.list_topics(timeout=10)


def test_a_broken_property_fails_with_the_log(own_servers):
    cluster = Kafka(properties={"num.io.threads": "many"})
    with pytest.raises(StartError, match=r"num\.io\.threads"):
        cluster.start()
    assert cluster.logs[0].exists()
    cluster.discard()
    assert not cluster.logs[0].exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"brokers": 2}, "brokers is 2"),
        ({"brokers": 3, "advertised_port": 9}, "names 1 ports for 3 brokers"),
    ],
)
def test_impossible_clusters_are_refused(arguments, text):
    with pytest.raises(DevstackError, match=text):
        Kafka(**arguments)


def test_an_unknown_line_names_those_there_are():
    with pytest.raises(DevstackError, match=r"'2\.8' is not available\. Choose one of 3\.9, 4\.1"):
        _ = Kafka("2.8").version
