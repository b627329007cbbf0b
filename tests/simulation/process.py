"""One simulated harvester: the real cores, and a driver that serves their effects as the production edges must."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from outbox.core import neli as election
from outbox.core import scoreboard_values as values
from outbox.core.neli import Neli
from outbox.core.scoreboard import Phase, Scoreboard
from tests.simulation.world import DELIVERY_TIMEOUT_S, SESSION_TIMEOUT_S, STATEMENT_TIMEOUT_S, Row, Session, World


class Message:
    """A record handed to a client."""

    __slots__ = ("appended", "cancelled", "generation", "handed_at", "record", "stale")

    def __init__(self, record: Row, generation: int, handed_at: float) -> None:
        self.record, self.generation, self.handed_at = record, generation, handed_at
        self.stale = self.cancelled = self.appended = False


class Board:
    """A scoreboard of one term with its session and the records its clients hold."""

    def __init__(self, process: Process, lane: int, scoreboard: Scoreboard) -> None:
        self.process, self.lane, self.scoreboard = process, lane, scoreboard
        self.session: Session | None = None
        self.held: dict[int, Message] = {}


class Process:
    def __init__(self, world: World, name: str, cores: Any, limits: values.Limits) -> None:
        self.world, self.name, self.cores, self.limits = world, name, cores, limits
        self.alive, self.paused, self.kafka_ok, self.table_ok = True, False, True, True
        self.ignorant_until = 0.0  # evicted, and its client does not know (seen with librdkafka)
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.boards: dict[int, Board] = {}
        self.positions: dict[int, int] = {}
        self.revokes: list[int] = []
        self.origin = world.random.uniform(-1e6, 1e6)  # monotonic clocks of two hosts have nothing in common
        self.beat_at: dict[int, float] = {}  # when the broker took the last own beat
        self.harvest_first = False
        self.contact = world.now
        self.joined = True
        self.leaving = False
        self._turn_at = float("inf")
        self.neli: Neli = cores.neli(
            world.new_id, lanes=world.lanes, heartbeat_timeout_s=2.0, margin_s=0.2, revoke_timeout_s=3.0, name=name
        )
        world.processes.append(self)
        world.group.join(self)
        self._group_beat()

    @property
    def clock(self) -> float:
        return self.world.now + self.origin

    # ---- life and faults

    def crash(self) -> None:
        self.alive = False
        for board in self.boards.values():
            for message in board.held.values():
                message.cancelled = not message.appended and self.world.chance(0.5)  # the others are on the wire

    def pause(self) -> None:
        self.paused = True
        self.world.checkers.pauses[self.name] = self.world.checkers.pauses.get(self.name, 0) + 1
        for board in self.boards.values():
            for message in board.held.values():
                message.stale = not message.appended
                if message.stale and self.world.chance(0.2):
                    self._append(board, message)  # it was on the wire

    def resume(self) -> None:
        self.paused = False
        self.harvest_first = self.world.chance(0.5)  # its thread may run before that of the election
        for board in self.boards.values():
            for message in list(board.held.values()):
                if message.stale and self.world.chance(0.5):  # the client's thread may run before both
                    self._arrive(board, message)
        self.wake(0.0)

    def reconnect(self) -> None:
        self.kafka_ok = self.table_ok = True
        self.wake(0.0)

    def stop(self) -> None:
        if self.alive and not self.leaving:
            self.leaving = True
            self.post("stop")

    def post(self, *what: Any) -> None:
        if self.alive:
            self.inbox.append(what)
            self.wake(0.0)

    def notify(self) -> None:
        if self.alive and not self.paused:
            self.wake(0.0)

    def wake(self, delay: float) -> None:
        at = self.world.now + delay
        if at < self._turn_at - 1e-9:
            self._turn_at = at
            self.world.after(delay, self._turn)

    def _group_beat(self) -> None:
        """The client's own thread: heartbeats to the coordinator, and its own watch over the session."""
        if not self.alive:
            return
        if not self.paused:
            now, group = self.world.now, self.world.group
            if self.kafka_ok and self.joined and now >= self.ignorant_until:
                if self.name in group.members:
                    group.seen[self.name] = self.contact = now
                else:
                    self._lose()
            elif self.joined and now - self.contact > SESSION_TIMEOUT_S and now >= self.ignorant_until:
                self._lose()
            elif self.kafka_ok and not self.joined and not self.leaving:
                self.joined, self.contact = True, now
                group.join(self)
        self.world.after(0.5, self._group_beat)

    def _lose(self) -> None:
        self.joined = False
        self.post("lost")

    # ---- one turn of the loop

    def _turn(self) -> None:
        if self.world.now < self._turn_at - 1e-9:
            return
        self._turn_at = float("inf")
        if not self.alive or self.paused:
            return
        now = self.clock
        if self.harvest_first:
            self.harvest_first = False
            for board in list(self.boards.values()):
                self._tick(board, now)
        while self.inbox:
            what, *arguments = self.inbox.popleft()
            getattr(self, "_on_" + what)(*arguments, now)
        self._read_beats(now)
        self._elect(self.neli.tick(now))
        self._answer_revokes()
        for board in list(self.boards.values()):
            self._tick(board, now)
        times = [self.neli.wake_at(), *(b.scoreboard.wake_at() for b in self.boards.values())]
        self.wake(min(60.0, max(0.001, min(times) - now)))

    def _tick(self, board: Board, now: float) -> None:
        finishing = board.scoreboard.phase is Phase.FINISHING
        trusted = (self.neli.may_send if finishing else self.neli.may_start)(board.lane, now)
        for effect in board.scoreboard.tick(now, may_send=trusted):
            self._serve(board, effect, now)
        self.world.checkers.limits(self.name, board.scoreboard.statistics(), self.limits)

    def _on_assign(self, partition: int, now: float) -> None:
        if self.joined:
            self.positions[partition] = len(self.world.broker.beats.get(partition, ()))
            self._elect(self.neli.assigned([partition], now))

    def _on_revoke(self, partition: int, now: float) -> None:
        self.revokes.append(partition)
        self._elect(self.neli.revoked([partition], now))

    def _on_lost(self, now: float) -> None:
        self._elect(self.neli.lost(self.neli.assigned_partitions, now))
        self._elect(self.neli.lost(self.neli.revoking, now))
        self.positions.clear()
        self.revokes.clear()

    def _on_stop(self, now: float) -> None:
        self._elect(self.neli.stop(now))

    def _on_confirmed(self, lane: int, ticket: int, ok: bool, now: float) -> None:
        self._elect(self.neli.confirmed(lane, ticket, ok, now))

    def _on_outcome(self, report: Callable[[float], None], now: float) -> None:
        report(now)

    def _answer_revokes(self) -> None:
        for partition in [p for p in self.revokes if p not in self.neli.revoking]:
            self.revokes.remove(partition)
            self.positions.pop(partition, None)
            self.world.group.released(self.name, partition)

    def _read_beats(self, now: float) -> None:
        if not self.kafka_ok or self.neli.revoking:
            return  # the rebalance callback blocks the thread that polls
        for partition, position in list(self.positions.items()):
            log = self.world.broker.beats.get(partition, [])
            for offset in range(position, len(log)):
                beat = election.parse_heartbeat(log[offset])
                self._elect(self.neli.heartbeat_seen(partition, offset, beat, now))
            self.positions[partition] = len(log)

    # ---- effects of the election

    def _elect(self, effects: list[election.Effect]) -> None:
        world = self.world
        for effect in effects:
            if isinstance(effect, election.PublishHeartbeat):
                self._publish(effect)
                continue
            world.note(self.name, type(effect).__name__, effect)
            if isinstance(effect, election.ConfirmMembership):
                self._confirm(effect)
            elif isinstance(effect, election.LeaderAcquired):
                board = Board(self, effect.lane, None)  # type: ignore[arg-type]
                board.scoreboard = self.cores.scoreboard(effect.leader_id, effect.epoch, self.limits, self.clock)
                self.boards[effect.lane] = board
            elif isinstance(effect, election.FinishBatch):
                self.boards[effect.lane].scoreboard.finish(self.clock, effect.deadline - 0.1)
            elif isinstance(effect, (election.LeaderFenced, election.AbandonBatch)):
                self._abandon(effect.lane)
            elif isinstance(effect, election.LeaveGroup):
                self.alive = False
                world.group.leave(self.name)

    def _publish(self, effect: election.PublishHeartbeat) -> None:
        payload = election.encode_heartbeat(effect.beat)

        def arrive() -> None:
            if self.kafka_ok:
                self.beat_at[effect.lane] = self.world.now
                self.world.broker.append_beat(effect.lane, payload)

        if self.alive:
            self.world.after(self.world.latency(), arrive)

    def _confirm(self, effect: election.ConfirmMembership) -> None:
        def ask() -> None:
            if self.kafka_ok:
                group = self.world.group
                ok = group.is_owner(self.name, effect.lane)
                if self.name in group.members:
                    # A commit restarts the session, as a heartbeat does.
                    group.seen[self.name] = self.contact = self.world.now
                answer = ("confirmed", effect.lane, effect.ticket, ok)
                self.world.after(self.world.latency(), lambda: self.post(*answer))

        self.world.after(self.world.latency(), ask)

    def _abandon(self, lane: int) -> None:
        board = self.boards.pop(lane, None)
        if board is not None:
            for effect in board.scoreboard.abandon():
                self._serve(board, effect, self.clock)

    # ---- effects of the scoreboard

    def _serve(self, board: Board, effect: values.Effect, now: float) -> None:
        self.world.note(self.name, effect)
        if isinstance(effect, (values.Claim, values.Mark)):
            self.world.checkers.began(self.name, effect, trusted=self.neli.may_start(board.lane, now))
        if isinstance(effect, values.Send):
            self._produce(board, effect, now)
        elif isinstance(effect, values.DropProducers):
            for message in board.held.values():
                message.cancelled = True
            board.held.clear()
        elif isinstance(effect, values.RefreshLeader):
            for event in self.neli.refresh(board.lane, now):
                assert isinstance(event, election.LeaderRefreshed)
                board.scoreboard.refreshed(event.leader_id, now)
        elif isinstance(effect, values.Superseded):
            self._elect(self.neli.step_down(board.lane, now))
        elif isinstance(effect, values.Finished):
            self.boards.pop(board.lane, None)
            self._elect(self.neli.released(board.lane, now))
            self._answer_revokes()
        else:
            self._statement(board, effect)

    def _statement(self, board: Board, effect: Any) -> None:
        """Send a statement; it may fail, be slow, or succeed without its result ever arriving."""
        world, sb, table = self.world, board.scoreboard, self.world.table
        faults, ticket = world.faults, getattr(effect, "ticket", 0)
        session = board.session

        def reply(report: Callable[[float], None]) -> None:
            if not late:
                world.after(world.latency(), lambda: self.post("outcome", report))

        def claim() -> None:
            found = table.claim(board.lane, effect.epoch)
            board.session = found
            reply(lambda now: (sb.claimed if found else sb.claim_refused)(ticket, now))

        def mark() -> None:
            rows = table.mark(session, effect.leader_id, effect.limit, effect.exclude)
            if rows is None or world.chance(faults.mark_lost):
                reply(lambda now: sb.mark_failed(ticket, now))
                return
            if rows and world.chance(faults.mark_cut):
                rows = [r for r in rows if r.kafka_key]  # the sweep finds the others; order can not survive a cut
            copies = [Row(r.id, r.kafka_topic, r.kafka_key, r.sequence) for r in rows]
            reply(lambda now: sb.marked(ticket, copies, now))

        def fetch() -> None:
            rows = table.fetch(effect.leader_id, effect.ids)
            reply(lambda now: sb.fetched(ticket, rows, now))

        def purge() -> None:
            ids = table.purge(effect.leader_id, effect.ids)
            if world.chance(faults.mark_lost):
                reply(lambda now: sb.purge_failed(ticket, now))
            else:
                reply(lambda now: sb.purged(ticket, ids, now))

        def reset() -> None:
            table.reset(effect.leader_id, effect.ids)
            reply(lambda now: sb.reset_done(ticket, now))

        def sweep() -> None:
            ids = table.sweep(effect.leader_id, effect.limit)
            reply(lambda now: sb.swept(ticket, ids, now))

        statements: dict[type, tuple[Callable[[], None], Callable[[int, float], None]]] = {
            values.Claim: (claim, sb.claim_failed),
            values.Mark: (mark, sb.mark_failed),
            values.Fetch: (fetch, sb.fetch_failed),
            values.Purge: (purge, sb.purge_failed),
            values.Reset: (reset, sb.reset_failed),
            values.Sweep: (sweep, sb.sweep_failed),
        }
        if type(effect) not in statements:
            return
        execute, failed = statements[type(effect)]
        delay = world.latency()
        if world.chance(faults.slow):
            delay = world.random.uniform(0.1, 3 * STATEMENT_TIMEOUT_S)
        late = delay > STATEMENT_TIMEOUT_S
        error = faults.mark_error if type(effect) is values.Mark else faults.statement_error
        if not self.table_ok or world.chance(error):
            world.after(world.random.uniform(0.01, 0.3), lambda: self.post("outcome", lambda now: failed(ticket, now)))
            return
        if late:
            world.after(STATEMENT_TIMEOUT_S, lambda: self.post("outcome", lambda now: failed(ticket, now)))
        world.after(delay, execute)

    def _produce(self, board: Board, effect: values.Send, now: float) -> None:
        trusted = self.neli.may_send(board.lane, now)
        silent_s = self.world.now - self.beat_at[board.lane]
        for record in effect.records:
            assert isinstance(record, Row)
            outstanding = {i: m.record for i, m in board.held.items()}
            self.world.checkers.handed(self.name, outstanding, record, trusted=trusted, silent_s=silent_s)
            message = board.held[record.id] = Message(record, effect.generation, self.world.now)
            self.world.after(self.world.latency(), lambda m=message: self._arrive(board, m))  # type: ignore[misc]

    def _arrive(self, board: Board, message: Message) -> None:
        """The client's network thread brings one message to the broker, or tries again."""
        world = self.world
        if message.cancelled or message.appended:
            return
        if self.paused:
            message.stale = True
            world.after(0.05, lambda: self._arrive(board, message))
            return
        row, faults = message.record, world.faults
        if row.kafka_key in faults.refuse_keys:
            refusal = [(row.id, "too large")]
            self._report(board, message, lambda now: board.scoreboard.refused(message.generation, refusal, now))
        elif not self.kafka_ok or row.kafka_key in faults.stall_keys:
            if world.now - message.handed_at > DELIVERY_TIMEOUT_S and not message.stale:
                self._undelivered(board, message)
            else:
                world.after(0.1, lambda: self._arrive(board, message))
        else:
            self._append(board, message)

    def _append(self, board: Board, message: Message) -> None:
        world, faults, row = self.world, self.world.faults, message.record
        message.appended = True
        world.note("append", self.name, row.id)
        world.checkers.appended_to_topic(row, self.name, handed_before_pause=message.stale)
        if world.chance(faults.report_lost):
            return
        if world.chance(faults.ack_lost):
            world.after(DELIVERY_TIMEOUT_S, lambda: self._undelivered(board, message))
            return
        late = world.random.uniform(0.2, 2.5) if world.chance(faults.ack_late) else world.latency()

        def acknowledge() -> None:
            self._report(board, message, lambda now: board.scoreboard.acknowledged(message.generation, [row.id], now))

        world.after(late, acknowledge)

    def _undelivered(self, board: Board, message: Message) -> None:
        ids = [message.record.id]
        self._report(board, message, lambda now: board.scoreboard.undelivered(message.generation, ids, now))

    def _report(self, board: Board, message: Message, report: Callable[[float], None]) -> None:
        if board.held.get(message.record.id) is message:
            del board.held[message.record.id]
        self.post("outcome", report)
