"""Deliveries on a real PostgreSQL: several relays at a time, clocks, lost connections, long histories, plans."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from outbox.core.relay import circuit
from outbox.core.relay.circuit import Access, DestinationRow
from outbox.core.relay.settlement import Refund, Settle, Settlement
from outbox.core.relay.table import DeliveriesUnavailable
from outbox.core.relay.turns import DeliveryContent
from outbox.edges.postgres.common.table import connect_bounded
from outbox.edges.postgres.relay import deliveries as module
from outbox.edges.postgres.relay.deliveries import HISTORY_MAX, Deliveries
from tests.support.databases import fresh_database
from tests.support.relay_tables import TABLES

LEASE_S = 60.0
TOKENS = [f"00000000-0000-0000-0000-{number:012}" for number in range(20)]


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
def relays(url):
    """As many as are asked for."""
    made = []

    def relay(sweep_s=0.0):
        made.append(Deliveries("outbox", partial(connect_bounded, conninfo_to_dict(url), statement_timeout_s=10.0)))
        made[-1]._sweep_s = sweep_s
        return made[-1]

    yield relay
    for one in made:
        one.close()


def post(admin, count=1, destination="a", key=""):
    admin.execute(
        "INSERT INTO outbox_delivery (destination, key) SELECT %s, %s FROM generate_series(1, %s)",
        [destination, key, count],
    )


def rows(admin, columns):
    return admin.execute(f"SELECT {columns} FROM outbox_delivery ORDER BY id").fetchall()


def retry(delivery, error="no"):
    return Settlement(delivery, Settle.RETRY, True, 0.0, error)


def together(jobs):
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(lambda job: job(), jobs))


# ---- several relays


def test_relays_that_lease_at_once_share_the_deliveries(admin, relays):
    post(admin, 400)
    jobs = [partial(relays().lease, TOKENS[number], LEASE_S, {"a": 60}) for number in range(4)]
    found = [one.id for leased in together(jobs) for one in leased]
    assert len(found) == len(set(found)) == 240


def test_a_key_is_leased_from_its_first_delivery_on_by_one_relay(admin, relays):
    for _ in range(5):
        for key in ("k", "l", "m"):
            post(admin, key=key)
    jobs = [partial(relays().lease_keys, TOKENS[number], LEASE_S, {"a": 9}) for number in range(4)]
    of_keys = {}
    for leased in together(jobs):
        for key in {one.key for one in leased}:
            assert key not in of_keys, "two relays have it"
            of_keys[key] = [one.id for one in leased if one.key == key]
    for key, found in of_keys.items():
        every = [id_ for id_, one in rows(admin, "id, key") if one == key]
        assert found == every[: len(found)], "it begins with the first one, and leaves none out"


def test_a_first_delivery_that_another_transaction_locks_keeps_its_key_waiting(admin, relays, url):
    post(admin, 3, key="k")
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM outbox_delivery WHERE id = 1 FOR UPDATE")
        assert relays().lease_keys(TOKENS[1], LEASE_S, {"a": 9}) == []
    assert [one.id for one in relays().lease_keys(TOKENS[1], LEASE_S, {"a": 9})] == [1, 2, 3]


def test_a_settlement_of_an_older_lease_changes_nothing(admin, relays):
    post(admin, 4)
    late, relay = relays(), relays()
    older = late.lease(TOKENS[1], LEASE_S, {"a": 4})
    admin.execute("UPDATE outbox_delivery SET lease_until = clock_timestamp()")
    assert relay.expire() == 4
    for _ in range(4):
        relay.lease_suspect(TOKENS[2], LEASE_S, ["a"])
    before = rows(admin, "*")
    results = (
        Settlement(older[0], Settle.DELIVERED),
        retry(older[1]),
        Settlement(older[2], Settle.DEAD, True, reason="failed"),
        Settlement(older[3], Settle.RETURNED),
    )
    assert late.settle(results) == set()
    assert rows(admin, "*") == before


def test_of_several_relays_one_gets_the_probe(admin, relays):
    opened = circuit.failed(DestinationRow(), 0.0, "refused")
    assert relays().change("a", opened)
    admin.execute("UPDATE outbox_destination SET wait_until = clock_timestamp()")
    probe = circuit.probed(opened.after, LEASE_S)
    assert sorted(together([partial(relays().change, "a", probe) for _ in range(4)])) == [False, False, False, True]


def test_of_several_relays_one_opens_a_circuit_that_has_no_row_yet(relays):
    opened = circuit.failed(DestinationRow(), 0.0, "refused")
    assert sorted(together([partial(relays().change, "a", opened) for _ in range(4)])) == [False, False, False, True]


def test_relays_share_the_time_of_a_rate_limit(relays):
    waits = sorted(together([partial(relays().reserve, "a", 10, 1.0) for _ in range(4)]))
    assert waits == pytest.approx([0.0, 10.0, 20.0, 30.0], abs=1.0)


# ---- clocks


def test_leases_and_pauses_follow_the_clock_of_the_server(admin, relays, monkeypatch):
    post(admin, 2)
    relay = relays()
    for name in ("monotonic", "time"):
        monkeypatch.setattr(module.time, name, partial(lambda found: found() + 3_600.0, getattr(module.time, name)))
    one, _ = relay.lease(TOKENS[1], LEASE_S, {"a": 2})
    relay.settle([Settlement(one, Settle.RETRY, True, 30.0, "no")])
    relay.change("a", circuit.failed(DestinationRow(), 0.0, "refused", 90.0))
    (times,) = admin.execute(
        "SELECT extract(epoch FROM one.available_at - clock_timestamp())::float8, "
        "extract(epoch FROM two.lease_until - clock_timestamp())::float8, "
        "extract(epoch FROM d.wait_until - clock_timestamp())::float8 "
        "FROM outbox_delivery AS one, outbox_delivery AS two, outbox_destination AS d WHERE one.id = 1 AND two.id = 2"
    ).fetchall()
    assert times == pytest.approx((30.0, LEASE_S, 90.0), abs=5.0)
    assert relay.expire() == 0


# ---- refunds


def test_an_attempt_is_given_back_once_and_only_to_a_row_that_was_not_leased_since(admin, relays):
    post(admin, 2)
    relay = relays()
    one, two = relay.lease(TOKENS[1], LEASE_S, {"a": 2})
    relay.settle([retry(one), retry(two)])
    (again,) = relay.lease(TOKENS[2], LEASE_S, {"a": 1})
    refunds = [Refund(one.id, one.token), Refund(two.id, two.token)]
    assert [relay.refund(refunds), relay.refund(refunds)] == [1, 0]
    attempts = dict(rows(admin, "id, attempts"))
    assert attempts == {again.id: 1, 3 - again.id: 0}


# ---- where a lease begins


def names(found):
    return [one.name for one in found[0]]


def test_a_lease_begins_where_the_one_before_has_ended_and_returns_to_the_first_row_now_and_then(admin, relays):
    post(admin, 6)
    relay = relays(sweep_s=3_600.0)
    assert names(relay.due("", 10)) == ["a"]
    first = relay.lease(TOKENS[1], LEASE_S, {"a": 3})
    relays().settle([Settlement(first[0], Settle.RETURNED)])
    assert [one.id for one in relay.lease(TOKENS[2], LEASE_S, {"a": 3})] == [4, 5, 6]
    assert relay.lease(TOKENS[3], LEASE_S, {"a": 3}) == []
    assert names(relay.due("", 10)) == []
    relay._sweep_s = 0.0
    assert names(relay.due("", 10)) == ["a"]
    assert [one.id for one in relay.lease(TOKENS[4], LEASE_S, {"a": 3})] == [1]


def test_between_two_sweeps_new_deliveries_of_known_destinations_are_found(admin, relays):
    """Also of one that had nothing due at the sweep."""
    post(admin, 1, "a")
    admin.execute("INSERT INTO outbox_delivery (destination, available_at) VALUES ('b', 'infinity')")
    relay = relays(sweep_s=3_600.0)
    assert names(relay.due("", 10)) == ["a"]
    for name in ("b", "c"):
        post(admin, 1, name)
    assert names(relay.due("", 10)) == ["a", "b"]
    post(admin, 1, "b", key="k")
    ((_, two), _) = relay.due("", 10)
    assert (two.has_free, two.has_keys) == (True, True)
    relay._sweep_s = 0.0
    assert names(relay.due("", 10)) == ["a", "b", "c"]


def test_known_destinations_are_searched_in_pages(admin, relays):
    for name in "abcde":
        post(admin, 1, name)
    relay = relays(sweep_s=3_600.0)
    for _ in range(3):
        found, after = [], ""
        while True:
            page, after = relay.due(after, 2)
            found += [one.name for one in page]
            if not after:
                break
        assert found == list("abcde")


def test_rows_that_are_gone_are_not_read_again(admin, relays, url):
    """They stay in the index while an older transaction may see them."""
    post(admin, 12_000)
    relay = relays(sweep_s=3_600.0)
    with psycopg.connect(url) as older:
        older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute("SELECT count(*) FROM outbox_delivery")
        relay.due("", 10)
        for token in TOKENS[:12]:
            leased = relay.lease(token, LEASE_S, {"a": 1_000})
            relay.settle([Settlement(one, Settle.DELIVERED) for one in leased])
        post(admin, 1)
        given = {"names": ["a"], "floors": [relay._floors["a"]]}
        plan = relay._connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {relay._known_sql}", given).fetchall()
        buffers = next(int(part) for (line,) in plan for part in re.findall(r"Buffers: shared hit=(\d+)", line))
        assert buffers < 60, "\n".join(chain.from_iterable(plan))
        assert names(relay.due("", 10)) == ["a"]


def test_keys_are_read_in_pages(admin, relays, monkeypatch):
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    for number in range(7):
        post(admin, key=f"k{number}")
    relay = relays()
    found = [[one.key for one in relay.lease_keys(TOKENS[n], LEASE_S, {"a": 9})] for n in range(4)]
    assert found == [["k0", "k1", "k2"], ["k3", "k4", "k5"], ["k6"], []]


# ---- what is kept


def test_a_lease_has_what_is_sent(admin, relays):
    admin.execute(
        "INSERT INTO outbox_delivery (destination, event, payload, content_type) "
        "VALUES ('a', 'paid', '\\x00ff', 'application/octet-stream')"
    )
    (one,) = relays().lease(TOKENS[1], LEASE_S, {"a": 1})
    ((message_id,),) = rows(admin, "message_id::text")
    assert one.content == DeliveryContent(message_id, "paid", b"\x00\xff", "application/octet-stream")
    assert "ff" not in repr(one), "the payload is not logged"


def test_the_history_of_failures_has_a_limit(admin, relays):
    post(admin)
    relay = relays()
    for number in range(HISTORY_MAX + 5):
        (one,) = relay.lease(TOKENS[1], LEASE_S, {"a": 1})
        relay.settle([retry(one, f"error {number}")])
    ((history, last_error, attempts),) = rows(admin, "history, last_error, attempts")
    assert [entry["error"] for entry in history] == [f"error {n}" for n in range(5, HISTORY_MAX + 5)]
    assert (last_error, attempts) == (f"error {HISTORY_MAX + 4}", HISTORY_MAX + 5)


def test_an_error_is_kept_as_postgresql_can_keep_it(admin, relays):
    post(admin)
    relay = relays()
    (one,) = relay.lease(TOKENS[1], LEASE_S, {"a": 1})
    relay.settle([retry(one, "a\0b\ud800" + "x" * 5_000)])
    assert rows(admin, "left(last_error, 3), length(last_error)") == [("ab?", module.TEXT_MAX - 1)]


# ---- connections


def test_a_lost_connection_is_reported_and_the_next_call_connects_again(admin, relays):
    post(admin)
    relay = relays()
    relay.due("", 10)
    pid = relay._connection.info.backend_pid
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    with pytest.raises(DeliveriesUnavailable):
        relay.due("", 10)
    assert [one.name for one in relay.due("", 10)[0]] == ["a"]


def test_a_row_that_is_locked_for_long_is_reported_as_unavailable(admin, relays, url):
    post(admin)
    relay = Deliveries("outbox", partial(connect_bounded, conninfo_to_dict(url), statement_timeout_s=0.4))
    (one,) = relay.lease(TOKENS[1], LEASE_S, {"a": 1})
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM outbox_delivery FOR UPDATE")
        with pytest.raises(DeliveriesUnavailable):
            relay.settle([retry(one)])
    assert relay.settle([retry(one)]) == {1}
    relay.close()


def test_a_server_that_cannot_be_reached_is_unavailable():
    def connect():
        raise psycopg.OperationalError("refused")

    with pytest.raises(DeliveriesUnavailable, match="refused"):
        Deliveries("outbox", connect).expire()


# ---- plans


def test_no_statement_reads_the_whole_table(admin, relays):
    """Each with its own index, beside many rows that are postponed, dead, or of one key."""
    admin.execute(
        "INSERT INTO outbox_delivery (destination, key, available_at, died_at, blocks_key) "
        "SELECT 'd' || n % 50, CASE WHEN n % 4 = 0 THEN 'k' || n % 7 ELSE '' END, "
        "clock_timestamp() + CASE WHEN n % 3 = 0 THEN interval '1 hour' ELSE interval '-1 hour' END, "
        "CASE WHEN n % 5 = 0 THEN clock_timestamp() END, n % 10 = 0 FROM generate_series(1, 20000) AS n"
    )
    admin.execute("ANALYZE outbox_delivery")
    relay = relays()
    relay.due("", 10)
    connection = relay._connection
    given = {"token": TOKENS[1], "lease_s": LEASE_S, "names": ["d1", "d2"], "counts": [5, 5], "limit": 200}
    asked = {
        relay._due_sql: {"after": "", "limit": 200},
        relay._known_sql: {"names": ["d1", "d2"], "floors": ["-infinity", "-infinity"]},
        relay._lease_sql: {**given, "floors": ["-infinity", "-infinity"]},
        relay._keys_sql: {**given, "after": ["", ""]},
        relay._suspect_sql: given,
        relay._expire_sql: given,
        relay._refund_sql: {"ids": [1], "tokens": [TOKENS[1]]},
    }
    for statement, parameters in asked.items():
        plan = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {statement}", parameters).fetchall()
        text = "\n".join(chain.from_iterable(plan))
        assert "Seq Scan on outbox_delivery" not in text, text


def test_access_of_a_destination_survives_the_way_through_the_table(admin, relays):
    post(admin)
    relay = relays()
    row = DestinationRow()
    for change in (circuit.failed, circuit.failed):
        if row.access is Access.OPEN:
            row = DestinationRow(row.version, Access.PROBING)
        found = change(row, 0.0, "refused")
        assert relay.change("a", found)
        ((due,), _) = relay.due("", 10)
        assert (due.row.version, due.row.access, due.row.failures) == (
            found.after.version,
            Access.OPEN,
            row.failures + 1,
        )
        row = due.row
