"""The rounds of a process: one reader for all its lanes, one page at a time, dealt out to the lanes that are ready.

While the lanes send one page, the next is read if the last one was full; else it is read when the round has ended, so
that a record never waits in memory for a transaction longer than for its own. A round ends when every lane has
committed its share or failed; what was committed is purged then, beside the next round.

One thread reads and owns the frontier. Lanes call `ready`, `committed`, `failed` and so on from their own threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg

from outbox.conf import Conf
from outbox.core.exactly_once.looks import HoldsLook
from outbox.core.exactly_once.pages import IdlePause, PageSizes
from outbox.core.exactly_once.round import News, Reads, Round, Step
from outbox.core.flights import Flights, Plan, Standing, may_flush
from outbox.core.holds.values import Errands, Writes
from outbox.core.ledger import Entry
from outbox.core.scoreboard_values import RecordHeld
from outbox.core.verdict import GoOn, State, Stop
from outbox.edges import backends
from outbox.edges.backends import Pooled
from outbox.edges.companions import OtherDatabase
from outbox.edges.reader import NOTHING, LeftOut, Page, Row, size_of
from outbox.edges.sweeper import Below, Found
from outbox.edges.texts import explained
from outbox.edges.ways import NoRights, OtherWay
from outbox.harvest.exactly_once_database import Purges
from outbox.harvest.exactly_once_holds import Holds
from outbox.harvest.exactly_once_reading import Failed, Read, ReadConnection
from outbox.harvest.exactly_once_state import SeenState
from outbox.harvest.exactly_once_sweep import Sweep
from outbox.harvest.exactly_once_values import Awaited, Batch, Broken, Doubt, Order, Purge, Retake, Ticket
from outbox.harvest.exactly_once_wake import Ear
from outbox.harvest.lease_keeper import LeaseKeeper
from outbox.harvest.ports import Servers
from outbox.harvest.readings import Troubles
from outbox.harvest.resize import IdleLanes

logger = logging.getLogger("outbox.harvest")

_IDLE_AGAIN_S = 0.05
_SAMPLE = 16


@dataclass(eq=False, kw_only=True)
class LaneState(Standing):
    """What the rounds know of one lane. Guarded by their condition."""

    post: Callable[[Order], None]
    count: int = 0
    """The lane count with which it was taken over."""
    change: int = 0
    """The number of the change that led to it."""
    server: str = ""
    """Which has shown both, see `backends.server_of`."""
    holds: Holds = field(default_factory=Holds)
    left_out: int = 0
    """How often it has left records out of a batch: what was dealt out before is looked at once more."""


class Rounds:
    """Lanes of one table in one process. Ends when its last lane has left; then it takes no more."""

    def __init__(self, conf: Conf, servers: Servers, owner_name: str, unsettled: set[int] | None = None) -> None:
        """`unsettled`: lanes that this process has left so, and not taken over since. All its rounds know them."""
        self._conf, self.servers = conf, servers
        runtime, database = self._runtime, self.database = servers.runtime, servers.database
        self.kafka = servers.kafka
        self._lease = LeaseKeeper(conf, database.claim(owner_name), runtime)
        self._beat = Awaited(runtime)
        self._beat.settle()
        self._changed = runtime.condition("round")
        self._lanes: dict[int, LaneState] = {}
        self._round: Round[Purge] = Round()
        self._holds_look = HoldsLook()
        self._flights = Flights()
        self._last_ticket: Ticket | None = None
        self._count = 0  # by which records are divided, as the lanes that are ready have it
        self.owner = database.owner = f"{owner_name} {uuid4()}"
        self.careful_turn = runtime.lock("careful turn")
        """Of lanes that look for a record that crashes the process: which lane it was must be certain."""
        self.sending_turn = runtime.lock("sending turn")
        """Of lanes that hand over records."""
        self._preparing = runtime.lock("preparing")
        self.purges = Purges(servers, self._purged, conf.statement_timeout_s)
        self.idle_lanes = IdleLanes(servers, self.purges)
        self._reading = ReadConnection(servers, self._lease, conf.statement_timeout_s, self._leave_out, self._meanwhile)
        self._sizes, self._idle = PageSizes(conf.batch_max, conf.batch_bytes_max), IdlePause(conf.mark_backoff_s)
        self._is_behind = False  # the last page was full: more waits than is sent
        self._ear: Ear | None = None
        self._troubles = Troubles(-1, runtime)
        self._unsettled = set() if unsettled is None else unsettled
        self._sweep = Sweep(conf, servers, self._notify)
        self._state_row = SeenState(self._ask_state, runtime)
        self.stages: dict[str, float] = dict.fromkeys(("read", "divide", "round", "flush"), 0.0)
        self.reads = 0
        self._thread = runtime.thread(self._run, "outbox-reader")
        self._thread.start()

    # ---- what lanes call, each from its own thread

    def register(self, lane: LaneState) -> bool:
        """False: these rounds have ended, the lane needs others."""
        with self._changed:
            if self._round.is_ending:
                return False
            if (earlier := self._lanes.get(lane.number)) is not None:
                self._unready(earlier)  # its worker is abandoned and has not noticed yet
                self._unsettled.add(lane.number)
            self._lanes[lane.number] = lane
            return True

    def leave(self, lane: LaneState, *, is_settled: bool) -> None:
        """Not settled: what became of its last batch is not known, or it is not purged."""
        with self._changed:
            self._unready(lane)
            if self._lanes.get(lane.number) is lane:
                if not is_settled:
                    self._unsettled.add(lane.number)
                del self._lanes[lane.number]
                self._flights.forget(lane.number)  # else they are those of a worker that follows in this process
            if not self._lanes:
                self._end()
            self._changed.notify_all()

    def _end(self) -> None:
        """What PostgreSQL is asked at this moment is given up: nothing may wait for it."""
        if not self._round.is_ending:
            self._on(Reads.ENDS)
            self.purges.close()
            self.purges.interrupt()
            self._reading.interrupt()

    def prepare(self) -> None:
        """Once: the tables, the way, the ledger topic. Raises what forbids harvesting, and outages."""
        with self._preparing:
            if self._lease.is_kept:
                return
            self.purges.ask(lambda connection: self._lease.take(connection, {}))
            self.kafka.prepare(self.database.state.lane_count, self._conf.audit_window_s)
            if self._conf.notify and self._ear is None and not self._round.is_ending:
                self._ear = Ear(self.servers, self.wake)
            self._lease.prepared()

    def wake(self) -> None:
        """There is something new to read."""
        with self._changed:
            self._round.tell(News.WOKEN)
            self._idle.ended()
            self._changed.notify_all()

    def is_claimed(self) -> bool:
        """A lease that could not be repeated in time may have gone to another mode of delivery."""
        return self._lease.is_trusted()

    def seen_state(self, max_age_s: float, may_go_on: Callable[[], bool]) -> State | None:
        """The state row as it was so long ago at most; None when it may not go on."""
        return self._state_row.not_older(max_age_s, may_go_on)

    def _ask_state(self, may_go_on: Callable[[], bool]) -> State | None:
        found = self.purges.ask(partial(self.database.statements.state, lanes=self._conf.lanes), may_go_on)
        return None if found is None else found[1]

    def release_way(self, lane: LaneState, may_go_on: Callable[[], bool]) -> None:
        """Of the lanes that end in good order the last one: nobody has to wait until this process' lease is old."""
        with self._changed:
            lane.leave()
            are_leaving = all(other.is_leaving for other in self._lanes.values())
            if not self._lease.is_kept or self._round.is_ending or not are_leaving:
                return
            if self._unsettled:
                return  # another mode would send what may be in Kafka, or come to be: it waits until the lease is old
            self._lease.released()
            # Submitted here: for a lane that is acquired from now on it is taken behind this.
            released = self.purges.tell(self._lease.release)
        while not released.wait(0.05):
            if not may_go_on():
                return
        if released.error is not None:
            raise released.error

    def ready(self, lane: LaneState, batch: int, state: State, server: str) -> None:
        """The lane owns its transactional id and has purged everything up to `batch`: it is read for from the
        beginning, on that server. Of so many lanes: those that were taken over with another count are fenced, or soon
        will be."""
        with self._changed:
            if self._lanes.get(lane.number) is not lane:
                return  # replaced while it took over: what is in flight is its successor's
            lane.begin(batch)
            lane.count = self._count = count = state.lane_count
            lane.change, lane.server = state.resize_no, server
            lane.holds.none_done()
            self._holds_look.joined()  # what holds before the first read, lasts: see `core.holds.values.Errands`
            self._retake([other for other in self._lanes.values() if other.ready and other.count != count])
            self._flights.forget(lane.number)
            self._unsettled.discard(lane.number)
            if self._last_ticket is not None:
                self._last_ticket.stops.pop(lane.number, None)  # what could not be purged is settled now
            self._round.tell(News.JOINED)
            self._idle.ended()
            self._changed.notify_all()

    @staticmethod
    def _retake(lanes: Sequence[LaneState]) -> None:
        for lane in lanes:
            if lane.recall():
                lane.post(Retake())

    def committed(self, lane: LaneState, batch: Batch, entry: Entry) -> None:
        """The batch is in Kafka; its rows are deleted when the round ends."""
        rows, batch.rows = batch.rows, []  # given up outside of the lock: thousands of them take milliseconds
        with self._changed:
            if not lane.has(batch.session):
                return  # of a worker that was replaced: its successor settles it
            lane.submitted = entry.batch
            self._flights.committed(batch, entry.batch)
            lane.holds.delivered(rows)
            self._round.committed(Purge(entry, batch.filenode, batch.errands, batch.server))
            self._sizes.enlarge()
            lane.share_ended()
            self._end_share()
            self._write_holds()

    def left_out(
        self, lane: LaneState, batch: Batch, rows: list[Row], refused: Iterable[tuple[Row, str]], *, is_sure: bool
    ) -> list[RecordHeld]:
        """Of the batch only these rows are sent, as others are held."""
        with self._changed:
            batch.rows, batch.ids = rows, [row[0] for row in rows]
            lane.left_out += 1
            return self.held(lane, refused, is_sure=is_sure)

    def held(self, lane: LaneState, refused: Iterable[tuple[Row, str]], *, is_sure: bool) -> list[RecordHeld]:
        now = self._runtime.monotonic()
        return [*self.guarded(lambda: [lane.holds.refused(row, error, now, is_sure=is_sure) for row, error in refused])]

    def not_sent(self, lane: LaneState, batch: Batch) -> None:
        """Nothing is left of the batch, and the lane goes on with the next one."""
        with self._changed:
            if lane.has(batch.session):
                self._flights.give_back(batch)
                lane.share_ended()
                self._end_share()

    def too_slow(self, batch: Batch) -> None:
        """It was not acknowledged within its time: pages become so small that one is, at last of one record."""
        with self._changed:
            self._sizes.too_slow(batch.asked_at, self._runtime.monotonic())

    def failed(self, lane: LaneState) -> None:
        """Nothing more is read for the lane until it is ready again; what it had in hand is read anew then."""
        with self._changed:
            self._unready(lane)

    def _unready(self, lane: LaneState) -> None:
        was_at_work = lane.is_at_work
        lane.end()
        if was_at_work:
            self._end_share()
        self._changed.notify_all()

    def _end_share(self) -> None:
        self._round.share_ended()
        if self._round.is_page_sent:
            self._submit_due()
            self._changed.notify_all()

    def _on(self, event: Reads) -> None:
        """The reader has come so far; with the lock."""
        self._round.on(event)
        self._submit_due()

    def _submit_due(self) -> None:
        if due := self._round.due():
            self._last_ticket = self.purges.submit(due)

    def wait_purged(self, lane: LaneState, may_go_on: Callable[[], bool]) -> bool:
        """Until every batch of the lane is purged; False when it may not go on before."""
        with self._changed:
            while lane.unpurged and may_go_on():
                if self._round.is_ending:
                    raise psycopg.OperationalError("the lanes of this process have ended before their purges")
                self._changed.wait(0.05)
            return not lane.unpurged

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Run while nothing else looks at the lanes' holds."""
        with self._changed:
            result = action()
            self._write_holds()
            return result

    def _write_holds(self) -> None:
        """For operators, and for whoever takes over; when it fails, the record is refused once more."""
        for lane in self._lanes.values():
            if lane.holds.writes:
                writes, lane.holds.writes = lane.holds.writes, Writes()
                self.purges.tell(partial(self.database.holds.write, parks=writes.parks, lifted=writes.lifted))

    def in_flight(self, lane: int) -> int:
        with self._changed:
            return self._flights.count(lane)

    def join(self, timeout_s: float) -> bool:
        give_up_at = self._runtime.monotonic() + timeout_s
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive() and self.purges.join(give_up_at - self._runtime.monotonic())

    @property
    def is_closing(self) -> bool:
        return self._round.is_ending

    # ---- what the purges tell, in their thread

    def _purged(self, ticket: Ticket) -> None:
        left: list[tuple[int, Errands]] = []
        with self._changed:
            for purge in ticket.purges:
                number, batch = purge.entry.lane, purge.entry.batch
                lane = self._lanes.get(number)
                if lane is not None and number in ticket.stops:
                    lane.stopped()
                    lane.post(ticket.stops[number])
                elif lane is not None:
                    lane.purged(batch)
                self._flights.purged(number, batch)
                if lane is not None and purge.errands is not None:
                    if purge in ticket.done:
                        lane.holds.done(purge.errands)
                        left.append((number, purge.errands))
                    else:
                        lane.holds.not_done(purge.errands)
            if ticket is self._last_ticket:
                self._round.settled()
            self._changed.notify_all()
        for number, errands in left:
            self._log_dead_letters(number, errands)

    @staticmethod
    def _log_dead_letters(lane: int, errands: Errands) -> None:
        for burial in errands.burials:
            logger.warning(
                "dead_letter lane=%d id=%d reason=%s attempts=%d error=%r",
                lane, burial.record_id, burial.reason, burial.attempts, burial.error,
            )  # fmt: skip

    # ---- the reading thread

    def _run(self) -> None:
        try:
            while (plan := self._await_work()) is not None:
                self._sweep_on(plan)
                read = self._read(plan)
                if read is None:
                    continue
                if self._reading.is_file_known(read.page) and plan.fits(read.page.filenode):
                    self._deal(read)
                else:
                    self._read_again()
        except BaseException as error:
            self._break(error)
        finally:
            spent = "".join(f" {name}_s={seconds:.3f}" for name, seconds in self.stages.items())
            logger.info("reading_ended reads=%d%s", self.reads, spent)
            self._reading.close()
            self._sweep.close()
            if self._ear is not None:
                self._ear.close()
            self.kafka.close()
            with self._changed:
                self._on(Reads.ENDED)

    def _break(self, error: BaseException) -> None:
        """What no repetition can mend ends every lane of the process."""
        with self._changed:
            self._end()
            for lane in self._lanes.values():
                lane.post(Broken(error))
            self._changed.notify_all()

    def _await_work(self) -> Plan | None:
        while True:
            self._keep_beating()
            with self._changed:
                needs_holds = self._holds_look.is_due(self._runtime.monotonic())
                step = self._round.next_step(may_read=self._may_read(), needs_holds=needs_holds)
                if step is Step.END:
                    return None
                if step is Step.READ:
                    return self._plan()
                if step is Step.WAIT:
                    self._wait()
            if step is Step.RECONNECT:  # that server, or the purges', is perhaps one from which another has taken over
                self._reading.drop()
                self.purges.reconnect()
            elif step is Step.LOAD:
                self._load_holds()

    def _wait(self) -> None:
        """For a lane, for the lease, or for the end of the page being sent; with the lock."""
        begun, for_page = self._runtime.monotonic(), self._round.waits_for_page
        self._on(Reads.WAITS)
        self._changed.wait(self._lease.beat_s / 2)
        if for_page:
            self.stages["round"] += self._runtime.monotonic() - begun

    def _load_holds(self) -> None:
        """What operators have paused, and what earlier owners were refused. Next to nothing while there is nothing."""
        with self._changed:
            self._on(Reads.LOADS)
            self._holds_look.asked()
            count = self._count
        begun = self._runtime.monotonic()
        rows = self._reading.load_holds(count)
        if isinstance(rows, Failed):
            with self._changed:
                self._holds_look.failed()
            self._pause_after(rows)
            return
        with self._changed:
            now = self._runtime.monotonic()
            self._on(Reads.LOADED)
            self._holds_look.loaded(begun, now)
            for lane in self._lanes.values():
                lane.holds.load(rows, now)
            self._write_holds()

    def _may_read(self) -> bool:
        is_connected = self._reading.is_open
        return self.is_claimed() and self._flights.may_read(self._lanes.values(), is_connected=is_connected)

    def _plan(self) -> Plan:
        if self._round.take_news():
            self._reading.frontier.reset()
        plan = self._flights.plan(self._lanes.values(), self._sizes.limit, self._count)
        now = self._runtime.monotonic()
        for number in plan.lanes:
            if due := self._lanes[number].holds.release_due(now, is_behind=self._is_behind):
                self._reading.frontier.give_back(due)
        missed = [row[0] for row in self._sweep.take() if not self._is_held(row)]
        self._reading.frontier.give_back(missed[:1])
        self._round.on(Reads.READS)
        return plan

    def _sweep_on(self, plan: Plan) -> None:
        """Only below what was read, and without what is in flight or held: each of these would be found for ever."""
        read_to = self._reading.frontier.read_to
        if read_to > 0 and self._sweep.is_due(self._runtime.monotonic()):
            with self._changed:
                below = Below(read_to, plan.lanes, plan.excluded_above(0), self._held_as_a_whole(plan))
            self._sweep.look(below, plan.count)

    def _is_held(self, row: Found) -> bool:
        """Or not to be read: what a lane missed that is not ready is read when it is."""
        lane = self._lanes.get(row[3])
        return lane is None or not lane.ready or lane.holds.is_held(row)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _meanwhile(self) -> None:
        """While PostgreSQL is slow to answer a read: neither the lease nor a purge waits for that."""
        with self._changed:
            self._on(Reads.SLOW)
        self._keep_beating()

    def _keep_beating(self) -> None:
        """One heartbeat at a time. Submitted under the lock, before the lease is released or not at all."""
        with self._changed:
            before = self._beat
            if not (before.is_settled and self._lease.beats()):
                return
            if isinstance(before.error, OtherWay | OtherDatabase | NoRights | Pooled):
                raise before.error
            numbers = [lane.number for lane in self._lanes.values() if lane.ready]
            self._beat = self.purges.tell(partial(self._repeat_lease, numbers))
        if before.error is not None:
            self._troubles.seen("claim", str(before.error))
        else:
            self._troubles.over("claim")

    def _repeat_lease(self, lanes: Sequence[int], connection: Any) -> None:
        """In the thread of the purges."""
        identity = self.database.identity
        self._lease.take(connection, dict.fromkeys(lanes, identity) if identity is not None else {})
        begun = self._runtime.monotonic()
        state = self.database.statements.state(connection, self._conf.lanes)[1]
        self._state_row.seen(begun, state)
        self._heed(state)
        with self._changed:
            self._changed.notify_all()  # whoever waits for the lease: it is fresh for a share of its time only

    def _heed(self, state: State) -> None:
        """Lanes that are closed, or were taken over before a change of the count, or know of one that this server has
        forgotten, are taken over anew; lane 0 also when a change is wished."""
        with self._changed:
            ready = [lane for lane in self._lanes.values() if lane.ready]
            if state.resize_to is None:
                is_wish = state.wanted is not None
                now = state.lane_count, state.resize_no
                ready = [r for r in ready if (r.count, r.change) != now or (is_wish and r.number == 0)]
            self._retake(ready)

    def _read(self, plan: Plan) -> Read | None:
        """None after a failure and a pause."""
        begun = self._runtime.monotonic()
        found = self._reading.read(plan, self._sizes.bytes_max)
        if isinstance(found, Failed):
            self._pause_after(found)
            return None
        with self._changed:
            self._on(Reads.RETURNED)
        self._troubles.over("read")
        self.reads += 1
        self.stages["read"] += self._runtime.monotonic() - begun
        return found

    def _pause_after(self, failure: Failed) -> None:
        with self._changed:
            self._on(Reads.FAILED)
        self._troubles.seen("read", explained(failure.error))
        with self._changed:
            self._changed.wait_for(lambda: self._round.is_ending, failure.pause_s)
            self._on(Reads.GOES_ON)

    def _read_again(self) -> None:
        """When something has changed, or soon."""
        self._reading.frontier.reset()
        with self._changed:
            self._on(Reads.RESTS)
            if not self._round.is_ending:
                self._changed.wait(_IDLE_AGAIN_S)
            self._on(Reads.GOES_ON)

    def _leave_out(self, plan: Plan, look: int) -> LeftOut:
        """What every lane holds as a whole: a large backlog is passed over by the server, and not fetched again and
        again. Told to the holds before the read: one that ends meanwhile is read from there."""
        with self._changed:
            left_out = self._held_as_a_whole(plan)
            if left_out:
                for number in plan.lanes:
                    self._lanes[number].holds.passed_over(left_out.topics, look)
            return left_out

    def _held_as_a_whole(self, plan: Plan) -> LeftOut:
        held = {number: self._lanes[number].holds for number in plan.lanes if number in self._lanes}
        if len(held) < len(plan.lanes) or not any(held.values()):
            return NOTHING
        topics = frozenset(set.intersection(*(holds.topics for holds in held.values())))
        return LeftOut(topics, frozenset(number for number, holds in held.items() if holds.is_paused))

    # ---- dealing out a page

    def _deal(self, read: Read) -> None:
        begun, is_full = self._runtime.monotonic(), read.page.is_full
        self._is_behind = is_full
        batches = self._divide(read)
        self.stages["divide"] += self._runtime.monotonic() - begun
        if batches:
            self._await_page_end()
            self._hand_over(batches, read)
        elif is_full and self._reading.frontier.start() > read.looked_from:
            with self._changed:
                self._on(Reads.DEALT)
        else:
            self._rest()

    def _rest(self) -> None:
        """There was nothing to send."""
        with self._changed:
            self._on(Reads.RESTS)
            self._changed.wait_for(lambda: self._round.must_read_soon, self._idle.pause_s)
            self._idle.made()
            self._on(Reads.GOES_ON)

    def _divide(self, read: Read) -> list[Batch]:
        plan, page = read.plan, read.page
        shares, record_bytes = _shares(plan, page), _bytes_of_a_record(page.rows)
        topics = {row[1] for row in page.rows}  # here, while they are at hand
        server = backends.server_of(page.backend)
        of_page = page.read_at, page.filenode, read.asked_at, read.returned_at, topics
        batches = []
        with self._changed:
            if record_bytes is not None:
                self._sizes.adapt(record_bytes)
            for number, session in plan.sessions.items():
                lane = self._lanes.get(number)
                if lane is None or not self._may_follow(lane, plan, page):
                    continue
                rows, errands = self._held_back(lane, shares.get(number, [])), lane.holds.take_errands()
                if rows or errands:
                    ids = [row[0] for row in rows]
                    batch = Batch(number, session, rows, ids, *of_page)
                    batch.created, batch.errands, batch.server = read.created, errands, server
                    batch.left_out = lane.left_out
                    self._flights.add(batch)
                    batches.append(batch)
        return batches

    def _held_back(self, lane: LaneState, rows: list[Row]) -> list[Row]:
        kept = lane.holds.keep(rows)
        taken = lane.holds.cut(kept)
        if len(taken) < len(kept):
            self._reading.frontier.give_back([kept[len(taken)][0]])
        return taken

    def _may_follow(self, lane: LaneState, plan: Plan, page: Page) -> bool:
        """Whether m, as the page has seen it, fits what this process has purged. Another server may know another count
        of lanes, as one that has taken over from before a change of it: there the lane is taken over first."""
        if lane.server != backends.server_of(page.backend):
            self._retake([lane])
            self._round.tell(News.ELSEWHERE)
            return False
        judged = lane.judge(plan, page.purged.get(lane.number, 0))
        if judged is None or isinstance(judged, GoOn):
            return judged is not None
        self._unready(lane)
        lane.post(judged if isinstance(judged, Stop) else Doubt())
        return False

    def _await_page_end(self) -> None:
        begun = self._runtime.monotonic()
        while self._is_page_under_way():
            self._keep_beating()
            with self._changed:
                if self._is_page_under_way():
                    self._changed.wait(self._lease.beat_s / 2)
        self.stages["round"] += self._runtime.monotonic() - begun

    def _is_page_under_way(self) -> bool:
        return not (self._round.is_page_sent or self._round.is_ending)

    def _hand_over(self, batches: list[Batch], read: Read) -> None:
        flushed = Awaited(self._runtime)
        with self._changed:
            self._idle.ended()
            ticket = self._last_ticket
            is_flushed_by_purge = ticket is not None and may_flush(ticket.submitted_at, read.returned_at)
            posted = []
            for batch in batches:
                lane = self._lanes.get(batch.lane)
                if lane is None or lane.session != batch.session or not lane.ready:
                    self._flights.give_back(batch)
                    self._reading.frontier.give_back(batch.ids[:1])
                    continue
                if lane.left_out != batch.left_out:
                    batch.rows = lane.holds.keep(batch.rows)
                    batch.ids = [row[0] for row in batch.rows]
                    if not (batch.ids or batch.errands):
                        self._flights.give_back(batch)
                        continue
                batch.previous = ticket
                batch.flush = None if is_flushed_by_purge else flushed
                lane.dealt()
                posted.append((lane, batch))
            self._round.handed_over(len(posted), is_full=read.page.is_full)
            for lane, batch in posted:
                lane.post(batch)
            flushes = bool(posted) and not is_flushed_by_purge
            self._on(Reads.FLUSHES if flushes else Reads.DEALT)
        if flushes:
            self._flush(flushed)

    def _flush(self, flushed: Awaited) -> None:
        """Beside the sending."""
        begun = self._runtime.monotonic()
        failure = self._reading.flush()
        flushed.settle(failure.error if failure is not None else None)
        if failure is not None:
            self._pause_after(failure)
        else:
            with self._changed:
                self._on(Reads.FLUSHED)
        self.stages["flush"] += self._runtime.monotonic() - begun


def _shares(plan: Plan, page: Page) -> dict[int, list[Row]]:
    if plan.count == 1:
        return dict.fromkeys(plan.sessions, page.rows)
    shares: dict[int, list[Row]] = {number: [] for number in plan.sessions}
    for row in page.rows:
        shares[row[8]].append(row)
    return shares


def _bytes_of_a_record(rows: Sequence[Row]) -> int | None:
    """On the average of a page; None: it has none."""
    sample = rows[::_SAMPLE]
    return sum(size_of(row) for row in sample) // len(sample) + 1 if sample else None
