"""The reader and the purges of one simulated process: the frontier, the flights, the holds and the verdicts are those
of production; only threads and connections are simulated, in the order that production keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outbox.core import verdict
from outbox.core.flights import Flights, Plan, Standing, may_flush, may_purge_at_once
from outbox.core.frontier import Frontier
from outbox.core.ledger import Entry
from outbox.core.verdict import GoOn, LookUpRows, PurgeEntry, State, Stop
from outbox.harvest.exactly_once_holds import Holds
from tests.simulation.exactly_once.database import Connection, DatabaseError, Page
from tests.simulation.exactly_once.tasks import Future, Signal, Steps, Task

PAGE_ROWS = 8
SWEEP_S = 5.0


@dataclass(eq=False)
class Batch:
    lane: int
    session: int
    rows: list[Any]
    ids: list[int]
    created: dict[int, int]
    """When each was stashed."""
    read_at: Any
    filenode: int
    returned_at: float
    flush: Future | None = None
    previous: Ticket | None = None


class Retake:
    """The lane was taken over with another lane count than one that came after."""


@dataclass(frozen=True)
class Purge:
    entry: Entry
    filenode: int
    returned_at: float


@dataclass(eq=False)
class Ticket:
    """Purges of one round."""

    purges: list[Purge]
    submitted_at: float
    done: Future = field(default_factory=Future)
    stops: dict[int, Stop] = field(default_factory=dict)
    flushed_since: float | None = None
    attempts: int = 0


@dataclass(eq=False, kw_only=True)
class LaneState(Standing):
    post: Callable[[Any], None]
    count: int = 1
    busy: Batch | None = None
    holds: Holds = field(default_factory=Holds)
    has_left_out: bool = False


class Rounds:
    def __init__(self, process: Any) -> None:
        self._process, self._world, self._cores = process, process.world, process.cores
        self.lanes: dict[int, LaneState] = {}
        self.changed = Signal()
        self._flights = Flights()
        self._frontier: Frontier = self._cores.frontier(look_back_ids=20)
        self._outstanding = self._count = 0
        self._round_purges: list[Purge] = []
        self._reads_next = False
        self._last_ticket: Ticket | None = None
        self._wants_reset = False
        self._connection: Connection | None = None
        self._sweep_at = self._world.now + SWEEP_S
        self._returned_at = 0.0
        self._jobs: deque[tuple[Callable[[Connection], Steps], Callable[[Any, Any], None]]] = deque()
        self._job_given = Signal()
        Task(process, self._read_on())
        Task(process, self._serve())

    # ---- what lanes call

    def register(self, lane: LaneState) -> None:
        if (earlier := self.lanes.get(lane.number)) is not None:
            self.failed(earlier)
        self.lanes[lane.number] = lane

    def leave(self, lane: LaneState) -> None:
        self.failed(lane)
        if self.lanes.get(lane.number) is lane:
            del self.lanes[lane.number]
            self._flights.forget(lane.number)
        if not self.lanes:
            self._purge_round()

    def ready(self, lane: LaneState, batch: int, state: State) -> None:
        if self.lanes.get(lane.number) is not lane:
            return
        count = state.lane_count
        lane.begin(batch)
        lane.count = self._count = count
        for other in self.lanes.values():
            if other.ready and other.count != count:
                other.ready = False  # what it has in hand it may finish
                other.post(Retake())
        self._flights.forget(lane.number)
        if self._last_ticket is not None:
            self._last_ticket.stops.pop(lane.number, None)
        self._wants_reset = self._cores.resets
        self.changed.notify()

    def committed(self, lane: LaneState, batch: Batch, entry: Entry) -> None:
        if lane.busy is not batch:
            return
        lane.submitted = entry.batch
        self._flights.committed(batch, entry.batch)
        lane.holds.delivered(batch.rows)
        self._round_purges.append(Purge(entry, batch.filenode, batch.returned_at))
        self._end_share(lane)

    def left_out(self, lane: LaneState, batch: Batch, rows: list[Any], refused: Iterable[Any]) -> None:
        batch.rows, batch.ids = rows, [row[0] for row in rows]
        lane.has_left_out = self._cores.looks_again
        for row in refused:
            lane.holds.refused(row, "refused", self._world.now)

    def not_sent(self, lane: LaneState, batch: Batch) -> None:
        if lane.busy is batch:
            self._flights.give_back(batch)
            self._end_share(lane)

    def failed(self, lane: LaneState) -> None:
        lane.end()
        if lane.busy is not None:
            self._end_share(lane)
        self.changed.notify()

    def _end_share(self, lane: LaneState) -> None:
        lane.busy = None
        self._outstanding -= 1
        if self._outstanding == 0:
            if not self._reads_next:
                self._purge_round()
            self.changed.notify()

    def _purge_round(self) -> None:
        """After a page that was not full it is sent when the next read has returned, and then flushes that too."""
        if self._outstanding == 0:
            self._reads_next = False
            if self._round_purges:
                self._last_ticket = Ticket(self._round_purges, self._world.now)
                self._submit(self._last_ticket)
                self._round_purges = []

    def wait_purged(self, lane: LaneState, may_go_on: Callable[[], bool]) -> Steps:
        while lane.unpurged and may_go_on():
            yield self.changed.wait(), 0.1
        return not lane.unpurged

    # ---- purges and other statements, in order on one connection

    def ask(self, job: Callable[[Connection], Steps], may_go_on: Callable[[], bool]) -> Steps:
        """The job's result, or None when it may not go on."""
        answer = Future()
        self._give(job, lambda value, error: answer.settle(value, error))
        while not (yield answer, 0.1):
            if not may_go_on():
                return None
        if answer.error is not None:
            raise answer.error
        return answer.value

    def _give(self, job: Callable[[Connection], Steps], report: Callable[[Any, Any], None]) -> None:
        self._jobs.append((job, report))
        self._job_given.notify()

    def _submit(self, ticket: Ticket) -> None:
        self._give(lambda connection: self._purge(ticket, connection), lambda _, error: self._purged(ticket, error))

    def _serve(self) -> Steps:
        connection: Connection | None = None
        while True:
            if not self._jobs:
                yield self._job_given.wait()
                continue
            job, report = self._jobs.popleft()
            try:
                if connection is None:
                    connection = Connection(self._process)
                result = yield from job(connection)
            except DatabaseError as error:
                connection = None
                yield 0.03
                report(None, error)
            else:
                report(result, None)

    def _purge(self, ticket: Ticket, connection: Connection) -> Steps:
        yield from self._process.point("before purge")
        database, first = connection.database, not ticket.attempts
        ticket.attempts += 1

        at_once = [p for p in ticket.purges if self._may_purge_at_once(connection, p)]

        def execute() -> list[Purge]:
            return [p for p in at_once if database.purge(p.entry.lane, p.entry.batch, p.entry.ids, p.filenode)]

        moved = (yield from connection.execute(execute)) if at_once else []
        if moved and first:
            ticket.flushed_since = connection.opened_at
        for purge in ticket.purges:
            if purge not in moved:
                stop = yield from settle_purge(self._process, connection, purge.entry)
                if stop is not None:
                    ticket.stops[purge.entry.lane] = stop

    def _may_purge_at_once(self, connection: Connection, purge: Purge) -> bool:
        return may_purge_at_once(connection.opened_at, purge.returned_at) or not self._cores.compares_after_connect

    def _purged(self, ticket: Ticket, error: Any) -> None:
        if error is not None:
            self._submit(ticket)
            return
        for entry in (purge.entry for purge in ticket.purges):
            lane = self.lanes.get(entry.lane)
            if lane is not None and entry.lane in ticket.stops:
                lane.stopped()
                lane.post(ticket.stops[entry.lane])
            elif lane is not None:
                lane.purged(entry.batch)
            self._flights.purged(entry.lane, entry.batch)
        ticket.done.settle()
        self.changed.notify()

    # ---- the reading thread

    def _read_on(self) -> Steps:
        while True:
            plan = yield from self._await_work()
            count = self._count
            try:
                page = yield from self._read(plan, count)
                self._returned_at = self._world.now
                self._purge_round()
            except DatabaseError:
                self._purge_round()
                self._connection = None
                yield 0.05
                continue
            if plan.fits(page.filenode):
                yield from self._deal(plan, page, count)
            else:
                self._frontier.reset()
                yield self.changed.wait(), 0.06

    def _await_work(self) -> Steps:
        while not self._flights.may_read(self.lanes.values(), is_connected=self._connection is not None):
            self._purge_round()
            yield self.changed.wait()
        if self._wants_reset:
            self._wants_reset = False
            self._frontier.reset()
        plan = self._flights.plan(self.lanes.values(), PAGE_ROWS)
        for number in plan.lanes:
            if due := self.lanes[number].holds.release_due(self._world.now):
                self._frontier.give_back(due)
        return plan

    def _read(self, plan: Plan, count: int) -> Steps:
        if self._connection is None:
            self._connection = Connection(self._process)
            self._frontier = self._cores.frontier(look_back_ids=20)
        frontier, world = self._frontier, self._world
        if world.now >= self._sweep_at:
            self._sweep_at = world.now + SWEEP_S
            frontier.reset()
        look: int | None = frontier.start()
        while look is not None:
            page: Page = yield from self._connection.read(
                look, plan.lanes, count, self._excluded(plan, look), plan.limit
            )
            look = frontier.missed_from(look, page.snapshot, page.sequence)
        page = self._looked_at(page)
        ids = [stored.row[0] for stored in page.rows]
        is_full, last_id = len(ids) >= plan.limit, max(ids, default=None)
        passes_over = len(plan.lanes) < count
        frontier.accept(last_id, is_full, page.snapshot, page.sequence, passes_over=passes_over)
        return page

    def _excluded(self, plan: Plan, look: int) -> Sequence[int]:
        return plan.excluded_above(look)

    def _looked_at(self, page: Page) -> Page:
        return page

    def _deal(self, plan: Plan, page: Page, count: int) -> Steps:
        returned_at, is_full = self._returned_at, len(page.rows) >= plan.limit
        yield from self._process.point("after read")
        batches = self._divide(plan, page, count, returned_at)
        if batches:
            yield from self._await_round_end()
            yield from self._hand_over(batches, returned_at, reads_next=not is_full)
        if is_full:
            return
        if batches:
            yield from self._await_round_end()
        else:
            yield self.changed.wait(), 0.06

    def _divide(self, plan: Plan, page: Page, count: int, returned_at: float) -> list[Batch]:
        batches = []
        for number, session in plan.sessions.items():
            lane = self.lanes.get(number)
            if lane is None or not self._may_follow(lane, plan, page):
                continue
            kept = lane.holds.keep([s.row for s in page.rows if s.lane_hash % count == number])
            rows = lane.holds.cut(kept)
            if len(rows) < len(kept):
                self._frontier.give_back([kept[len(rows)][0]])
            if rows:
                ids = [row[0] for row in rows]
                created = {s.row[0]: s.create_time for s in page.rows}
                read = page.read_at, page.filenode, returned_at
                batch = Batch(number, session, rows, ids, created, *read)
                self._flights.add(batch)
                batches.append(batch)
        return batches

    def _may_follow(self, lane: LaneState, plan: Plan, page: Page) -> bool:
        judged = lane.judge(plan, page.purged.get(lane.number, 0))
        if judged is None or isinstance(judged, GoOn):
            return judged is not None
        self.failed(lane)
        lane.post(judged)
        return False

    def _await_round_end(self) -> Steps:
        while self._outstanding:
            yield self.changed.wait()

    def _hand_over(self, batches: list[Batch], returned_at: float, *, reads_next: bool) -> Steps:
        self._reads_next = reads_next
        flushed, ticket = Future(), self._last_ticket
        by_purge = ticket is not None and may_flush(ticket.submitted_at, returned_at)
        posted = False
        for batch in batches:
            lane = self.lanes.get(batch.lane)
            if lane is None or lane.session != batch.session or not lane.ready:
                self._flights.give_back(batch)
                self._frontier.give_back(batch.ids[:1])
                continue
            if lane.has_left_out:
                lane.has_left_out, batch.rows = False, lane.holds.keep(batch.rows)
                batch.ids = [row[0] for row in batch.rows]
                if not batch.ids:
                    self._flights.give_back(batch)
                    continue
            batch.previous = ticket
            batch.flush = None if by_purge else flushed
            lane.busy = batch
            self._outstanding += 1
            posted = True
            lane.post(batch)
        if not posted or by_purge:
            return
        connection = self._connection
        assert connection is not None
        try:
            if self._cores.flushes:
                yield from connection.execute(connection.database.flush)
            flushed.settle()
        except DatabaseError as error:
            flushed.settle(error=error)
            self._purge_round()
            self._connection = None


def settle_purge(process: Any, connection: Connection, entry: Entry) -> Steps:
    """A purge that moved nothing: already done, or the table's file has changed and the rows are compared first."""
    database, judge = connection.database, process.cores.verdicts
    for _ in range(5):
        purged = yield from connection.execute(lambda: database.purged(entry.lane))
        judged = verdict.after_purge(entry, moved=False, purged=purged)
        if not isinstance(judged, LookUpRows):
            return judged if isinstance(judged, Stop) else None
        found = yield from connection.execute(lambda: database.look_up(entry.ids))
        rows = judge.found_rows(entry, found.count, found.digest, found.newest)
        settled = verdict.settle(entry, rows)
        if isinstance(settled, Stop):
            return settled
        yield from process.point("before settling")
        ids = entry.ids if isinstance(settled, PurgeEntry) else ()
        file = found.filenode
        yield from connection.execute(
            lambda ids=ids, file=file: database.purge(entry.lane, entry.batch, ids, file, compared=True)
        )
    raise DatabaseError("the file of the table changes too fast")
