"""The thread that reads the table for all lanes of a process, one page at a time, and deals it out to those ready.

While the lanes send one page, the next is read if the last one was full; else it is read when that page has ended, so
that a record never waits in memory for a transaction longer than for its own. A page ends when every lane has committed
its share or failed; what was committed is purged then, beside the next page. `core.exactly_once.round` has the states.

The thread owns its connection, the frontier and the sweep. It takes the lock of the round (`Lanes.changed`) to decide
what to do next and to deal out a page, and holds it neither while it asks a server nor while it logs. It waits, under
that lock alone, for lanes, for the lease and for the end of the page being sent. Heartbeats of the lease are submitted
by it, and run in the thread of the purges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from outbox.conf import Conf
from outbox.core.exactly_once import pages
from outbox.core.exactly_once.decisions import AskElection, GoOn, Stop
from outbox.core.exactly_once.flights import Elsewhere, Plan, Taking
from outbox.core.exactly_once.lane import Doubt
from outbox.core.exactly_once.purging import may_flush
from outbox.core.exactly_once.round import AfterDivision, News, ReaderStep, Reads, after_division
from outbox.core.rows import Row
from outbox.edges.postgres.common import backends
from outbox.edges.postgres.common.backends import Pooled
from outbox.edges.postgres.common.leases import NoPrivileges, OtherMode
from outbox.edges.postgres.common.texts import explained
from outbox.edges.postgres.exactly_once.companions import AnotherDatabase
from outbox.edges.postgres.exactly_once.reader import LeftOut, Page
from outbox.edges.postgres.exactly_once.sweeper import Below
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.lanes import Lanes, LaneState
from outbox.harvest.exactly_once.rounds.read_connection import Failed, Read, ReadConnection
from outbox.harvest.exactly_once.rounds.state import SeenState
from outbox.harvest.exactly_once.rounds.sweep import TableSweep
from outbox.harvest.exactly_once.values import Awaited, Batch, Broken
from outbox.harvest.lease_keeper import LeaseKeeper
from outbox.harvest.readings import Troubles

logger = logging.getLogger("outbox.harvest")

_IDLE_AGAIN_S = 0.05


class PageReader:
    def __init__(
        self,
        conf: Conf,
        servers: Servers,
        lanes: Lanes,
        lease: LeaseKeeper,
        state_row: SeenState,
        ended: Callable[[], None],
    ) -> None:
        """`ended`: called at the end of the thread."""
        self._conf, self._runtime, self._database = conf, servers.runtime, servers.database
        self._lanes, self._lease, self._state_row, self._ended = lanes, lease, state_row, ended
        self._beat = Awaited(servers.runtime)
        self._beat.settle()
        self._reading = ReadConnection(
            servers, lease, conf.harvest.statement_timeout_s, self._leave_out, self._meanwhile
        )
        self._sweep = TableSweep(conf, servers)
        self._troubles = Troubles(-1, servers.runtime)
        self.stages: dict[str, float] = dict.fromkeys(("read", "divide", "round", "flush"), 0.0)
        self.reads = 0
        self._thread = servers.runtime.thread(self._run, "outbox-reader")

    # ---- called by others

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> None:
        """Does not block: what PostgreSQL is asked at this moment is given up."""
        self._reading.interrupt()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    # ---- the thread

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
            self._ended()
            with self._lanes.changed:
                self._lanes.on(Reads.ENDED)

    def _break(self, error: BaseException) -> None:
        """What no repetition can mend ends every lane of the process."""
        with self._lanes.changed:
            self._lanes.end(self.interrupt)
            for lane in self._lanes.known.values():
                lane.post(Broken(error))
            self._lanes.changed.notify_all()

    def _await_work(self) -> Plan | None:
        while True:
            self._keep_beating()
            with self._lanes.changed:
                needs_holds = self._lanes.holds_look.is_due(self._runtime.monotonic())
                step = self._lanes.round.next_step(may_read=self._may_read(), needs_holds=needs_holds)
                if step is ReaderStep.END:
                    return None
                if step is ReaderStep.READ:
                    return self._plan()
                if step is ReaderStep.WAIT:
                    self._wait()
            if (
                step is ReaderStep.RECONNECT
            ):  # that server, or the purges', is perhaps one from which another has taken over
                self._reading.drop()
                self._lanes.purges.reconnect()
            elif step is ReaderStep.LOAD:
                self._load_holds()

    def _wait(self) -> None:
        """For a lane, for the lease, or for the end of the page being sent; with the lock."""
        begun, for_page = self._runtime.monotonic(), self._lanes.round.waits_for_page
        self._lanes.on(Reads.WAITS)
        self._lanes.changed.wait(self._lease.beat_s / 2)
        if for_page:
            self.stages["round"] += self._runtime.monotonic() - begun

    def _load_holds(self) -> None:
        """What operators have paused, and what earlier owners were refused. Next to nothing while there is nothing."""
        with self._lanes.changed:
            self._lanes.on(Reads.LOADS)
            self._lanes.holds_look.asked()
            count = self._lanes.count
        begun = self._runtime.monotonic()
        rows = self._reading.load_holds(count)
        if isinstance(rows, Failed):
            with self._lanes.changed:
                self._lanes.holds_look.failed()
            self._pause_after(rows)
            return
        with self._lanes.changed:
            now = self._runtime.monotonic()
            self._lanes.on(Reads.LOADED)
            self._lanes.holds_look.loaded(begun, now)
            for lane in self._lanes.known.values():
                lane.holds.load(rows, now)
            self._lanes.write_holds()

    def _may_read(self) -> bool:
        is_connected = self._reading.is_open
        return self._lease.is_trusted() and self._lanes.flights.may_read(
            self._lanes.known.values(), is_connected=is_connected
        )

    def _plan(self) -> Plan:
        if self._lanes.round.take_news():
            self._reading.frontier.reset()
        plan = self._lanes.flights.plan(self._lanes.known.values(), self._lanes.sizes.limit, self._lanes.count)
        now = self._runtime.monotonic()
        for number in plan.lanes:
            if due := self._lanes.known[number].holds.release_due(now, is_behind=self._lanes.round.is_behind):
                self._reading.frontier.give_back(due)
        missed = [row[0] for row in self._sweep.take() if not self._lanes.is_held(row)]
        self._reading.frontier.give_back(missed[:1])
        self._lanes.round.on(Reads.READS)
        return plan

    def _sweep_on(self, plan: Plan) -> None:
        """Only below what was read, and without what is in flight or held: each of these would be found for ever."""
        read_to = self._reading.frontier.read_to
        if read_to > 0 and self._sweep.is_due(self._runtime.monotonic()):
            with self._lanes.changed:
                below = Below(read_to, plan.lanes, plan.excluded_above(0), self._lanes.held_as_a_whole(plan))
            self._sweep.look(below, plan.count)

    def _meanwhile(self) -> None:
        """While PostgreSQL is slow to answer a read: neither the lease nor a purge waits for that."""
        with self._lanes.changed:
            self._lanes.on(Reads.SLOW)
        self._keep_beating()

    def _keep_beating(self) -> None:
        """One heartbeat at a time. Submitted under the lock, before the lease is released or not at all."""
        with self._lanes.changed:
            before = self._beat
            if not (before.is_settled and self._lease.beats()):
                return
            if isinstance(before.error, OtherMode | AnotherDatabase | NoPrivileges | Pooled):
                raise before.error
            numbers = [lane.number for lane in self._lanes.known.values() if lane.ready]
            self._beat = self._lanes.purges.tell(partial(self._repeat_lease, numbers))
        if before.error is not None:
            self._troubles.seen("lease", str(before.error))
        else:
            self._troubles.over("lease")

    def _repeat_lease(self, lanes: Sequence[int], connection: Any) -> None:
        """In the thread of the purges."""
        identity = self._database.identity
        self._lease.take(connection, dict.fromkeys(lanes, identity) if identity is not None else {})
        begun = self._runtime.monotonic()
        state = self._database.statements.state(connection, self._conf.election.lanes)[1]
        self._state_row.seen(begun, state)
        with self._lanes.changed:
            self._lanes.retake([r for r in self._lanes.known.values() if r.ready and r.is_outdated(state)])
            self._lanes.changed.notify_all()  # whoever waits for the lease: it is fresh for a share of its time only

    def _read(self, plan: Plan) -> Read | None:
        """None after a failure and a pause."""
        begun = self._runtime.monotonic()
        found = self._reading.read(plan, self._lanes.sizes.bytes_max)
        if isinstance(found, Failed):
            self._pause_after(found)
            return None
        with self._lanes.changed:
            self._lanes.on(Reads.RETURNED)
        self._troubles.over("read")
        self.reads += 1
        self.stages["read"] += self._runtime.monotonic() - begun
        return found

    def _pause_after(self, failure: Failed) -> None:
        with self._lanes.changed:
            self._lanes.on(Reads.FAILED)
        self._troubles.seen("read", explained(failure.error))
        with self._lanes.changed:
            self._lanes.changed.wait_for(lambda: self._lanes.round.is_ending, failure.pause_s)
            self._lanes.on(Reads.GOES_ON)

    def _read_again(self) -> None:
        """When something has changed, or soon."""
        self._reading.frontier.reset()
        with self._lanes.changed:
            self._lanes.on(Reads.RESTS)
            if not self._lanes.round.is_ending:
                self._lanes.changed.wait(_IDLE_AGAIN_S)
            self._lanes.on(Reads.GOES_ON)

    def _leave_out(self, plan: Plan, look: int) -> LeftOut:
        """What every lane holds as a whole: a large backlog is passed over by the server, and not fetched again and
        again. Told to the holds before the read: one that ends meanwhile is read from there."""
        with self._lanes.changed:
            left_out = self._lanes.held_as_a_whole(plan)
            if left_out:
                for number in plan.lanes:
                    self._lanes.known[number].holds.passed_over(left_out.topics, look)
            return left_out

    # ---- dealing out a page

    def _deal(self, read: Read) -> None:
        begun = self._runtime.monotonic()
        batches = self._divide(read)
        self.stages["divide"] += self._runtime.monotonic() - begun
        has_advanced = not batches and self._reading.frontier.start() > read.looked_from
        then = after_division(has_shares=bool(batches), is_full=read.page.is_full, has_advanced=has_advanced)
        if then is AfterDivision.HAND_OVER:
            self._await_page_end()
            self._hand_over(batches, read)
        elif then is AfterDivision.READ_ON:
            with self._lanes.changed:
                self._lanes.on(Reads.DEALT)
        else:
            self._rest()

    def _rest(self) -> None:
        """There was nothing to send."""
        with self._lanes.changed:
            self._lanes.on(Reads.RESTS)
            self._lanes.changed.wait_for(lambda: self._lanes.round.must_read_soon, self._lanes.idle.pause_s)
            self._lanes.idle.made()
            self._lanes.on(Reads.GOES_ON)

    def _divide(self, read: Read) -> list[Batch]:
        plan, page = read.plan, read.page
        shares, record_bytes = pages.shares(page.rows, plan.sessions, plan.count), pages.bytes_of_a_record(page.rows)
        topics = {row[1] for row in page.rows}  # here, while they are at hand
        server = backends.server_of(page.backend)
        of_page = page.read_at, page.filenode, read.asked_at, read.returned_at, topics
        batches = []
        with self._lanes.changed:
            self._lanes.round.divided(is_full=page.is_full)
            if record_bytes is not None:
                self._lanes.sizes.adapt(record_bytes)
            for number, session in plan.sessions.items():
                lane = self._lanes.known.get(number)
                if lane is None or not self._may_follow(lane, plan, page):
                    continue
                rows, hold_actions = self._held_back(lane, shares.get(number, [])), lane.holds.take_actions()
                if rows or hold_actions:
                    ids = [row[0] for row in rows]
                    batch = Batch(
                        number,
                        session,
                        rows,
                        ids,
                        *of_page,
                        created=read.created,
                        hold_actions=hold_actions,
                        server=server,
                        left_out=lane.left_out,
                    )
                    self._lanes.flights.add(batch)
                    batches.append(batch)
        return batches

    def _held_back(self, lane: LaneState, rows: list[Row]) -> list[Row]:
        kept = lane.holds.keep(rows)
        taken = lane.holds.cut(kept)
        if len(taken) < len(kept):
            self._reading.frontier.give_back([kept[len(taken)][0]])
        return taken

    def _may_follow(self, lane: LaneState, plan: Plan, page: Page) -> bool:
        """Whether m, as the page has seen it, fits what this process has purged."""
        judged = lane.judge(plan, page.purged.get(lane.number, 0), backends.server_of(page.backend))
        if isinstance(judged, Elsewhere):
            self._lanes.retake([lane])
            self._lanes.round.tell(News.ELSEWHERE)
        elif isinstance(judged, Stop | AskElection):
            self._lanes.unready(lane)
            lane.tell(judged if isinstance(judged, Stop) else Doubt())
        return isinstance(judged, GoOn)

    def _await_page_end(self) -> None:
        begun = self._runtime.monotonic()
        while self._is_page_under_way():
            self._keep_beating()
            with self._lanes.changed:
                if self._is_page_under_way():
                    self._lanes.changed.wait(self._lease.beat_s / 2)
        self.stages["round"] += self._runtime.monotonic() - begun

    def _is_page_under_way(self) -> bool:
        return not (self._lanes.round.is_page_sent or self._lanes.round.is_ending)

    def _hand_over(self, batches: list[Batch], read: Read) -> None:
        flushed = Awaited(self._runtime)
        with self._lanes.changed:
            self._lanes.idle.ended()
            ticket = self._lanes.last_ticket
            is_flushed_by_purge = ticket is not None and may_flush(ticket.submitted_at, read.returned_at)
            posted = []
            for batch in batches:
                lane = self._lanes.known.get(batch.lane)
                taking = Taking.NOT if lane is None else lane.taking(batch.session, batch.left_out)
                if lane is None or taking is Taking.NOT:
                    self._lanes.flights.give_back(batch)
                    self._reading.frontier.give_back(batch.ids[:1])
                    continue
                if taking is Taking.WITHOUT_HELD:
                    batch.keep(lane.holds.keep(batch.rows))
                    if not (batch.ids or batch.hold_actions):
                        self._lanes.flights.give_back(batch)
                        continue
                batch.follow(ticket, None if is_flushed_by_purge else flushed)
                lane.dealt()
                posted.append((lane, batch))
            self._lanes.round.handed_over(len(posted), is_full=read.page.is_full)
            for lane, batch in posted:
                lane.post(batch)
            flushes = bool(posted) and not is_flushed_by_purge
            self._lanes.on(Reads.FLUSHES if flushes else Reads.DEALT)
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
            with self._lanes.changed:
                self._lanes.on(Reads.FLUSHED)
        self.stages["flush"] += self._runtime.monotonic() - begun
