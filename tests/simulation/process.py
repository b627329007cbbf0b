"""One simulated harvester: the real cores, and a driver that serves their effects as the production edges must."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from outbox.core import neli as election
from outbox.core import scoreboard_values as values
from outbox.core.scoreboard import Phase, Scoreboard
from tests.simulation.member import Member
from tests.simulation.world import DELIVERY_TIMEOUT_S, STATEMENT_TIMEOUT_S, Row, Session, World


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
        self.refused: dict[int, None] = {}
        self.leaving: dict[int, None] = {}  # their deletion is under way


class Process(Member):
    def __init__(self, world: World, name: str, cores: Any, limits: values.Limits) -> None:
        self.limits = limits
        self.boards: dict[int, Board] = {}
        super().__init__(world, name, cores)

    # ---- life and faults

    def crash(self) -> None:
        super().crash()
        for board in self.boards.values():
            for message in board.held.values():
                message.cancelled = not message.appended and self.world.chance(0.5)  # the others are on the wire

    def pause(self) -> None:
        super().pause()
        self.world.checkers.pauses[self.name] = self.world.checkers.pauses.get(self.name, 0) + 1
        for board in self.boards.values():
            for message in board.held.values():
                message.stale = not message.appended
                if message.stale and self.world.chance(0.2):
                    self._append(board, message)  # it was on the wire

    def resume(self) -> None:
        super().resume()
        for board in self.boards.values():
            for message in list(board.held.values()):
                if message.stale and self.world.chance(0.5):  # the client's thread may run before both
                    self._arrive(board, message)
        self.wake(0.0)

    # ---- what the election wants

    def harvest(self, now: float) -> None:
        for board in list(self.boards.values()):
            self._tick(board, now)

    def harvest_wakes(self) -> list[float]:
        return [board.scoreboard.wake_at() for board in self.boards.values()]

    def _tick(self, board: Board, now: float) -> None:
        finishing = board.scoreboard.phase is Phase.FINISHING
        trusted = (self.neli.may_send if finishing else self.neli.may_start)(board.lane, now)
        for effect in board.scoreboard.tick(now, may_send=trusted):
            self._serve(board, effect, now)
        self.world.checkers.limits(self.name, board.scoreboard.statistics(), self.limits)

    def lead(self, effect: election.LeaderAcquired) -> None:
        board = Board(self, effect.lane, None)  # type: ignore[arg-type]
        board.scoreboard = self.cores.scoreboard(effect.leader_id, effect.epoch, self.limits, self.clock)
        self.boards[effect.lane] = board
        for id_, held in self.world.parked.items():
            if id_ in self.world.table.rows:
                board.refused[id_] = None
                board.scoreboard.expect(id_, held.name, held.attempts, self.clock + 1.0)

    def finish(self, effect: election.FinishBatch) -> None:
        self.boards[effect.lane].scoreboard.finish(self.clock, effect.deadline - 0.1)

    def abandon(self, lane: int) -> None:
        board = self.boards.pop(lane, None)
        if board is not None:
            for effect in board.scoreboard.abandon():
                self._serve(board, effect, self.clock)

    def _on_outcome(self, report: Callable[[float], None], now: float) -> None:
        report(now)

    # ---- what operators want

    def operate(self, chance: Random, now: float) -> None:
        """Another key is paused, or a refused record is given up, or both at once."""
        for board in list(self.boards.values()):
            asleep = [i for i in board.refused if i not in board.leaving and board.scoreboard.is_asleep(i)]
            for id_ in asleep:
                if chance.random() < 0.5:
                    self._bury(board, id_, chance)
            if chance.random() < 0.3:
                board.scoreboard.remark("holds", now)

    def _bury(self, board: Board, id_: int, chance: Random) -> None:
        """A deletion under the guard of the leader id; whether it has taken place is not always told."""
        world, sb, leader_id = self.world, board.scoreboard, board.scoreboard.leader_id
        sb.retry(id_, float("inf"))
        board.leaving[id_] = None

        def settle(is_gone: bool, now: float) -> None:
            del board.leaving[id_]
            if is_gone:
                sb.gone([id_], now)
            else:
                sb.retry(id_, now + 5.0)

        def execute() -> None:
            is_done, is_known = chance.random() < 0.8, chance.random() < 0.8
            is_gone = is_done and self.table_ok and world.table.bury(leader_id, id_)
            is_believed = (is_gone and is_known) or not self.cores.deletions_are_checked
            self.post("outcome", lambda now: settle(is_believed, now))

        world.after(chance.choice((0.005, 0.1, 0.7)), execute)

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
        elif isinstance(effect, values.RecordHeld):
            board.refused[effect.id] = None
            if self.world.operated:
                self.world.parked[effect.id] = effect
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
