"""TLS, passwords and client certificates against a broker that demands all of them: who gets in, and what is told."""

import json
import os
import uuid
from io import StringIO

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from django.core.management import call_command

from outbox import conf as settings_of
from outbox.devstack import Kafka
from outbox.election.errors import KafkaUnreachable
from outbox.exceptions import OutboxError
from outbox.harvest import Harvester
from tests.harvest.exactly_once.bench import Bench
from tests.support.certificates import Authority
from tests.support.databases import fresh_database, leading
from tests.support.topics import create_topic

USER, PASSWORD, KEY_PASSWORD = "harvester", "pa55-of-the-user", "pa55-of-the-key"
LISTENER = "listener.name.client."
BROKER = {
    "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    f"{LISTENER}scram-sha-256.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    f"{LISTENER}ssl.keystore.type": "PEM",
    f"{LISTENER}ssl.truststore.type": "PEM",
    f"{LISTENER}ssl.client.auth": "required",
}


@pytest.fixture(scope="session")
def secured(tmp_path_factory, pytestconfig):
    """Its certificate is that of 127.0.0.1 and of no other name; it wants a certificate and a password of clients."""
    folder, authority = tmp_path_factory.mktemp("secured"), Authority()
    properties = {
        **BROKER,
        f"{LISTENER}ssl.keystore.location": str(authority.write_server(folder / "server.pem", is_localhost=False)),
        f"{LISTENER}ssl.truststore.location": str(authority.write(folder / "ca.pem")),
    }
    certificate, key = authority.write_client(folder, "client", KEY_PASSWORD)
    stranger, stranger_key = Authority("somebody else").write_client(folder, "stranger", KEY_PASSWORD)
    with Kafka(pytestconfig.getoption("kafka_version"), properties=properties) as cluster:
        cluster.inside = f"127.0.0.1:{int(cluster.brokers[0].internal_port)}"
        admin = AdminClient({"bootstrap.servers": cluster.inside})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        request = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        for future in admin.alter_user_scram_credentials([request]).values():
            future.result(30)
        cluster.client = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(folder / "ca.pem"),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": KEY_PASSWORD,
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        cluster.stranger = {"ssl.certificate.location": str(stranger), "ssl.key.location": str(stranger_key)}
        yield cluster


@pytest.fixture
def bench(postgres, secured, monkeypatch):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, secured.inside)
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": url})
        yield made
        made.close()


def harvester(bench, secured, servers="", **changed):
    client = {name: value for name, value in {**secured.client, **changed}.items() if value is not None}
    given = {"HEARTBEAT_TIMEOUT": 2, "SESSION_TIMEOUT": 6, "KAFKA": client}
    return Harvester(bench.conf(servers or secured.bootstrap_servers, **given), fail_fast=True)


def port_of(secured):
    return secured.bootstrap_servers.rpartition(":")[2]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_records_are_delivered_with_secrets_from_functions(bench, secured, caplog, delivery):
    caplog.set_level("DEBUG")
    asked = []

    def password():
        asked.append(1)
        return PASSWORD

    client = {**secured.client, "sasl.password": password, "ssl.key.password": lambda: KEY_PASSWORD}
    conf = bench.conf(
        secured.bootstrap_servers, HEARTBEAT_TIMEOUT=2, SESSION_TIMEOUT=6, DELIVERY=delivery, KAFKA=client
    )
    assert not asked, "nobody needs it yet"
    bench.stash(["a", "b"] * 10)
    with Harvester(conf, fail_fast=True):
        bench.wait_empty(90)
    bench.check()
    assert len(asked) > 1, "asked anew for each client"
    told = caplog.text + repr(conf)
    assert PASSWORD not in told
    assert KEY_PASSWORD not in told


def test_who_shows_too_little_or_sees_another_name_does_not_get_in(bench, secured, caplog):
    """The name is compared by default; who does not want that must say so."""
    caplog.set_level("DEBUG")
    bench.stash(["a"])
    bench.db.execute("INSERT INTO outbox_state (lanes) VALUES (1)")  # who starts first would make it
    elsewhere = f"localhost:{port_of(secured)}"
    misled = harvester(bench, secured, elsewhere).start()
    wanting = {
        "no certificate": {"ssl.certificate.location": None, "ssl.key.location": None, "ssl.key.password": None},
        "a stranger's certificate": secured.stranger,
        "a wrong password": {"sasl.password": "wr0ng-password"},
        "an unknown authority": {"ssl.ca.location": None},
        "no TLS": {"security.protocol": "SASL_PLAINTEXT"},
    }
    refused = {name: harvester(bench, secured, **changed).start() for name, changed in wanting.items()}
    with pytest.raises(KafkaUnreachable, match=r"certificate verify failed|hostname mismatch"):
        misled.wait(90)
    told = ""
    for one in refused.values():
        with pytest.raises(OutboxError) as caught:
            one.wait(90)
        told += str(caught.value)
    assert bench.count == 1
    assert not any(secret in told + caplog.text for secret in (PASSWORD, KEY_PASSWORD, "wr0ng-password"))
    with harvester(bench, secured, elsewhere, **{"ssl.endpoint.identification.algorithm": "none"}):
        bench.wait_empty(90)


@pytest.mark.parametrize("is_right", [True, False])
def test_outbox_check_gets_in_and_tells_no_secret(bench, secured, settings, django_db_blocker, monkeypatch, is_right):
    password = PASSWORD if is_right else "wr0ng-password"
    given = {
        "NAME": f"check-{uuid.uuid4().hex[:6]}",
        "BOOTSTRAP_SERVERS": secured.bootstrap_servers,
        "KAFKA": json.dumps({**secured.client, "sasl.password": password}),
    }
    for name, value in given.items():
        monkeypatch.setenv(f"OUTBOX_{name}", value)
    settings.OUTBOX = settings_of.from_env()
    topic, out = create_topic(secured.inside, 1), StringIO()
    with leading(bench.url, django_db_blocker):
        try:
            call_command("outbox_check", "--json", "--topic", topic, stdout=out)
        except SystemExit:
            pass
    found = json.loads(out.getvalue())
    levels = {finding["subject"]: finding["level"] for finding in found["findings"]}
    assert levels["kafka"] == ("ok" if is_right else "error"), found
    assert levels.get(f"topic {topic!r}") == ("ok" if is_right else None), found
    assert (levels.get("transactions") == "ok") is is_right
    assert found["configuration"]["kafka"]["sasl.password"] == "***"
    assert not any(secret in out.getvalue() for secret in (password, KEY_PASSWORD))
