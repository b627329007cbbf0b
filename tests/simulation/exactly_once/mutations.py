"""Planted bugs of exactly-once delivery: each is the product without one of its rules. The suite catches all.

Where the rule is a guard of a statement, or a question of the client that reads the ledger, it is the simulated server
that lacks it; that the real ones guard it is shown by `tests/faults/exactly_once/test_database.py` (m) and
`tests/edges/kafka/test_ledger_topic.py` (the wait for an open transaction).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from outbox.core import times
from outbox.core.exactly_once import blame, decisions, ledger, sweeping
from outbox.core.exactly_once import transaction as decided
from outbox.core.exactly_once.blame import Action, Attempt, HoldLikely, Search
from outbox.core.exactly_once.decisions import Decision, Facts, NothingToDo, Rows
from outbox.core.exactly_once.flights import Flights, Plan, Share, Standing
from outbox.core.exactly_once.pages import PageSizes
from outbox.core.exactly_once.round import News, Reads
from outbox.core.frontier import Frontier, Snapshot
from outbox.core.holds import book, crashes
from outbox.core.holds.book import Holds
from outbox.core.holds.crashes import Care
from outbox.core.holds.trials import Trials
from outbox.edges.kafka.exactly_once import transactional
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from outbox.edges.postgres.common import backends
from outbox.edges.postgres.exactly_once.reader import Page
from outbox.harvest.exactly_once import takeover, transaction
from outbox.harvest.exactly_once.crashes import CrashWatch
from outbox.harvest.exactly_once.resize import LaneCount
from outbox.harvest.exactly_once.rounds import read_connection
from outbox.harvest.exactly_once.rounds.database import PurgeSession
from outbox.harvest.exactly_once.rounds.lanes import Lanes
from outbox.harvest.exactly_once.rounds.read_connection import Failed, Read, ReadConnection
from outbox.harvest.exactly_once.rounds.reader import PageReader
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.harvest.exactly_once.rounds.sweep import TableSweep
from outbox.harvest.exactly_once.transaction import Transactions
from outbox.harvest.exactly_once.values import Awaited, Batch, Ticket
from outbox.harvest.lease_keeper import LeaseKeeper
from tests.simulation.exactly_once.scenario import (
    CRASHING,
    LAGGING,
    LOSSY,
    PLAIN,
    REFUSING,
    STUBBORN,
    NearFrontier,
    Outcome,
    Rules,
    run,
)
from tests.simulation.exactly_once.themes import SLOTS
from tests.simulation.planted import PlantedBug, around


@dataclass(frozen=True)
class Planted(PlantedBug):
    rules: Rules = PLAIN

    def run(self, seed: int) -> Outcome:
        return run(seed, self.rules, self.applied)


# ---- what is read


class Cursor(Frontier):
    """Reads what is above the last id."""

    def start(self) -> int:
        return self.read_to

    def missed_from(self, look: int, snapshot: Snapshot, sequence: int) -> int | None:
        return None


class NothingHasEnded(NearFrontier):
    """Looks back only to bounds nearby."""

    @staticmethod
    def _ended(last: Snapshot, now: Snapshot) -> list[int]:
        return []


def _exclude_late(read_from: Any, reading: ReadConnection, connection: Any, plan: Plan, bytes_max: int) -> Page:
    """Asks which records are in flight after it has read the rows."""
    page: Page = read_from(reading, connection, replace(plan, flights=()), bytes_max)
    lanes = getattr(reading._leave_out, "__self__")._lanes  # noqa: B009
    flights = lanes.flights.plan(lanes.known.values(), 1).flights
    flying = {id_ for ids in flights for id_ in ids}
    return replace(page, rows=[row for row in page.rows if row[0] not in flying])


def _plan_for_every_lane(plan: Any, flights: Flights, lanes: Iterable[Standing], *given: Any) -> Plan:
    return replace(plan(flights, lanes, *given), flights=tuple(share.ids for share in flights._batches if share.ids))


def _end_at_the_commit(flights: Flights, share: Share, batch: int) -> None:
    flights.give_back(share)


def _keep_frontier(ready: Any, rounds: Rounds, *given: Any) -> None:
    with rounds._lanes.changed:
        ready(rounds, *given)
        rounds._lanes.round._news.discard(News.JOINED)


def _count_from_return(read: Any, reading: ReadConnection, *given: Any) -> Read | Failed:
    found: Read | Failed = read(reading, *given)
    return replace(found, asked_at=found.returned_at) if isinstance(found, Read) else found


def _stand_still(read_from: Any, reading: ReadConnection, connection: Any, *given: Any) -> Page:
    """The thread often comes late to take the answer: no rule is left out."""
    runtime: Any = reading._runtime
    connection.sent = lambda: runtime.stand_still(runtime.world.random.choice((0.0, 0.0, 0.0, 0.8)))
    page: Page = read_from(reading, connection, *given)
    connection.sent = None
    return page


def _stamp_when_sent(read_from: Any, reading: Any, connection: Any, *given: Any) -> Page:
    runtime = reading._runtime

    def stamp() -> None:
        runtime.stand_still(runtime.world.random.choice((0.0, 0.0, 0.0, 0.8)))
        reading.stamped_at = runtime.monotonic()

    connection.sent = stamp
    try:
        page: Page = read_from(reading, connection, *given)
    finally:
        connection.sent = None
    return page


def _stamp_late(read: Any, reading: Any, *given: Any) -> Read | Failed:
    """The time is noted when the statement is on its way already."""
    found: Read | Failed = read(reading, *given)
    return replace(found, asked_at=reading.stamped_at) if isinstance(found, Read) else found


def _follow_anywhere(may_follow: Any, reader: PageReader, lane: Any, plan: Plan, page: Page) -> bool:
    lane.server = backends.server_of(page.backend)
    return bool(may_follow(reader, lane, plan, page))


def _pass_nothing(accept: Any, frontier: Frontier, *given: Any, passes_over: bool = False) -> None:
    accept(frontier, *given)


# ---- rounds


def _keep_stops(ready: Any, rounds: Rounds, *given: Any) -> None:
    """A lane that could not be purged once is not heard again, although an operator has settled it."""
    ticket = rounds._lanes.last_ticket
    stops = dict(ticket.stops) if ticket is not None else {}
    ready(rounds, *given)
    if ticket is not None:
        ticket.stops.update(stops)


def _forget_left_out(left_out: Any, rounds: Rounds, lane: Any, *given: Any, **named: Any) -> Any:
    with rounds._lanes.changed:
        found = left_out(rounds, lane, *given, **named)
        lane.left_out -= 1
        return found


def _post_first(reader: PageReader, batches: list[Batch], read: Read) -> None:
    """Outside of the lock; that the lane works is noted afterwards."""
    runtime: Any = reader._runtime
    flushed, lanes = Awaited(runtime), []
    for batch in batches:
        batch.previous, batch.flush = reader._lanes.last_ticket, flushed
        if (lane := reader._lanes.known.get(batch.lane)) is not None:
            lane.post(batch)
            lanes.append((lane, batch))
    runtime.stand_still(runtime.world.random.choice((0.0, 0.05, 0.4)))
    with reader._lanes.changed:
        dealt = [lane for lane, batch in lanes if lane.session == batch.session and lane.ready]
        for lane in dealt:
            lane.dealt()
        reader._lanes.round.handed_over(len(dealt), is_full=read.page.is_full)
        reader._lanes.on(Reads.FLUSHES)
    reader._flush(flushed)


def _release_outside(rounds: Rounds, lane: Any, may_go_on: Callable[[], bool]) -> None:
    with rounds._lanes.changed:
        lane.leave()
        if (
            not rounds._lease.is_kept
            or rounds.is_closing
            or not all(o.is_leaving for o in rounds._lanes.known.values())
        ):
            return
        if rounds._lanes.unsettled:
            return
        rounds._lease.released()
    runtime: Any = rounds._runtime
    runtime.stand_still(runtime.world.random.choice((0.0, 1.5, 3.0)))
    released = rounds.purges.tell(rounds._lease.release)
    while not released.wait(0.05) and may_go_on():
        pass


def _leave_settled(leave: Any, rounds: Rounds, lane: Any, *, is_settled: bool) -> None:
    leave(rounds, lane, is_settled=True)


# ---- one transaction


def _send_entry_first(send: Any, worker: Transactions, producer: Any, batch: Batch, give_up_at: float) -> Any:
    payload, entry = worker._entry(batch, ledger.digest(batch.rows), times.newest(batch.rows) if batch.rows else None)
    producer.send_entry(worker._ledger_name, worker._lane.number, ledger.entry_key(0), payload, ledger.headers(entry))
    producer.has_entry = True
    return send(worker, producer, batch, give_up_at)


def _send_no_second_entry(send_entry: Any, producer: Any, *given: Any) -> None:
    if getattr(producer, "has_entry", False):
        producer.has_entry = False
    else:
        send_entry(producer, *given)


def _hasten(await_guards: Any, worker: Transactions, batch: Batch, give_up_at: float) -> None:
    """Does not wait for the purge."""
    previous = batch.previous
    if batch.flush is not None and previous is not None and not previous.is_settled:
        batch.previous = None
    try:
        await_guards(worker, batch, give_up_at)
    finally:
        batch.previous = previous


def _flush_nothing(reader: PageReader, flushed: Awaited) -> None:
    flushed.settle()
    with reader._lanes.changed:
        reader._lanes.on(Reads.FLUSHED)


def _reuse(initialised: Any, make: Any, transactional_id: str, give_up_at: float, may_go_on: Any, runtime: Any) -> Any:
    """A producer that has failed aborts and continues."""
    if make.__self__._settling is not None:
        return initialised(make, transactional_id, give_up_at, may_go_on, runtime)
    kept = runtime.__dict__.setdefault("producers", {})
    producer = kept.get(transactional_id)
    if producer is not None and producer._client is not None and not producer.trouble:
        try:
            producer.client.abort_transaction(0.5)
        except KafkaException:
            pass
        else:
            return producer
    made = kept[transactional_id] = initialised(make, transactional_id, give_up_at, may_go_on, runtime)
    return made


def _drop_troubled(drop: Any, producer: TransactionalProducer) -> None:
    if producer.trouble:
        drop(producer)


@contextmanager
def _send_at_once(worker: Transactions, batch: Batch) -> Iterator[float]:
    yield worker._runtime.monotonic()


@contextmanager
def _keep_turn(worker: Transactions, batch: Batch) -> Iterator[float]:
    """A lane whose transaction fails does not give it on."""
    turn = worker._rounds.sending_turn
    is_mine = turn.acquire(timeout=decided._TURN_S)
    yield worker._runtime.monotonic()
    if is_mine:
        turn.release()


def _give_the_batch_up(send_piece: Any, *given: Any) -> Any:
    """Whatever the client raises."""
    taken, text = send_piece(*given)
    if text is not None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
    return taken, text


def _search_for_each(of_suspects: Any, attempt: Attempt, suspects: tuple[int, ...], error: Any) -> list[Action]:
    actions: list[Action] = of_suspects(attempt, suspects, error)
    return [Search(suspects, error.name) if isinstance(each, HoldLikely) else each for each in actions]


def _try_all(due: Any, trials: Trials, now: float, *, is_behind: bool) -> Any:
    trials.is_doubtful = False
    return due(trials, now, is_behind=False)


# ---- takeovers, purges, lane count


def _resend(facts: Facts) -> Decision:
    """As if a transaction of unknown outcome had failed."""
    return NothingToDo(facts.entry.batch if facts.entry is not None else 0)


def _by_ids(entry: Any, count: int, digest: int, newest: Any) -> Rows:
    return Rows.ALL if count else Rows.NONE


def _by_the_clock(found_rows: Any, entry: Any, count: int, digest: int, newest: Any) -> Rows:
    found: Rows = found_rows(replace(entry, newest=None), count, digest, newest)
    return found


def _purge_anywhere(purge: Any, purges: PurgeSession, ticket: Ticket, attempt: int, connection: Any) -> None:
    server = backends.server_of(connection.backend)
    ticket.purges = tuple(replace(one, server=server) for one in ticket.purges)
    purge(purges, ticket, attempt, connection)


def _settle_none(count: LaneCount, state: Any) -> Sequence[int]:
    return ()


def _nothing(*given: Any, **named: Any) -> None:
    pass


# ---- crashes


def _clear_when_clean(after: Any, found: Any, owner: str) -> Care:
    care: Care = after(found, owner)
    return Care() if found is not None and found.is_clean else care


class _NoTurn:
    @staticmethod
    def acquire(timeout: float) -> bool:
        return True

    @staticmethod
    def release() -> None:
        pass


def _take_no_turn(watched: Any, watch: CrashWatch, *given: Any) -> Any:
    watch._rounds.careful_turn = _NoTurn()  # type: ignore[assignment]
    return watched(watch, *given)


# ---- holds


def _release_from_nowhere(release_due: Any, holds: Holds, *given: Any, **named: Any) -> list[int]:
    release_due(holds, *given, **named)
    return []


def _carry_out_unmoved(settle: Any, statements: Any, connection: Any, purge: Any, ticket: Ticket) -> None:
    """Of a purge that moved nothing: somebody else owns the lane."""
    if purge.hold_actions is not None:
        with connection.transaction():
            connection.run(purge.entry.lane, purge.hold_actions)
    settle(statements, connection, purge, ticket)


def _carry_out_at_once(divide: Any, reader: PageReader, *given: Any) -> list[Batch]:
    """Beside the batch, and not with its purge."""
    batches: list[Batch] = divide(reader, *given)

    def run(connection: Any, batch: Batch) -> None:
        with connection.transaction():
            connection.run(batch.lane, batch.hold_actions)

    for batch in batches:
        if batch.hold_actions is not None:
            reader._lanes.purges.tell(partial(run, batch=batch))
    return batches


def _done_when_taken(take_actions: Any, holds: Holds) -> Any:
    hold_actions = take_actions(holds)
    if hold_actions is not None:
        holds.done(hold_actions)
    return hold_actions


def _look_late(load: Any, holds: Any, *given: Any) -> None:
    if not hasattr(holds, "has_looked"):
        holds.has_looked = True
    else:
        load(holds, *given)


_LOSSY, _REFUSING = (LOSSY, 5), (REFUSING, 5)
_COPIES, _CRASHES, _STUBBORN = (LAGGING, 10), (CRASHING, 10), (STUBBORN, 10)
_REFUSING_EVEN, _REFUSING_ODD, _RESTLESS_EVEN, _RESTLESS_ODD = ((last, 10) for last in (2, 7, 4, 9))
_COPIES_HASTY, _STUBBORN_COOPERATIVE, _RESTLESS_COOPERATIVE = (13, 30), (6, 20), (14, 20)
_IN_TURN = 60, 10 * SLOTS
_BY_THE_CLIENT, _FOR_THEIR_SIZE, _BY_NAME = ((70 + 10 * SLOTS * kind, 40 * SLOTS) for kind in range(3))
_OPERATED, _UNDECIDED, _POISONED, _KEPT, _UNRULY, _QUIET, _LEASED, _SLOW = (
    (10 * slot + 5, 10 * SLOTS) for slot in range(SLOTS)
)
_LATE_ANSWERS = 845, 16 * 10 * SLOTS  # among the unruly: an answer that is late enough is rare
_NO_TROUBLE = transactional, "is_trouble", lambda facility, text, was_connected: False

MUTATIONS: dict[str, Planted] = {
    "ledger entry first": Planted(
        (
            around(Transactions, "_send", _send_entry_first),
            around(TransactionalProducer, "send_entry", _send_no_second_entry),
            _NO_TROUBLE,
        )
    ),
    "no renewal after trouble": Planted((_NO_TROUBLE,), theme=_RESTLESS_ODD),
    "purge by id without guard m": Planted(rules=replace(PLAIN, guarded=False), theme=_LOSSY),
    "takeover without waiting for the stable offset": Planted(rules=replace(PLAIN, waits_for_stable=False)),
    "cursor instead of frontier": Planted(((read_connection, "Frontier", Cursor),)),
    "ended transactions are not looked back for": Planted(((read_connection, "Frontier", NothingHasEnded),)),
    "exclusions copied after the select": Planted((around(ReadConnection, "_read_from", _exclude_late),)),
    "no flush": Planted(
        (
            (PageReader, "_flush", _flush_nothing),
            (transaction, "has_flushed", lambda found, server, asked_at: True),
        )
    ),
    "the frontier is not reset for a lane that joins": Planted((around(Rounds, "ready", _keep_frontier),)),
    "commit before the purge of the batch before": Planted(
        (around(Transactions, "_await_guards", _hasten),), theme=_REFUSING_ODD
    ),
    "in flight only until the commit": Planted(((Flights, "committed", _end_at_the_commit),)),
    "a settled stop is kept": Planted((around(Rounds, "ready", _keep_stops),), theme=_LOSSY),
    "what other lanes have in flight is left out": Planted(
        (around(Flights, "plan", _plan_for_every_lane),), theme=_COPIES
    ),
    "producer reused after an error": Planted(
        (
            around(takeover, "initialised", _reuse),
            around(TransactionalProducer, "drop", _drop_troubled),
        ),
        theme=_REFUSING_EVEN,
    ),
    "rejected record swallowed": Planted(((Transactions, "_leave_out", _nothing),)),
    "a page dealt out before a refusal is sent as it is": Planted(
        (around(Rounds, "left_out", _forget_left_out),), theme=_REFUSING_ODD
    ),
    "takeover sends the last batch again": Planted(((decisions, "takeover", _resend),)),
    "rows compared by ids alone": Planted(((decisions, "found_rows", _by_ids),)),
    "times of records compared with the clock": Planted((around(decisions, "found_rows", _by_the_clock),)),
    "lanes opened before the old ones are settled": Planted(((LaneCount, "_lanes_to_settle", _settle_none),)),
    "a forgotten change of the count is not noticed": Planted(
        ((decisions, "forgets_change", lambda state, newest: False),),
        theme=_COPIES,
    ),
    "a read is counted from its return instead of its start": Planted(
        (
            around(ReadConnection, "read", _count_from_return),
            around(ReadConnection, "_read_from", _stand_still),
        ),
        theme=_CRASHES,
    ),
    "a read is stamped after it was sent": Planted(
        (
            around(ReadConnection, "read", _stamp_late),
            around(ReadConnection, "_read_from", _stamp_when_sent),
        ),
        theme=_CRASHES,
    ),
    "a batch is posted outside of the round's lock": Planted(
        ((PageReader, "_hand_over", _post_first),), theme=_REFUSING
    ),
    "the lease is released outside of the round's lock": Planted(
        ((Rounds, "release_lease", _release_outside),), theme=_RESTLESS_EVEN
    ),
    "a lane is read for on another server than the one it was taken over on": Planted(
        (around(PageReader, "_may_follow", _follow_anywhere),), theme=_COPIES_HASTY
    ),
    "purge over a connection to another server without a look": Planted(
        (around(PurgeSession, "_purge", _purge_anywhere),), theme=_COPIES
    ),
    "the lease is given back although a lane has left something in doubt": Planted(
        (around(Rounds, "leave", _leave_settled),), theme=_RESTLESS_COOPERATIVE
    ),
    "a new file of the table is not noticed": Planted(
        (
            (ReadConnection, "is_file_known", lambda self, page: True),
            around(ReadConnection, "_read_from", _stand_still),
        ),
        theme=_LOSSY,
    ),
    "only the owner of lane 0 notices a forgotten change": Planted(
        ((takeover, "close_forgotten", _nothing),), theme=_STUBBORN
    ),
    "a hold that ends is not read for from its first record": Planted(
        (around(Holds, "release_due", _release_from_nowhere),), theme=_REFUSING
    ),
    "an attempt whose record is gone never ends": Planted(
        ((book, "_UNKNOWN_S", float("inf")),), theme=_STUBBORN_COOPERATIVE
    ),
    "a record leaves although the purge of its batch has moved nothing": Planted(
        ((PurgeSession, "_settle", staticmethod(partial(_carry_out_unmoved, PurgeSession._settle))),), theme=_UNDECIDED
    ),
    "what a purge is to carry out runs beside the batch": Planted(
        (around(PageReader, "_divide", _carry_out_at_once),), theme=_UNDECIDED
    ),
    "a key goes on before its record has left": Planted(
        (around(Holds, "take_actions", _done_when_taken),), theme=_OPERATED
    ),
    "what could not be done with a purge is forgotten": Planted(((Holds, "not_done", _nothing),), theme=_UNDECIDED),
    "what was under way before a takeover is waited for": Planted(((Holds, "none_done", _nothing),), theme=_OPERATED),
    "holds are not loaded before the first page": Planted((around(Holds, "load", _look_late),), theme=_OPERATED),
    "what was passed over is not read when its hold ends": Planted(((Holds, "passed_over", _nothing),), theme=_KEPT),
    "a held backlog is walked over by every read": Planted((around(Frontier, "accept", _pass_nothing),), theme=_KEPT),
    "what the sweep finds is not read": Planted(((TableSweep, "take", lambda self: []),), theme=_UNRULY),
    "the sweep gives back what is held": Planted(((Lanes, "is_held", lambda self, row: False),), theme=_UNRULY),
    "a slice that took long delays the sweep without a limit": Planted(
        ((sweeping, "_SLICE_S", 3600.0),), theme=_LATE_ANSWERS
    ),
    "a notification does not end the pause": Planted(((Rounds, "wake", _nothing),), theme=_QUIET),
    "a lease is trusted for ever": Planted(((LeaseKeeper, "is_trusted", lambda self: True),), theme=_LEASED),
    "pages are not cut for slow brokers": Planted(((PageSizes, "too_slow", _nothing),), theme=_SLOW),
    "pages that were cut do not grow again": Planted(((PageSizes, "enlarge", _nothing),), theme=_SLOW),
    "nobody is careful after a crash": Planted(((crashes, "after", lambda found, owner: Care()),), theme=_POISONED),
    "whoever ends well clears the suspects": Planted((around(crashes, "after", _clear_when_clean),), theme=_POISONED),
    "lanes of a process are careful at once": Planted((around(CrashWatch, "watched", _take_no_turn),), theme=_POISONED),
    "a record that the client refuses costs a producer": Planted(
        (around(Transactions, "_send_piece", _give_the_batch_up),), theme=_BY_THE_CLIENT
    ),
    "each of many rejected records is searched for": Planted(
        (around(blame, "_of_suspects", _search_for_each),), theme=_BY_NAME
    ),
    "many rejected records are tried again without a rest": Planted(
        (around(Trials, "due", _try_all),), theme=_FOR_THEIR_SIZE
    ),
    "a record that is named leaves while others wait that were not tried": Planted(
        ((Holds, "is_judged", lambda holds, row: True),), theme=_BY_NAME
    ),
    "lanes of a process send at once": Planted(((Transactions, "_turn_to_send", _send_at_once),), theme=_IN_TURN),
    "a lane that fails keeps its turn": Planted(((Transactions, "_turn_to_send", _keep_turn),), theme=_IN_TURN),
    "a turn is waited for as long as it takes": Planted(((decided, "_TURN_S", 3600.0),), theme=_IN_TURN),
}

FOUND_BY: dict[str, int] = {
    "ledger entry first": 15,
    "no renewal after trouble": 219,
    "purge by id without guard m": 491,
    "takeover without waiting for the stable offset": 37,
    "cursor instead of frontier": 0,
    "ended transactions are not looked back for": 8,
    "exclusions copied after the select": 3,
    "no flush": 8,
    "the frontier is not reset for a lane that joins": 3,
    "commit before the purge of the batch before": 267,
    "in flight only until the commit": 0,
    "a settled stop is kept": 61,
    "what other lanes have in flight is left out": 173,
    "producer reused after an error": 912,
    "rejected record swallowed": 2,
    "a page dealt out before a refusal is sent as it is": 457,
    "takeover sends the last batch again": 0,
    "rows compared by ids alone": 3,
    "times of records compared with the clock": 10,
    "lanes opened before the old ones are settled": 3,
    "a forgotten change of the count is not noticed": 423,
    "a read is counted from its return instead of its start": 788,
    "a read is stamped after it was sent": 788,
    "a batch is posted outside of the round's lock": 7,
    "the lease is released outside of the round's lock": 64,
    "a lane is read for on another server than the one it was taken over on": 2083,
    "purge over a connection to another server without a look": 583,
    "the lease is given back although a lane has left something in doubt": 1294,
    "a new file of the table is not noticed": 701,
    "only the owner of lane 0 notices a forgotten change": 376,
    "a hold that ends is not read for from its first record": 2,
    "an attempt whose record is gone never ends": 1246,
    "a record leaves although the purge of its batch has moved nothing": 655,
    "what a purge is to carry out runs beside the batch": 415,
    "a key goes on before its record has left": 85,
    "what could not be done with a purge is forgotten": 15,
    "what was under way before a takeover is waited for": 5,
    "holds are not loaded before the first page": 645,
    "what was passed over is not read when its hold ends": 355,
    "a held backlog is walked over by every read": 115,
    "what the sweep finds is not read": 845,
    "the sweep gives back what is held": 45,
    "a slice that took long delays the sweep without a limit": 63565,
    "a notification does not end the pause": 55,
    "a lease is trusted for ever": 65,
    "pages are not cut for slow brokers": 75,
    "pages that were cut do not grow again": 75,
    "nobody is careful after a crash": 25,
    "lanes of a process are careful at once": 3065,
    "whoever ends well clears the suspects": 425,
    "a record that the client refuses costs a producer": 70,
    "each of many rejected records is searched for": 230,
    "many rejected records are tried again without a rest": 150,
    "a record that is named leaves while others wait that were not tried": 550,
    "lanes of a process send at once": 60,
    "a lane that fails keeps its turn": 140,
    "a turn is waited for as long as it takes": 140,
}
"""Seeds that catch them; `make check` runs only these."""
