"""NELI: who owns which lane, decided from what one member of the group sees. No I/O, no clock.

Theory of operation
-------------------
The group coordinator assigns partitions of the leader topic; the owner of partition p owns lane p. While a process is
paused, its assignment may go to another member without its knowledge. So a member trusts its assignment only while it
reads back its own heartbeats::

    (none) --assigned--> CANDIDATE --own beat read back--> LEADER --revoked--> REVOKING --released, deadline--> (none)
                             ^                               |
                             +------------ fenced -----------+     lost: fenced and gone at once, from any state

- Trust lasts `heartbeat_timeout_s`, less `margin_s`, from the moment at which the member *sent* the beat that it has
  read back: a slow round trip earns less.
- Every acquisition has a new random leader id and an **epoch**: the offset of its first beat. The offsets of one
  partition are the only clock that all members share: the owner with the higher epoch is the newer one, whatever the
  wall clocks say. A beat with a lower epoch (of the previous owner, or of a process that was paused) changes nothing. A
  beat with a higher epoch fences. A candidate's beat has no epoch and owns nothing.
- The goharvest-compatible payload `{ns}%{name}` has neither id nor epoch: after a member's own first beat it counts as
  that of a newer owner.
- A fenced member resumes when it has read back a beat that it sent after the fence, *and* the coordinator has then
  confirmed its membership. So the assignment by the broker decides. A rightful owner may be fenced by the late beat of
  a paused process: it leads again after two round trips, with a higher epoch. The coordinator answers the paused
  process that it is not a member any more.

Protocol for the edge (calls serialised by one lock or thread; `now` is time.monotonic(), read once per turn)
--------------------------------------------------------------------------------------------------------------
- rebalance callbacks: `assigned`, `revoked` (then `tick` until `revoking` is empty before returning to the client),
  `lost`. Consume each assigned partition from its end; never from a committed offset.
- every message of the leader topic: `heartbeat_seen(partition, offset, parse_heartbeat(payload, database), now)`; leave
  out messages that are not heartbeats.
- at `wake_at()` or earlier: `tick(now)`. After a gap, poll the client first: it may report `lost`.
- carry out the returned effects in order. `PublishHeartbeat`: send `encode_heartbeat(beat)` at once (no linger; a
  failure needs no report). `ConfirmMembership`: ask the coordinator in the generation of the member, e.g. by an offset
  commit, and answer `confirmed(lane, ticket, ok, now)`; an error other than a wrong generation or member is not an
  answer. `FinishBatch`: let the lane finish what is in flight, then call `released`. `AbandonBatch`: drop that now.
  `ForeignHeartbeat`: warn, and stop unless this member is rightful. `LeaveGroup`: close the consumer. Give the events
  to the receivers one after the other; LeaderFenced means: stop at once.
- `may_start(lane, now)` before each mark or batch, `may_send(lane, now)` before each produce of what is in flight.
- `doubt(lane, now)` when there is a trace of another owner, `step_down(lane, now)` when the table refuses the lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

_MAGIC = "outbox1"
_OUTSTANDING_MAX = 64  # own beats sent and not read back; older ones could no longer earn trust


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One beat in our format. `epoch` is None for a candidate, -1 for a leader whose ownership begins with this
    beat."""

    member_id: UUID
    leader_id: UUID
    sequence: int
    epoch: int | None
    name: str = ""
    database: UUID | None = None
    """Whose table its member harvests. It is not in the payload, because older releases accept no other fields."""


@dataclass(frozen=True, slots=True)
class GoharvestHeartbeat:
    """A beat `{ns}%{name}` of a goharvest-compatible harvester."""

    name: str


class UnknownHeartbeat(ValueError):
    """The leader topic carries a message that is not a heartbeat, or the heartbeat of a later release. It changes
    nothing: the coordinator decides who may lead, and an unknown heartbeat earns no member trust."""


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """The payload of one of our beats. It has no `%` before its name, so it is never taken for a goharvest-compatible
    one."""
    epoch = "-" if beat.epoch is None else str(beat.epoch)
    return f"{_MAGIC} {beat.member_id} {beat.leader_id} {beat.sequence} {epoch} {beat.name}".encode()


def parse_heartbeat(payload: bytes | None, database: UUID | None = None) -> Heartbeat | GoharvestHeartbeat:
    """Read a payload of ours or of a goharvest-compatible harvester; raise UnknownHeartbeat for anything else.
    `database` was sent beside it."""
    text = (payload or b"").decode("utf-8", "replace")
    try:
        if text.startswith(_MAGIC + " "):
            _, member_id, leader_id, sequence, epoch, name = text.split(" ", 5)
            found = None if epoch == "-" else int(epoch)
            return Heartbeat(UUID(member_id), UUID(leader_id), int(sequence), found, name, database)
        sent_ns, percent, name = text.partition("%")
        if percent and sent_ns.isdecimal():
            return GoharvestHeartbeat(name)
    except ValueError:
        pass
    raise UnknownHeartbeat(
        f"The leader topic holds a message that is not a heartbeat: {text[:80]!r}. The harvester ignores it. "
        "Another program writes to this topic: give this group a leader topic of its own (LEADER_TOPIC)."
    )


@dataclass(frozen=True, slots=True)
class PublishHeartbeat:
    lane: int
    beat: Heartbeat


@dataclass(frozen=True, slots=True)
class ConfirmMembership:
    """Ask the coordinator whether this member, in its generation, still owns the partition."""

    lane: int
    ticket: int


@dataclass(frozen=True, slots=True)
class FinishBatch:
    """Start nothing new in this lane, finish what is in flight before `deadline`, then call `released`."""

    lane: int
    leader_id: UUID
    deadline: float


@dataclass(frozen=True, slots=True)
class AbandonBatch:
    """The deadline of FinishBatch has passed: drop what is in flight."""

    lane: int
    leader_id: UUID


@dataclass(frozen=True, slots=True)
class ForeignHeartbeat:
    """A member of this group harvests another database. One of the two must go; `is_rightful`: not this one."""

    lane: int
    name: str
    database: UUID
    is_rightful: bool


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Every lane is released after `stop`: close the consumer."""


@dataclass(frozen=True, slots=True)
class LeaderAcquired:
    lane: int
    leader_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderRefreshed:
    lane: int
    leader_id: UUID
    epoch: int


@dataclass(frozen=True, slots=True)
class LeaderRevoked:
    lane: int
    leader_id: UUID


@dataclass(frozen=True, slots=True)
class LeaderFenced:
    """Stop at once. `reason`: lost, heartbeat-timeout, newer-owner, not-a-member, superseded."""

    lane: int
    leader_id: UUID
    reason: str


Effect = (
    PublishHeartbeat
    | ConfirmMembership
    | FinishBatch
    | AbandonBatch
    | ForeignHeartbeat
    | LeaveGroup
    | LeaderAcquired
    | LeaderRefreshed
    | LeaderRevoked
    | LeaderFenced
)


class OwnerState(Enum):
    CANDIDATE = "candidate"
    LEADER = "leader"
    REVOKING = "revoking"


class _Lane:
    """What a member knows about one partition that is assigned to it."""

    __slots__ = (
        "beat_at",
        "confirm_asked",
        "confirm_ticket",
        "deadline",
        "ended_id",
        "epoch",
        "first_sequence",
        "last_offset",
        "leader_id",
        "outstanding",
        "state",
        "trusted_at",
        "was_fenced",
    )

    def __init__(self, leader_id: UUID, first_sequence: int, now: float) -> None:
        self.state = OwnerState.CANDIDATE
        self.leader_id = leader_id
        self.first_sequence = first_sequence  # beats below belong to an earlier term
        self.epoch = -1
        self.beat_at = now  # when the next beat is due
        self.trusted_at = now
        self.deadline = 0.0
        self.was_fenced = False
        self.ended_id: UUID | None = None  # leader id of the fenced term, named by a later Revoked
        self.last_offset = -1
        self.outstanding: dict[int, float] = {}
        self.confirm_ticket: int | None = None
        self.confirm_asked = 0.0

    # ---- its heartbeats

    def sent(self, sequence: int, now: float, next_at: float) -> None:
        self.outstanding[sequence] = now
        while len(self.outstanding) > _OUTSTANDING_MAX:
            del self.outstanding[next(iter(self.outstanding))]
        self.beat_at = next_at

    def seen(self, offset: int) -> None:
        """One of its own is in the topic."""
        if offset < self.last_offset and self.state is OwnerState.LEADER:
            self.epoch = offset  # the topic was deleted and created again, so its offsets began again
        self.last_offset = offset

    def trust(self, since: float) -> None:
        self.trusted_at = max(self.trusted_at, since)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    # ---- whether it is still a member

    def ask(self, ticket: int, now: float) -> None:
        self.confirm_ticket, self.confirm_asked = ticket, now

    def await_no_answer(self) -> None:
        self.confirm_ticket = None

    # ---- its term

    def lead(self) -> None:
        self.state, self.was_fenced, self.ended_id = OwnerState.LEADER, False, None
        self.beat_at = self.trusted_at  # the first beat of the ownership, with its epoch, goes out at the next tick

    def refresh(self, leader_id: UUID) -> None:
        self.leader_id = leader_id

    def revoke(self, deadline: float) -> None:
        self.state, self.deadline = OwnerState.REVOKING, deadline

    def end_term(self) -> None:
        self.ended_id = self.leader_id

    def fence(self, leader_id: UUID, first_sequence: int, now: float) -> None:
        """The lane starts again as a candidate's."""
        self.state, self.was_fenced = OwnerState.CANDIDATE, True
        self.leader_id, self.first_sequence, self.epoch = leader_id, first_sequence, -1
        self.confirm_ticket, self.beat_at = None, now


class Neli:
    """The election as one member sees it, over all partitions of the leader topic."""

    def __init__(
        self,
        new_id: Callable[[], UUID],
        *,
        lanes: int,
        heartbeat_timeout_s: float,
        margin_s: float,
        heartbeat_interval_s: float | None = None,
        candidate_interval_s: float = 0.05,
        revoke_timeout_s: float,
        name: str = "",
        database: UUID | None = None,
    ) -> None:
        """`revoke_timeout_s` is less than the session timeout, so that a process paused while finishing is caught."""
        assert lanes >= 1
        assert 0 <= margin_s < heartbeat_timeout_s
        self._new_id = new_id
        self._lanes = lanes
        self._timeout_s = heartbeat_timeout_s
        self._margin_s = margin_s
        self._interval_s = heartbeat_timeout_s / 4 if heartbeat_interval_s is None else heartbeat_interval_s
        self._candidate_interval_s = min(candidate_interval_s, self._interval_s)
        self._revoke_timeout_s = revoke_timeout_s
        self._name, self._database = name, database
        self._member_id = new_id()
        self._sequence = 0
        self._ticket = 0
        self._assigned: dict[int, None] = {}  # everything the coordinator gave, idle partitions too
        self._owned: dict[int, _Lane] = {}
        self._led_last: set[int] = set()
        self._stopping = False
        self._left = False

    # ---- what others may ask

    @property
    def member_id(self) -> UUID:
        return self._member_id

    @property
    def assigned_partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self._assigned))

    @property
    def revoking(self) -> tuple[int, ...]:
        """Lanes whose batch in flight the rebalance still waits for."""
        return tuple(p for p, lane in self._owned.items() if lane.state is OwnerState.REVOKING)

    def state(self, lane: int) -> OwnerState | None:
        found = self._owned.get(lane)
        return found.state if found else None

    def leader_id(self, lane: int) -> UUID | None:
        found = self._owned.get(lane)
        return found.leader_id if found and found.state is not OwnerState.CANDIDATE else None

    def epoch(self, lane: int) -> int | None:
        found = self._owned.get(lane)
        return found.epoch if found and found.state is not OwnerState.CANDIDATE else None

    def led_last(self, lane: int) -> bool:
        """Whether this member leads, or led, gave nothing back and has seen no successor, as while the brokers are
        unavailable. This may be true of several members for one lane, so it permits reading only."""
        return lane in self._led_last

    def trusted_until(self, lane: int) -> float:
        """The moment at which this lane must be silent unless more trust was earned; -inf when it does not lead."""
        found = self._owned.get(lane)
        if found is None or found.state is OwnerState.CANDIDATE:
            return float("-inf")
        return found.deadline if found.state is OwnerState.REVOKING else self._trust_ends(found)

    def may_send(self, lane: int, now: float) -> bool:
        """Trust holds for the batch in flight."""
        return now < self.trusted_until(lane)

    def may_start(self, lane: int, now: float) -> bool:
        """Trust holds and no revocation is under way: new marks and batches may begin."""
        found = self._owned.get(lane)
        return found is not None and found.state is OwnerState.LEADER and now < self._trust_ends(found)

    def wake_at(self) -> float:
        """When `tick` has something to do at the latest."""
        times = [float("inf")]
        for lane in self._owned.values():
            if lane.state is OwnerState.REVOKING:
                times.append(lane.deadline)
            else:
                times.append(lane.beat_at)
                if lane.state is OwnerState.LEADER:
                    times.append(self._trust_ends(lane))
        return min(times)

    # ---- the coordinator speaks

    def assigned(self, partitions: Iterable[int], now: float) -> list[Effect]:
        for partition in partitions:
            self._assigned[partition] = None
        return self._adopt(now)

    def revoked(self, partitions: Iterable[int], now: float) -> list[Effect]:
        """The coordinator wants these back and waits: leaders finish their batch, the others are done at once."""
        effects: list[Effect] = []
        for partition in partitions:
            self._assigned.pop(partition, None)
            self._led_last.discard(partition)
            effects += self._revoke(partition, now)
        return effects

    def lost(self, partitions: Iterable[int], now: float) -> list[Effect]:
        """These belong to somebody else already: nothing may be finished."""
        effects: list[Effect] = []
        for partition in partitions:
            self._assigned.pop(partition, None)
            lane = self._owned.pop(partition, None)
            if lane is not None and lane.state is not OwnerState.CANDIDATE:
                effects.append(LeaderFenced(partition, lane.leader_id, "lost"))
        return effects + self._leave_if_done()

    def confirmed(self, partition: int, ticket: int, ok: bool, now: float) -> list[Effect]:
        """The coordinator's answer to ConfirmMembership. Late answers (another ticket) are ignored."""
        lane = self._owned.get(partition)
        if lane is None or lane.confirm_ticket != ticket:
            return []
        lane.await_no_answer()
        if not ok:
            return self._fence(partition, lane, "not-a-member", now)
        if lane.state is OwnerState.CANDIDATE and lane.epoch >= 0 and now < self._trust_ends(lane):
            return self._acquire(partition, lane)
        return []

    # ---- the log speaks

    def heartbeat_seen(
        self, partition: int, offset: int, beat: Heartbeat | GoharvestHeartbeat, now: float
    ) -> list[Effect]:
        return self._foreign_database(partition, beat) + self._seen(partition, offset, beat, now)

    def _seen(self, partition: int, offset: int, beat: Heartbeat | GoharvestHeartbeat, now: float) -> list[Effect]:
        lane = self._owned.get(partition)
        if lane is None or lane.state is OwnerState.REVOKING:
            if not isinstance(beat, Heartbeat) or (beat.member_id != self._member_id and beat.epoch is not None):
                self._led_last.discard(partition)
            return []
        if isinstance(beat, Heartbeat) and beat.member_id == self._member_id:
            return self._own_beat(partition, lane, offset, beat, now)
        return self._foreign_beat(partition, lane, offset, beat, now)

    # ---- time passes, somebody asks

    def tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for partition, lane in list(self._owned.items()):
            if lane.state is OwnerState.REVOKING and now >= lane.deadline:
                effects.append(AbandonBatch(partition, lane.leader_id))
                effects += self.released(partition, now)
                continue
            if lane.state is OwnerState.LEADER and now >= self._trust_ends(lane):
                effects += self._fence(partition, lane, "heartbeat-timeout", now)
            if not lane.was_fenced and lane.state is OwnerState.CANDIDATE and now >= self._trust_ends(lane):
                self._fence(partition, lane, "heartbeat-timeout", now)  # the assignment aged before it was earned
            if lane.state is not OwnerState.REVOKING and now >= lane.beat_at:
                effects.append(self._beat(partition, lane, now))
        return effects

    def refresh(self, lane: int, now: float) -> list[Effect]:
        """A forced remark needs a new leader id; the epoch stays. Nothing when the lane does not lead."""
        found = self._owned.get(lane)
        if found is None or not self.may_start(lane, now):
            return []
        found.refresh(self._new_id())
        return [LeaderRefreshed(lane, found.leader_id, found.epoch)]

    def doubt(self, lane: int, now: float) -> list[Effect]:
        """Somebody saw a trace of another owner: ask the coordinator; a negative answer fences."""
        found = self._owned.get(lane)
        if found is None or found.state is not OwnerState.LEADER:
            return []
        return [self._ask(lane, found, now)]

    def step_down(self, lane: int, now: float) -> list[Effect]:
        """The table refused the owner of this epoch: fence, and come back with a higher one if still a member."""
        found = self._owned.get(lane)
        return self._fence(lane, found, "superseded", now) if found and found.state is OwnerState.LEADER else []

    def released(self, lane: int, now: float) -> list[Effect]:
        """The batch in flight is finished or dropped: the lane is given back."""
        found = self._owned.get(lane)
        if found is None or found.state is not OwnerState.REVOKING:
            return []
        del self._owned[lane]
        effects: list[Effect] = [LeaderRevoked(lane, found.leader_id)]
        return effects + self._adopt(now) + self._leave_if_done()

    def stop(self, now: float) -> list[Effect]:
        """Finish every lane, then LeaveGroup. Safe to call twice, and before anything was assigned."""
        if self._stopping:
            return []
        self._stopping = True
        self._led_last.clear()
        effects: list[Effect] = []
        for partition in list(self._owned):
            effects += self._revoke(partition, now)
        return effects + self._leave_if_done()

    # ---- leaves

    def _trust_ends(self, lane: _Lane) -> float:
        return lane.trusted_at + self._timeout_s - self._margin_s

    def _adopt(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._stopping:
            return effects
        for partition in self._assigned:
            if partition < self._lanes and partition not in self._owned:
                lane = self._owned[partition] = _Lane(self._new_id(), self._sequence, now)
                effects.append(self._beat(partition, lane, now))
        return effects

    def _revoke(self, partition: int, now: float) -> list[Effect]:
        lane = self._owned.get(partition)
        if lane is None or lane.state is OwnerState.REVOKING:
            return []
        if lane.state is OwnerState.LEADER and now < self._trust_ends(lane):
            lane.revoke(now + self._revoke_timeout_s)
            return [FinishBatch(partition, lane.leader_id, lane.deadline)]
        effects: list[Effect] = []
        if lane.state is OwnerState.LEADER:
            effects.append(LeaderFenced(partition, lane.leader_id, "heartbeat-timeout"))
            lane.end_term()
        del self._owned[partition]
        if lane.ended_id is not None:
            effects.append(LeaderRevoked(partition, lane.ended_id))
        return effects + self._leave_if_done()

    def _leave_if_done(self) -> list[Effect]:
        if not self._stopping or self._owned or self._left:
            return []
        self._left = True
        return [LeaveGroup()]

    def _beat(self, partition: int, lane: _Lane, now: float) -> PublishHeartbeat:
        leads = lane.state is OwnerState.LEADER
        epoch = lane.epoch if leads else (None if lane.was_fenced else -1)
        beat = Heartbeat(self._member_id, lane.leader_id, self._sequence, epoch, self._name, self._database)
        first = not leads and not lane.was_fenced  # a fresh assignment beats faster, so that a successor sends soon
        lane.sent(self._sequence, now, now + (self._candidate_interval_s if first else self._interval_s))
        self._sequence += 1
        return PublishHeartbeat(partition, beat)

    def _foreign_database(self, partition: int, beat: Heartbeat | GoharvestHeartbeat) -> list[Effect]:
        """A member that owns nothing gives way to a member that owns a lane. Of two that own lanes, which began at the
        same moment, the one whose database has the higher number gives way. Both members decide by what each has sent,
        and not by what it has read, so they decide alike."""
        theirs, ours = beat.database if isinstance(beat, Heartbeat) else None, self._database
        if not isinstance(beat, Heartbeat) or theirs is None or ours is None or theirs == ours:
            return []
        owns = any(not lane.was_fenced for lane in self._owned.values())
        gives_way = beat.epoch is not None and (not owns or ours.int > theirs.int)
        return [ForeignHeartbeat(partition, beat.name, theirs, not gives_way)]

    def _own_beat(self, partition: int, lane: _Lane, offset: int, beat: Heartbeat, now: float) -> list[Effect]:
        sent_at = lane.outstanding.pop(beat.sequence, None)
        if sent_at is None or beat.sequence < lane.first_sequence:
            return []
        lane.seen(offset)
        if now >= sent_at + self._timeout_s - self._margin_s:
            return []  # a beat that took this long earns nothing
        lane.trust(sent_at)
        if lane.state is OwnerState.LEADER:
            return []
        if not lane.was_fenced:
            lane.begin_epoch(offset)
            return self._acquire(partition, lane)
        if lane.confirm_ticket is not None and now < lane.confirm_asked + self._timeout_s:
            return []  # the answer is still awaited
        lane.begin_epoch(offset)
        return [self._ask(partition, lane, now)]

    def _ask(self, partition: int, lane: _Lane, now: float) -> ConfirmMembership:
        self._ticket += 1
        lane.ask(self._ticket, now)
        return ConfirmMembership(partition, self._ticket)

    def _acquire(self, partition: int, lane: _Lane) -> list[Effect]:
        lane.lead()
        self._led_last.add(partition)
        return [LeaderAcquired(partition, lane.leader_id, lane.epoch)]

    def _foreign_beat(
        self, partition: int, lane: _Lane, offset: int, beat: Heartbeat | GoharvestHeartbeat, now: float
    ) -> list[Effect]:
        found = beat.epoch if isinstance(beat, Heartbeat) else -1
        if found is None:
            return []
        epoch = offset if found < 0 else found
        if lane.state is OwnerState.LEADER and epoch > lane.epoch:
            return self._fence(partition, lane, "newer-owner", now)
        if lane.state is OwnerState.CANDIDATE and epoch > lane.epoch:
            self._led_last.discard(partition)
            lane.await_no_answer()  # an answer to an older question would not cover this ownership
        return []

    def _fence(self, partition: int, lane: _Lane, reason: str, now: float) -> list[Effect]:
        led = lane.state is not OwnerState.CANDIDATE
        ended = lane.leader_id
        if reason != "heartbeat-timeout":
            self._led_last.discard(partition)
        if led:
            lane.end_term()
        if lane.state is OwnerState.REVOKING:
            del self._owned[partition]
            return [LeaderFenced(partition, ended, reason), *self._leave_if_done()]
        lane.fence(self._new_id(), self._sequence, now)
        return [LeaderFenced(partition, ended, reason)] if led else []
