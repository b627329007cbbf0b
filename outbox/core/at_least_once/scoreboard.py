"""Mark, purge, reset (MP/R) for one lane and one term of leadership: which records to mark, send and purge, and when to
begin again.

Theory of operation
-------------------
(This module decides the phases of a term and the order of its statements. `keys` has the queue of one key, `queues`
those of a lane, `window` the records that are sent and not yet purged, `rejections` the rejected ones.)

The lane marks rows with its leader id in id order, sends them, and purges them when Kafka has acknowledged them. At
most one record per (topic, key) is undecided, which it is from the moment it may be sent until its purge has committed.
The records behind it wait in bounded buffers (per key and per shard). A record that does not fit is *deferred*: its row
stays marked, the lane keeps only its id, and fetches the row when its turn comes. So a stalled key costs ids, not
payloads, and never blocks the marking of others. Beyond `deferred_max` ids the mark query leaves out the keys that
defer.

A failed record is deferred at the head of its key, and the key waits until the retry. An outage costs no attempt. A
rejection counts as one and holds the key with growing pauses. Other keys continue, and the record's place in the window
is free.

There is one answer to every doubt (a mark of unknown outcome, rows that vanished, rows marked and not known, a report
that never came): the **forced remark**. The lane forgets what it has not sent. It waits until what is in flight is
decided, or drops that with its producers (within `drain_timeout_s`). The election gives a new leader id, the lane is
taken over again, and every row may be marked again, in id order. The lane remembers rows that Kafka has acknowledged
and that are not known to be purged: when it marks them again, it purges them without sending.

Protocol for the edge (one thread owns the object; `now` is time.monotonic(), read once per turn)
-------------------------------------------------------------------------------------------------
Create on LeaderAcquired. Each turn: report all outcomes, then carry out the effects of `tick(now, may_send=...)`, in
order. Sleep until `wake_at()` or an outcome. `may_send` is the election's trust, asked in that same turn; a turn that
took long asks again before it produces.

- `TakeLane` → `taken` | `take_failed` | `take_refused`. On a new session for marks, and under a transaction-level
  advisory lock of the lane: list the owners that are there (by their session advisory locks, which carry lane and
  epoch). If one has a higher epoch than ours, the lane is refused. Else terminate their sessions, wait until they are
  gone, and take a session lock of our own. From then on no mark of an older owner, and no earlier mark of ours that was
  under way, can take effect.
- `Mark` (only on the session that took the lane) → `marked(rows)` | `mark_failed`. After any error the outcome is
  unknown, and the session is closed.
- `Fetch` → `fetched(rows)` | `fetch_failed`; `Sweep` → `swept(ids)` | `sweep_failed`; `Purge` → `purged(ids deleted)`
  | `purge_failed`; `Reset` → `reset_done` | `reset_failed`. All are guarded by `leader_id = ` the effect's, so any
  session will do. Every statement has a timeout. They may run side by side.
- `Send`: produce in the order given, on the producer of that shard and generation, then report each record once:
  `acknowledged` | `undelivered` (outage, timeout, local queue full, trust lost) | `refused` (this record cannot be
  sent).
- `DropProducers`: nothing of an older generation may be sent any more. Late reports of it are ignored here.
- `RefreshLeader` → neli.refresh → `refreshed(leader_id)`. `LaneSuperseded` → neli.step_down.
- FinishBatch → `finish(now, deadline)`; `Finished` → neli.released. LeaderFenced, AbandonBatch → carry out
  `abandon()`, forget the object.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from uuid import UUID

from outbox.core.at_least_once.queues import Queues
from outbox.core.at_least_once.rejections import Rejections
from outbox.core.at_least_once.requests import MarkPace, Requests
from outbox.core.at_least_once.values import (
    ROWS_TAKEN,
    DeadlineExceeded,
    DropProducers,
    Effect,
    Fetch,
    Finished,
    KeyName,
    LaneSuperseded,
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
    Sweep,
    TakeLane,
)
from outbox.core.at_least_once.window import Window
from outbox.core.holds.values import pause_s
from outbox.core.region import Region, Transitions

_NEVER = float("inf")


class Phase(Enum):
    TAKING = "taking"
    RUNNING = "running"
    DRAINING = "draining"
    """Of a forced remark: what is in flight is decided."""
    REFRESHING = "refreshing"
    """The election gives a new leader id."""
    FINISHING = "finishing"
    """What is in flight is decided, the rest is given back."""
    ENDED = "ended"


class PhaseEvent(Enum):
    TAKEN = "no older owner can mark any more"
    DOUBTED = "a remark is asked for"
    DRAINED = "nothing is in flight, or its time is over"
    REFRESHED = "there is a new leader id"
    FINISH = "the term is to end, by a deadline"
    FINISHED = "nothing is undecided"
    ABANDON = "the term ends at once"


_ALIVE = [phase for phase in Phase if phase is not Phase.ENDED]
PHASE: Transitions[Phase, PhaseEvent] = Transitions(
    "phase of a term",
    Phase.TAKING,
    {
        (Phase.TAKING, PhaseEvent.TAKEN): Phase.RUNNING,
        (Phase.RUNNING, PhaseEvent.DOUBTED): Phase.DRAINING,
        (Phase.DRAINING, PhaseEvent.DRAINED): Phase.REFRESHING,
        (Phase.REFRESHING, PhaseEvent.REFRESHED): Phase.TAKING,
        **{(phase, PhaseEvent.FINISH): Phase.FINISHING for phase in _ALIVE if phase is not Phase.FINISHING},
        (Phase.FINISHING, PhaseEvent.FINISHED): Phase.ENDED,
        **{(phase, PhaseEvent.ABANDON): Phase.ENDED for phase in _ALIVE},
    },
)


class Scoreboard:
    """The records of one lane in one term of leadership."""

    def __init__(
        self, leader_id: UUID, epoch: int, limits: Limits, now: float, *, keep_empty_key: bool = False
    ) -> None:
        self._leader_id = leader_id
        self._epoch = epoch
        self._limits = limits
        self._phase = Region(PHASE)
        self._generation = 0
        self._requests = Requests(limits, now)
        self._pace = MarkPace(limits)
        self._lanes = 1
        self._check_at = now
        self._deadline = _NEVER  # of draining or finishing
        self._reason = ""
        self._events: list[Effect] = []
        self._rejections = Rejections(limits)
        self._queues = Queues(limits, self._rejections, keep_empty_key=keep_empty_key)
        self._window = Window(limits)
        self._resets: list[int] = []
        self._resetting: list[int] = []
        self._gone_since_sweep: dict[int, None] = {}
        self._totals = dict.fromkeys(("marked", "acknowledged", "purged", "undelivered", "rejected", "remarks"), 0)

    # ---- what others may ask

    @property
    def leader_id(self) -> UUID:
        return self._leader_id

    @property
    def phase(self) -> Phase:
        return self._phase.state

    @property
    def in_flight(self) -> int:
        """Sent and not yet purged."""
        return len(self._window)

    def in_flight_keys(self) -> list[KeyName]:
        return [self._queues.name_of(id_) for id_ in self._window]

    def statistics(self) -> Statistics:
        t = self._totals
        return Statistics(
            in_flight=len(self._window),
            ready=self._queues.ready,
            buffered=self._queues.buffered,
            deferred=self._queues.deferred,
            held=len(self._rejections),
            marked_total=t["marked"],
            acknowledged_total=t["acknowledged"],
            purged_total=t["purged"],
            undelivered_total=t["undelivered"],
            rejected_total=t["rejected"],
            remarks_total=t["remarks"],
        )

    def wake_at(self) -> float:
        """When `tick` has something to do at the latest, if nothing is reported before."""
        phase, requests = self.phase, self._requests
        if phase is Phase.ENDED:
            return _NEVER
        waiting = []
        times = [self._deadline, self._check_at]
        if phase is Phase.TAKING:
            waiting.append(requests.take)
        if phase is Phase.RUNNING:
            times += [requests.sweep.due_at, self._queues.wakes_at]
            if self._mark_room() > 0:
                waiting.append(requests.mark)
        if self._window.has_delivered:
            waiting.append(requests.purge)
        if self._resets or self._resetting:
            waiting.append(requests.reset)
        if self._queues.want_rows and not self._queues.are_laden:
            waiting.append(requests.fetch)
        return min(times + [request.due_at for request in waiting if not request.is_awaited])

    # ---- outcomes of statements

    def taken(self, ticket: int, now: float) -> None:
        if self._requests.take.settle(ticket) and self.phase is Phase.TAKING:
            self._phase.on(PhaseEvent.TAKEN)
            self._requests.mark.put_off(now)

    def take_failed(self, ticket: int, now: float) -> None:
        if self._requests.take.settle(ticket):
            self._requests.take.put_off(now + self._limits.io_backoff_s)

    def take_refused(self, ticket: int, now: float) -> None:
        if self._requests.take.settle(ticket):
            self._requests.take.put_off(now + self._limits.io_backoff_s)
            self._events.append(LaneSuperseded(self._leader_id))

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
        if not self._requests.mark.settle(ticket):
            return
        if self.phase is Phase.FINISHING:
            self._resets += [row.id for row in rows if not self._queues.knows(row.id)]
        if self.phase is not Phase.RUNNING:
            return
        self._totals["marked"] += len(rows)
        self._requests.mark.put_off(now + self._pace.pause_s(len(rows), self._lanes))
        take = self._take_once if self._window.remembers else self._queues.take
        kept = [row.id for row in sorted(rows, key=_by_id) if take(row, now)]
        self._queues.large.add({id_: large[id_] for id_ in kept if id_ in large} if large else {})
        if self._pace.has_seen_all(len(rows), left_out=left_out):  # under this leader id
            self._window.forget_delivered()

    def _take_once(self, row: Record, now: float) -> bool:
        """One that is in Kafka already is not sent again."""
        if not self._window.was_delivered(row):
            return self._queues.take(row, now)
        is_new = self._queues.adopt(row)
        if is_new:
            self._window.purge_again(row.id)
        return is_new

    def mark_failed(self, ticket: int, now: float) -> None:
        if self._requests.mark.settle(ticket):
            self._requests.take.put_off(now + self._limits.io_backoff_s)
            self.remark("mark-failed", now)

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
        if not self._requests.fetch.settle(ticket):
            return
        if self._queues.fetched({row.id: row for row in rows}, frozenset(left), large, now):
            self.remark(ROWS_TAKEN, now)

    def fetch_failed(self, ticket: int, now: float) -> None:
        if self._requests.fetch.settle(ticket):
            self._requests.fetch.put_off(now + self._limits.io_backoff_s)
            self._queues.fetch_failed()

    def purged(self, ticket: int, ids: Sequence[int], now: float) -> None:
        """`ids` were deleted by this statement. The others of the batch were gone, or are no longer mine."""
        if not self._requests.purge.settle(ticket):
            return
        batch, is_repeated = self._window.purged()
        self._totals["purged"] += len(ids)
        if self._requests.sweep.is_awaited:
            self._gone_since_sweep.update(dict.fromkeys(batch))
        self._queues.release(batch, now)
        if len(ids) < len(batch) and not is_repeated:
            deleted = dict.fromkeys(ids)
            self._events.append(NotPurged(tuple(i for i in batch if i not in deleted)))
            self.remark(ROWS_TAKEN, now)

    def purge_failed(self, ticket: int, now: float) -> None:
        """Outcome unknown: the same batch again. Its guard makes that harmless."""
        if self._requests.purge.settle(ticket):
            self._window.purge_failed()
            self._requests.purge.put_off(now + self._limits.io_backoff_s)

    def reset_done(self, ticket: int, now: float) -> None:
        if self._requests.reset.settle(ticket):
            self._resetting = []

    def reset_failed(self, ticket: int, now: float) -> None:
        if self._requests.reset.settle(ticket):
            self._requests.reset.put_off(now + self._limits.io_backoff_s)

    def swept(self, ticket: int, ids: Iterable[int], now: float) -> None:
        """Rows marked by me that nobody here knows (a result that was cut short) are taken up by a remark."""
        if not self._requests.sweep.settle(ticket):
            return
        gone, self._gone_since_sweep = self._gone_since_sweep, {}
        if any(id_ not in gone and not self._queues.knows(id_) for id_ in ids):
            self.remark("stray-rows", now)

    def sweep_failed(self, ticket: int, now: float) -> None:
        if self._requests.sweep.settle(ticket):
            self._gone_since_sweep = {}

    # ---- delivery reports

    def acknowledged(self, generation: int, ids: Iterable[int], now: float) -> None:
        if self._is_current(generation):
            self._totals["acknowledged"] += self._window.acknowledge(ids)

    def undelivered(self, generation: int, ids: Iterable[int], now: float) -> None:
        """An outage: no attempt is spent; each key tries again by itself."""
        if not self._is_current(generation):
            return
        low, high = self._limits.outage_backoff_min_s, self._limits.outage_backoff_max_s
        for id_ in ids:
            if self._window.fail(id_) is not None:
                self._totals["undelivered"] += 1
                self._set_back(id_, now + pause_s(self._queues.undelivered(id_), low, high))

    def refused(self, generation: int, rejections: Iterable[tuple[int, str]], now: float) -> None:
        """These records can not be sent as they are: (id, error). Each holds back its own key."""
        if not self._is_current(generation):
            return
        for id_, error in rejections:
            if (record := self._window.fail(id_)) is None:
                continue
            name = self._queues.name_of(id_)
            rejection = self._rejections.refused(id_, name, now)
            self._totals["rejected"] += 1
            self._events.append(RecordHeld(id_, name, rejection.attempts, rejection.until, error, record.kafka_topic))
            self._set_back(id_, rejection.until)

    def _is_current(self, generation: int) -> bool:
        """Whether reports of these producers count."""
        return generation == self._generation and self.phase is not Phase.ENDED

    def _set_back(self, id_: int, until: float) -> None:
        if self.phase is Phase.RUNNING:
            self._queues.set_back(id_, until)
            return
        self._queues.drop(id_)
        if self.phase is Phase.FINISHING:
            self._resets.append(id_)

    # ---- what operators say about held records

    def expect(self, id_: int, name: KeyName, attempts: int, until: float) -> None:
        """An earlier leader was refused this record, which is tried again at `until`."""
        if name not in self._queues.names:
            self._rejections.expect(id_, name, attempts, until)

    def knows(self, id_: int) -> bool:
        """Whether the record is here, in whatever state."""
        return self._queues.knows(id_)

    def is_asleep(self, id_: int) -> bool:
        """Whether the record is the rejected head of a key that waits for its next attempt."""
        return self._queues.is_asleep(id_)

    def retry(self, id_: int, at: float) -> None:
        """Try a sleeping record again at this time; infinity: not before this is called again, or a remark."""
        if self.phase is Phase.RUNNING and self._queues.is_asleep(id_):
            if at < _NEVER:  # a rejection outlasts a remark, and with it who would call again
                self._rejections.put_off(self._queues.name_of(id_), at)
            self._queues.sleep_until(id_, at)

    def gone(self, ids: Iterable[int], now: float) -> None:
        """These held records were deleted on purpose."""
        self._queues.gone(ids, now)

    # ---- the term turns

    def remark(self, reason: str, now: float) -> None:
        """Begin again with the marks: what is not sent is given up, what is sent is decided first."""
        if self.phase is not Phase.RUNNING:
            return
        self._totals["remarks"] += 1
        self._events.append(RemarkRequested(reason))
        self._forget_unsent()
        self._phase.on(PhaseEvent.DOUBTED)
        self._reason, self._deadline = reason, now + self._limits.drain_timeout_s

    def refreshed(self, leader_id: UUID, now: float) -> None:
        if self.phase is Phase.REFRESHING:
            self._leader_id = leader_id
            self._phase.on(PhaseEvent.REFRESHED)

    def finish(self, now: float, deadline: float) -> None:
        """Stop, or revocation: start nothing, decide what is in flight, give back the rest."""
        if self.phase in (Phase.FINISHING, Phase.ENDED):
            return
        self._resets += [id_ for id_ in self._forget_unsent() if id_ not in self._resetting]
        self._phase.on(PhaseEvent.FINISH)
        self._deadline = deadline

    def abandon(self) -> list[Effect]:
        """Fenced, or the deadline of finishing has passed: nothing is sent any more. The purge is a last courtesy to
        the successor (fewer repeats); its guard makes it harmless, and nobody waits for its outcome."""
        if self.phase is Phase.ENDED:
            return []
        self._phase.on(PhaseEvent.ABANDON)
        self._generation += 1
        effects: list[Effect] = [DropProducers(self._generation)]
        if ids := self._window.last_purge():
            effects.append(Purge(self._requests.purge.begin(), self._leader_id, ids))
        self._requests.forget()
        return effects

    def _forget_unsent(self) -> list[int]:
        """Drop everything that was not sent from memory; the ids of it, in order."""
        self._requests.fetch.forget()
        self._requests.sweep.forget()
        self._gone_since_sweep = {}
        return self._queues.forget_unsent(self._window)

    def tick(self, now: float, *, may_send: bool = True, lanes: int = 1) -> list[Effect]:
        """What is to be done now. The lanes of one process share what idle marks may cost: each pauses longer."""
        self._lanes = lanes
        phase = self.phase
        if phase is Phase.ENDED:
            return []
        if now >= self._check_at:
            self._check_deadlines(now)
            phase = self.phase
        effects: list[Effect] = []
        self._purge(effects, now)
        if phase is Phase.RUNNING:
            self._queues.wake(now)
            if may_send:
                self._send(effects, now)
                self._fetch(effects, now)
                self._sweep(effects, now)
                self._mark(effects, now)
        elif phase is Phase.TAKING:
            if may_send and self._requests.take.may_begin(now):
                effects.append(TakeLane(self._requests.take.begin(), self._leader_id, self._epoch))
        elif phase is Phase.DRAINING:
            self._drain(effects, now)
        elif phase is Phase.FINISHING:
            self._finish(effects, now)
        if self._events:
            effects, self._events = self._events + effects, []
        return effects

    # ---- effects of a tick

    def _check_deadlines(self, now: float) -> None:
        limits = self._limits
        self._check_at = now + min(limits.queue_timeout_s, limits.delivery_timeout_s) / 4
        if self.phase is Phase.RUNNING and (oldest := self._window.oldest()):
            id_, sent_at = oldest
            if now - sent_at >= limits.delivery_timeout_s:
                self._events.append(DeadlineExceeded("delivery", self._queues.name_of(id_), now - sent_at))
                self.remark("delivery-deadline", now)
                self._deadline = now
        for key in self._queues.overdue(now):
            self._events.append(DeadlineExceeded("queue", key.name, now - key.waits_since))
        self._rejections.forget(now, self._queues.names)

    def _purge(self, effects: list[Effect], now: float) -> None:
        if self._window.has_delivered and self._requests.purge.may_begin(now):
            effects.append(Purge(self._requests.purge.begin(), self._leader_id, self._window.next_purge()))

    def _send(self, effects: list[Effect], now: float) -> None:
        count = min(self._queues.ready, self._limits.in_flight_max - len(self._window))
        if count <= 0:
            return
        records = self._queues.next_ready(count)
        self._window.send(records, now)
        by_shard = self._queues.by_shard(records)
        effects += [Send(self._generation, shard, some) for shard, some in enumerate(by_shard) if some]

    def _fetch(self, effects: list[Effect], now: float) -> None:
        """Bring back deferred rows of keys whose turn has come, as many as there is room for."""
        if not self._queues.want_rows or self._queues.are_laden or not self._requests.fetch.may_begin(now):
            return
        if ids := self._queues.fetch(self._window_room()):
            effects.append(Fetch(self._requests.fetch.begin(), self._leader_id, ids))

    def _sweep(self, effects: list[Effect], now: float) -> None:
        """Never beside a mark: its rows would be known to the table before they are known here."""
        sweep = self._requests.sweep
        if sweep.may_begin(now) and not self._requests.mark.is_awaited:
            sweep.put_off(now + self._limits.sweep_interval_s)
            limit = self._queues.known + self._limits.mark_max
            effects.append(Sweep(sweep.begin(), self._leader_id, limit))

    def _mark(self, effects: list[Effect], now: float) -> None:
        mark = self._requests.mark
        if self._requests.sweep.is_awaited or not mark.may_begin(now):
            return
        limit = self._mark_room()
        if limit <= 0:
            return
        exclude: tuple[tuple[str, str], ...] = ()
        if self._queues.deferred >= self._limits.deferred_max:
            exclude = tuple(name for name in self._queues.names_that_defer() if isinstance(name, tuple))
        self._pace.begins(limit, excludes=bool(exclude))
        effects.append(Mark(mark.begin(), self._leader_id, limit, exclude))

    def _drain(self, effects: list[Effect], now: float) -> None:
        """Of a forced remark. At the deadline the undecided are dropped with their producers."""
        if (self._window or self._requests.mark.is_awaited) and now < self._deadline:
            return
        if self._window.is_undecided:
            self._generation += 1
            effects.append(DropProducers(self._generation))
        self._window.forget()
        self._queues.forget()
        self._requests.forget()
        self._phase.on(PhaseEvent.DRAINED)
        self._deadline = _NEVER
        effects.append(RefreshLeader(self._reason))

    def _finish(self, effects: list[Effect], now: float) -> None:
        reset = self._requests.reset
        if reset.may_begin(now):
            if not self._resetting:
                count = self._limits.purge_max
                self._resetting, self._resets = self._resets[:count], self._resets[count:]
            if self._resetting:
                effects.append(Reset(reset.begin(), self._leader_id, tuple(self._resetting)))
        if self._window or self._resets or self._resetting or self._requests.mark.is_awaited:
            if now < self._deadline:
                return
            effects += self.abandon()
        else:
            self._phase.on(PhaseEvent.FINISHED)
        effects.append(Finished())

    def _window_room(self) -> int:
        return self._limits.in_flight_max - len(self._window) - self._queues.ready

    def _mark_room(self) -> int:
        """Room in the window and among the ids; waiting rows do not count against the window, so others are found."""
        queues, limits = self._queues, self._limits
        if queues.are_laden:
            return 0
        hard = limits.deferred_max + limits.shards * limits.shard_buffer_max
        return min(limits.mark_max, self._window_room(), hard - queues.deferred - queues.buffered)


def _by_id(row: Record) -> int:
    return row.id
