"""Where the next read of the outbox must begin, so that it is complete and never walks dead rows twice.

Ids are drawn in one order and become visible in another: a transaction may draw id 7, idle for an hour and commit
behind a reader that has reached id 9,000,000. A cursor (``id > last``) overtakes it, and with it the order of its
key. Reading from one settled mark stalls behind every open transaction of the cluster. This module remembers
instead, for each transaction that was unfinished, a bound below which it cannot have drawn ids, and looks back only
when such a transaction has ended.

It is complete because
- a writer has its transaction id before it draws an id (the guarded column default) and ids are drawn in increasing
  order (a sequence with CACHE 1), so a transaction whose xid was not yet assigned when the next xid was read draws
  only ids above everything drawn before that moment;
- a row that this snapshot shows and the previous one did not belongs to a transaction that was unfinished then and
  has ended since (``missed_from`` finds it) or to one that began later (its ids lie above every bound);
- everything else visible was returned before, or lies above the point from which this read began.

Only arithmetic belongs here: the statement that reads snapshot, sequence and rows together lives at the edge. Ids
that were sent and are not yet purged are excluded by the caller; a hold's rows are read, dropped and handed back by
their lowest id.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

LOOK_BACK_IDS = 20_000
"""How far back an unfinished transaction lowers the start of a read before it has ended: cheaper than reading
twice."""

GENERATIONS_MAX = 512
"""Bounds remembered at once; thinning them only lowers the bound of the transactions in between."""

_GENERATIONS_KEPT_RECENT = 256


class SnapshotError(ValueError):
    """The server's snapshot text or transaction age is not what every supported PostgreSQL returns."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one statement saw: all xids are 64 bits wide, so they never wrap."""

    running: tuple[int, ...]
    """Transactions below ``xmax`` that had not ended."""
    xmax: int
    """The last *completed* xid + 1. Transactions at or above it may well be running: it is not the next xid."""
    next_xid: int
    """The first xid that was not yet assigned a moment after the snapshot."""


def next_xid(xmax: int, age: int) -> int:
    """The 64-bit next xid from a snapshot's xmax and ``age('3'::xid)``, which is the next xid's low half minus 3,
    signed.

    The next xid is never below xmax and never 2^32 above it, so the low halves alone decide the distance.
    """
    return xmax + ((age + 3 - xmax) & 0xFFFFFFFF)


def parse_snapshot(text: str, age: int) -> Snapshot:
    """Read ``pg_current_snapshot()::text``, that is ``xmin:xmax:xip,xip,…``, beside ``age('3'::xid)`` of the
    statement."""
    try:
        _, xmax_text, running_text = text.split(":")
        xmax = int(xmax_text)
        running = tuple(map(int, running_text.split(","))) if running_text else ()
    except ValueError:
        raise SnapshotError(
            f"PostgreSQL returned {text!r} from pg_current_snapshot(), instead of 'xmin:xmax:xip,...' with whole "
            "numbers. Check that the connection reaches PostgreSQL 13 or later directly."
        ) from None
    return Snapshot(running, xmax, next_xid(xmax, age))


class Frontier:
    """One reader's knowledge of what may still appear. Per read: ``start``, read, ``missed_from``, deliver,
    ``accept``."""

    def __init__(self, look_back_ids: int = LOOK_BACK_IDS) -> None:
        self._look_back_ids = look_back_ids
        self._sequence = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next read begins at 0. At the start, and whenever a lane joins the scan."""
        self._highest = 0  # the highest id read that the sequence had drawn
        self._read_to = 0  # everything visible up to here has been returned
        # Generation i: a transaction with xid ≥ _xids[i] draws only ids > _floors[i].
        self._xids = [0]
        self._floors = [0]
        self._last: Snapshot | None = None

    @property
    def read_to(self) -> int:
        """Every visible row up to this id has been returned: the upper end of the sweep's duty."""
        return self._read_to

    def _floor(self, xid: int) -> int:
        return self._floors[bisect_right(self._xids, xid) - 1]

    def start(self) -> int:
        """The id above which to read next, if nothing older has ended in between.

        Bounds of unfinished transactions nearby are included, as they are the likely ones to end: one read instead
        of two. A bound further back would walk the dead rows since then on every poll, so it waits until its
        transaction has ended.
        """
        last = self._last
        if last is None:
            return 0
        floors = [self._floor(xid) for xid in last.running]
        if last.xmax < last.next_xid:
            floors += [self._floor(last.xmax), self._floor(last.next_xid - 1)]
        nearby = max(self._highest, self._read_to) - self._look_back_ids
        return min([self._read_to, *(floor for floor in floors if floor >= nearby)])

    def missed_from(self, look: int, snapshot: Snapshot, sequence: int) -> int | None:
        """None: the read that began above ``look`` is complete. Else throw its rows away and read again above the
        answer."""
        last = self._last
        if last is None:
            return None
        if sequence < self._sequence:  # RESTART IDENTITY or setval backwards: ids are drawn a second time
            self.reset()
            self._sequence = sequence
            return 0
        bound = min([self._read_to, *map(self._floor, self._ended(last, snapshot))])
        return bound if bound < look else None

    @staticmethod
    def _ended(last: Snapshot, now: Snapshot) -> list[int]:
        """Transactions unfinished at ``last`` that have ended by ``now``; of those above last's xmax only the
        oldest."""
        running = set(now.running)
        ended = [xid for xid in last.running if xid < now.xmax and xid not in running]
        for xid in range(last.xmax, min(last.next_xid, now.xmax)):
            if xid not in running:
                ended.append(xid)
                break  # bounds rise with the xid, so the oldest one has the lowest
        return ended

    def accept(
        self, last_id: int | None, page_full: bool, snapshot: Snapshot, sequence: int, *, passes_over: bool = False
    ) -> None:
        """Take note of a complete read: the id of its last row (None: no row) and whether its LIMIT was reached.

        `passes_over`: the server left out what somebody else reads or what is held. Such rows raise no id that is read,
        and would be walked again by every poll: what was drawn before this read counts as looked at. Without them the
        last row is bound enough, and a lower one finds more of what writers do that break the rules.
        """
        # The *previous* sequence value was drawn before this next xid was read; this one may have been drawn after it.
        # A lower one now is that of another sequence, and then nothing is known of what was drawn before.
        drawn = self._sequence if self._sequence <= sequence else 0
        if last_id is not None:
            # An id that the sequence never drew (set by hand) must not lift the frontier over the ids still to be
            # drawn.
            self._highest = max(self._highest, min(last_id, sequence))
        if page_full and last_id is not None:
            self._read_to = min(last_id, sequence)
        else:
            self._read_to = max(self._highest, drawn) if passes_over else self._highest
        self._last = snapshot
        self._add_generation(snapshot.next_xid, max(self._highest, drawn))
        self._sequence = sequence
        self._prune(min([snapshot.xmax, *snapshot.running]))

    def _add_generation(self, xid: int, floor: int) -> None:
        if floor > self._floors[-1] and xid > self._xids[-1]:
            self._xids.append(xid)
            self._floors.append(floor)

    def _prune(self, oldest_unfinished: int) -> None:
        obsolete = bisect_right(self._xids, oldest_unfinished) - 1
        del self._xids[:obsolete], self._floors[:obsolete]
        if len(self._xids) > GENERATIONS_MAX:
            thinned = slice(1, -_GENERATIONS_KEPT_RECENT, 2)
            del self._xids[thinned], self._floors[thinned]

    def give_back(self, ids: Iterable[int]) -> None:
        """These ids were returned and are to be returned again: an aborted batch, or the lowest id of a released
        hold."""
        self._read_to = min([self._read_to, *(id_ - 1 for id_ in ids)])
