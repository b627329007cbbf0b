"""How the partitions of a process are observed, with servers that answer as the test says."""

from types import SimpleNamespace

import psycopg
import pytest

from outbox.consumers.observer import Observer
from outbox.core.consumers.shown import MessageCounts, Observed
from outbox.core.consumers.values import Partition
from outbox.exceptions import NotAvailable

ONE, TWO, THREE = Partition("orders", 0), Partition("orders", 1), Partition("refunds", 0)


class Servers:
    """Kafka and PostgreSQL."""

    def __init__(self):
        self.known = {ONE: 10, TWO: 20, THREE: 30}
        self.asked, self.tried, self.written, self.error, self.is_closed = [], [], [], None, False

    def ends(self, partitions):
        self.asked.append(partitions)
        if self.known is None:
            raise NotAvailable("no broker")
        return {partition: self.known[partition] for partition in partitions if partition in self.known}

    def write(self, consumer, rows):
        self.tried.append(consumer)
        if self.error is not None:
            raise self.error
        self.written.append((consumer, [row.partition for row in rows]))

    def counts(self, consumer):
        return MessageCounts(len(consumer), 0, 0)

    def close(self):
        self.is_closed = True


def consumer(name, *partitions, position=5):
    observed = [Observed(partition, "reading", "", position, None, 0) for partition in partitions]
    return SimpleNamespace(name=name, observed=observed)


@pytest.fixture
def servers():
    return Servers()


def lags(observer, name):
    return {row.partition: row.lag for row in observer.seen[name]}


def test_one_question_to_kafka_and_one_statement_for_each_consumer(servers):
    observer = Observer([(consumer("a", ONE, TWO), servers), (consumer("b", TWO, THREE), servers)], servers)
    assert (observer.seen, observer.age_s) == ({}, None)
    observer.observe()
    assert servers.asked == [[ONE, TWO, THREE]]
    assert servers.written == [("a", [ONE, TWO]), ("b", [TWO, THREE])]
    assert lags(observer, "a") == {ONE: 5, TWO: 15}
    assert 0 <= observer.age_s < 10


def test_a_partition_of_which_kafka_says_nothing_keeps_what_it_said_before(servers):
    observer = Observer([(consumer("a", ONE, TWO), servers)], servers)
    del servers.known[TWO]
    observer.observe()
    assert lags(observer, "a") == {ONE: 5, TWO: None}
    servers.known = {TWO: 21}
    observer.observe()
    assert lags(observer, "a") == {ONE: 5, TWO: 16}


def test_an_outage_of_kafka_lasts_until_the_same_question_is_answered(servers):
    """The group takes all partitions back meanwhile."""
    one = consumer("a", ONE)
    observer = Observer([(one, servers)], servers)
    observer.observe()
    servers.known = None
    observer.observe()
    assert (observer.is_waiting, lags(observer, "a")) == (True, {ONE: 5})
    assert servers.written[-1] == ("a", [ONE]), "what is known is shown"
    one.observed = []
    observer.observe()
    assert (observer.is_waiting, servers.asked[-1]) == (True, [ONE])
    servers.known = {ONE: 10}
    observer.observe()
    assert (observer.is_waiting, servers.asked[-1]) == (False, [ONE])
    observer.observe()
    assert servers.asked[-1] == []


def test_the_rate_is_that_of_the_time_since_the_last_look(servers):
    one = consumer("a", ONE)
    observer = Observer([(one, servers)], servers)
    observer.observe()
    assert observer.seen["a"][0].rate is None
    one.observed = [one.observed[0]._replace(handled=100)]
    observer.observe()
    assert observer.seen["a"][0].rate > 0
    one.observed = []
    observer.observe()
    one.observed = [Observed(ONE, "assigned", "", None, None, 100)]
    observer.observe()
    assert observer.seen["a"][0].rate is None, "it had the partition not all the time"


def test_held_messages_are_counted_while_it_has_partitions_and_postgresql_answers(servers):
    one = consumer("a", ONE)
    observer = Observer([(one, servers), (consumer("bb"), servers)], servers)
    assert observer.held == {}
    observer.observe()
    assert observer.held == {"a": MessageCounts(1, 0, 0)}
    servers.error = psycopg.OperationalError("gone")
    observer.observe()
    assert observer.held == {}, "what was counted before may be wrong by now"


def test_a_database_that_does_not_answer_is_asked_once_in_a_round(servers):
    other = Servers()
    consumers = [(consumer("a", ONE), servers), (consumer("b", TWO), servers), (consumer("c", THREE), other)]
    servers.error = psycopg.OperationalError("gone")
    Observer(consumers, servers).observe()
    assert (servers.tried, other.tried) == (["a"], ["c"])


@pytest.mark.parametrize("error", [psycopg.OperationalError("gone"), psycopg.InterfaceError("closed")])
def test_an_outage_of_postgresql_is_skipped_in_silence(servers, caplog, error):
    observer = Observer([(consumer("a", ONE), servers)], servers)
    servers.error = error
    observer.observe()
    assert lags(observer, "a") == {ONE: 5}
    assert caplog.messages == []
    servers.error = None
    observer.observe()
    assert servers.written == [("a", [ONE])]


def test_what_postgresql_rejects_is_logged_once(servers, caplog):
    observer = Observer([(consumer("a", ONE), servers), (consumer("b", TWO), servers)], servers)
    servers.error = psycopg.errors.InsufficientPrivilege("permission denied\nfor table outbox_partition")
    for _ in range(3):
        observer.observe()
    text = "partitions_not_shown consumer={} error='permission denied for table outbox_partition'"
    assert caplog.messages == [text.format("a"), text.format("b")]
    servers.error = None
    observer.observe()
    servers.error = psycopg.errors.UndefinedTable("gone")
    observer.observe()
    assert len(caplog.messages) == 4


def test_the_thread_observes_until_it_is_stopped(servers, monkeypatch):
    monkeypatch.setattr("outbox.consumers.observer.FIRST_S", 0.0)
    observer = Observer([(consumer("a", ONE), servers)], servers)
    observer.start()
    observer._thread.join(0.5)
    assert observer._thread.is_alive()
    assert servers.written == [("a", [ONE])]
    observer.stop()
    observer._thread.join(10)
    assert servers.is_closed
