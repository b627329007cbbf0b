"""The questions to both sides. The test compares the answers call by call. A case states the expected answer only if it
is the point of the case.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import KafkaException

from outbox.core.exactly_once import ledger
from outbox.core.exactly_once.ledger import Entry
from outbox.core.holds.crashes import Care
from outbox.core.holds.values import DeadRecord, HoldActions, HoldRow, rejected
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerUnreachable
from outbox.edges.kafka.exactly_once.transactional import RecordRejected, TransactionalProducer, initialised
from outbox.edges.postgres.common import backends
from outbox.edges.postgres.common.leases import OtherMode
from outbox.edges.postgres.common.session import StatementOverdue
from outbox.edges.postgres.exactly_once.reader import LeftOut
from outbox.edges.postgres.exactly_once.sweeper import Below
from tests.simulation.conformance.sides import LANES, Script
from tests.simulation.exactly_once.checkers import TOPIC

KEYS = ("k6", "k11", "k21", "k25", "k43", "k58", "k6", "k75")
"""Both sides give them the same of two lanes, and of three."""
OWNER, DATABASE = UUID(int=1), UUID(int=2)


def filenode(s: Script, connection: Any) -> int:
    return int(s.statements.look_up(connection, ()).filenode)


# ---- m, and the rows of a batch


def a_connection_is_checked(s: Script) -> None:
    connection = s.connect()
    assert (connection.closed, connection.broken) == (False, False)
    assert connection.opened_at <= s.runtime.monotonic()
    assert s.database._found.identity == s.statements.state(connection, LANES)[0]
    connection.close()
    assert connection.closed
    with pytest.raises(psycopg.OperationalError):
        s.statements.purged(connection, 0)


def a_purge_deletes_and_moves_both_or_neither(s: Script) -> None:
    ids, c, statements = s.write(*"abcde") + s.write(*"fghij"), s.connect(), s.statements
    file = filenode(s, c)
    assert statements.purge_plain(c, 0, 1, ids[:5], file) == 0, "the lane has no number yet"
    assert statements.purged(c, 0) == 0
    assert statements.purge_plain(c, 0, 2, ids[:5], file) == 0
    assert statements.purge_plain(c, 0, 1, ids[:5], file + 1) == 0
    assert statements.purge_plain(c, 1, 1, ids[:5], file) == 0
    assert statements.purge_plain(c, 0, 1, ids[:5], file) == 5
    assert statements.purge_plain(c, 0, 1, ids[5:], file) == 0
    with s.transaction(c):
        assert statements.purge(c, 0, 3, ids[5:], file) == 0
        assert statements.purge(c, 0, 2, ids[4:7], file) == 2, "one of them is gone"
    with s.transaction(c):
        assert statements.purge_counted(c, 0, 2, (), file) == (False, 0)
        assert statements.purge_counted(c, 0, 3, (), file) == (True, 0)
    with s.transaction(c):
        assert statements.purge_counted(c, 0, 4, ids[7:], file) == (True, 3)
    assert statements.purged(c, 0) == 4
    assert statements.purged(c, 2) == 0
    assert statements.purged_of_all(c) == {0: 4, 2: 0}


def a_purge_is_seen_when_its_transaction_ends(s: Script) -> None:
    ids, c, other, statements = s.write(*"abcdef"), s.connect(), s.connect(), s.statements
    file = filenode(s, c)
    for lane in (0, 1):
        statements.purged(c, lane)
    with s.transaction(c):
        assert statements.purge(c, 0, 1, ids[:3], file) == 3
        assert statements.purge(c, 1, 1, ids[2:4], file) == 1, "what this transaction has deleted is gone for it"
        assert statements.purge(c, 0, 2, ids[4:5], file) == 1
        assert statements.purged(other, 0) == 0
        assert statements.look_up(other, ids).count == 6
    assert s.side.table()[0] == ids[5:]
    with s.rolled_back(c):
        assert statements.purge(c, 0, 3, ids[5:], file) == 1
    assert statements.purged(c, 0) == 2
    assert statements.purge_plain(c, 0, 3, ids[5:], file) == 1


def kept_rows_are_counted(s: Script) -> None:
    ids, c, statements = s.write(*"abcde"), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    with s.transaction(c):
        assert statements.kept(c, 0, 1, ids, file) == 0, "m says nothing of this batch"
        assert statements.purge(c, 0, 1, ids[:2], file) == 2
        assert statements.kept(c, 0, 1, ids[:2], file) == 0
        assert statements.kept(c, 0, 1, ids, file) == 3
        assert statements.kept(c, 0, 2, ids, file) == 0
        assert statements.kept(c, 1, 1, ids, file) == 0
        assert statements.kept(c, 0, 1, ids, file + 1) == 0
    with s.transaction(c):
        assert statements.kept(c, 0, 1, ids, file) == 3


def a_plain_purge_does_nothing_where_a_row_might_survive_it(s: Script) -> None:
    ids, c, statements = s.write(*"abc"), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    s.side.keep_rows()
    assert statements.purge_plain(c, 0, 1, ids, file) == 0
    with s.transaction(c):
        assert statements.purge(c, 0, 1, ids, file) == 3


def ids_above_the_sequence_are_compared_first(s: Script) -> None:
    ids, c, statements = s.write(*"abcde"), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    s.side.set_sequence(4)
    assert statements.purge_plain(c, 0, 1, ids, file) == 0
    with s.transaction(c):
        assert statements.purge(c, 0, 1, ids, file) == 0
        assert statements.purge_counted(c, 0, 1, ids, file) == (False, 0)
        assert statements.purge(c, 0, 1, ids[:2], file) == 2
        assert statements.purge(c, 0, 2, ids[2:], file, compared=True) == 3


def a_table_with_another_file(s: Script) -> None:
    ids, c, statements = s.write(*"abc"), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    before = statements.look_up(c, ids)
    s.side.truncate()
    assert s.write(*"abcd") == [*ids, 4]
    after = statements.look_up(c, ids)
    assert after.filenode != file
    assert (before.count, after.count) == (3, 3)
    assert before.digest != after.digest
    assert statements.purge_plain(c, 0, 1, ids, file) == 0
    with s.transaction(c):
        assert statements.purge(c, 0, 1, ids, file, compared=True) == 0
        assert statements.purge(c, 0, 1, ids, after.filenode, compared=True) == 3


def rows_are_looked_up(s: Script) -> None:
    c, statements = s.connect(), s.statements
    first, second = s.write("a", "b"), s.write("c")
    open_one = s.begin("d")
    assert statements.look_up(c, first).newest < statements.look_up(c, [*first, *second]).newest
    assert statements.look_up(c, [*second, *open_one.ids, 99]).count == 1
    assert statements.look_up(c, ()).newest is None
    open_one.commit()
    assert statements.look_up(c, open_one.ids).count == 1


def the_same_purge_twice_at_once_moves_once(s: Script) -> None:
    ids, c, statements = s.write(*"abcdef"), s.connect(), s.statements
    others = [s.connect() for _ in range(3)]
    file = filenode(s, c)
    for lane in (0, 1):
        statements.purged(c, lane)
    with s.transaction(c):
        assert statements.purge(c, 0, 1, ids[:2], file) == 2
        waiting = s.beside(partial(_purge_plain, others[0], 0, 1, ids[:2], file))
        assert statements.purge_plain(others[1], 0, 2, ids[2:4], file) == 0, "batch 1 is not purged yet"
        assert statements.purge_plain(others[1], 0, 3, ids[2:4], file) == 0
        assert statements.purge_plain(others[1], 1, 1, ids[4:5], file) == 1, "another lane"
    assert waiting() == 0
    with s.rolled_back(c):
        assert statements.purge(c, 0, 2, ids[2:4], file) == 2
        waiting = s.beside(partial(_purge_plain, others[0], 0, 2, ids[2:4], file))
    assert waiting() == 2


def whoever_waits_for_a_purge_too_long_is_refused(s: Script) -> None:
    ids, c, other, statements = s.write(*"ab"), s.connect(), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    with s.transaction(c):
        assert statements.purge(c, 0, 1, ids, file) == 2
        with pytest.raises(psycopg.errors.LockNotAvailable):
            statements.purge_plain(other, 0, 1, ids, file)
        assert (other.closed, other.broken) == (False, False)
        assert statements.purged(other, 0) == 0


def a_statement_is_given_up(s: Script) -> None:
    """Nobody knows then whether it is carried out, and the connection is not used again."""
    ids, c, statements = s.write(*"ab"), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    for batch, by_itself in enumerate((True, False), 1):
        other, interrupt = s.connect(), s.runtime.interrupt()
        of_batch = 0, batch, ids[batch - 1 : batch], file
        with s.transaction(c):
            assert statements.purge(c, *of_batch) == 1
            if by_itself:
                other.give_up_at = s.runtime.monotonic() + 0.3
                with pytest.raises(StatementOverdue):
                    statements._found.purge_plain(other, *of_batch)
            else:
                other.interrupt = interrupt
                waiting = s.beside(partial(_purge_plain, other, *of_batch))
                interrupt.set()
                assert waiting() is StatementOverdue
        with pytest.raises(psycopg.OperationalError):
            statements.purged(other, 0)
        other.close()
        interrupt.close()


def _purge_plain(connection: Any, lane: int, batch: int, ids: list[int], file: int, s: Script) -> int:
    return int(s.statements.purge_plain(connection, lane, batch, ids, file))


# ---- holds


def hold(record_id: int, key: str | None, attempts: int = 1, code: str = "INVALID_RECORD") -> HoldRow:
    return rejected(record_id, TOPIC, key, attempts, f"{code}: no", 60.0)


def leaving(record_id: int, reason: str, error: str) -> DeadRecord:
    return DeadRecord(HoldRow(1, TOPIC, "", record_id=record_id, attempts=3, code="CODE", error=error), reason)


def show(s: Script, connection: Any) -> None:
    for lanes in (2, LANES):
        s.holds.load(connection, lanes)


def what_was_refused_is_held(s: Script) -> None:
    ids, c = s.write(*KEYS, ""), s.connect()
    assert s.holds.load(c, 2) == []
    s.holds.write(c, [hold(ids[0], KEYS[0]), hold(ids[8], ""), hold(ids[1], None), hold(99, "k")], ())
    show(s, c)
    s.holds.write(c, [hold(ids[0], KEYS[0], 2, "POLICY_VIOLATION"), hold(ids[2], KEYS[2])], [ids[1], 77])
    show(s, c)
    s.holds.write(c, [hold(ids[6], KEYS[6])], ())
    show(s, c)
    s.side.want(ids[6], "retry")
    s.side.want(ids[2], "skip")
    s.holds.write(c, [hold(ids[6], KEYS[6], 3), hold(ids[2], KEYS[2], 3)], ())
    s.holds.write(c, [], [ids[8]])
    show(s, c)
    s.statements.purged(c, 0)
    s.statements.purge_plain(c, 0, 1, ids, filenode(s, c))
    show(s, c)
    s.side.truncate()
    assert s.write(*KEYS) == ids[:8]
    show(s, c)
    s.holds.write(c, [hold(ids[2], KEYS[2])], ())
    show(s, c)


def what_operators_hold_is_shown(s: Script) -> None:
    ids, c = s.write(*KEYS), s.connect()
    for topic, key, lane, record_id, reason in (
        (TOPIC, KEYS[0], None, None, "paused"),
        (TOPIC, None, None, None, "paused"),
        ("", None, 1, None, "paused"),
        (TOPIC, KEYS[0], None, ids[0], "editing"),
        ("invoices", KEYS[1], None, None, "paused"),
    ):
        s.side.hold(topic, key, lane, record_id, reason)
    show(s, c)
    s.holds.write(c, [hold(ids[0], KEYS[0])], ())
    s.holds.write(c, (), ids)
    show(s, c)


def what_leaves_or_is_confirmed_shares_a_purge(s: Script) -> None:
    ids, c, other, statements = s.write(*KEYS), s.connect(), s.connect(), s.statements
    file = filenode(s, c)
    statements.purged(c, 0)
    s.holds.write(c, [hold(id_, key) for id_, key in zip(ids[:4], KEYS, strict=False)], ())
    for id_, wanted in zip(ids[:4], ("skip", "discard", "discard", "retry"), strict=True):
        s.side.want(id_, wanted)
    for lane in (0, 1):
        s.side.hold("", None, lane, None, "paused")
    numbers = [row.id for row in s.holds._found.load(other, LANES) if row.reason == "paused"]
    dead_records = tuple(leaving(id_, "skipped", f"because of {id_}") for id_ in (ids[0], 99))
    hold_actions = HoldActions(dead_records, (ids[1], ids[3], ids[4], 99), tuple(numbers[:1]))

    def carry_out(batch: int, sent: int) -> None:
        assert statements.purge_counted(c, 0, batch, [ids[sent]], file) == (True, 1)
        s.holds.run_soon(c, 0, hold_actions, 300)

    with s.rolled_back(c):
        carry_out(1, 5)
    show(s, other)
    with s.transaction(c):
        carry_out(1, 5)
        assert statements.look_up(other, ids).count == 8
        assert statements.look_up(c, [99]).count == 0
    show(s, other)
    with s.transaction(c):
        carry_out(2, 6)
        s.holds.run_soon(c, 2, HoldActions(confirmed=tuple(numbers)), 300)
    show(s, other)


def a_record_that_took_the_place_of_another_does_not_leave(s: Script) -> None:
    ids, c, statements = s.write("k6", "k11"), s.connect(), s.statements
    statements.purged(c, 0)
    s.holds.write(c, [hold(ids[0], "k6"), hold(ids[1], "k11")], ())
    s.side.want(ids[1], "discard")
    s.side.truncate()
    assert s.write("k6", "k11", "k11") == [*ids, 3]
    with s.transaction(c):
        assert statements.purge_counted(c, 0, 1, [3], filenode(s, c)) == (True, 1)
        s.holds.run_soon(c, 0, HoldActions((leaving(ids[0], "rejected", "no"),), (ids[1],)), 300)
    show(s, c)


# ---- crashes


def a_lane_is_watched(s: Script) -> None:
    ids, c, holds = s.write("k6", "k11", "k21"), s.connect(), s.holds
    holds.start(c, 0, "one", ids)
    assert holds.watch(c, 0) is None
    holds.own(c, 0, "one", Care())
    holds.start(c, 0, "one", ids)
    holds.start(c, 0, "two", [9])
    assert holds.watch(c, 0).started == tuple(ids)
    holds.own(c, 0, "two", Care(True, 2, tuple(ids[:2])))
    assert holds.watch(c, 0).suspected == tuple(ids[:2])
    holds.start(c, 0, "two", ids[:1])
    for owner in ("one", "two"):
        holds.calm(c, 0, owner)
        holds.watch(c, 0)
        holds.leave(c, 0, owner)
        holds.watch(c, 0)
    assert holds.watch(c, 1) is None
    assert holds.watch(c, 0).is_clean


def a_poison_record_is_held(s: Script) -> None:
    ids, c, holds = s.write("k6", "k11", "", "k6"), s.connect(), s.holds
    holds.write(c, [hold(ids[0], "k6"), hold(ids[1], "k11")], ())
    for lane, poison in enumerate((ids[0], ids[2], 99)):
        holds.own(c, lane, "one", Care(True, 3, (), poison))
        show(s, c)
    s.side.want(ids[0], "retry")
    holds.own(c, 0, "two", Care(True, 4, (), ids[3]))
    show(s, c)
    s.side.want(ids[3], "retry")
    holds.write(c, [hold(ids[3], "k6")], ())
    show(s, c)


def an_owner_is_alive_as_long_as_it_is_connected(s: Script) -> None:
    c = s.connect()
    s.holds.own(c, 0, "three", Care())
    assert not s.holds.watch(c, 0).is_alive
    s.database._found.owner = "three"
    others = [s.connect(), s.connect()]
    for other in others:
        assert s.holds.watch(c, 0).is_alive
        other.close()
        s.runtime.sleep(0.3)
    assert not s.holds.watch(c, 0).is_alive


# ---- the lane count


def the_lane_count_is_changed(s: Script) -> None:
    c, statements = s.connect(), s.statements

    def change() -> int:
        return int(statements.state(c, LANES)[1].resize_no)

    assert statements.close_lanes(c, 2) is False
    s.side.request(2)
    statements.refuse_request(c, 3, "")
    statements.refuse_request(c, 2, "")
    s.side.request(2)
    assert statements.close_lanes(c, 1) is False
    assert statements.close_lanes(c, 2) is True
    first = change()
    s.side.request(1)
    assert statements.close_lanes(c, 1) is False, "a change is under way"
    assert statements.open_lanes(c, first - 1, 2) is False
    assert statements.open_lanes(c, first, 2, settled={0: 1, 1: 0}) is False, "batch 1 of lane 0 is not purged"
    ids = s.write("a")
    statements.purged(c, 0)
    statements.purge_plain(c, 0, 1, ids, filenode(s, c))
    assert statements.open_lanes(c, first, 2, settled={0: 1, 1: 0, 2: 0}) is True
    assert statements.open_lanes(c, first, 2) is False
    assert statements.close_lanes(c, 1) is True
    assert change() > first


def lanes_are_closed_for_a_forgotten_change(s: Script) -> None:
    c, statements = s.connect(), s.statements

    def change() -> int:
        return int(statements.state(c, LANES)[1].resize_no)

    before = change()
    assert statements.close_all_lanes(c, before + 1, 10) is False
    assert statements.close_all_lanes(c, before, 10) is True
    assert change() > 10
    s.side.request(1)
    assert statements.close_all_lanes(c, change(), change()) is True, "a request is kept"
    assert statements.open_lanes(c, change(), LANES) is True
    assert statements.close_lanes(c, 1) is True
    assert statements.close_all_lanes(c, change(), 1) is True, "a change under way becomes a request"
    far = 1 << 60
    assert statements.close_all_lanes(c, change(), far) is True
    assert change() == far + 1


# ---- the connection, the lease


def a_backend_is_required(s: Script) -> None:
    c, other, statements = s.connect(), s.connect(), s.statements
    assert backends.of(c) != backends.of(other)
    assert backends.server_of(backends.of(c)) == backends.server_of(backends.of(other))
    statements.require_backend(c)
    statements.require_backend(c, backends.of(c))
    with pytest.raises(backends.OtherBackend):
        statements.require_backend(c, backends.of(other))
    statements.flush(c)


def the_table_is_taken(s: Script) -> None:
    c, lease = s.connect(), s.database.lease("test")
    for owned in ({}, {0: OWNER, 2: OWNER}):
        assert lease.take(c, lanes=LANES, owned=owned) is True
        assert lease.take(c, lanes=LANES, owned=owned) is True
        assert s.side.holds_lease()
        lease.release(c)
        lease.release(c)
        assert not s.side.holds_lease()


def another_mode_has_the_table(s: Script) -> None:
    c, lease = s.connect(), s.database.lease("test")
    lease.take(c, lanes=LANES, owned={})
    s.side.give_to_other_mode(gives=True)
    for owned in ({}, {0: OWNER}):
        with pytest.raises(OtherMode):
            lease.take(c, lanes=LANES, owned=owned)
    assert (c.closed, c.broken) == (False, False)
    s.side.give_to_other_mode(gives=False)
    assert lease.take(c, lanes=LANES, owned={}) is True


# ---- pages


def a_page_begins_where_it_is_told_to(s: Script) -> None:
    c = taken(s)
    s.statements.purged(c, 0)
    assert s.read(c).last_id is None
    ids = s.write("a", "b", "") + s.write("c", "d")
    assert [row[0] for row in s.read(c).rows] == ids
    assert s.read(c).is_full is False
    assert [row[0] for row in s.read(c, look=2, limit=2).rows] == ids[2:4]
    assert s.read(c, limit=2).is_full is True
    assert s.read(c, look=2, limit=3).is_full is True
    assert [row[0] for row in s.read(c, excluded=(2, 4), limit=2).rows] == [1, 3]
    assert [row[0] for row in s.read(c, look=1, excluded=(1, 2, 3, 5)).rows] == [4]
    s.statements.purge_plain(c, 0, 1, ids[:2], filenode(s, c))
    assert s.read(c).purged == {0: 1}
    s.side.set_sequence(3)
    assert s.read(c).sequence == 3
    s.side.truncate()
    assert s.read(c).sequence == 0
    s.write("e")
    assert [row[0] for row in s.read(c).rows] == [1]


def a_page_shows_what_is_committed_and_who_is_not(s: Script) -> None:
    c = taken(s)
    first, idle, second = s.begin("a"), s.begin(writes=False), s.begin("b", "c")
    assert s.read(c).sequence == 3
    second.commit()
    assert [row[0] for row in s.read(c).rows] == second.ids
    third = s.begin("d")
    first.roll_back()
    s.read(c)
    idle.commit()
    third.commit()
    fourth = s.begin()
    s.read(c)
    fourth.roll_back()
    assert [row[0] for row in s.read(c).rows] == [*second.ids, *third.ids]


def a_page_of_several_lanes(s: Script) -> None:
    c, statements = taken(s), s.statements
    s.write(*KEYS, "", "", *KEYS, "", "")
    for lanes in (2, LANES):
        reader = s.reader(lanes)
        assert reader.lanes == lanes
        for asked in (range(lanes), (1,), (0, 1)):
            for look, excluded in ((0, ()), (3, ()), (0, (1, 2, 7))):
                for limit in (3, 100):
                    reader.read(c, look, tuple(asked), excluded, limit, 1_000_000, LeftOut())
        for left_out in (LeftOut(frozenset({TOPIC})), LeftOut(frozenset({"invoices"}), frozenset({1}))):
            reader.read(c, 0, tuple(range(lanes)), (), 100, 1_000_000, left_out)
    assert statements.purged_of_all(c) == {}, "to read a page makes no number"
    assert statements.purge_plain(c, 0, 1, [1], filenode(s, c)) == 0


def taken(s: Script) -> Any:
    c = s.connect()
    s.database.lease("test").take(c, lanes=LANES, owned={})
    return c


def a_slice_of_the_table_is_looked_at(s: Script) -> None:
    c = s.connect()
    for lanes in (1, LANES):
        sweeper, every = s.database.sweeper(lanes), tuple(range(lanes))
        sweeper.prepare(c)
        assert sweeper.lanes == lanes
        for below in (
            Below(100, every, ()),
            Below(4, every, (2,)),
            Below(100, (0,), ()),
            Below(100, every, (), LeftOut(frozenset({TOPIC}))),
            Below(100, every, (), LeftOut(frozenset({"invoices"}), frozenset({0}))),
        ):
            for first_block, blocks in ((0, 1), (0, 100), (50, 10)):
                sweeper.look(c, first_block, blocks, below)
        s.write(*KEYS, "", "")


def new_records_are_told(s: Script) -> None:
    s.side.install_wakeups()
    c, interrupt = s.connect(), s.runtime.interrupt()
    s.write("a")
    s.database.listen(c)
    for rolls_back in (False, True):
        waiting = s.beside(lambda other: other.database.wait_notified(c, interrupt))
        writer = s.begin("b")
        if rolls_back:
            writer.roll_back()
            s.runtime.sleep(0.2)
            s.write("c")
        else:
            writer.commit()
        assert waiting() is True
    waiting = s.beside(lambda other: other.database.wait_notified(c, interrupt))
    interrupt.set()
    assert waiting() is False
    interrupt.close()


# ---- Kafka


def entry(batch: int, ids: tuple[int, ...] = (), lane: int = 0) -> Entry:
    return Entry(lane, batch, OWNER, DATABASE, ids, 0, datetime(2026, 1, 1, tzinfo=UTC))


class Lane:
    """A producer as the product makes it, in as many attempts as it takes, and the records that it sends."""

    def __init__(self, s: Script, lane: int = 0) -> None:
        self.s, self.lane = s, lane
        found = initialised(
            lambda: s.kafka._found.producer(lane, None), s.kafka.transactional_id(lane), s.runtime.monotonic() + 30,
            lambda: True, s.runtime,
        )  # fmt: skip
        assert found is not None
        self.producer: TransactionalProducer = found
        self.client = s.client(found)

    def produce(self, *uids: int, key: str | None = "a") -> None:
        for uid in uids:
            self.client.produce(self.s.topic, str(uid), key, -1, None, None, 0, None)

    def announce(self) -> None:
        self.client.produce(self.s.kafka.name, ledger.BEGINNING, ledger.BEGINNING_KEY, self.lane)

    def produce_entry(self, batch: int, ids: tuple[int, ...] = ()) -> None:
        value, key = ledger.encode(entry(batch, ids, self.lane)), ledger.entry_key(self.lane)
        self.client.produce(self.s.kafka.name, value, key, self.lane, headers=None)

    def send(self, batch: int, *uids: int, commits: bool = True) -> None:
        self.client.begin_transaction()
        self.produce(*uids)
        self.produce_entry(batch)
        self.client.flush(10.0)
        if commits:
            self.client.commit_transaction(10.0)


def prepared(s: Script, records: int = 4) -> None:
    """A table that is taken and has records, and the topics."""
    taken(s)
    for _ in range(records):
        s.write("a")
    s.kafka.prepare(LANES, 3600.0)
    s.side.make_topic()


def last(s: Script, lane: int = 0, within_s: float = 10.0, *, waits: bool = True) -> Any:
    found = s.kafka._found.last_entry(lane, s.runtime.monotonic() + within_s, waits=waits)
    s.called.add(("KafkaPort", "last_entry"))
    s.note("last entry", None if found is None else found.batch)
    return found


def the_ledger_is_made_and_grows(s: Script) -> None:
    assert s.kafka.partitions() == 0
    assert s.kafka.grow(s.kafka.name, 2) is False, "it is not there"
    with pytest.raises(LedgerMissing):
        last(s)
    s.kafka.prepare(1, 3600.0)
    s.kafka.prepare(1, 3600.0)
    assert s.kafka.partitions() == 1
    assert last(s) is None
    with pytest.raises(LedgerMissing):
        last(s, lane=2)
    assert s.kafka.grow(s.kafka.name, 1) is False
    assert s.kafka.grow(s.kafka.name, 3) is True
    assert s.kafka.partitions() == 3
    assert last(s, lane=2) is None
    assert s.kafka.transactional_id(2) == s.kafka.transactional_id(2) != s.kafka.transactional_id(1)


def a_committed_transaction_is_read_and_an_aborted_one_is_not(s: Script) -> None:
    prepared(s)
    lane = Lane(s)
    lane.send(1, 1, 2)
    assert last(s).batch == 1
    lane.send(2, 3, commits=False)
    lane.client.abort_transaction(10.0)
    assert last(s).batch == 1
    lane.send(2, 3, 4)
    assert last(s).batch == 2
    assert last(s, lane=1) is None
    assert s.side.delivered() == [1, 2, 3, 4]
    lane.client.begin_transaction()
    lane.announce()
    lane.client.commit_transaction(10.0)
    assert last(s).batch == 2, "a beginning alone says nothing"
    lane.producer.poll()
    assert lane.producer.trouble == ""
    lane.producer.drop_and_wait()


def transactions_without_a_record(s: Script) -> None:
    prepared(s)
    lane = Lane(s)
    for end in ("commit_transaction", "abort_transaction", "commit_transaction"):
        lane.client.begin_transaction()
        getattr(lane.client, end)(10.0)
    lane.send(1, 1)
    lane.client.begin_transaction()
    lane.client.abort_transaction(10.0)
    lane.client.begin_transaction()
    lane.client.commit_transaction(10.0)
    lane.send(2, 2)
    assert s.side.delivered() == [1, 2]


def a_client_refuses_what_is_out_of_turn(s: Script) -> None:
    prepared(s)
    lane = Lane(s)
    for call in (lambda: lane.produce(1), lambda: lane.client.commit_transaction(10.0)):
        with pytest.raises(KafkaException):
            call()
    lane.client.begin_transaction()
    with pytest.raises(KafkaException):
        lane.client.begin_transaction()
    lane.produce(1)
    assert lane.client.flush(10.0) == 0
    lane.client.poll(0)
    lane.client.commit_transaction(10.0)
    with pytest.raises(KafkaException):
        lane.client.commit_transaction(10.0)
    assert s.side.delivered() == [1]


def a_commit_goes_on_where_it_was(s: Script) -> None:
    prepared(s)
    lane = Lane(s)
    lane.client.begin_transaction()
    lane.produce(1)
    lane.produce_entry(1)
    with pytest.raises(KafkaException):
        lane.client.commit_transaction(0.0)
    lane.client.commit_transaction(10.0)
    lane.send(2, 2)
    assert s.side.delivered() == [1, 2]


def a_newer_producer_fences_the_older(s: Script) -> None:
    prepared(s)
    older, third = Lane(s), Lane(s, lane=1)
    older.send(1, 1, 2, commits=False)
    with pytest.raises(LedgerUnreachable):
        last(s, waits=False)
    newer = Lane(s)
    assert last(s) is None
    assert s.side.delivered() == []
    with pytest.raises(KafkaException):
        older.client.commit_transaction(10.0)
    with pytest.raises(KafkaException):
        older.client.begin_transaction()
    newer.send(1, 1)
    third.send(1, 2)
    assert (last(s).batch, last(s, lane=1).batch) == (1, 1)
    assert s.side.delivered() == [1, 2]


def an_idle_producer_that_was_fenced(s: Script) -> None:
    prepared(s)
    older = Lane(s)
    older.send(1, 1)
    newer = Lane(s)
    older.client.begin_transaction()
    older.produce(2)
    while not older.producer.trouble:
        older.producer.poll()
        s.runtime.sleep(0.01)
    assert older.producer.trouble.startswith("FATAL")
    with pytest.raises(KafkaException):
        older.client.commit_transaction(10.0)
    newer.send(2, 2)
    assert s.side.delivered() == [1, 2]


def an_open_transaction_is_waited_for(s: Script) -> None:
    prepared(s)
    lane = Lane(s)
    lane.send(1, 1)
    lane.send(2, 2, commits=False)
    with pytest.raises(LedgerUnreachable):
        last(s, within_s=0.1)
    waiting = s.beside(last)
    lane.client.commit_transaction(10.0)
    assert waiting().batch == 2


def what_began_after_the_question_is_not_waited_for(s: Script) -> None:
    prepared(s)
    lane = Lane(s)
    lane.send(1, 1, commits=False)
    waiting = s.beside(last)
    lane.client.commit_transaction(10.0)
    lane.send(2, 2, commits=False)
    assert waiting().batch == 1
    lane.client.abort_transaction(10.0)


def a_broker_refuses_a_record(s: Script) -> None:
    s.side.refuse_keyless()
    prepared(s)
    lane = Lane(s)
    told: list[Any] = []
    lane.client.begin_transaction()
    lane.client.produce(s.topic, "1", None, -1, lambda error, message: told.append(error), None, 0, None)
    assert lane.client.flush(10.0) == 0
    s.note("reported", [s._plain(error) for error in told])
    assert len(told) == 1
    for call in (lambda: lane.produce(2), lane.client.begin_transaction, lambda: lane.client.commit_transaction(10.0)):
        with pytest.raises(KafkaException):
            call()
    cause = lane.producer.cause()
    s.note("cause", s._plain(cause))
    assert cause is not None
    lane.client.abort_transaction(10.0)
    lane.producer.drop_and_wait()
    Lane(s).send(1, 2)
    assert s.side.delivered() == [2]


def a_broker_names_what_it_refuses(s: Script) -> None:
    s.side.refuse_keyless()
    prepared(s)
    lane = Lane(s)
    told: dict[int, str] = {}
    lane.client.begin_transaction()
    for uid, key in ((1, None), (3, "a"), (5, None)):
        lane.client.produce(
            s.topic, str(uid), key, -1, lambda error, message, uid=uid: told.update({uid: error.name()}), None, 0, None
        )
    assert lane.client.flush(10.0) == 0
    assert told == {1: "INVALID_RECORD", 3: "_INVALID_DIFFERENT_RECORD", 5: "INVALID_RECORD"}
    lane.client.abort_transaction(10.0)


def a_broker_refuses_what_is_too_large(s: Script) -> None:
    s.side.limit_size(500)
    prepared(s)
    assert s.kafka.size_limits([s.topic]) == {s.topic: 500}
    lane = Lane(s)
    told: list[Any] = []
    lane.client.begin_transaction()
    lane.client.produce(s.topic, "1".rjust(600), "a", -1, lambda error, message: told.append(error), None, 0, None)
    assert lane.client.flush(10.0) == 0
    assert [error.name() for error in told] == ["MSG_SIZE_TOO_LARGE"]
    cause = lane.producer.cause()
    s.note("cause", s._plain(cause))
    assert cause is not None
    assert cause.name() == "MSG_SIZE_TOO_LARGE"
    lane.client.abort_transaction(10.0)
    lane.producer.drop_and_wait()
    Lane(s).send(1, 2)
    assert s.side.delivered() == [2]


def the_client_refuses_a_record(s: Script) -> None:
    """It was never handed over: the rest of the batch may go on."""
    prepared(s)
    large = "k" * 1_100_000
    s.side.refuse_here(large)
    lane = Lane(s)
    lane.producer.begin()
    rows = [(n, s.topic, key, str(n), None, None, None) for n, key in ((2, "a"), (1, large), (3, "a"))]
    with pytest.raises(RecordRejected) as refused:
        lane.producer.send(rows, s.runtime.monotonic() + 10)
    assert refused.value.index == 1
    lane.producer.send(rows[2:], s.runtime.monotonic() + 10)
    lane.producer.wait_reports(lambda: False)
    lane.producer.announce(s.kafka.name, 0, ledger.BEGINNING_KEY, ledger.BEGINNING)
    lane.producer.send_entry(s.kafka.name, 0, ledger.entry_key(0), ledger.encode(entry(1, (2, 3))))
    lane.producer.commit(10.0)
    assert lane.producer.repeated == ""
    assert s.side.delivered() == [2, 3]


def a_client_is_thrown_away(s: Script) -> None:
    prepared(s)
    s.client(s.kafka.producer(1, None)).init_transactions(20.0)
    lane = Lane(s)
    found = lane.client.list_topics(s.topic, 10.0).topics[s.topic]
    assert found.error is None
    assert lane.producer.unknown_topics([s.topic], 10.0) == {}
    lane.client.begin_transaction()
    lane.produce(1)
    lane.client.purge(blocking=False)
    lane.client.poll(0)


CASES = [
    a_connection_is_checked,
    a_purge_deletes_and_moves_both_or_neither,
    a_purge_is_seen_when_its_transaction_ends,
    kept_rows_are_counted,
    a_plain_purge_does_nothing_where_a_row_might_survive_it,
    ids_above_the_sequence_are_compared_first,
    a_table_with_another_file,
    rows_are_looked_up,
    the_same_purge_twice_at_once_moves_once,
    whoever_waits_for_a_purge_too_long_is_refused,
    a_statement_is_given_up,
    what_was_refused_is_held,
    what_operators_hold_is_shown,
    what_leaves_or_is_confirmed_shares_a_purge,
    a_record_that_took_the_place_of_another_does_not_leave,
    a_lane_is_watched,
    a_poison_record_is_held,
    an_owner_is_alive_as_long_as_it_is_connected,
    the_lane_count_is_changed,
    lanes_are_closed_for_a_forgotten_change,
    a_backend_is_required,
    the_table_is_taken,
    another_mode_has_the_table,
    a_page_begins_where_it_is_told_to,
    a_page_shows_what_is_committed_and_who_is_not,
    a_page_of_several_lanes,
    a_slice_of_the_table_is_looked_at,
    new_records_are_told,
    the_ledger_is_made_and_grows,
    a_committed_transaction_is_read_and_an_aborted_one_is_not,
    transactions_without_a_record,
    a_client_refuses_what_is_out_of_turn,
    a_commit_goes_on_where_it_was,
    a_newer_producer_fences_the_older,
    an_idle_producer_that_was_fenced,
    an_open_transaction_is_waited_for,
    what_began_after_the_question_is_not_waited_for,
    a_broker_refuses_a_record,
    a_broker_names_what_it_refuses,
    a_broker_refuses_what_is_too_large,
    the_client_refuses_a_record,
    a_client_is_thrown_away,
]
