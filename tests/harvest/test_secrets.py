"""Secrets that change while a harvester works: who asks for them, and what becomes of whoever is refused."""

import os
import uuid
from threading import Event
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from outbox.conf import EXACTLY_ONCE
from outbox.devstack import Kafka
from outbox.edges.kafka.exactly_once import ledger_topic
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic, LedgerUnreachable
from outbox.edges.postgres.common import table
from outbox.election.clients import Clients
from outbox.election.errors import ElectionRefused
from outbox.harvest import Harvester
from outbox.harvest import harvester as daemon
from outbox.harvest.at_least_once import ports
from outbox.harvest.at_least_once.lane import AtLeastOnceFactory
from outbox.harvest.exactly_once import kafka as exactly_once_kafka
from outbox.harvest.exactly_once.lane import ExactlyOnceFactory
from tests.harvest import hosts
from tests.harvest.exactly_once.bench import Bench
from tests.harvest.hosts import wait_until
from tests.parity.loopback import Loopback, harvester
from tests.support.databases import fresh_database

USER, GUARDED = "harvester", "listener.name.client."
DENIED_S = 3.0


class Secret:
    """A function as a project gives it."""

    def __init__(self, value="first"):
        self.value, self.asked = value, 0

    def __call__(self):
        self.asked += 1
        return self.value


# ---- who asks


def test_every_kafka_client_asks_when_it_is_made():
    secret = Secret()
    conf = hosts.settings(
        BOOTSTRAP_SERVERS="127.0.0.1:1",
        KAFKA={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": secret,
        },
    )
    clients, ledger = Clients(conf), LedgerTopic(lambda: conf.kafka.client_properties, "n.ledger")
    kafka = exactly_once_kafka.LaneKafka(conf)

    def forgotten():
        ledger._forget_clients()
        ledger._admin()

    for make in (
        lambda: kafka.producer(0).drop_and_wait(),
        forgotten,
        lambda: clients.reader(print).close(),
        lambda: clients.producer(print),
    ):
        asked = secret.asked
        make(), make()
        assert secret.asked == asked + 2
    ledger.close()


def test_the_ledger_asks_anew_after_every_question_without_an_answer(monkeypatch):
    """A takeover's first question is about the topic. A client with an older secret would never have an answer."""
    monkeypatch.setattr(ledger_topic, "_REQUEST_S", 0.2)
    secret = Secret()
    ledger = LedgerTopic(lambda: {"bootstrap.servers": "127.0.0.1:1", "sasl.password": secret()}, "n.ledger")

    def ask():
        with pytest.raises(LedgerUnreachable):
            ledger.prepare(1, 60.0)

    ask()
    asked = secret.asked
    ask()
    assert secret.asked > asked + 1, "the error names the brokers, and asks as well"
    ledger.close()


def test_every_connection_of_an_at_least_once_lane_asks_when_it_is_made(monkeypatch):
    secret, used = Secret(), []
    monkeypatch.setattr(table, "parameters", lambda alias: {"password": secret()})
    monkeypatch.setattr(table, "connect_session", lambda source, **given: used.append(source["password"]))
    connect = ports.connector(hosts.settings())
    connect()
    secret.value = "second"
    connect()
    assert used == ["first", "second"]


# ---- whoever is refused

REFUSAL = SimpleNamespace(name=lambda: "_AUTHENTICATION", str=lambda: "refused", fatal=lambda: False)


def test_whoever_is_refused_is_not_ready_is_renewed_and_ends_with_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(daemon, "DENIED_S", 0.5)
    clients = Loopback()
    one = harvester(clients).start()
    wait_until(lambda: clients.standing and clients.standing.subscribed)
    assert one.is_ready
    made, clients.standing.is_refused = clients.heartbeats_read, True
    clients.on_error["member"](REFUSAL)
    assert not one.is_ready
    wait_until(lambda: clients.heartbeats_read is not made)
    clients.on_error["member"](REFUSAL)
    with pytest.raises(ElectionRefused, match=r"have rejected the credentials .* KAFKA"):
        one.wait(20)


def test_a_refusal_that_passes_changes_nothing(monkeypatch):
    monkeypatch.setattr(daemon, "DENIED_S", 0.5)
    clients = Loopback()
    with harvester(clients) as one:
        wait_until(lambda: clients.standing and clients.standing.subscribed)
        first = clients.heartbeats_read
        clients.on_error["member"](REFUSAL)
        assert not one.wait(1.5)
        assert clients.heartbeats_read is first


def test_whoever_has_no_end_of_the_question_that_a_refused_client_is_asked_is_renewed(monkeypatch):
    """When the clock is set back meanwhile, the client waits for as much longer."""
    monkeypatch.setattr(daemon, "DENIED_S", 0.5)
    monkeypatch.setattr(daemon, "LEAVE_TIMEOUT_S", 0.5)
    clients, asked, later = Loopback(), Event(), Event()

    def committed(partitions, timeout):
        asked.set()
        later.wait(60)

    with harvester(clients):
        wait_until(lambda: clients.standing and clients.standing.subscribed)
        made, clients.standing.committed = clients.heartbeats_read, committed
        clients.on_error["member"](REFUSAL)
        assert asked.wait(10)
        wait_until(lambda: clients.heartbeats_read is not made)
        later.set()


# ---- on a real broker


@pytest.fixture
def rotating(own_servers, pytestconfig):
    """A broker with a password for one user, `rotate` gives it another and cuts every connection."""
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"{GUARDED}scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    }
    with Kafka(pytestconfig.getoption("kafka_version"), properties=properties) as cluster:
        cluster.inside = f"127.0.0.1:{int(cluster.brokers[0].internal_port)}"

        def give(password):
            admin = AdminClient({"bootstrap.servers": cluster.inside})
            credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            request = UserScramCredentialUpsertion(USER, credential, password.encode())
            for future in admin.alter_user_scram_credentials([request]).values():
                future.result(30)

        def rotate(password):
            give(password)
            cluster.brokers[0].restart()

        give("first")
        cluster.rotate = rotate
        yield cluster


@pytest.mark.torture
@pytest.mark.parametrize("factory", [ExactlyOnceFactory, AtLeastOnceFactory])
def test_a_password_that_was_changed_is_taken_up_and_one_that_was_not_ends_the_process(
    postgres, rotating, monkeypatch, factory
):
    monkeypatch.setattr(daemon, "DENIED_S", DENIED_S)
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        bench = Bench(url, rotating.inside)
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": url})
        given = {
            "DELIVERY": EXACTLY_ONCE if factory is ExactlyOnceFactory else "at-least-once",
            "BOOTSTRAP_SERVERS": rotating.bootstrap_servers,
            "NAME": f"s{uuid.uuid4().hex[:12]}",
        }
        known, forgotten = Secret(), Secret()

        def start(secret):
            kafka = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER}
            conf = hosts.settings(**given, KAFKA={**kafka, "sasl.password": secret})
            return Harvester(conf, worker_factory=factory()).start()

        leader = start(known)
        wait_until(lambda: leader.is_leader)
        standby = start(forgotten)
        wait_until(lambda: standby.is_ready)
        bench.stash(["k"] * 10)
        bench.wait_empty()
        rotating.rotate("second")
        wait_until(lambda: not leader.is_ready)
        known.value = "second"
        wait_until(lambda: leader.is_leader)
        bench.stash(["k"] * 10)
        bench.wait_empty()
        with pytest.raises(ElectionRefused, match="have rejected the credentials"):
            standby.wait(60)
        leader.stop()
        leader.wait(60)
        bench.db.close()
