"""A wall clock that is set while harvesters work."""

import os
import signal
import time
import uuid
from contextlib import ExitStack

import psycopg
import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE
from outbox.devstack import Kafka
from tests.harvest.exactly_once.bench import create_tables
from tests.harvest.hosts import wait_until
from tests.harvest.processes import Harvest
from tests.support.databases import fresh_database
from tests.support.tables import insert
from tests.support.topics import create_topic
from tests.support.wall_clock import WallClock

HOUR_S = 3600
HEARTBEAT_S, SESSION_S = 0.5, 6
REPLACED_S = SESSION_S + 3  # so soon a leader that vanishes is replaced


@pytest.fixture
def clock(tmp_path):
    return WallClock(tmp_path)


@pytest.fixture
def tables(postgres):
    """Makes databases with a table."""
    with ExitStack() as stack:

        def make():
            url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
            with psycopg.connect(url, autocommit=True) as connection:
                create_tables(connection)
            return url

        yield make


@pytest.fixture
def harvest(tmp_path, clock):
    """Starts harvesters that have this clock."""
    with ExitStack() as stack:

        def start(url, delivery=EXACTLY_ONCE, **settings):
            given = {"DELIVERY": delivery, "HEARTBEAT_TIMEOUT": HEARTBEAT_S, "SESSION_TIMEOUT": SESSION_S, **settings}
            environment = {f"OUTBOX_{name}": str(value) for name, value in given.items()}
            one = Harvest(tmp_path, url, **clock.environment, **environment)
            stack.callback(one.discard)
            return one

        yield start


def leads_again(harvester, times):
    wait_until(lambda: harvester.log.count("leader_acquired lane=0") >= times, 3 * REPLACED_S)


def test_a_leader_leads_again_after_its_clock_was_set_back(bootstrap_servers, tables, harvest, clock):
    """While it is two hours ahead nothing happens. When it is right again, the first pause must not be the end."""
    both = [
        harvest(tables(), delivery, NAME=f"c{uuid.uuid4().hex[:12]}", BOOTSTRAP_SERVERS=bootstrap_servers)
        for delivery in (EXACTLY_ONCE, AT_LEAST_ONCE)
    ]
    for one in both:
        one.leads()
    clock.set(2 * HOUR_S)
    time.sleep(2 * HEARTBEAT_S)
    for one in both:
        assert "leader_fenced" not in one.log
    clock.set(0)
    for one in both:
        one.process.send_signal(signal.SIGSTOP)
    time.sleep(2 * HEARTBEAT_S)
    for one in both:
        one.process.send_signal(signal.SIGCONT)
    for one in both:
        one.says("leader_fenced lane=0 .*heartbeat-timeout")
        leads_again(one, 2)
        one.says("clock_set_back seconds=7[12]")


@pytest.mark.torture
def test_members_stay_in_the_group_when_their_clock_is_set_back(own_servers, pytestconfig, tables, harvest, clock):
    """Nothing moves for several sessions, then the leader ends."""
    with Kafka(pytestconfig.getoption("kafka_version"), properties={"group.min.session.timeout.ms": "1000"}) as kafka:
        servers, name, url = kafka.bootstrap_servers, f"c{uuid.uuid4().hex[:12]}", tables()
        given = {"NAME": name, "BOOTSTRAP_SERVERS": servers, "SESSION_TIMEOUT": 1.5}
        first = harvest(url, **given).leads()
        second = harvest(url, **given).stands_by()
        clock.set(-HOUR_S)
        time.sleep(5)
        admin = AdminClient({"bootstrap.servers": servers})
        group = admin.describe_consumer_groups([name])[name].result(10)
        assert (group.state, len(group.members)) == (ConsumerGroupState.STABLE, 2)
        assert "leader_fenced" not in first.log
        first.ends(0)
        leads_again(second, 1)


@pytest.mark.torture
def test_lanes_go_on_sending_when_the_clock_is_set_back(bootstrap_servers, tables, harvest, clock):
    """A transaction that waits inside the client at that moment is over long before its time-out of 15 s."""
    url, topic = tables(), create_topic(bootstrap_servers, 3)
    harvest(url, NAME=f"c{uuid.uuid4().hex[:12]}", BOOTSTRAP_SERVERS=bootstrap_servers).leads()
    with psycopg.connect(url, autocommit=True) as db:
        for hours in range(1, 41):
            for _ in range(20):
                insert(db, topic, [f"k{number}" for number in range(50)])
                time.sleep(0.02)
            clock.set(-hours * HOUR_S)
            wait_until(lambda: db.execute("SELECT count(*) FROM outbox").fetchone()[0] == 0, 8)


@pytest.mark.torture
def test_a_leader_leads_again_after_its_clock_was_set_back_while_the_brokers_were_away(
    own_servers, pytestconfig, tables, harvest, clock
):
    """Then the member looks for brokers most of the time."""
    with Kafka(pytestconfig.getoption("kafka_version")) as kafka:
        one = harvest(tables(), NAME=f"c{uuid.uuid4().hex[:12]}", BOOTSTRAP_SERVERS=kafka.bootstrap_servers).leads()
        kafka.kill()
        one.says("kind=silence")
        for hours in range(1, 13):
            clock.set(-hours * HOUR_S)
            time.sleep(0.25)
        kafka.start()
        leads_again(one, 2)
