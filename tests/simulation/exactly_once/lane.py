"""The worker of one simulated lane: takes it over, sends batch after batch; the order of its steps is production's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from outbox.core import ledger, verdict
from outbox.core.flights import has_flushed
from outbox.core.ledger import Entry
from outbox.core.verdict import AskElection, Closed, Facts, Idle, LookUpRows, MoveOnly, NothingToDo, PurgeEntry, Stop
from tests.simulation.exactly_once.broker import TRANSACTION_TIMEOUT_S
from tests.simulation.exactly_once.client import Client, KafkaError, NoProducer, Refused, initialised
from tests.simulation.exactly_once.database import Connection, DatabaseError
from tests.simulation.exactly_once.rounds import Batch, LaneState, Retake, settle_purge
from tests.simulation.exactly_once.tasks import Signal, Steps, Task

COMMIT_TIMEOUT_S = 0.8
BATCH_S = 0.6 * TRANSACTION_TIMEOUT_S
LEDGER_S = 2.0
PARKED_S = 0.5


class Dropped(Exception):
    """The batch must not be committed."""


class Unstable(Exception):
    """The end of the ledger is not known yet."""


@dataclass(frozen=True)
class Owned:
    client: Client
    batch: int
    state: verdict.State
    entry: Entry | None


class Lane:
    def __init__(self, process: Any, number: int, leader_id: UUID) -> None:
        self.process, self.world, self.number, self.leader_id = process, process.world, number, leader_id
        self._cores = process.cores
        self._mail: deque[Any] = deque()
        self._mailed = Signal()
        self.state = LaneState(number, post=self._post)
        self._client: Client | None = None
        self._batch = 0
        self._change = 0
        self._finish_by: float | None = None
        self._abandoned = False
        Task(process, self._run())

    def _post(self, order: Any) -> None:
        self._mail.append(order)
        self._mailed.notify()

    def finish(self, deadline: float) -> None:
        self._finish_by = deadline
        self._mailed.notify()

    def abandon(self) -> None:
        self._abandoned = True
        self._mailed.notify()

    @property
    def _is_ending(self) -> bool:
        return self._abandoned or self._finish_by is not None

    def _may_go_on(self) -> bool:
        return not self._is_ending

    def _may_start(self) -> bool:
        return not self._abandoned and self.process.neli.may_start(self.number, self.process.clock)

    def _may_take_over(self) -> bool:
        return not self._is_ending and self._may_start()

    def _is_over(self, give_up_at: float) -> bool:
        now = self.world.now
        return self._abandoned or now > give_up_at or (self._finish_by is not None and now > self._finish_by)

    # ---- the loop

    def _run(self) -> Steps:
        rounds = self.process.rounds
        rounds.register(self.state)
        while not self._is_ending:
            yield from self._turn(rounds)
        self._drop()
        if self._finish_by is not None:
            rounds.failed(self.state)
            yield from rounds.wait_purged(self.state, lambda: not self._is_over(float("inf")))
        rounds.leave(self.state)
        self.process.finished(self)

    def _turn(self, rounds: Any) -> Steps:
        if not self._may_start():
            yield 0.05
            return
        try:
            pause_s = yield from self._own(rounds)
            if self._client is not None:
                pause_s = yield from self._harvest(rounds)
        except (DatabaseError, NoProducer, Unstable):
            pause_s = 0.1
        rounds.failed(self.state)
        if not (self._cores.reuses_producers and self._client is not None and self._client.epoch >= 0):
            self._drop()
        self._mail.clear()
        yield self.world.random.uniform(0.5, 1.0) * pause_s + 0.001

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.drop()

    def _own(self, rounds: Any) -> Steps:
        if not (yield from rounds.wait_purged(self.state, self._may_go_on)):
            return 0.0
        if self.number == 0 and not (yield from self._follow_count(rounds)):
            return 0.1
        outcome = yield from self._examine_idle_lanes()
        if outcome is None:
            outcome = yield from self._take_over(self.number)
        self.world.note(self.process.name, self.number, type(outcome).__name__)
        if isinstance(outcome, Owned):
            self._client, self._batch, self._change = outcome.client, outcome.batch, outcome.state.resize_no
            rounds.ready(self.state, self._batch, outcome.state)
        elif isinstance(outcome, AskElection):
            self.process.post("doubt", self.number)
            return 0.1
        elif isinstance(outcome, Stop):
            self.world.stopped[self.number] = outcome
            return PARKED_S
        elif isinstance(outcome, Closed | Idle):
            return 0.1
        return 0.0

    # ---- taking a lane over

    def _take_over(self, lane: int, change: verdict.State | None = None) -> Steps:
        client = self._client if self._cores.reuses_producers else None
        if client is None:
            client = yield from initialised(self.process, lane, self._may_take_over)
        if client is None:
            return None
        yield from self.process.point("after init")
        try:
            outcome = yield from self._examine(client, lane, change)
        except (DatabaseError, Unstable):
            client.drop()
            raise
        if not isinstance(outcome, Owned):
            client.drop()
        return outcome

    def _examine(self, client: Client, lane: int, change: verdict.State | None) -> Steps:
        rounds, may_go_on = self.process.rounds, self._may_take_over
        facts = yield from self._read_facts(lane, change)
        if facts is None:
            return None
        judge = self._cores.verdicts
        judged = judge.takeover(facts)
        if isinstance(judged, LookUpRows):
            entry = judged.entry
            found = yield from rounds.ask(lambda c: c.execute(lambda: c.database.look_up(entry.ids)), may_go_on)
            if found is None:
                return None
            rows = judge.found_rows(entry, found.count, found.digest, found.newest)
            judged = judge.takeover(replace(facts, rows=rows))
        if isinstance(judged, PurgeEntry | MoveOnly):
            entry = judged.entry
            stop = yield from rounds.ask(lambda c: self._settle(c, entry), may_go_on)
            if stop is not None or not may_go_on():
                return stop
            return Owned(client, entry.batch, facts.state, facts.entry)
        if isinstance(judged, NothingToDo):
            return Owned(client, judged.batch, facts.state, facts.entry)
        return judged

    def _settle(self, connection: Connection, entry: Entry) -> Steps:
        if not connection.database.guarded:
            file = connection.database.now.filenode
            database = connection.database
            yield from connection.execute(lambda: database.purge(entry.lane, entry.batch, entry.ids, file))
            return None
        return (yield from settle_purge(self.process, connection, entry))

    def _read_facts(self, lane: int, change: verdict.State | None) -> Steps:
        rounds, may_go_on, database = self.process.rounds, self._may_take_over, self.world.database

        def look() -> Any:
            return database.now.state, database.purged(lane)

        first = yield from rounds.ask(lambda c: c.execute(look), may_go_on)
        if first is None:
            return None
        state, purged = first
        if change is not None and state != change:
            return None
        if change is None and (state.resize_to is not None or lane >= state.lane_count):
            return Facts(lane, database.identity, state, purged, None, purged)
        entry = yield from self._last_entry(lane)
        newest = verdict.change_of(entry, database.identity)
        if change is None and self._cores.heeds_changes:
            newest = max(newest, (yield from self._newest_change()))
        again = yield from rounds.ask(lambda c: c.execute(lambda: database.purged(lane)), may_go_on)
        if again is None:
            return None
        settling = change is not None
        newest = newest if self._cores.heeds_changes else 0
        return Facts(lane, database.identity, state, purged, entry, again, settling=settling, newest_change=newest)

    def _newest_change(self) -> Steps:
        return verdict.change_of((yield from self._last_entry(0)), self.world.database.identity)

    def _last_entry(self, lane: int) -> Steps:
        log, give_up_at = self.world.kafka.ledger(lane), self.world.now + LEDGER_S
        yield self.world.latency()
        high = log.end
        while self._cores.waits_for_stable and log.stable < high:
            if self.world.now > give_up_at:
                raise Unstable
            yield 0.01
        yield from self.process.point("in the ledger")
        yield self.world.latency()
        record = log.last_committed(high)
        return None if record is None else ledger.decode(*record)

    # ---- the lane count

    def _examine_idle_lanes(self) -> Steps:
        """A server that lags behind a change of the count shows it only there."""
        database, count = self.world.database, self.world.database.now.state.lane_count
        for lane in range(count, self.world.lanes):
            entry = yield from self._last_entry(lane)
            stop = verdict.idle_lane(lane, count, database.identity, database.purged(lane), entry)
            if stop is not None:
                self.world.stopped[lane] = stop
                return stop
        return None

    def _follow_count(self, rounds: Any) -> Steps:
        """As the owner of lane 0: close, settle every old lane, open with the new count. A successor goes on."""
        database, may_go_on = self.world.database, self._may_take_over

        def state() -> Steps:
            return rounds.ask(lambda c: c.execute(lambda: database.now.state), may_go_on)

        found = yield from state()
        newest = (yield from self._newest_change()) if self._cores.heeds_changes else 0
        if found is not None and verdict.forgets_change(found, newest):
            before = found
            yield from rounds.ask(lambda c: c.execute(lambda: self.world.close_all_lanes(before, newest)), may_go_on)
            yield from self.process.point("all lanes closed")
            found = yield from state()
        if found is None or (found.resize_to is None and self.world.wanted is None):
            return found is not None
        if found.resize_to is None:
            yield from rounds.ask(lambda c: c.execute(self.world.close_lanes), may_go_on)
            yield from self.process.point("lanes closed")
            found = yield from state()
        if found is None or found.resize_to is None:
            return False
        is_repair = found.resize_to == found.lane_count
        settled: dict[int, int] = {}
        lanes = self.world.lanes if is_repair else found.lane_count
        for lane in reversed(range(lanes if self._cores.settles else 0)):
            owned = yield from self._settle_for(lane, found)
            if owned is None or (lane == 0 and not (yield from self._mark(owned, found))):
                return False
            owned.client.drop()
            settled[lane] = owned.batch
        yield from self.process.point("before opening")
        yield from rounds.ask(lambda c: c.execute(lambda: self.world.open_lanes(found, settled)), may_go_on)
        return True

    def _mark(self, owned: Owned, change: verdict.State) -> Steps:
        """So that whoever looks there knows of the change, whatever becomes of the row."""
        identity, now = self.world.database.identity, self.world.database.clock()
        last = owned.entry or Entry(0, 0, self.leader_id, identity, (), 0, now, change.resize_no)
        try:
            owned.client.send_entry((ledger.encode(replace(last, change=change.resize_no)), ledger.headers(last)))
            yield from owned.client.commit(COMMIT_TIMEOUT_S)
        except KafkaError:
            owned.client.drop()
            return False
        return True

    def _settle_for(self, lane: int, change: verdict.State) -> Steps:
        while self._may_take_over():
            outcome = yield from self._take_over(lane, change)
            if isinstance(outcome, Owned):
                return outcome
            if isinstance(outcome, Stop):
                self.world.stopped[lane] = outcome
                return None
            if self.world.database.now.state != change:
                return None
            yield 0.05
        return None

    # ---- one transaction

    def _harvest(self, rounds: Any) -> Steps:
        while not self._is_ending:
            if not self._mail:
                yield self._mailed.wait(), 0.5
                if self.world.database.now.state.resize_no != self._change or self._is_asked_to_change():
                    return 0.0
                continue
            order = self._mail.popleft()
            if isinstance(order, AskElection):
                self.process.post("doubt", self.number)
                return 0.1
            if isinstance(order, Retake):
                return 0.0
            if isinstance(order, Stop):
                self.world.stopped[self.number] = order
                return PARKED_S
            if order.session == self.state.session:
                pause_s = yield from self._try(rounds, order)
                if pause_s is not None:
                    return pause_s
        return 0.0

    def _is_asked_to_change(self) -> bool:
        state = self.world.database.now.state
        return state.resize_to is not None or (self.number == 0 and self.world.wanted is not None)

    def _try(self, rounds: Any, batch: Batch) -> Steps:
        if not self._may_start():
            return 0.0
        try:
            entry = yield from self._transact(rounds, batch)
        except Refused:
            self._after_refusal(batch)
            return 0.0
        except Dropped:
            return 0.05
        except KafkaError as error:
            if str(error) == "fenced":
                self.process.post("doubt", self.number)
            return 0.05
        if entry is None:
            return self._renewal()
        rounds.committed(self.state, batch, entry)
        yield from self.process.point("after commit")
        self._batch = entry.batch
        return self._renewal()

    def _after_refusal(self, batch: Batch) -> None:
        holds, now = self.state.holds, self.world.now
        if len(batch.rows) == 1:
            holds.refused(batch.rows[0], "refused", now)
        else:
            holds.refused_batch(batch.ids)

    def _renewal(self) -> float | None:
        assert self._client is not None
        return 0.0 if self._client.trouble and self._cores.renews else None

    def _transact(self, rounds: Any, batch: Batch) -> Steps:
        """None: nothing is left of the batch."""
        client = self._client
        assert client is not None
        if self._renewal() is not None:
            raise Dropped
        give_up_at = self.world.now + BATCH_S
        yield from self.process.point("before send")
        if self._cores.entry_first:
            client.send_entry(self._entry(batch)[0])
        rows, refused = self._taken(batch)
        yield from client.send(rows)
        if refused and not self._cores.swallows_refusals:
            yield self.world.random.uniform(0.0, 0.01)  # sending takes time, in which the next page is dealt out
            rounds.left_out(self.state, batch, rows, refused)
        if not batch.rows:
            rounds.not_sent(self.state, batch)
            return None
        client.send_entry(ledger.BEGINNING)
        yield from client.wait_reports(give_up_at)
        yield from self._await_guards(batch, give_up_at)
        record, entry = self._entry(batch)
        if not self._cores.entry_first:
            client.send_entry(record)
        yield from self.process.point("before commit")
        yield from client.commit(COMMIT_TIMEOUT_S)
        return entry

    def _entry(self, batch: Batch) -> tuple[Any, Entry]:
        entry = Entry(
            self.number,
            self._batch + 1,
            self.leader_id,
            self.world.database.identity,
            tuple(batch.ids),
            ledger.digest(batch.rows),
            batch.read_at,
            self._change,
            max(batch.created[id_] for id_ in batch.ids),
        )
        return (ledger.encode(entry), ledger.headers(entry)), entry

    def _taken(self, batch: Batch) -> tuple[list[Any], list[Any]]:
        """What the client takes, and what it refuses; what follows of the same key is neither."""
        holds, rows, refused = self.state.holds, [], {}
        for row in batch.rows:
            name = holds.name_of(row)
            if name not in refused and row[0] % 2 and row[2] and row[2] in self.world.faults.refuse_here:
                refused[name] = row
            if name not in refused:
                rows.append(row)
        return rows, list(refused.values())

    def _await_guards(self, batch: Batch, give_up_at: float) -> Steps:
        previous = batch.previous
        for awaited in (batch.flush, previous.done if previous is not None and self._cores.awaits_purge else None):
            while awaited is not None and not awaited.done:
                if self._is_over(give_up_at):
                    raise Dropped
                yield awaited, 0.1
            if awaited is not None and awaited.error is not None:
                raise Dropped
        if previous is not None and self.number in previous.stops:
            raise Dropped
        since = previous.flushed_since if previous is not None else None
        if batch.flush is None and self._cores.flushes and not has_flushed(since, batch.returned_at):
            raise Dropped
