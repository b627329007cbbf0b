"""The sample with TLS and a password from docs/outbox-harvest.md, run against a broker that demands both."""

import os
import re
import uuid
from collections import defaultdict

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from outbox.devstack import Kafka
from tests.cli import goharvest
from tests.cli.test_harvest import PROGRAM, WAIT_S, Process, Site, orders, until
from tests.support.certificates import Authority
from tests.support.databases import ROOT, fresh_database

SAMPLE = re.search(
    r"With TLS and a password:\n\n```yaml\n(.*?)```", (ROOT / "docs/outbox-harvest.md").read_text(), re.S
)
assert SAMPLE, "docs/outbox-harvest.md has no sample after 'With TLS and a password:' any more: adapt the pattern."
PROPERTIES = yaml.safe_load(SAMPLE[1])["harvest"]["baseKafkaConfig"]
USER, PASSWORD, CA_FILE = (PROPERTIES[name] for name in ("sasl.username", "sasl.password", "ssl.ca.location"))
WRONG_PASSWORD = "not-her-secret"
BROKER = {
    "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.client.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.client.ssl.keystore.type": "PEM",
}


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def broker(authority, tmp_path_factory, pytestconfig):
    """A Kafka whose client listener accepts only SASL_SSL. The user is created over the internal, plain one."""
    server = authority.write_server(tmp_path_factory.mktemp("broker") / "server.pem")
    properties = {**BROKER, "listener.name.client.ssl.keystore.location": str(server)}
    with Kafka(pytestconfig.getoption("kafka_version"), properties=properties) as cluster:
        create_user(internal_address(cluster))
        yield cluster


def create_user(address):
    admin = AdminClient({"bootstrap.servers": address})
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    request = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
    for future in admin.alter_user_scram_credentials([request]).values():
        future.result(30)


def internal_address(cluster):
    return f"127.0.0.1:{int(cluster.brokers[0].internal_port)}"


class SecureSite(Site):
    """A site whose harvesters and consumers use the sample. Only its topics are created over the plain listener."""

    def __init__(self, url, cluster, folder):
        super().__init__(url, internal_address(cluster), folder)
        self.address = cluster.bootstrap_servers

    def sample(self, password=PASSWORD):
        """The document's text with another address and password, and the lines that any site adds."""
        text = SAMPLE[1].replace(PROPERTIES["bootstrap.servers"], self.address).replace(PASSWORD, password)
        path = self.folder / "reaper.yaml"
        path.write_text(
            f"{text}"
            f"  producerKafkaConfig:\n"
            f"    compression.type: lz4\n"
            f"    delivery.timeout.ms: 9000\n"
            f"  leaderGroupID: {self.group}\n"
            f"  dataSource: {self.dsn}\n"
            f"logging: {{level: All}}\n"
        )
        return str(path)

    def harvester(self, *flags, **sample):
        # In the folder of the file, because the sample names the authority's certificate without a folder.
        self.processes.append(Process(PROGRAM, "-f", self.sample(**sample), *flags, cwd=self.folder))
        return self.processes[-1]

    def received(self, count):
        properties = {**PROPERTIES, "bootstrap.servers": self.address, "ssl.ca.location": str(self.folder / CA_FILE)}
        consumer = Consumer({**properties, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(3)])
        found, messages = defaultdict(list), []
        try:
            until(lambda: messages.extend(consumer.consume(count, 0.5)) or len(messages) >= count, f"{count} messages")
        finally:
            consumer.close()
        for message in messages:
            assert message.error() is None, message.error()
            found[message.key().decode()].append((int(dict(message.headers())["Seq"]), message.partition()))
        return found


@pytest.fixture
def site(postgres, broker, authority, tmp_path):
    authority.write(tmp_path / CA_FILE)
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = SecureSite(url, broker, tmp_path)
        made.execute(goharvest.DDL.format(table="outbox"))
        try:
            yield made
        finally:
            for process in made.processes:
                if process.process.poll() is None:
                    process.process.kill()
                    process.process.wait()


def assert_discreet(process, *secrets):
    """The program's output, down to the clients' own lines, has neither a secret nor a traceback."""
    assert process.lines, "nothing was written, so nothing is shown"
    for line in process.lines:
        assert not any(secret in line for secret in secrets), line
        assert "Traceback" not in line, process


def warnings(process):
    return [line for line in process.lines if " warn " in line]


def assert_kept_out(process):
    """The election's clients could not connect either; their properties are built apart from the producers'."""
    assert not any("leader_topic_created" in line or "leader_acquired" in line for line in process.lines), process


def test_the_sample_harvests_over_tls_with_a_password(site):
    site.stash(0, 499)
    ours = site.harvester()
    until(lambda: site.left() == 0, "an empty table", ours)
    assert orders(site.received(500)) == {f"key-{n}": list(range(50)) for n in range(10)}
    assert ours.stop() == 0
    assert_discreet(ours, PASSWORD)


def test_a_wrong_password_is_one_line_and_nothing_is_harvested(site):
    site.stash(0, 9)
    patient = site.harvester(password=WRONG_PASSWORD)
    hasty = site.harvester("--fail-fast", password=WRONG_PASSWORD)
    until(lambda: warnings(patient), "a warning", patient)
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in warnings(patient)[0]
    assert hasty.process.wait(WAIT_S) == 1
    assert patient.stop() == 0
    hasty.stop()  # reads the rest of its lines
    assert hasty.lines[-1].startswith("Error: "), hasty
    assert "invalid credentials" in hasty.lines[-1]
    assert "Check security.protocol, sasl.*" in hasty.lines[-1]
    assert site.left() == 10
    for process in (patient, hasty):
        assert_kept_out(process)
        assert_discreet(process, WRONG_PASSWORD, PASSWORD)


def test_a_broker_with_a_certificate_of_another_authority_is_not_trusted(site):
    Authority("somebody else").write(site.folder / CA_FILE)
    site.stash(0, 9)
    ours = site.harvester()
    until(lambda: warnings(ours), "a warning", ours)
    assert "certificate verify failed" in warnings(ours)[0]
    assert ours.stop() == 0
    assert site.left() == 10
    assert_kept_out(ours)
    assert_discreet(ours, PASSWORD)
