"""What the servers do not allow is one error at the start, with its remedy: rights, transactions, an index."""

import os
import re
import time
import uuid

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.devstack import Kafka
from outbox.edges.kafka.exactly_once.transaction_log import TOPIC, TransactionLog
from outbox.edges.kafka.exactly_once.transactional import TransactionsRefused
from outbox.edges.postgres.common.leases import NoPrivileges
from outbox.edges.postgres.preflight import privileges
from outbox.edges.postgres.preflight.numbering import UnorderedIds
from outbox.edges.postgres.preflight.plans import WholeTableRead
from outbox.election.errors import KafkaUnreachable
from outbox.exceptions import OutboxError
from outbox.harvest import Harvester, preflight
from outbox.schema import roles
from tests.harvest.exactly_once.bench import Bench, wait_until
from tests.support.databases import fresh_database
from tests.support.topics import create_topic

USER, PASSWORD = "harvester", "for-tests-only"
GUARDED = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",  # the listeners without a password
}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": USER,
    "sasl.password": PASSWORD,
}


@pytest.fixture(scope="module")
def guarded(pytestconfig):
    """A broker that asks what a user may do."""
    with Kafka(pytestconfig.getoption("kafka_version"), properties=GUARDED) as cluster:
        cluster.inside = f"127.0.0.1:{int(cluster.brokers[0].internal_port)}"
        yield cluster


@pytest.fixture
def bench(postgres, bootstrap_servers):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, bootstrap_servers)
        yield made
        made.db.close()


@pytest.fixture
def guarded_bench(postgres, guarded):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Bench(url, guarded.inside)
        made.outside, made.admin = guarded.bootstrap_servers, AdminClient({"bootstrap.servers": guarded.inside})
        yield made
        made.db.close()


def allow(bench, kind, name, *operations):
    acls = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for future in bench.admin.create_acls(acls).values():
        future.result(20)


def allow_all_but_transactions(bench):
    read, write, describe, create = (
        AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE,
    )  # fmt: skip
    for topic in (f"{bench.name}.neli", f"{bench.name}.ledger", bench.topic):
        allow(bench, ResourceType.TOPIC, topic, read, write, describe, create)
    allow(bench, ResourceType.GROUP, bench.name, read)


def harvester(bench, servers=None, **given):
    conf = bench.conf(servers, HEARTBEAT_TIMEOUT=2, SESSION_TIMEOUT=6, **given)
    return Harvester(conf, fail_fast=True)


@pytest.fixture(autouse=True)
def parameters(request, monkeypatch):
    """The harvester's database is that of the test's bench."""
    for name in ("bench", "guarded_bench"):
        if name in request.fixturenames:
            url = request.getfixturevalue(name).url
            monkeypatch.setattr(
                "outbox.edges.postgres.common.table.parameters", lambda alias, url=url: {"conninfo": url}
            )


def error_of(made):
    with pytest.raises(OutboxError) as caught:
        made.start().wait(60)
    return caught.value


def test_a_table_without_an_index_is_refused(bench):
    bench.db.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_pkey")
    assert isinstance(error_of(harvester(bench)), WholeTableRead)


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("DROP TABLE outbox_lane", "Run: python manage.py migrate outbox"),
        ("ALTER TABLE outbox DROP kafka_value_binary", "lacks the columns kafka_value_binary"),
    ],
)
def test_tables_that_are_not_migrated_are_named(bench, missing, told):
    bench.db.execute(missing)
    assert told in str(error_of(harvester(bench)))


def test_a_start_warns_where_records_may_come_without_a_time(bench, caplog):
    preflight.look(bench.conf(), "somebody")
    assert "create_time_nullable" not in caplog.text
    bench.db.execute("ALTER TABLE outbox ALTER create_time DROP NOT NULL, ALTER create_time DROP DEFAULT")
    preflight.look(bench.conf(), "somebody")
    assert "ALTER TABLE outbox ALTER create_time SET NOT NULL" in caplog.text


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_ids_that_are_drawn_in_advance_are_refused(bench, delivery):
    bench.db.execute("ALTER SEQUENCE outbox_id_seq CACHE 50")
    error = error_of(harvester(bench, DELIVERY=delivery))
    assert isinstance(error, UnorderedIds)
    assert "ALTER SEQUENCE outbox_id_seq CACHE 1 INCREMENT 1 NO CYCLE" in str(error)


def test_an_unguarded_default_is_refused_where_late_records_are_found_by_it(bench, caplog):
    bench.db.execute("ALTER TABLE outbox ALTER id SET DEFAULT nextval('outbox_id_seq')")
    assert "not guarded by pg_current_xact_id()" in str(error_of(harvester(bench)))
    bench.stash(["a"])
    with harvester(bench, DELIVERY=AT_LEAST_ONCE):
        bench.wait_empty(60)
    assert "table_warning table=outbox" in caplog.text


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_missing_rights_in_the_database_are_one_error_with_the_statements(bench, delivery):
    role = f"harvester_{os.getpid()}"
    companions = [f"outbox_{name}" for name in ("state", "purged", "lane", "hold", "dead", "watch")]
    found = roles.Relations("public", "outbox", "public.outbox_id_seq", tuple(companions))
    for _, statement in roles.statements(found, {"harvester": role}):
        bench.db.execute(statement)
    with psycopg.connect(bench.url, autocommit=True) as asked:
        asked.execute(f"SET ROLE {role}")
        privileges.check(asked, "outbox", exactly_once=delivery == EXACTLY_ONCE)
        bench.db.execute(
            f"REVOKE INSERT ON outbox_hold FROM {role}; REVOKE ALL ON outbox_dead, outbox_watch FROM {role}"
        )
        with pytest.raises(NoPrivileges) as caught:
            privileges.check(asked, "outbox", exactly_once=delivery == EXACTLY_ONCE)
    granted = re.findall(r"GRANT [^;]*? TO \w+", str(caught.value))
    assert granted[0] == f'GRANT INSERT ON "outbox_hold" TO {role}'
    assert granted[1] == f'GRANT SELECT, INSERT, UPDATE, DELETE ON "outbox_dead" TO {role}'
    assert len(granted) == (3 if delivery == EXACTLY_ONCE else 2)
    bench.db.execute("; ".join(granted))
    with psycopg.connect(bench.url, autocommit=True) as asked:
        asked.execute(f"SET ROLE {role}")
        privileges.check(asked, "outbox", exactly_once=delivery == EXACTLY_ONCE)
    bench.db.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_harvester_looks_at_its_rights_before_it_begins(bench, monkeypatch):
    monkeypatch.setattr("outbox.harvest.preflight.privileges.missing", lambda *given, **named: {"x": ["SELECT"]})
    assert "GRANT SELECT ON x TO" in str(error_of(harvester(bench)))


def test_rights_are_named_one_after_another_and_transactions_need_no_more_than_documented(guarded_bench):
    bench = guarded_bench
    create_topic(bench.servers, 1, f"{bench.name}.neli")
    allow(bench, ResourceType.TOPIC, f"{bench.name}.neli", *(
        AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE,
    ))  # fmt: skip
    allow(bench, ResourceType.GROUP, bench.name, AclOperation.READ)
    text = str(error_of(harvester(bench, bench.outside, KAFKA=LOGIN)))
    assert f"cannot describe the ledger topic '{bench.name}.ledger'" in text
    assert "Allow the user" in text

    allow_all_but_transactions(bench)
    error = error_of(harvester(bench, bench.outside, KAFKA=LOGIN))
    assert isinstance(error, TransactionsRefused)
    assert f"Allow the user WRITE and DESCRIBE on the transactional id '{bench.name}-0'" in str(error)

    allow(bench, ResourceType.TRANSACTIONAL_ID, f"{bench.name}-0", AclOperation.WRITE, AclOperation.DESCRIBE)
    bench.stash(["a", "b"])
    with harvester(bench, bench.outside, KAFKA=LOGIN):
        bench.wait_empty(60)
    bench.check()


def test_a_ledger_that_is_closed_later_is_no_fault_of_the_records(guarded_bench, caplog):
    bench, ledger = guarded_bench, f"{guarded_bench.name}.ledger"
    allow_all_but_transactions(bench)
    allow(bench, ResourceType.TRANSACTIONAL_ID, f"{bench.name}-0", AclOperation.WRITE, AclOperation.DESCRIBE)
    of_ledger = (ResourceType.TOPIC, ledger, ResourcePatternType.LITERAL, f"User:{USER}", "*")
    denied = AclBinding(*of_ledger, AclOperation.WRITE, AclPermissionType.DENY)
    every = AclBindingFilter(*of_ledger, AclOperation.WRITE, AclPermissionType.DENY)
    with harvester(bench, bench.outside, KAFKA=LOGIN):
        bench.stash(["a"])
        bench.wait_empty(60)
        for future in bench.admin.create_acls([denied]).values():
            future.result(20)
        wait_until(lambda: bench.admin.describe_acls(every).result(20))
        bench.stash(["a", "b"] * 5)
        wait_until(lambda: f"ledger topic '{ledger}': TOPIC_AUTHORIZATION_FAILED" in caplog.text, 60)
        assert bench.db.execute("SELECT * FROM outbox_hold").fetchall() == []
        assert "record_held" not in caplog.text
        for future in bench.admin.delete_acls([every]).values():
            future.result(20)
        bench.wait_empty(90)
    bench.check()


def test_at_least_once_delivery_needs_no_transactions(guarded_bench):
    bench = guarded_bench
    allow_all_but_transactions(bench)
    bench.stash(["a", "b"])
    with harvester(bench, bench.outside, KAFKA=LOGIN, DELIVERY=AT_LEAST_ONCE):
        bench.wait_empty(60)


def test_a_log_that_needs_more_copies_than_it_has_is_refused(guarded_bench):
    admin, resource = guarded_bench.admin, ConfigResource(ResourceType.TOPIC, TOPIC)

    def set_needed(operation):
        resource.incremental_configs = [ConfigEntry("min.insync.replicas", "2", incremental_operation=operation)]
        admin.incremental_alter_configs([resource])[resource].result(20)

    from confluent_kafka import Producer

    given = {"bootstrap.servers": guarded_bench.servers, "transactional.id": f"x-{uuid.uuid4()}"}
    Producer(given).init_transactions(20)  # makes the log
    log = TransactionLog({"bootstrap.servers": guarded_bench.servers})
    try:
        log.check()
        set_needed(AlterConfigOpType.SET)
        with pytest.raises(TransactionsRefused, match="has 1 replicas and needs 2 in sync"):
            log.check()
    finally:
        set_needed(AlterConfigOpType.DELETE)
        log.close()


def test_a_log_that_cannot_be_made_is_refused_at_the_start(postgres, kafka_factory, monkeypatch):
    cluster = kafka_factory(properties={"transaction.state.log.replication.factor": "3"})
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        bench = Bench(url, cluster.bootstrap_servers)
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": url})
        with pytest.raises(KafkaUnreachable, match="want 3 replicas of their transaction log"):
            preflight.LookAtBrokers(bench.conf())()  # others may be starting beside it
        monkeypatch.setattr(preflight, "BROKERS_S", 1.0)
        began = time.monotonic()
        error = error_of(Harvester(bench.conf()))
        assert time.monotonic() - began >= 1
        bench.db.close()
    assert isinstance(error, TransactionsRefused)
    assert "want 3 replicas of their transaction log" in str(error)
    assert "Set transaction.state.log.replication.factor to 1" in str(error)


@pytest.mark.slow
def test_a_broker_that_is_away_at_the_first_start_is_waited_for(postgres, kafka_factory, monkeypatch):
    """There is no transaction log yet, and it could not be made: but topics tell of the third broker."""
    monkeypatch.setattr(preflight, "BROKERS_S", 0.0)
    cluster = kafka_factory(brokers=3)
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        bench = Bench(url, cluster.bootstrap_servers)
        monkeypatch.setattr("outbox.edges.postgres.common.table.parameters", lambda alias: {"conninfo": url})
        conf = bench.conf(HEARTBEAT_TIMEOUT=2, SESSION_TIMEOUT=6)
        create_topic(bench.servers, 1, conf.election.leader_topic, copies=3)
        bench.stash(["a", "b"])
        cluster.brokers[2].kill()
        admin = AdminClient({"bootstrap.servers": bench.servers})
        wait_until(lambda: len(admin.list_topics(timeout=10).brokers) == 2, 60)
        with Harvester(conf) as made:
            wait_until(lambda: "topics are kept by 1, 2, 3" in made.waiting_for, 90)
            cluster.brokers[2].start()
            bench.wait_empty(90)
        bench.check()
        bench.db.close()
