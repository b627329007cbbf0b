"""What of each lane is under way: read and not yet committed, committed and not yet purged; and so what the next read
leaves out, and whether a page's share may follow.

A batch is in flight from the moment that a page is divided until its rows are purged, until it is given back unsent, or
until the lane was taken over again: only then does the ledger tell what became of it. A read *plans* first, which
copies the ids in flight, and looks at the table then; the other way round a purge that ends in between would let its
rows be sent twice.

Pure: the lanes of a process keep these objects under one lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import count
from typing import Protocol

from outbox.core.exactly_once.decisions import AskElection, GoOn, StateRow, Stop, round_check
from outbox.core.region import Region, Transitions

SHARES_OF_A_PAGE_MAX = 1.5
"""A page for several lanes is larger than one for a single lane, but not much: its rows are in memory all at once, and
as what the clients keep of them, and while the first page is read nothing is sent."""


_SESSIONS = count(1)


class Share(Protocol):
    """A lane's part of one page."""

    @property
    def lane(self) -> int: ...

    @property
    def ids(self) -> Sequence[int]:
        """Ascending; a batch of hold actions has none."""

    @property
    def filenode(self) -> int:
        """The file of the table from which it was read."""


class Stand(Enum):
    """Of a lane, as the round sees it."""

    AWAY = "away"
    """Nothing is read for it: it waits, takes over or has failed."""
    READY = "ready"
    """It is read for, and waits for its share of a page."""
    AT_WORK = "at work"
    """It is read for, and has its share of the page being sent."""
    RECALLED = "recalled"
    """Nothing is read for it any more, until it was taken over again."""
    FINISHING = "finishing"
    """So too, and the share that it has it may finish."""
    LEAVING = "leaving"
    """It ends cleanly, and all that it has committed is purged."""


class Told(Enum):
    TAKEN_OVER = "the lane owns its transactional id, and everything before is settled"
    DEALT = "it has its share"
    SHARE_ENDED = "the share is committed, or was not sent"
    RECALLED = "it is to be taken over again"
    FAILED = "its worker's turn has ended, its worker was replaced, or m is not as expected"
    LEAVES = "its worker has settled all"


STAND = Transitions(
    "the round's view of a lane",
    Stand.AWAY,
    {
        (Stand.AWAY, Told.TAKEN_OVER): Stand.READY,
        (Stand.READY, Told.DEALT): Stand.AT_WORK,
        (Stand.AT_WORK, Told.SHARE_ENDED): Stand.READY,
        (Stand.READY, Told.RECALLED): Stand.RECALLED,
        (Stand.AT_WORK, Told.RECALLED): Stand.FINISHING,
        (Stand.FINISHING, Told.SHARE_ENDED): Stand.RECALLED,
        (Stand.AWAY, Told.FAILED): Stand.AWAY,
        (Stand.READY, Told.FAILED): Stand.AWAY,
        (Stand.AT_WORK, Told.FAILED): Stand.AWAY,
        (Stand.RECALLED, Told.FAILED): Stand.AWAY,
        (Stand.FINISHING, Told.FAILED): Stand.AWAY,
        (Stand.AWAY, Told.LEAVES): Stand.LEAVING,
        (Stand.LEAVING, Told.FAILED): Stand.LEAVING,
    },
)


class LanePurges(Enum):
    """What is done about batches of a lane that are committed."""

    REPEATED = "repeated"
    """Until they are purged."""
    GIVEN_UP = "given up"
    """One could not be purged: nothing is tried any more, and the next takeover tells what becomes of it."""


class LanePurged(Enum):
    TAKEN_OVER = "everything before is settled"
    REFUSED = "a batch cannot be purged"


LANE_PURGES = Transitions(
    "purges of a lane",
    LanePurges.REPEATED,
    {
        **{(state, LanePurged.TAKEN_OVER): LanePurges.REPEATED for state in LanePurges},
        **{(state, LanePurged.REFUSED): LanePurges.GIVEN_UP for state in LanePurges},
    },
)


@dataclass(frozen=True, slots=True)
class Stale:
    """The page was read for another readiness of the lane."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The page came from another server than the one on which the lane was taken over."""


class Taking(Enum):
    """Whether a lane is handed a share of a page."""

    NOT = "it is given back, and read again"
    WITHOUT_HELD = "without what was left out of the page before and is held since"
    AS_IT_IS = "as it was divided"


@dataclass(eq=False)
class Standing:
    """Where one lane stands."""

    number: int
    serial: int = field(default_factory=partial(next, count(1)))
    """Of two workers for one lane, the later made has the higher one, whichever's thread comes first."""
    session: int = 0
    """The number of this readiness. The lane gets a new one, which no lane had before, at each takeover and each
    failure. So a late read can be recognised and thrown away."""
    submitted: int = 0
    """The last batch committed."""
    acknowledged: int = 0
    """The last batch known to be purged."""
    count: int = 0
    """The lane count with which it was taken over."""
    change: int = 0
    """The number of the change that led to it."""
    server: str = ""
    """The server that has shown count and change."""
    left_out: int = 0
    """How often it has left records out of a batch: what was dealt out before is looked at once more."""
    region: Region[Stand, Told] = field(default_factory=lambda: Region(STAND))
    purges: Region[LanePurges, LanePurged] = field(default_factory=lambda: Region(LANE_PURGES))

    @property
    def ready(self) -> bool:
        """It is read for."""
        return self.region.state in (Stand.READY, Stand.AT_WORK)

    @property
    def is_at_work(self) -> bool:
        return self.region.state in (Stand.AT_WORK, Stand.FINISHING)

    @property
    def is_leaving(self) -> bool:
        return self.region.state is Stand.LEAVING

    @property
    def unpurged(self) -> bool:
        """Rows that were sent are perhaps in the table."""
        return self.acknowledged < self.submitted

    @property
    def is_being_purged(self) -> bool:
        return self.unpurged and self.purges.state is LanePurges.REPEATED

    def is_outdated(self, state: StateRow) -> bool:
        """Whether the lane is to be taken over anew: it is closed, or was taken over before a change of the count, or
        knows of one that this server has forgotten. Lane 0 also when a change is requested, for its owner carries it
        out."""
        if state.resize_to is not None or (self.count, self.change) != (state.lane_count, state.resize_no):
            return True
        return state.wanted is not None and self.number == 0

    def begin(self, batch: int) -> None:
        """Taken over: `batch` was the last one committed and purged."""
        self.region.on(Told.TAKEN_OVER)
        self.submitted = self.acknowledged = batch
        self.purges.on(LanePurged.TAKEN_OVER)
        self.session = next(_SESSIONS)

    def divided(self, state: StateRow, server: str) -> None:
        """By that count, as this server has shown it."""
        self.count, self.change, self.server = state.lane_count, state.resize_no, server

    def committed(self, batch: int) -> None:
        self.submitted = batch

    def leaves_out(self) -> None:
        self.left_out += 1

    def expects(self, session: int) -> bool:
        """Whether what was said for that session is still meant."""
        return self.session == session

    def may_have(self, session: int) -> bool:
        """Whether a share of that session can be handed over."""
        return self.ready and self.session == session

    def taking(self, session: int, left_out: int) -> Taking:
        """Of a share of that session; when its page was divided, the lane had left records out so often."""
        if not self.may_have(session):
            return Taking.NOT
        return Taking.AS_IT_IS if self.left_out == left_out else Taking.WITHOUT_HELD

    def dealt(self) -> None:
        self.region.on(Told.DEALT)

    def has(self, session: int) -> bool:
        """Whether it is at work on its share of that session: not so when its worker was replaced, or has failed."""
        return self.is_at_work and self.session == session

    def share_ended(self) -> None:
        self.region.on(Told.SHARE_ENDED)

    def recall(self) -> bool:
        """Whether its worker is to be told so."""
        if self.ready:
            self.region.on(Told.RECALLED)
            return True
        return False

    def end(self) -> None:
        """Nothing more is read for the lane until it begins again, and a share that it has is given up."""
        self.region.on(Told.FAILED)
        self.session = next(_SESSIONS)

    def leave(self) -> None:
        self.region.on(Told.LEAVES)

    def purged(self, batch: int) -> None:
        self.acknowledged = max(self.acknowledged, batch)

    def stopped(self) -> None:
        """A batch cannot be purged, and nothing is tried any more."""
        self.purges.on(LanePurged.REFUSED)
        self.recall()

    def judge(self, plan: Plan, purged: int, server: str) -> GoOn | AskElection | Stop | Stale | Elsewhere:
        """Whether the lane's share of a page may be sent, by m as the page of this server shows it. Another server may
        know another count of lanes, as one that has taken over from before a change of it."""
        if self.server != server:
            return Elsewhere()
        if plan.sessions.get(self.number) != self.session:
            return Stale()
        return round_check(self.number, purged, plan.acknowledged[self.number], self.submitted or None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one read may rely on, copied before it is sent."""

    sessions: dict[int, int]
    acknowledged: dict[int, int]
    flights: tuple[Sequence[int], ...]
    limit: int
    """Rows of the page."""
    files: frozenset[int] = frozenset()
    """From which those in flight were read."""
    count: int = 1
    """Of lanes: by which the records are divided."""

    @property
    def lanes(self) -> tuple[int, ...]:
        return tuple(self.sessions)

    def fits(self, filenode: int) -> bool:
        """Whether what a read of this file left out are the rows in flight: after a TRUNCATE their ids may have been
        drawn again, for records that later ones would overtake."""
        return self.files <= {filenode}

    def excluded_above(self, look: int) -> Sequence[int]:
        """Ids in flight that the read would meet, ascending."""
        found = [ids if ids[0] > look else [i for i in ids if i > look] for ids in self.flights if ids[-1] > look]
        return found[0] if len(found) == 1 else sorted(id_ for ids in found for id_ in ids)


class Flights:
    """The batches of all lanes of a process whose rows must not be read."""

    def __init__(self) -> None:
        self._batches: dict[Share, int | None] = {}  # with their numbers, once committed

    def plan(self, lanes: Iterable[Standing], limit: int, count: int = 1) -> Plan:
        """`limit`: the rows that one lane may have of a page."""
        ready = [lane for lane in lanes if lane.ready]
        sessions = {lane.number: lane.session for lane in ready}
        flying = [share for share in self._batches if share.lane in sessions]
        return Plan(
            sessions,
            {lane.number: lane.acknowledged for lane in ready},
            # Of the others nothing is read, and what they had in flight may be another lane's by now: the lane count
            # has changed, or a lagging copy draws ids a second time. Left out, it would be overtaken.
            tuple(share.ids for share in flying if share.ids),
            int(limit * min(len(ready), SHARES_OF_A_PAGE_MAX)),
            frozenset(share.filenode for share in flying),
            count,
        )

    def may_read(self, lanes: Iterable[Standing], *, is_connected: bool) -> bool:
        """A new connection may lead to a server that draws ids in flight a second time, for records of any lane. Left
        out, those would be overtaken by later ones of their key: first nothing is in flight any more."""
        ready = {lane.number for lane in lanes if lane.ready}
        return bool(ready) and (is_connected or not any(share.lane in ready for share in self._batches))

    def add(self, share: Share) -> None:
        self._batches[share] = None

    def give_back(self, share: Share) -> None:
        """It was never handed to its lane."""
        self._batches.pop(share, None)

    def committed(self, share: Share, batch: int) -> None:
        if share in self._batches:
            self._batches[share] = batch

    def purged(self, lane: int, batch: int) -> None:
        """By number, not by ids: ids may be drawn a second time while a purge is repeated."""
        self._drop([s for s, number in self._batches.items() if s.lane == lane and number and number <= batch])

    def forget(self, lane: int) -> None:
        """The lane was taken over, which has settled its batches; or it is left, and nobody here reads for it."""
        self._drop([share for share in self._batches if share.lane == lane])

    def _drop(self, shares: Iterable[Share]) -> None:
        for share in shares:
            del self._batches[share]

    def count(self, lane: int) -> int:
        return sum(len(share.ids) for share in self._batches if share.lane == lane)
