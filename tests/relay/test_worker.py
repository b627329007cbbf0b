"""Relays on a real PostgreSQL, with receivers behind real sockets."""

import os
from collections import Counter, defaultdict
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from outbox.core.relay import circuit
from outbox.core.relay.addresses import AddressRules, network
from outbox.core.relay.destination import DestinationOptions
from outbox.core.relay.load import RelayLoad
from outbox.core.relay.schedule import fixed
from outbox.core.relay.signatures import objection
from outbox.edges.http.sender import CurlSender, HttpOptions, HttpTarget
from outbox.edges.postgres.common.table import connect_bounded
from outbox.edges.postgres.relay.deliveries import Deliveries
from outbox.relay.worker import RelayWorker
from tests.support.databases import fresh_database
from tests.support.receiver import receiver, wait_until
from tests.support.relay_tables import TABLES

KEY = bytes(range(32))
LEASE_S = 6.0


@pytest.fixture
def url(postgres):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        yield url


@pytest.fixture
def admin(url):
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def web():
    with receiver() as found:
        yield found


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(circuit, "PAUSE_MIN_S", 0.1)
    monkeypatch.setattr(circuit, "PAUSE_MAX_S", 0.5)


class Servers:
    def __init__(self, url, targets):
        self._url, self._targets = url, targets
        ports = frozenset(int(target.url.split(":")[2].split("/")[0]) for target in targets.values())
        rules = AddressRules((network("127.0.0.0/8"),), ports)
        self._options = HttpOptions(ca_file="", rules=rules, allow_http=True)

    def deliveries(self):
        return Deliveries("outbox", partial(connect_bounded, conninfo_to_dict(self._url), statement_timeout_s=5.0))

    def sender(self):
        return CurlSender(self._options, self._targets.get)


@pytest.fixture
def relays(url):
    """Starts one; all are stopped at the end, and none may have failed."""
    started, errors = [], []

    def relay(targets, *, grace_s=5.0, **options):
        given = {"schedule": fixed(3, 0.2), "deadline_s": 3.0, "lease_s": LEASE_S, "concurrency": 8} | options
        load = RelayLoad(lambda name: DestinationOptions(name, **given))
        servers = Servers(url, targets)
        started.append(RelayWorker(load, servers, lease_s=LEASE_S, fail=errors.append, grace_s=grace_s))
        started[-1].start()
        return started[-1]

    yield relay
    for one in started:
        one.stop()
    ended = [one.join(20.0) for one in started]
    assert all(ended)
    assert errors == []


def target(web, path=""):
    return HttpTarget(f"{web.url}{path}", (KEY,))


def post(admin, count, destination="a", key=""):
    admin.execute(
        "INSERT INTO outbox_delivery (destination, key, payload, event) "
        "SELECT %s, %s, convert_to('{\"n\": ' || n || '}', 'UTF8'), 'counted' FROM generate_series(1, %s) AS n",
        [destination, key, count],
    )


def left(admin, condition="true"):
    return admin.execute(f"SELECT count(*) FROM outbox_delivery WHERE {condition}").fetchone()[0]


def test_relays_share_the_deliveries_and_each_arrives_once(admin, relays, web):
    post(admin, 300)
    for _ in range(3):
        relays({"a": target(web)})
    wait_until(lambda: left(admin) == 0)
    assert sorted(Counter(found.id for found in web.received).values()) == [1] * 300
    for found in web.received:
        assert objection([KEY], found.headers, found.body, float(found.headers["webhook-timestamp"])) is None


def test_a_message_is_sent_soon_after_its_commit(admin, relays, web):
    relays({"a": target(web)})
    post(admin, 1)
    wait_until(lambda: len(web.received) == 1, timeout_s=5.0)


def test_a_receiver_that_is_unavailable_costs_no_message_its_life(admin, relays, web):
    web.be("/status/503")
    post(admin, 30)
    for _ in range(2):
        relays({"a": target(web)}, schedule=fixed(2, 0.1))
    wait_until(lambda: left(admin, "history <> '[]'") > 5)
    wait_until(lambda: admin.execute("SELECT failures FROM outbox_destination").fetchone()[0] > 4)
    assert left(admin, "attempts > 0 OR died_at IS NOT NULL") == 0
    web.be("")
    wait_until(lambda: left(admin) == 0)
    assert admin.execute("SELECT access, failures FROM outbox_destination").fetchall() == [("closed", 0)]


def test_an_outage_of_one_receiver_does_not_delay_another(admin, relays, web):
    with receiver() as other:
        post(admin, 50, "down")
        post(admin, 50, "up")
        relays({"down": target(web, "/hang"), "up": target(other)})
        wait_until(lambda: left(admin, "destination = 'up'") == 0, timeout_s=10.0)
        assert left(admin, "destination = 'down'") == 50


def test_a_message_that_is_rejected_is_dead_and_the_others_arrive(admin, relays, web):
    post(admin, 20)
    post(admin, 3, "b")
    relays({"a": target(web), "b": target(web, "/status/422")})
    wait_until(lambda: left(admin, "died_at IS NULL") == 0)
    rows = admin.execute("SELECT destination, dead_reason, attempts, last_error FROM outbox_delivery").fetchall()
    assert rows == [("b", "rejected", 1, "HTTP status 422: no, because of this")] * 3


def test_a_receiver_that_is_gone_keeps_its_messages(admin, relays, web):
    post(admin, 5)
    relays({"a": target(web, "/status/410")}, concurrency=1)
    wait_until(lambda: left(admin, "lease_token IS NULL AND history <> '[]'") == 1)
    wait_until(lambda: admin.execute("SELECT access FROM outbox_destination").fetchall() == [("disabled",)])
    assert (left(admin), len(web.received)) == (5, 1)


def test_keys_arrive_in_order(admin, relays, web):
    for _ in range(20):
        for key in ("k", "l", "m"):
            post(admin, 1, key=key)
    keys = dict(admin.execute("SELECT message_id::text, key FROM outbox_delivery").fetchall())
    order = [row[0] for row in admin.execute("SELECT message_id::text FROM outbox_delivery ORDER BY id")]
    for _ in range(3):
        relays({"a": target(web)})
    wait_until(lambda: left(admin) == 0)
    found = defaultdict(list)
    for one in web.received:
        found[keys[one.id]].append(one.id)
    assert found == {key: [id_ for id_ in order if keys[id_] == key] for key in ("k", "l", "m")}


def test_a_relay_that_stops_finishes_what_is_under_way(admin, relays, web):
    post(admin, 4)
    relay = relays({"a": target(web, "/slow/1")})
    wait_until(lambda: len(web.received) == 4)
    relay.stop()
    assert relay.join(10.0)
    assert left(admin) == 0


def test_a_relay_that_stops_gives_back_what_does_not_end_in_time(admin, relays, web):
    post(admin, 40)
    relay = relays({"a": target(web, "/hang")}, grace_s=0.3)
    wait_until(lambda: len(web.received) == 8)
    relay.stop()
    assert relay.join(10.0)
    assert left(admin, "lease_token IS NULL AND leases = 0 AND attempts = 0 AND history = '[]'") == 40


def test_a_lost_connection_to_postgresql_loses_nothing(admin, relays, web):
    post(admin, 400)
    for _ in range(2):
        relays({"a": target(web, "/slow/0.02")})
    for number in range(1, 4):
        wait_until(lambda number=number: len(web.received) > number * 50)
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    wait_until(lambda: left(admin) == 0)
    assert len({found.id for found in web.received}) == 400


def test_a_rate_limit_holds_for_all_relays_together(admin, relays, web):
    post(admin, 60)
    for _ in range(3):
        relays({"a": target(web)}, rate=20.0)
    wait_until(lambda: len(web.received) >= 10)
    begun = len(web.received)
    (before,) = admin.execute("SELECT clock_timestamp()").fetchone()
    wait_until(lambda: left(admin) == 0)
    (after,) = admin.execute("SELECT clock_timestamp()").fetchone()
    assert (after - before).total_seconds() > (60 - begun) / 20.0 * 0.8
