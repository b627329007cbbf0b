"""What of each lane is under way: read and not yet committed, committed and not yet purged; and so what the next read
leaves out, whether a page's share may follow, and what proves that it was flushed.

A batch is in flight from the moment that it was dealt to its lane until its rows are purged, or until the lane was
taken over again: only then does the ledger tell what became of it. A read *plans* first, which copies the ids in
flight, and looks at the table then; the other way round a purge that ends in between would let its rows be sent twice.

Pure: the rounds of a process keep these objects under one lock, the simulation drives them without any.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from .verdict import AskElection, GoOn, Stop, round_check

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
        """Ascending; a batch of errands has none."""

    @property
    def filenode(self) -> int:
        """The file of the table from which it was read."""


@dataclass(eq=False)
class Standing:
    """Where one lane stands."""

    number: int
    session: int = 0
    """Another one whenever the lane becomes ready or ceases to be, and never one that any lane had before: a read that
    hung while the lane went elsewhere and came back belongs to another time than this."""
    ready: bool = False
    submitted: int = 0
    """The last batch committed."""
    acknowledged: int = 0
    """The last batch known to be purged."""

    @property
    def unpurged(self) -> bool:
        return self.acknowledged < self.submitted

    def begin(self, batch: int) -> None:
        """Taken over: `batch` was the last one committed and purged."""
        self.submitted = self.acknowledged = batch
        self.session = next(_SESSIONS)
        self.ready = True

    def end(self) -> None:
        """Nothing more is read for the lane until it begins again."""
        self.ready = False
        self.session = next(_SESSIONS)

    def purged(self, batch: int) -> None:
        self.acknowledged = max(self.acknowledged, batch)

    def stopped(self) -> None:
        """A batch cannot be purged, and nothing is tried any more."""
        self.submitted = self.acknowledged
        self.ready = False

    def judge(self, plan: "Plan", purged: int) -> GoOn | AskElection | Stop | None:
        """By m as the page shows it: whether the lane's share of the page may be sent. None: it was read for another
        time than this one."""
        if plan.sessions.get(self.number) != self.session:
            return None
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
            # Of the others nothing is read, and what they had in hand may be another lane's by now: the lane count
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


def may_flush(submitted_at: float, returned_at: float) -> bool:
    """Whether a purge can take the place of the flush: it was sent after the read had returned. Whether it did, only
    its outcome tells."""
    return submitted_at >= returned_at


def has_flushed(flushed_since: float | None, asked_at: float) -> bool:
    """Whether what a read sent at `asked_at` has shown is on the server's disk: by a purge that moved its batch at the
    first attempt, over a connection that stood since `flushed_since`, at the latest when the read was sent."""
    return flushed_since is not None and flushed_since <= asked_at
