"""Classic mark, purge, reset (MP/R) for one lane and one term of leadership: what to mark, send, purge, and when to
begin again.

Theory of operation
-------------------
Rows are marked with the leader id in id order, sent, and purged when acknowledged. At most one record per (topic,
key) is undecided: from the moment it may be sent until its purge has committed. Its successors wait in bounded
buffers (per key and per shard); what finds no room there is *deferred*: the row stays marked, only its id is kept,
and it is fetched by id when its turn comes. So a stalled key costs ids, not payloads, and never blocks the marking of
others; beyond `deferred_max` ids the keys that defer are excluded from the mark query.

A failed record is deferred at the head of its key, which sleeps until its retry: an outage costs no attempt, a
refusal counts one and holds the key with growing backoff. Other keys flow on, and the window slot is free.

Doubt (a mark of unknown outcome, rows that vanished, rows marked and not known, a report that never came) is answered
by one thing, the **forced remark**: what was not sent is forgotten, what is in flight is decided or dropped with its
producers (within `drain_timeout_s`), the election gives a new leader id, the lane is claimed anew, and every row is
eligible again, in id order. Rows acknowledged and not yet known to be purged are remembered: marked again, they are
purged unsent.

Protocol for the edge (one thread owns the object; `now` is time.monotonic(), read once per turn)
-------------------------------------------------------------------------------------------------
Create on LeaderAcquired. Each turn: report all outcomes, then carry out the effects of `tick(now, may_send=...)`, in
order. Sleep until `wake_at()` or an outcome. `may_send` is the election's trust, asked in that same turn; a turn that
took long asks again before it produces.

- `Claim` → `claimed` | `claim_failed` | `claim_refused`. On a new session for marks: under a transaction-level
  advisory lock of the lane, look at the owners present (session advisory locks carrying lane and epoch): a higher
  epoch than ours → refused; else terminate those other sessions, wait until they are gone, and hold our own. From
  then on a mark of an older owner, or an earlier one of ours that was under way, can not take effect.
- `Mark` (only on the claimed session) → `marked(rows)` | `mark_failed`. Any error is "outcome unknown", and the
  session is closed.
- `Fetch` → `fetched(rows)` | `fetch_failed`; `Sweep` → `swept(ids)` | `sweep_failed`; `Purge` → `purged(ids deleted)`
  | `purge_failed`; `Reset` → `reset_done` | `reset_failed`. All guarded by `leader_id = ` the effect's; any session
  will do. Every statement has a time-out. They may run side by side.
- `Send`: produce in the order given, on the producer of that shard and generation, then report per record, once:
  `acknowledged` | `undelivered` (outage, time-out, local queue full, trust lost) | `refused` (this record can not be
  sent).
- `DropProducers`: nothing of an older generation may reach the wire any more. Late reports of it are ignored here.
- `RefreshLeader` → neli.refresh → `refreshed(leader_id)`. `Superseded` → neli.step_down.
- FinishBatch → `finish(now, deadline)`; `Finished` → neli.released. LeaderFenced, AbandonBatch → carry out
  `abandon()`, forget the object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush
from types import MappingProxyType
from uuid import UUID
from zlib import crc32

from outbox.core.at_least_once.values import (
    Claim,
    DeadlineExceeded,
    DropProducers,
    Effect,
    Fetch,
    Finished,
    KeyName,
    Limits,
    Mark,
    NotPurged,
    Purge,
    Record,
    RecordHeld,
    RefreshLeader,
    RemarkRequested,
    Reset,
    Send,
    Statistics,
    Superseded,
    Sweep,
)
from outbox.core.holds.values import pause_s
from outbox.core.names import held_key

_NEVER = float("inf")


class Phase(Enum):
    CLAIMING = "claiming"
    RUNNING = "running"
    DRAINING = "draining"
    REFRESHING = "refreshing"
    FINISHING = "finishing"
    ENDED = "ended"


class _Key:
    """One unit of order with records here. `busy`: one of them is ready, in flight, being purged or fetched as next."""

    __slots__ = ("busy", "deferred", "fetching", "name", "outages", "shard", "until", "wait_since", "waiting", "warned")

    def __init__(self, name: KeyName, shard: int) -> None:
        self.name = name
        self.shard = shard
        self.busy = False
        self.fetching = 0
        self.until = 0.0  # asleep until then; 0: awake
        self.outages = 0
        self.waiting: deque[Record] | None = None
        self.deferred: deque[int] | None = None
        self.wait_since = 0.0
        self.warned = False


class _Hold:
    __slots__ = ("attempts", "id", "until")

    def __init__(self, id_: int, attempts: int, until: float) -> None:
        self.id = id_
        self.attempts = attempts
        self.until = until


class Scoreboard:
    """The records of one lane in one term of leadership."""

    def __init__(
        self, leader_id: UUID, epoch: int, limits: Limits, now: float, *, keep_empty_key: bool = False
    ) -> None:
        self._leader_id = leader_id
        self._epoch = epoch
        self._limits = limits
        self._keep_empty_key = keep_empty_key
        self._phase = Phase.CLAIMING
        self._generation = 0
        self._ticket = 0
        self._pending: dict[str, int] = {}  # statement → its ticket
        self._due = {"claim": now, "mark": now, "fetch": now, "purge": now, "reset": now}
        self._sweep_at = now + limits.sweep_interval_s
        self._check_at = now
        self._mark_backoff_s = limits.mark_backoff_min_s
        self._lanes = 1
        self._mark_limit = 0
        self._mark_excluded = False
        self._deadline = _NEVER  # of draining or finishing
        self._reason = ""
        self._events: list[Effect] = []

        self._keys: dict[KeyName, _Key] = {}
        self._where: dict[int, _Key] = {}  # every tracked id
        self._ready: deque[Record] = deque()
        self._flight: dict[int, tuple[Record, float]] = {}  # sent, in the order of sending
        self._acked: dict[int, Record] = {}  # to be purged
        self._purging: dict[int, Record] = {}
        self._purge_again = False
        self._resets: list[int] = []
        self._resetting: list[int] = []
        self._buffered = [0] * limits.shards
        self._deferred = 0
        self._hungry: dict[KeyName, _Key] = {}
        self._fetching: list[tuple[_Key, list[int]]] = []
        self._timers: list[tuple[float, int, KeyName]] = []
        self._holds: dict[KeyName, _Hold] = {}
        self._delivered: dict[int, Record] = {}  # acknowledged under an earlier leader id, purge unknown
        self._gone_since_sweep: dict[int, None] = {}
        self._large: dict[int, int] = {}  # bytes of the large records that are here
        self._large_bytes = 0
        self._totals = dict.fromkeys(("marked", "acknowledged", "purged", "undelivered", "refused", "remarks"), 0)

    # ---- what others may ask

    @property
    def leader_id(self) -> UUID:
        return self._leader_id

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def in_flight(self) -> int:
        """Sent and not yet purged."""
        return len(self._flight) + len(self._acked) + len(self._purging)

    def in_flight_keys(self) -> list[KeyName]:
        return [self._where[i].name for part in (self._flight, self._acked, self._purging) for i in part]

    def statistics(self) -> Statistics:
        t = self._totals
        return Statistics(
            in_flight=self.in_flight,
            ready=len(self._ready),
            buffered=sum(self._buffered),
            deferred=self._deferred,
            held=len(self._holds),
            marked_total=t["marked"],
            acknowledged_total=t["acknowledged"],
            purged_total=t["purged"],
            undelivered_total=t["undelivered"],
            refused_total=t["refused"],
            remarks_total=t["remarks"],
        )

    def wake_at(self) -> float:
        """When `tick` has something to do at the latest, if nothing is reported before."""
        if self._phase is Phase.ENDED:
            return _NEVER
        times = [self._deadline, self._check_at]
        if self._phase is Phase.CLAIMING and "claim" not in self._pending:
            times.append(self._due["claim"])
        if self._phase is Phase.RUNNING:
            times.append(self._sweep_at)
            if "mark" not in self._pending and self._mark_room() > 0:
                times.append(self._due["mark"])
            if self._timers:
                times.append(self._timers[0][0])
        for name, waiting in (("purge", self._acked or self._purging), ("reset", self._resets or self._resetting)):
            if waiting and name not in self._pending:
                times.append(self._due[name])
        if self._hungry and "fetch" not in self._pending and not self._is_laden:
            times.append(self._due["fetch"])
        return min(times)

    # ---- outcomes of statements

    def claimed(self, ticket: int, now: float) -> None:
        if self._settle("claim", ticket) and self._phase is Phase.CLAIMING:
            self._phase = Phase.RUNNING
            self._due["mark"] = now

    def claim_failed(self, ticket: int, now: float) -> None:
        if self._settle("claim", ticket):
            self._due["claim"] = now + self._limits.io_backoff_s

    def claim_refused(self, ticket: int, now: float) -> None:
        if self._settle("claim", ticket):
            self._due["claim"] = now + self._limits.io_backoff_s
            self._events.append(Superseded(self._leader_id))

    def marked(
        self,
        ticket: int,
        rows: Sequence[Record],
        now: float,
        *,
        left_out: bool = False,
        large: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Rows this leader has just marked, in any order. `left_out`: others may be there that were passed over.
        `large`: bytes of those that are not small."""
        if not self._settle("mark", ticket):
            return
        if self._phase is Phase.FINISHING:
            self._resets += [row.id for row in rows if row.id not in self._where]
        if self._phase is not Phase.RUNNING:
            return
        self._totals["marked"] += len(rows)
        self._pace_marks(len(rows), now)
        for row in sorted(rows, key=_by_id):
            if self._take(row, now) and row.id in large:
                self._weigh(row.id, large[row.id])
        if not (rows or left_out or self._mark_excluded):
            # Every row there was has been seen under this leader id. A short mark shows less: one ends early when its
            # values are large.
            self._delivered.clear()

    def mark_failed(self, ticket: int, now: float) -> None:
        if self._settle("mark", ticket):
            self._due["claim"] = now + self._limits.io_backoff_s
            self._remark("mark-failed", now)

    def fetched(
        self,
        ticket: int,
        rows: Sequence[Record],
        now: float,
        *,
        left: Collection[int] = (),
        large: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """`left`: rows that are there, and would have been too many bytes beside the others, which have lower ids."""
        if not self._settle("fetch", ticket):
            return
        found = {row.id: row for row in rows}
        batch, self._fetching = self._fetching, []
        missing, unread = False, frozenset(left)
        for key, ids in batch:
            for id_ in ids:
                if id_ in large:
                    self._weigh(id_, large[id_])
            if unread.intersection(ids):
                ids = self._leave(key, ids, unread)
            if ids:
                missing |= self._serve(key, ids, found, now)
        if missing:
            self._remark("rows-taken", now)

    def fetch_failed(self, ticket: int, now: float) -> None:
        if not self._settle("fetch", ticket):
            return
        self._due["fetch"] = now + self._limits.io_backoff_s
        batch, self._fetching = self._fetching, []
        for key, ids in batch:
            self._unfetch(key, ids)

    def purged(self, ticket: int, ids: Sequence[int], now: float) -> None:
        """`ids` were deleted by this statement. The others of the batch were gone, or are no longer mine."""
        if not self._settle("purge", ticket):
            return
        batch, self._purging = self._purging, {}
        self._totals["purged"] += len(ids)
        if "sweep" in self._pending:
            self._gone_since_sweep.update(dict.fromkeys(batch))
        for id_ in batch:
            self._release(id_, now)
        first_try, self._purge_again = not self._purge_again, False
        if len(ids) < len(batch) and first_try:
            deleted = dict.fromkeys(ids)
            self._events.append(NotPurged(tuple(i for i in batch if i not in deleted)))
            self._remark("rows-taken", now)

    def purge_failed(self, ticket: int, now: float) -> None:
        """Outcome unknown: the same batch again. Its guard makes that harmless."""
        if self._settle("purge", ticket):
            self._purge_again = True
            self._due["purge"] = now + self._limits.io_backoff_s

    def reset_done(self, ticket: int, now: float) -> None:
        if self._settle("reset", ticket):
            self._resetting = []

    def reset_failed(self, ticket: int, now: float) -> None:
        if self._settle("reset", ticket):
            self._due["reset"] = now + self._limits.io_backoff_s

    def swept(self, ticket: int, ids: Iterable[int], now: float) -> None:
        """Rows marked by me that nobody here knows (a result that was cut short) are taken up by a remark."""
        if not self._settle("sweep", ticket):
            return
        gone, self._gone_since_sweep = self._gone_since_sweep, {}
        if any(i not in self._where and i not in gone for i in ids):
            self._remark("stray-rows", now)

    def sweep_failed(self, ticket: int, now: float) -> None:
        if self._settle("sweep", ticket):
            self._gone_since_sweep = {}

    # ---- delivery reports

    def acknowledged(self, generation: int, ids: Iterable[int], now: float) -> None:
        if generation != self._generation or self._phase is Phase.ENDED:
            return
        pop, acked, before = self._flight.pop, self._acked, len(self._acked)
        for id_ in ids:
            entry = pop(id_, None)
            if entry is not None:
                acked[id_] = entry[0]
        self._totals["acknowledged"] += len(acked) - before

    def undelivered(self, generation: int, ids: Iterable[int], now: float) -> None:
        """An outage: no attempt is spent; each key tries again by itself."""
        if generation != self._generation or self._phase is Phase.ENDED:
            return
        low, high = self._limits.outage_backoff_min_s, self._limits.outage_backoff_max_s
        for id_ in ids:
            if self._flight.pop(id_, None) is None:
                continue
            key = self._where[id_]
            self._totals["undelivered"] += 1
            key.outages += 1
            self._set_back(key, id_, now + pause_s(key.outages, low, high))

    def refused(self, generation: int, refusals: Iterable[tuple[int, str]], now: float) -> None:
        """These records can not be sent as they are: (id, error). Each holds back its own key."""
        if generation != self._generation or self._phase is Phase.ENDED:
            return
        low, high = self._limits.refusal_backoff_min_s, self._limits.refusal_backoff_max_s
        for id_, error in refusals:
            if (entry := self._flight.pop(id_, None)) is None:
                continue
            key = self._where[id_]
            hold = self._holds.get(key.name)
            attempts = hold.attempts + 1 if hold and hold.id == id_ else 1
            until = now + pause_s(attempts, low, high)
            self._holds[key.name] = _Hold(id_, attempts, until)
            self._totals["refused"] += 1
            self._events.append(RecordHeld(id_, key.name, attempts, until, error, entry[0].kafka_topic))
            self._set_back(key, id_, until)

    # ---- what operators say about held records

    def remark(self, reason: str, now: float) -> None:
        """Begin again with the marks: what is not sent is given up, what is sent is decided first."""
        self._remark(reason, now)

    def expect(self, id_: int, name: KeyName, attempts: int, until: float) -> None:
        """An earlier leader was refused this record, which is tried again at `until`."""
        if name not in self._holds and name not in self._keys:
            self._holds[name] = _Hold(id_, attempts, until)

    def knows(self, id_: int) -> bool:
        """Whether the record is in hand, in whatever state."""
        return id_ in self._where

    def is_asleep(self, id_: int) -> bool:
        """Whether the record is the refused head of a key that waits for its next attempt."""
        key = self._where.get(id_)
        return bool(key is not None and key.until and key.deferred and key.deferred[0] == id_)

    def retry(self, id_: int, at: float) -> None:
        """Try a sleeping record again at this time; infinity: not before this is called again, or a remark."""
        if self._phase is Phase.RUNNING and self.is_asleep(id_):
            key = self._where[id_]
            if key.name in self._holds and at < _NEVER:  # a hold outlasts a remark, and with it who would call again
                self._holds[key.name].until = at
            self._sleep(key, at)

    def gone(self, ids: Iterable[int], now: float) -> None:
        """These held records were deleted on purpose: their keys go on, also where a remark has come between and only
        successors sleep on their account."""
        deleted = dict.fromkeys(ids)
        for name in [name for name, hold in self._holds.items() if hold.id in deleted]:
            del self._holds[name]
            key = self._keys.get(name)
            if key is not None and key.until:
                self._sleep(key, now)
        for id_ in deleted:
            if not self.is_asleep(id_):
                continue
            key = self._where.pop(id_)
            assert key.deferred is not None
            key.deferred.popleft()
            self._deferred -= 1
            self._sleep(key, now)

    # ---- the term turns

    def hint(self, now: float) -> None:
        """New rows are there, for instance by NOTIFY."""
        self._mark_backoff_s = self._limits.mark_backoff_min_s
        self._due["mark"] = min(self._due["mark"], now)

    def refreshed(self, leader_id: UUID, now: float) -> None:
        if self._phase is Phase.REFRESHING:
            self._leader_id = leader_id
            self._phase = Phase.CLAIMING

    def finish(self, now: float, deadline: float) -> None:
        """Stop, or revocation: start nothing, decide what is in flight, give back the rest."""
        if self._phase in (Phase.FINISHING, Phase.ENDED):
            return
        self._resets += [i for i in self._forget_unsent() if i not in self._resetting]
        self._phase, self._deadline = Phase.FINISHING, deadline

    def abandon(self) -> list[Effect]:
        """Fenced, or the deadline of finishing has passed: nothing is sent any more. The purge is a last courtesy to
        the successor (fewer repeats); its guard makes it harmless, and nobody waits for its outcome."""
        if self._phase is Phase.ENDED:
            return []
        self._phase = Phase.ENDED
        self._generation += 1
        effects: list[Effect] = [DropProducers(self._generation)]
        ids = tuple(self._purging) + tuple(self._acked)
        if ids:
            effects.append(Purge(self._next_ticket("purge"), self._leader_id, ids))
        self._pending.clear()
        return effects

    def tick(self, now: float, *, may_send: bool = True, lanes: int = 1) -> list[Effect]:
        """What is to be done now. The lanes of one process share what idle marks may cost: each pauses longer."""
        self._lanes = lanes
        if self._phase is Phase.ENDED:
            return []
        if now >= self._check_at:
            self._check_deadlines(now)
        effects: list[Effect] = []
        self._purge(effects, now)
        if self._phase is Phase.RUNNING:
            self._wake_sleepers(now)
            if may_send:
                self._send(effects, now)
                self._fetch(effects, now)
                self._sweep(effects, now)
                self._mark(effects, now)
        elif self._phase is Phase.CLAIMING:
            if may_send and now >= self._due["claim"] and "claim" not in self._pending:
                effects.append(Claim(self._next_ticket("claim"), self._leader_id, self._epoch))
        elif self._phase is Phase.DRAINING:
            self._drain(effects, now)
        elif self._phase is Phase.FINISHING:
            self._finish(effects, now)
        if self._events:
            effects, self._events = self._events + effects, []
        return effects

    # ---- effects of a tick

    def _purge(self, effects: list[Effect], now: float) -> None:
        if "purge" in self._pending or now < self._due["purge"]:
            return
        if not self._purging and self._acked:
            if len(self._acked) <= self._limits.purge_max:
                self._purging, self._acked = self._acked, {}
            else:
                for id_ in list(self._acked)[: self._limits.purge_max]:
                    self._purging[id_] = self._acked.pop(id_)
        if self._purging:
            effects.append(Purge(self._next_ticket("purge"), self._leader_id, tuple(self._purging)))

    def _send(self, effects: list[Effect], now: float) -> None:
        count = min(len(self._ready), self._limits.in_flight_max - self.in_flight)
        if count <= 0:
            return
        by_shard: list[list[Record]] = [[] for _ in range(self._limits.shards)]
        next_ready, flight, where = self._ready.popleft, self._flight, self._where
        for _ in range(count):
            record = next_ready()
            id_ = record.id
            flight[id_] = (record, now)
            by_shard[where[id_].shard].append(record)
        effects += [Send(self._generation, shard, records) for shard, records in enumerate(by_shard) if records]

    def _fetch(self, effects: list[Effect], now: float) -> None:
        """Bring back deferred rows of keys whose turn has come, as many as there is room for."""
        if not self._hungry or "fetch" in self._pending or now < self._due["fetch"] or self._is_laden:
            return
        ids: list[int] = []
        slots = self._window_room()
        for name, key in list(self._hungry.items()):
            if len(ids) >= self._limits.mark_max:
                break
            taken = self._fetch_of(key, min(self._limits.mark_max - len(ids), self._limits.key_buffer_max), slots)
            if taken:
                slots -= not key.busy
                key.busy, key.fetching = True, len(taken) if key.busy else -len(taken)
                self._fetching.append((key, taken))
                ids += taken
                del self._hungry[name]
        if ids:
            effects.append(Fetch(self._next_ticket("fetch"), self._leader_id, tuple(ids)))

    def _fetch_of(self, key: _Key, count: int, slots: int) -> list[int]:
        """The first of an idle key takes a slot of the window, all others places in the buffer of the shard."""
        places = self._limits.shard_buffer_max - self._buffered[key.shard]
        if not key.busy:
            if slots <= 0:
                return []
            places += 1
        assert key.deferred is not None
        count = min(count, places, len(key.deferred))
        taken = [key.deferred.popleft() for _ in range(count)]
        self._deferred -= len(taken)
        self._buffered[key.shard] += max(0, len(taken) - (not key.busy))
        return taken

    def _sweep(self, effects: list[Effect], now: float) -> None:
        """Never beside a mark: its rows would be known to the table before they are known here."""
        if now < self._sweep_at or "sweep" in self._pending or "mark" in self._pending:
            return
        self._sweep_at = now + self._limits.sweep_interval_s
        effects.append(Sweep(self._next_ticket("sweep"), self._leader_id, len(self._where) + self._limits.mark_max))

    def _mark(self, effects: list[Effect], now: float) -> None:
        if now < self._due["mark"] or "mark" in self._pending or "sweep" in self._pending:
            return
        limit = self._mark_room()
        if limit <= 0:
            return
        exclude: tuple[tuple[str, str], ...] = ()
        if self._deferred >= self._limits.deferred_max:
            exclude = tuple(k.name for k in self._keys.values() if k.deferred and isinstance(k.name, tuple))
        self._mark_limit, self._mark_excluded = limit, bool(exclude)
        effects.append(Mark(self._next_ticket("mark"), self._leader_id, limit, exclude))

    def _drain(self, effects: list[Effect], now: float) -> None:
        """Of a forced remark. At the deadline the undecided are dropped with their producers."""
        if (self.in_flight or "mark" in self._pending) and now < self._deadline:
            return
        if self._flight:
            self._generation += 1
            effects.append(DropProducers(self._generation))
        self._delivered.update(self._purging)
        self._delivered.update(self._acked)
        while len(self._delivered) > self._limits.in_flight_max:
            del self._delivered[next(iter(self._delivered))]
        for part in (self._flight, self._purging, self._acked, self._where, self._keys, self._pending):
            part.clear()
        self._lighten(list(self._large))
        self._purge_again = False
        self._phase, self._deadline = Phase.REFRESHING, _NEVER
        effects.append(RefreshLeader(self._reason))

    def _finish(self, effects: list[Effect], now: float) -> None:
        if "reset" not in self._pending and now >= self._due["reset"]:
            if not self._resetting:
                self._resetting, self._resets = (
                    self._resets[: self._limits.purge_max],
                    self._resets[self._limits.purge_max :],
                )
            if self._resetting:
                effects.append(Reset(self._next_ticket("reset"), self._leader_id, tuple(self._resetting)))
        undecided = self.in_flight or self._resets or self._resetting or "mark" in self._pending
        if now >= self._deadline and undecided:
            effects += self.abandon()
        if now >= self._deadline or not undecided:
            self._phase, self._deadline = Phase.ENDED, _NEVER
            effects.append(Finished())

    # ---- leaves

    def _next_ticket(self, statement: str) -> int:
        self._ticket += 1
        self._pending[statement] = self._ticket
        return self._ticket

    def _settle(self, statement: str, ticket: int) -> bool:
        """Whether this outcome is the one awaited; outcomes of forgotten statements change nothing."""
        if self._pending.get(statement) != ticket:
            return False
        del self._pending[statement]
        return True

    def _window_room(self) -> int:
        return self._limits.in_flight_max - self.in_flight - len(self._ready)

    def _mark_room(self) -> int:
        """Room in the window and among the ids; waiting rows do not count against the window, so others are found."""
        if self._is_laden:
            return 0
        limits = self._limits
        hard = limits.deferred_max + limits.shards * limits.shard_buffer_max
        return min(limits.mark_max, self._window_room(), hard - self._deferred - sum(self._buffered))

    @property
    def _is_laden(self) -> bool:
        """What is here must be delivered, or set back, before there is memory for more: it waits for nothing else."""
        return self._large_bytes >= self._limits.bytes_max

    def _weigh(self, id_: int, size: int) -> None:
        self._large_bytes += size - self._large.get(id_, 0)
        self._large[id_] = size

    def _lighten(self, ids: Iterable[int]) -> None:
        """These records are not kept here any more."""
        if self._large:
            self._large_bytes -= sum(self._large.pop(id_, 0) for id_ in ids)

    def _pace_marks(self, found: int, now: float) -> None:
        limits = self._limits
        if found:
            self._mark_backoff_s = limits.mark_backoff_min_s
        self._due["mark"] = now if found >= self._mark_limit else now + self._mark_backoff_s
        if not found:
            self._mark_backoff_s = min(2 * self._mark_backoff_s, limits.mark_backoff_max_s * self._lanes)

    def _key_of(self, row: Record) -> _Key:
        name: KeyName = row.id
        if row.kafka_key or self._keep_empty_key:
            name = row.kafka_topic, held_key(row.kafka_topic, row.kafka_key)
        key = self._keys.get(name)
        if key is None:
            shard = crc32(f"{name}".encode()) % self._limits.shards if self._limits.shards > 1 else 0
            key = self._keys[name] = _Key(name, shard)
            if self._holds and name in self._holds:
                self._sleep(key, self._holds[name].until)
        return key

    def _take(self, row: Record, now: float) -> bool:
        """A row just marked: ready, waiting for its key, or deferred, and then not kept here."""
        id_ = row.id
        if id_ in self._where:
            return False  # taken by another meanwhile, and back: it is still undecided here
        key = self._key_of(row)
        idle = not (key.busy or key.until or key.deferred or key.waiting)
        if self._delivered and self._delivered.get(id_) == row:
            # In Kafka already. Its successors wait for this purge all the same: were one of them sent first, the next
            # leader could still find this row and send it behind them.
            self._acked[id_] = self._delivered.pop(id_)
            self._where[id_] = key if idle else _Key(id_, 0)
            key.busy = True if idle else key.busy
            return True
        self._where[id_] = key
        if idle:
            key.busy = True
            self._ready.append(row)
        elif self._may_wait(key):
            self._wait(key, row, now)
        else:
            self._defer(key, id_)
            return False
        return True

    def _may_wait(self, key: _Key) -> bool:
        if key.deferred or key.until or key.fetching:
            return False
        limits = self._limits
        full = key.waiting is not None and len(key.waiting) >= limits.key_buffer_max
        return not full and self._buffered[key.shard] < limits.shard_buffer_max

    def _wait(self, key: _Key, row: Record, now: float) -> None:
        if not key.waiting:
            key.waiting = key.waiting or deque()
            key.wait_since = now
        key.waiting.append(row)
        self._buffered[key.shard] += 1

    def _defer(self, key: _Key, id_: int) -> None:
        if key.deferred is None:
            key.deferred = deque()
        key.deferred.append(id_)
        self._deferred += 1
        self._look_for_food(key)

    def _look_for_food(self, key: _Key) -> None:
        if key.deferred and not key.until and not key.fetching and not key.waiting:
            self._hungry[key.name] = key

    def _sleep(self, key: _Key, until: float) -> None:
        key.until = until
        self._hungry.pop(key.name, None)
        self._ticket += 1  # breaks ties between equal times
        heappush(self._timers, (until, self._ticket, key.name))

    def _wake_sleepers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, name = heappop(self._timers)
            key = self._keys.get(name)
            if key is not None and key.until and key.until <= now:
                key.until = 0.0
                if key.deferred:
                    self._look_for_food(key)
                elif not key.busy:
                    del self._keys[name]

    def _set_back(self, key: _Key, id_: int, until: float) -> None:
        """The head of the key failed: it and all behind it are deferred in order, and the key sleeps."""
        self._lighten([id_])
        if self._phase is not Phase.RUNNING:
            self._where.pop(id_)
            if self._phase is Phase.FINISHING:
                self._resets.append(id_)
            return
        ids = [id_]
        if key.waiting:
            ids += [row.id for row in key.waiting]
            self._lighten(ids)
            self._buffered[key.shard] -= len(key.waiting)
            key.waiting.clear()
        if key.fetching:
            self._cancel_fetch(key, ids)
        key.deferred = key.deferred or deque()
        key.deferred.extendleft(reversed(ids))
        self._deferred += len(ids)
        key.busy = False
        self._sleep(key, until)

    def _cancel_fetch(self, key: _Key, ids: list[int]) -> None:
        for index, (other, fetching) in enumerate(self._fetching):
            if other is key:
                ids += fetching
                self._buffered[key.shard] -= len(fetching)
                key.fetching = 0
                del self._fetching[index]
                return

    def _serve(self, key: _Key, ids: list[int], found: dict[int, Record], now: float) -> bool:
        """Rows of one key have come back. Whether some are missing: deleted by hand, or taken by another leader."""
        idle, key.fetching = key.fetching < 0, 0
        self._buffered[key.shard] -= len(ids) - idle
        present = [i for i in ids if i in found]
        for id_ in ids:
            if id_ not in found:
                del self._where[id_]
        for id_ in present:
            if idle:
                idle = False
                self._ready.append(found[id_])
            else:
                self._wait(key, found[id_], now)
        if idle:
            self._next(key, now)
        self._look_for_food(key)
        return len(present) < len(ids)

    def _leave(self, key: _Key, ids: list[int], unread: frozenset[int]) -> list[int]:
        """Those that were not read are deferred again; the others."""
        read = [id_ for id_ in ids if id_ not in unread]
        if not read:
            self._unfetch(key, ids)
            return read
        again = [id_ for id_ in ids if id_ in unread]
        assert key.deferred is not None
        key.deferred.extendleft(reversed(again))
        self._deferred += len(again)
        self._buffered[key.shard] -= len(again)
        return read

    def _unfetch(self, key: _Key, ids: list[int]) -> None:
        idle, key.fetching = key.fetching < 0, 0
        self._buffered[key.shard] -= len(ids) - idle
        key.busy = not idle
        key.deferred = key.deferred or deque()
        key.deferred.extendleft(reversed(ids))
        self._deferred += len(ids)
        self._look_for_food(key)

    def _release(self, id_: int, now: float) -> None:
        """A record is purged: its key goes on."""
        key = self._where.pop(id_)
        self._lighten([id_])
        if self._holds:
            hold = self._holds.get(key.name)
            if hold is not None and id_ >= hold.id:
                del self._holds[key.name]
        key.outages = 0
        self._next(key, now)

    def _next(self, key: _Key, now: float) -> None:
        if key.waiting:
            self._ready.append(key.waiting.popleft())
            self._buffered[key.shard] -= 1
            key.wait_since, key.warned = now, False
            if key.deferred:
                self._look_for_food(key)
        elif key.fetching:
            key.fetching = -key.fetching if key.fetching > 0 else key.fetching
            self._buffered[key.shard] -= 1  # its first row will take a slot of the window
        else:
            key.busy = False
            if key.deferred:
                self._look_for_food(key)
            elif not key.until:
                self._keys.pop(key.name, None)

    def _check_deadlines(self, now: float) -> None:
        limits = self._limits
        self._check_at = now + min(limits.queue_timeout_s, limits.delivery_timeout_s) / 4
        for id_, (_, sent_at) in self._flight.items():
            if now - sent_at >= limits.delivery_timeout_s and self._phase is Phase.RUNNING:
                self._events.append(DeadlineExceeded("delivery", self._where[id_].name, now - sent_at))
                self._remark("delivery-deadline", now)
                self._deadline = now
            break  # the first is the oldest
        for key in self._keys.values():
            if key.waiting and not key.warned and now - key.wait_since >= limits.queue_timeout_s:
                key.warned = True
                self._events.append(DeadlineExceeded("queue", key.name, now - key.wait_since))

        forgotten = now - limits.refusal_backoff_max_s  # the refused row was taken away, its key is silent
        for name in [n for n, hold in self._holds.items() if hold.until < forgotten and n not in self._keys]:
            del self._holds[name]

    def _remark(self, reason: str, now: float) -> None:
        if self._phase is not Phase.RUNNING:
            return
        self._totals["remarks"] += 1
        self._events.append(RemarkRequested(reason))
        self._forget_unsent()
        self._phase, self._reason = Phase.DRAINING, reason
        self._deadline = now + self._limits.drain_timeout_s

    def _forget_unsent(self) -> list[int]:
        """Drop everything that was not sent from memory; the ids of it, in order."""
        undecided = {i: self._where[i] for part in (self._flight, self._acked, self._purging) for i in part}
        unsent = sorted(i for i in self._where if i not in undecided)
        self._where = undecided
        self._lighten([id_ for id_ in self._large if id_ not in undecided])
        self._keys = {key.name: key for key in undecided.values()}
        for key in self._keys.values():
            key.waiting = key.deferred = None
            key.fetching, key.until, key.busy = 0, 0.0, True
        self._ready.clear()
        self._hungry.clear()
        self._timers.clear()
        self._fetching = []
        for statement in ("fetch", "sweep"):
            self._pending.pop(statement, None)
        self._gone_since_sweep = {}
        self._buffered = [0] * self._limits.shards
        self._deferred = 0
        return unsent


def _by_id(row: Record) -> int:
    return row.id
