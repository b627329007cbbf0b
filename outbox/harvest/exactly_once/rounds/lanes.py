"""The lanes of a process and the round that they are in: all that the lock of the round, `changed`, guards.

Lanes, the reading thread, purges, heartbeats and notifications come here, each from its own thread. Whoever calls a
method holds `changed`, unless it says otherwise; then nothing blocks: what is submitted to purges, and what is posted
to a lane, goes into a queue. What is to be logged is logged after the lock was given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from outbox.conf import Conf
from outbox.core.exactly_once.decisions import Stop
from outbox.core.exactly_once.flights import Flights, Plan, Standing
from outbox.core.exactly_once.lane import Doubt, Retake
from outbox.core.exactly_once.looks import HoldsLook
from outbox.core.exactly_once.pages import IdlePause, PageSizes
from outbox.core.exactly_once.round import Reads, Round
from outbox.core.holds.book import Holds, held_as_a_whole
from outbox.core.holds.values import HoldActions
from outbox.edges.postgres.exactly_once.reader import LeftOut
from outbox.edges.postgres.exactly_once.sweeper import Found
from outbox.harvest.exactly_once.ports import Servers
from outbox.harvest.exactly_once.rounds.database import PurgeSession
from outbox.harvest.exactly_once.values import BatchPurge, Command, Order, Ticket

logger = logging.getLogger("outbox.harvest")


@dataclass(eq=False, kw_only=True)
class LaneState(Standing):
    """What the rounds know of one lane. Guarded by their condition."""

    post: Callable[[Order], None]
    holds: Holds = field(default_factory=Holds)

    def tell(self, what: Doubt | Retake | Stop) -> None:
        self.post(Command(self.session, what))


class Lanes:
    def __init__(self, conf: Conf, servers: Servers, unsettled: set[int]) -> None:
        self.changed = servers.runtime.condition("round")
        self.known: dict[int, LaneState] = {}
        self.unsettled = unsettled
        self.count = 0
        """By which records are divided, as the lanes that are ready have it."""
        self.round: Round[BatchPurge] = Round()
        self.holds_look = HoldsLook()
        self.flights = Flights()
        self.sizes, self.idle = (
            PageSizes(conf.exactly_once.batch_max, conf.exactly_once.batch_bytes_max),
            IdlePause(conf.harvest.mark_backoff_s),
        )
        self.last_ticket: Ticket | None = None
        self._database = servers.database
        self.purges = PurgeSession(servers, self.purged, conf.harvest.statement_timeout_s)

    def divided(self, count: int) -> None:
        self.count = count

    def unready(self, lane: LaneState) -> None:
        was_at_work = lane.is_at_work
        lane.end()
        if was_at_work:
            self.end_share()
        self.changed.notify_all()

    def end_share(self) -> None:
        self.round.share_ended()
        if self.round.is_page_sent:
            self._submit_due()
            self.changed.notify_all()

    def on(self, event: Reads) -> None:
        """The reader has come so far."""
        self.round.on(event)
        self._submit_due()

    def _submit_due(self) -> None:
        if due := self.round.due():
            self.last_ticket = self.purges.submit(due)

    def end(self, interrupt_read: Callable[[], None]) -> None:
        """What PostgreSQL is asked at this moment is given up: nothing may wait for it."""
        if not self.round.is_ending:
            self.unsettled.update(self.known)  # of rounds that break: others may follow before these lanes have left
            self.on(Reads.ENDS)
            self.purges.close()
            interrupt_read()

    @staticmethod
    def retake(lanes: Iterable[LaneState]) -> None:
        for lane in lanes:
            if lane.recall():
                lane.tell(Retake())

    def write_holds(self) -> None:
        """For operators, and for whoever takes over; when it fails, the record is refused once more."""
        for lane in self.known.values():
            if lane.holds.writes:
                writes = lane.holds.take_writes()
                self.purges.tell(partial(self._database.holds.write, placed=writes.placed, lifted=writes.lifted))

    def is_held(self, row: Found) -> bool:
        """Or not to be read: what a lane missed that is not ready is read when it is."""
        lane = self.known.get(row[3])
        return lane is None or not lane.ready or lane.holds.is_held(row)

    def held_as_a_whole(self, plan: Plan) -> LeftOut:
        books = {number: self.known[number].holds for number in plan.lanes if number in self.known}
        return LeftOut(*held_as_a_whole(books, plan.lanes))

    def purged(self, ticket: Ticket) -> None:
        """In the thread of the purges; takes `changed` itself."""
        left: list[tuple[int, HoldActions]] = []
        with self.changed:
            for purge in ticket.purges:
                number, batch = purge.entry.lane, purge.entry.batch
                lane = self.known.get(number)
                if lane is not None and number in ticket.stops:
                    lane.stopped()
                    lane.tell(ticket.stops[number])
                elif lane is not None:
                    lane.purged(batch)
                self.flights.purged(number, batch)
                if lane is not None and purge.hold_actions is not None:
                    if purge in ticket.done:
                        lane.holds.done(purge.hold_actions)
                        left.append((number, purge.hold_actions))
                    else:
                        lane.holds.not_done(purge.hold_actions)
            if ticket is self.last_ticket:
                self.round.settled()
            self.changed.notify_all()
        for number, hold_actions in left:
            self._log_dead_letters(number, hold_actions)

    @staticmethod
    def _log_dead_letters(lane: int, hold_actions: HoldActions) -> None:
        for dead_record in hold_actions.dead_records:
            logger.warning(
                "dead_letter lane=%d id=%d reason=%s attempts=%d error=%r",
                lane, dead_record.hold.head, dead_record.reason, dead_record.hold.attempts, dead_record.hold.error,
            )  # fmt: skip
