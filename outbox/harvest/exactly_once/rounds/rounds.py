"""The rounds of a process, as its lanes see them: what a lane calls, from its own thread.

Lanes that are ready have their shares of each page posted to their mailboxes; what has become of a share they tell
here. What lanes and reader share is under the lock of the round (`Lanes.changed`), which is held for a moment only.
Four other locks are waited for: `preparing`, while the first lane checks tables and topics; `state row`, while one lane
asks for that row; `careful turn` and `sending turn`, which lanes hold while they send. Statements of a lane run on the
connection of the purges, after what was submitted before was tried once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg

from outbox.conf import Conf
from outbox.core.at_least_once.values import RecordHeld
from outbox.core.exactly_once.decisions import StateRow
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.membership import Joining, joining, may_release_lease
from outbox.core.exactly_once.round import News
from outbox.core.rows import Row
from outbox.harvest.exactly_once.ports import DatabasePort, KafkaPort, Servers
from outbox.harvest.exactly_once.resize import IdleLanes
from outbox.harvest.exactly_once.rounds.lanes import Lanes, LaneState
from outbox.harvest.exactly_once.rounds.listener import Ear
from outbox.harvest.exactly_once.rounds.reader import PageReader
from outbox.harvest.exactly_once.rounds.state import SeenState
from outbox.harvest.exactly_once.values import Batch, BatchPurge
from outbox.harvest.lease_keeper import LeaseKeeper


class Rounds:
    """What the lanes of one table in one process share from round to round. Ends when its last lane has left; then it
    takes no more."""

    def __init__(self, conf: Conf, servers: Servers, owner_name: str, unsettled: set[int] | None = None) -> None:
        """`unsettled`: lanes that this process has left so, and not taken over since. All its rounds know them: one
        after the other, as those that have ended change it no more."""
        self._conf, self.servers, self._runtime = conf, servers, servers.runtime
        self.owner = servers.database.owner = f"{owner_name} {uuid4()}"
        self.careful_turn = servers.runtime.lock("careful turn")
        """Of lanes that look for a record that crashes the process: which lane it was must be certain."""
        self.sending_turn = servers.runtime.lock("sending turn")
        """Of lanes that hand over records."""
        self._preparing = servers.runtime.lock("preparing")
        self._lanes = Lanes(conf, servers, set() if unsettled is None else unsettled)
        self.purges = self._lanes.purges
        self.idle_lanes = IdleLanes(servers, self.purges)
        self._lease = LeaseKeeper(conf, servers.database.lease(owner_name), servers.runtime)
        self._state_row = SeenState(self._ask_state, servers.runtime)
        self._ear: Ear | None = None
        self._reader = PageReader(conf, servers, self._lanes, self._lease, self._state_row, self._ended)
        self._reader.start()

    @property
    def database(self) -> DatabasePort:
        return self.servers.database

    @property
    def kafka(self) -> KafkaPort:
        return self.servers.kafka

    @property
    def reads(self) -> int:
        return self._reader.reads

    @property
    def stages(self) -> dict[str, float]:
        return self._reader.stages

    # ---- what lanes call, each from its own thread

    def register(self, lane: LaneState) -> bool:
        """False: these rounds have ended, the lane needs others."""
        with self._lanes.changed:
            earlier = self._lanes.known.get(lane.number)
            found = joining(lane, earlier, is_ending=self._lanes.round.is_ending)
            if found is Joining.REPLACES:
                assert earlier is not None
                self._lanes.unready(earlier)
                self._lanes.unsettled.add(lane.number)
            if found in (Joining.REPLACES, Joining.JOINS):
                self._lanes.known[lane.number] = lane
            return found is not Joining.ENDED

    def leave(self, lane: LaneState, *, is_settled: bool) -> None:
        """Not settled: what became of its last batch is not known, or it is not purged."""
        with self._lanes.changed:
            self._lanes.unready(lane)
            if self._lanes.known.get(lane.number) is lane:
                if not is_settled and not self._lanes.round.is_ending:
                    self._lanes.unsettled.add(lane.number)
                del self._lanes.known[lane.number]
                self._lanes.flights.forget(lane.number)  # else they are those of a worker that follows in this process
            if not self._lanes.known:
                self._lanes.end(self._reader.interrupt)
            self._lanes.changed.notify_all()

    def prepare(self) -> None:
        """Once: check the tables, take the lease, prepare the ledger topic. Raises what forbids harvesting, and
        outages."""
        with self._preparing:
            if self._lease.is_kept:
                return
            self.purges.ask(lambda connection: self._lease.take(connection, {}))
            self.kafka.prepare(self.database.state.lane_count, self._conf.exactly_once.ledger_retention_s)
            if self._conf.exactly_once.notify and self._ear is None:
                with self._lanes.changed:  # before the end, or not at all: the end closes it
                    if not self._lanes.round.is_ending:
                        self._ear = Ear(self.servers, self.wake)
            self._lease.prepared()

    def wake(self) -> None:
        """There is something new to read."""
        with self._lanes.changed:
            self._lanes.round.tell(News.WOKEN)
            self._lanes.idle.ended()
            self._lanes.changed.notify_all()

    def holds_lease(self) -> bool:
        """Another delivery mode may have taken a lease that this process could not renew in time."""
        return self._lease.is_trusted()

    def seen_state(self, max_age_s: float, may_go_on: Callable[[], bool]) -> StateRow:
        """The state row as it was so long ago at most. Raises `MayNotGoOn`."""
        return self._state_row.not_older(max_age_s, may_go_on)

    def _ask_state(self, may_go_on: Callable[[], bool]) -> StateRow:
        state: StateRow = self.purges.ask(
            partial(self.database.statements.state, lanes=self._conf.election.lanes), may_go_on
        )[1]
        return state

    def release_lease(self, lane: LaneState, may_go_on: Callable[[], bool]) -> None:
        """The last lane that ends cleanly gives the lease back, so that no other mode waits until it is old."""
        with self._lanes.changed:
            lane.leave()
            if not may_release_lease(
                self._lanes.known.values(),
                is_kept=self._lease.is_kept,
                is_ending=self._lanes.round.is_ending,
                has_unsettled=bool(self._lanes.unsettled),
            ):
                return
            self._lease.released()
            # Submitted here: for a lane that is acquired from now on it is taken behind this.
            released = self.purges.tell(self._lease.release)
        while not released.wait(0.05):
            if not may_go_on():
                return
        if released.error is not None:
            raise released.error

    def ready(self, lane: LaneState, batch: int, state: StateRow, server: str) -> None:
        """The lane owns its transactional id and has purged everything up to `batch`: it is read for from the
        beginning, on that server. Of so many lanes: those that were taken over with another count are fenced, or soon
        will be."""
        with self._lanes.changed:
            if self._lanes.known.get(lane.number) is not lane or self._lanes.round.is_ending:
                return  # replaced while it took over: what is in flight is its successor's
            lane.begin(batch)
            lane.divided(state, server)
            self._lanes.divided(state.lane_count)
            lane.holds.none_done()
            # What holds before the first read, lasts: see `core.holds.values.HoldActions`.
            self._lanes.holds_look.joined()
            others = [other for other in self._lanes.known.values() if other.ready and other.count != lane.count]
            self._lanes.retake(others)
            self._lanes.flights.forget(lane.number)
            self._lanes.unsettled.discard(lane.number)
            if self._lanes.last_ticket is not None:
                self._lanes.last_ticket.stops.pop(lane.number, None)  # what could not be purged is settled now
            self._lanes.round.tell(News.JOINED)
            self._lanes.idle.ended()
            self._lanes.changed.notify_all()

    def committed(self, lane: LaneState, batch: Batch, entry: Entry) -> None:
        """The batch is in Kafka. Its purge is sent when the page has ended, or, after the last page of a backlog, when
        the next read has returned."""
        rows = batch.give_up_rows()  # outside of the lock: thousands of them take milliseconds
        with self._lanes.changed:
            if not lane.has(batch.session):
                return  # of a worker that was replaced: its successor settles it
            lane.committed(entry.batch)
            self._lanes.flights.committed(batch, entry.batch)
            lane.holds.delivered(rows)
            self._lanes.round.committed(BatchPurge(entry, batch.filenode, batch.hold_actions, batch.server))
            self._lanes.sizes.enlarge()
            lane.share_ended()
            self._lanes.end_share()
            self._lanes.write_holds()

    def left_out(
        self, lane: LaneState, batch: Batch, rows: list[Row], refused: Iterable[tuple[Row, str]], *, is_sure: bool
    ) -> list[RecordHeld]:
        """Of the batch only these rows are sent, as others are held."""
        with self._lanes.changed:
            batch.keep(rows)
            lane.leaves_out()
            return self.held(lane, refused, is_sure=is_sure)

    def held(self, lane: LaneState, refused: Iterable[tuple[Row, str]], *, is_sure: bool) -> list[RecordHeld]:
        now = self._runtime.monotonic()
        return [*self.guarded(lambda: [lane.holds.refused(row, error, now, is_sure=is_sure) for row, error in refused])]

    def not_sent(self, lane: LaneState, batch: Batch) -> None:
        """Nothing is left of the batch, and the lane goes on with the next one."""
        with self._lanes.changed:
            if lane.has(batch.session):
                self._lanes.flights.give_back(batch)
                lane.share_ended()
                self._lanes.end_share()

    def too_slow(self, batch: Batch) -> None:
        """It was not acknowledged within its time: pages become so small that one is, at last of one record."""
        with self._lanes.changed:
            self._lanes.sizes.too_slow(batch.asked_at, self._runtime.monotonic())

    def failed(self, lane: LaneState) -> None:
        """Nothing more is read for the lane until it is ready again; then what it had in flight is read again."""
        with self._lanes.changed:
            self._lanes.unready(lane)

    def wait_purged(self, lane: LaneState, may_go_on: Callable[[], bool]) -> bool:
        """Until every batch of the lane is purged, or given up; False when it may not go on before."""
        with self._lanes.changed:
            while lane.is_being_purged and may_go_on():
                if self._lanes.round.is_ending:
                    raise psycopg.OperationalError("The lanes of this process ended before their purges.")
                self._lanes.changed.wait(0.05)
            return not lane.is_being_purged

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Run while nothing else looks at the lanes' holds."""
        with self._lanes.changed:
            result = action()
            self._lanes.write_holds()
            return result

    def in_flight(self, lane: int) -> int:
        with self._lanes.changed:
            return self._lanes.flights.count(lane)

    def join(self, timeout_s: float) -> bool:
        give_up_at = self._runtime.monotonic() + timeout_s
        return self._reader.join(timeout_s) and self.purges.join(give_up_at - self._runtime.monotonic())

    @property
    def is_closing(self) -> bool:
        return self._lanes.round.is_ending

    def _ended(self) -> None:
        """In the reading thread, at its end: nobody begins to listen any more."""
        if self._ear is not None:
            self._ear.close()
        self.kafka.close()
