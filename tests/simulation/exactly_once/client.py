"""A simulated transactional producer: it repeats by itself what got no answer, and tells of it only in its log.

Frames of one connection arrive in order. When it is cut, each frame under way is lost or arrives much later, and the
client sends it again over another connection: EndTxn too, which may then end a transaction that it was not sent for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.exactly_once import broker as b
from tests.simulation.exactly_once.tasks import Future, Steps

RETRY_S = 0.01
INIT_PATIENCE_S = 0.3
TAKEOVER_S = 4.0
FRAME_ROWS = 3


class KafkaError(Exception):
    """The transaction has failed, or its outcome is unknown."""


class Refused(Exception):
    """A record is at fault; which one is not known."""


class NoProducer(Exception):
    pass


class Client:
    def __init__(self, process: Any, lane: int) -> None:
        self._process, self._world = process, process.world
        self._lane, self._broker = lane, process.world.kafka
        self._id = self._broker.id_of(lane)
        self.epoch = -1
        self.trouble = self._dropped = False
        self._connection = 0
        self._busy_until = 0.0
        self._sequences: dict[b.Log, int] = {}
        self._reports: list[Future] = []
        process.clients[self] = None

    # ---- frames

    def _request(self, action: Callable[[], Any], *, is_end: bool = False) -> Future:
        answer = Future()
        if is_end and self._world.chance(self._world.faults.cut_end):
            self._world.after(self._world.random.uniform(0.0003, 0.004), self.cut)
        self._send(action, answer)
        return answer

    def _send(self, action: Callable[[], Any], answer: Future) -> None:
        process, world, faults = self._process, self._world, self._world.faults
        if self._dropped or answer.done or not process.alive:
            return
        if process.paused:
            process.frozen.append(lambda: self._send(action, answer))
            return
        if not process.kafka_ok:
            world.after(0.1, lambda: self._send(action, answer))
            return
        held = world.random.uniform(0.3, 4.0) if world.chance(faults.hold) else 0.0
        self._busy_until = max(self._busy_until, world.now) + world.random.uniform(0.0005, 0.004) + held
        connection = self._connection
        if world.chance(faults.cut):
            world.after((self._busy_until - world.now) * world.random.uniform(0.0, 2.0), self.cut)
        world.after(self._busy_until - world.now, lambda: self._arrive(action, answer, connection))

    def _arrive(self, action: Callable[[], Any], answer: Future, connection: int) -> None:
        world = self._world
        if connection != self._connection:  # it was cut while the frame was under way
            if world.chance(0.6):
                world.after(world.random.choice((0.003, 0.01, 0.03, 0.1, 0.5, 2.0)) * world.random.random(), action)
            self._send(action, answer)
            return
        reply = action()
        world.after(world.random.uniform(0.0005, 0.003), lambda: self._reply(action, answer, connection, reply))

    def _reply(self, action: Callable[[], Any], answer: Future, connection: int, reply: Any) -> None:
        if connection != self._connection:
            self._send(action, answer)
        elif (reply[0] if isinstance(reply, tuple) else reply) in (b.BUSY, b.GAP):
            self._world.after(RETRY_S, lambda: self._send(action, answer))
        else:
            answer.settle(reply)

    def cut(self) -> None:
        """An established connection is lost. Only the log tells."""
        self._connection += 1
        self._busy_until = 0.0
        self.trouble = True

    def drop(self) -> None:
        """What is under way arrives or not."""
        self._dropped = True
        self._process.clients.pop(self, None)
        if self._world.chance(0.3):
            self.cut()

    # ---- what a lane asks for

    def initialise(self) -> Steps:
        answer = self._request(self._id.initialise)
        if not (yield answer, INIT_PATIENCE_S):
            return False
        self.epoch = answer.value[1]
        return True

    def send(self, rows: Sequence[Any]) -> Steps:
        """Hand over every row, in order."""
        for start in range(0, len(rows), FRAME_ROWS):
            frame = rows[start : start + FRAME_ROWS]
            self._reports.append(self._produce(self._broker.data, frame))
            yield from self._process.point("sending")

    def _produce(self, log: b.Log, payloads: Sequence[Any]) -> Future:
        sequence = self._sequences.get(log, 0)
        self._sequences[log] = sequence + 1
        payloads, faults, epoch = list(payloads), self._world.faults, self.epoch

        def arrive() -> str:
            if log is self._broker.data and any(row[2] and row[2] in faults.refuse for row in payloads):
                return b.REFUSED
            return self._id.produce(epoch, log, sequence, payloads)

        return self._request(arrive)

    def wait_reports(self, give_up_at: float) -> Steps:
        for report in self._reports:
            if not (yield report, max(0.0, give_up_at - self._world.now)):
                raise KafkaError("records were not acknowledged in time")
            if report.value == b.REFUSED:
                raise Refused
            if report.value != b.OK:
                raise KafkaError(report.value)
        self._reports = []

    def send_entry(self, record: Any) -> None:
        self._reports.append(self._produce(self._broker.ledger(self._lane), [record]))

    def commit(self, timeout_s: float) -> Steps:
        give_up_at = self._world.now + timeout_s
        yield from self.wait_reports(give_up_at)
        epoch = self.epoch
        answer = self._request(lambda: self._id.end(epoch, commits=True), is_end=True)
        if not (yield answer, max(0.0, give_up_at - self._world.now)):
            raise KafkaError("timed out")
        if answer.value != b.OK:
            raise KafkaError(answer.value)


def initialised(process: Any, lane: int, may_go_on: Callable[[], bool]) -> Steps:
    """A client that has fenced every older one; None when it may not go on."""
    give_up_at = process.world.now + TAKEOVER_S
    while may_go_on():
        client = Client(process, lane)
        if (yield from client.initialise()):
            return client
        client.drop()
        if process.world.now > give_up_at:
            raise NoProducer
        yield 0.01
    return None
