"""The brokers as one simulated process reaches them: a `KafkaPort`, and below the product's own producer a client. The
client repeats requests without an answer by itself, and reports that only in its log.

Frames of one connection arrive in order. When it is cut, each frame in flight is lost or arrives much later, and the
client sends it again over another connection: EndTxn too, which may then end a transaction that it was not sent for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from outbox.core.exactly_once import ledger
from outbox.core.exactly_once.ledger import Entry
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerOpen, LedgerRefused, LedgerUnreachable
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from tests.simulation.exactly_once import broker as b
from tests.simulation.runtime import Answer

LEDGER = "outbox.ledger"
ID_HEADER = ""
_RETRY_S, _INIT_RETRY_S, _LINGER_S = 0.01, 0.5, 0.002
_FRAME_ROWS = 3
_LATE_S = (0.003, 0.01, 0.03, 0.1, 0.5, 2.0)
_STABLE_POLL_S = 0.01
_ENVELOPE = 70  # bytes around a record
_REFUSALS = {
    b.REFUSED: KafkaError.POLICY_VIOLATION,
    b.NAMED: KafkaError.INVALID_RECORD,
    b.TOO_LARGE: KafkaError.MSG_SIZE_TOO_LARGE,
}
_CUT = "[thrd:TxnCoordinator]: broker/1: Disconnected (after 1000ms in state UP)"


def _error(name: str, text: str, **given: bool) -> KafkaException:
    return KafkaException(KafkaError(getattr(KafkaError, name), text, **given))


class Frame:
    """A request, from when it is made until it is answered."""

    __slots__ = ("action", "answer", "is_data")

    def __init__(self, action: Callable[[], Any], answer: Answer, *, is_data: bool = False) -> None:
        self.action, self.answer, self.is_data = action, answer, is_data


class Client:
    """What `TransactionalProducer` takes for a Producer of confluent-kafka, as far as it uses one."""

    def __init__(self, properties: dict[str, Any], *, logger: Any) -> None:
        self._process, self._lane, self._logger = properties["process"], properties["lane"], logger
        self._world, self._runtime = self._process.world, self._process.runtime
        self._broker = self._world.kafka
        self._id = self._broker.id_of(self._lane)
        self._epoch = -1
        self._lines: list[tuple[str, str]] = []
        self._error: KafkaError | None = None
        self._untold: KafkaError | None = None  # a fatal one
        self._in_transaction = self._is_registered = self._is_dropped = False
        self._connection = 0
        self._busy_until = 0.0
        self._sequences: dict[b.Log, int] = {}
        self._pending: list[tuple[Any, Any, int]] = []  # of the data log, with their reports and sizes, not sent yet
        self._open: dict[Answer, None] = {}  # produced and not acknowledged
        self._reports: list[Callable[[], None]] = []
        self._initialising: Answer | None = None
        self._ending: Answer | None = None
        self._process.clients[self] = None

    # ---- frames

    def _request(self, action: Callable[[], Any], *, is_end: bool = False, is_data: bool = False) -> Answer:
        answer = Answer(self._runtime, "Kafka")
        if is_end and self._world.chance(self._world.faults.cut_end):
            self._world.after(self._world.random.uniform(0.0003, 0.004), self.cut)
        self._send(Frame(action, answer, is_data=is_data))
        return answer

    def _send(self, frame: Frame) -> None:
        self._runtime.when_running(partial(self._send_now, frame))

    def _send_now(self, frame: Frame) -> None:
        world, faults = self._world, self._world.faults
        if self._is_dropped or frame.answer.done:
            return
        if not self._process.kafka_ok:
            world.after(0.1, partial(self._send, frame))
            return
        held_s = world.random.uniform(*faults.held_s) if world.chance(faults.hold) else 0.0
        held_s += faults.slow_s if frame.is_data else 0.0
        self._busy_until = max(self._busy_until, world.now) + world.random.uniform(0.0005, 0.004) + held_s
        delay_s = self._busy_until - world.now
        if world.chance(faults.cut):
            world.after(delay_s * world.random.uniform(0.0, 2.0), self.cut)
        world.after(delay_s, partial(self._arrive, frame, self._connection))

    def _arrive(self, frame: Frame, connection: int) -> None:
        world = self._world
        if connection != self._connection:  # it was cut while the frame was under way
            if world.chance(0.6):
                world.after(world.random.choice(_LATE_S) * world.random.random(), frame.action)
            self._send(frame)
            return
        reply = frame.action()
        world.after(world.random.uniform(0.0005, 0.003), partial(self._reply, frame, connection, reply))

    def _reply(self, frame: Frame, connection: int, reply: Any) -> None:
        if connection != self._connection:
            self._send(frame)
            return
        code = reply[0] if isinstance(reply, tuple) else reply
        if code not in (b.BUSY, b.GAP):
            self._runtime.when_running(partial(frame.answer.settle, reply))
            return
        is_init = frame.answer is self._initialising
        if is_init:
            self._lines.append(("GETPID", "busy, will be asked again"))
        self._world.after(_INIT_RETRY_S if is_init else _RETRY_S, partial(self._send, frame))

    def cut(self) -> None:
        """An established connection is lost. Only the log tells."""
        self._connection += 1
        self._busy_until = 0.0
        self._lines.append(("FAIL", _CUT))

    def end(self) -> None:
        """The frames in flight arrive or not."""
        self._is_dropped = True
        self._process.clients.pop(self, None)
        if self._world.chance(0.3):
            self.cut()

    # ---- what a producer asks for

    def poll(self, timeout: float = 0.0) -> int:
        if timeout:
            self._runtime.sleep(timeout)
        lines, self._lines = self._lines, []
        for facility, text in lines:
            self._logger.log(10, "%s %s %s", facility, "simulated", text)
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        untold, self._untold = self._untold, None
        if untold is not None:
            raise KafkaException(untold)
        return len(reports)

    def init_transactions(self, timeout: float) -> None:
        if self._initialising is None:
            self._initialising = self._request(self._id.initialise)
        if not self._wait(self._initialising, timeout):
            raise _error("_TIMED_OUT", "not initialised yet", retriable=True)
        self._epoch = self._initialising.value[1]

    def begin_transaction(self) -> None:
        if self._error is not None:
            raise KafkaException(self._error)
        if self._in_transaction:
            raise _error("_STATE", "a transaction is open")
        self._in_transaction, self._is_registered = True, False
        if self._world.turns is not None:
            self._world.turns.begun(self._process, self)

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        if self._error is not None or not self._in_transaction:
            raise _error("_STATE", "no transaction to produce to")
        if topic == LEDGER:
            self._flush_pending()
            self._produce(self._broker.ledger(partition), [(value, headers)], [None])
            return
        turns = self._world.turns
        if turns is not None:
            turns.asked(self._process, self)
        self._take(key, value, callback)
        if turns is not None:
            turns.taken(self._process, self)

    def _take(self, key: Any, value: Any, callback: Any) -> None:
        faults = self._world.faults
        if self._lane in faults.full:
            raise BufferError("no room")
        if self._world.poison and int(value) in self._world.poison:
            self._world.poisoned(self._process, int(value))
            self._runtime.sleep(0.0)  # from which it does not come back
        if key and key in faults.refuse_here and int(value) % 2:
            raise ValueError("refused before it was sent")
        if self._world.chance(faults.produce_slow):
            self._runtime.sleep(self._world.random.uniform(0.0, 0.01))
        self._pending.append(((key, int(value)), callback, _ENVELOPE + len(key or "") + len(value)))
        if len(self._pending) == _FRAME_ROWS:
            self._flush_pending()
        elif len(self._pending) == 1:
            self._world.after(_LINGER_S, partial(self._runtime.when_running, self._flush_pending))

    def _flush_pending(self) -> None:
        pending, self._pending = self._pending, []
        if pending and not self._is_dropped:
            records, reports, sizes = zip(*pending, strict=True)
            self._produce(self._broker.data, list(records), list(reports), sum(sizes))

    def _produce(self, log: b.Log, records: list[Any], reports: list[Any], size: int = 0) -> None:
        self._is_registered = True
        sequence = self._sequences.get(log, 0)
        self._sequences[log] = sequence + 1
        faults, epoch, process, is_data = self._world.faults, self._epoch, self._process, log is self._broker.data

        def is_refused(key: Any, uid: int) -> bool:
            return (key or "") in faults.refuse and (uid % 2 == 1 or not faults.names_refused)

        def arrive() -> tuple[str, list[int]]:
            """With the places of the records that are named. The same whenever the request arrives once more."""
            refused = [at for at, record in enumerate(records) if is_data and is_refused(*record)]
            is_too_large = 0 < faults.limit < size
            payloads = [uid for _, uid in records] if is_data else records
            # The log is in the transaction before anything is written to it.
            found = self._id.produce(epoch, log, sequence, [] if refused or is_too_large else payloads, process)
            if found != b.OK or not (refused or is_too_large):
                return found, []
            if is_too_large:
                return b.TOO_LARGE, []
            return (b.NAMED, refused) if faults.names_refused else (b.REFUSED, [])

        answer = self._request(arrive, is_data=is_data)
        self._open[answer] = None
        answer.then = partial(self._acknowledged, answer, reports)

    def _acknowledged(self, answer: Answer, reports: list[Any]) -> None:
        del self._open[answer]
        code, named = answer.value
        if code != b.OK:
            self._fail(code)
            error = KafkaError(_REFUSALS[code], "refused") if code in _REFUSALS else self._error
            beside = KafkaError(KafkaError._INVALID_DIFFERENT_RECORD, "another one is refused") if named else error
            told = enumerate(reports)
            self._reports += [partial(r, error if at in named else beside, None) for at, r in told if r is not None]

    def _fail(self, code: str) -> None:
        if self._error is not None:
            return
        if code in _REFUSALS:
            self._error = KafkaError(_REFUSALS[code], "refused", txn_requires_abort=True)
        elif code == b.FENCED:
            self._error = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
        else:
            self._error = KafkaError(KafkaError.INVALID_TXN_STATE, code, fatal=True)
        if self._error.fatal():
            self._untold = self._error

    def flush(self, timeout: float = 0.0) -> int:
        """How many requests are not acknowledged yet."""
        self._flush_pending()
        give_up_at = self._world.now + timeout
        while self._open and (left_s := give_up_at - self._world.now) > 0:
            self._wait(next(iter(self._open)), left_s)
        self.poll()
        return len(self._open)

    def commit_transaction(self, timeout: float) -> None:
        give_up_at = self._world.now + timeout
        if self._ending is None:
            if not self._in_transaction:
                raise _error("_STATE", "no transaction to commit")
            if self.flush(timeout):
                raise _error("_TIMED_OUT", "not acknowledged yet", retriable=True)
            if self._error is not None:
                raise KafkaException(self._error)
            if not self._is_registered:
                self._in_transaction = False
                return
            epoch = self._epoch
            self._id.asked(epoch)
            self._ending = self._request(lambda: self._id.end(epoch, commits=True), is_end=True)
        if not self._wait(self._ending, give_up_at - self._world.now):
            raise _error("_TIMED_OUT", "not committed yet", retriable=True)
        answer, self._ending = self._ending, None
        self.poll()
        if answer.value != b.OK:
            self._fail(answer.value)
            assert self._error is not None
            raise KafkaException(self._error)
        self._in_transaction = False

    def abort_transaction(self, timeout: float) -> None:
        if not self._in_transaction:
            raise _error("_STATE", "no transaction to abort")
        self._pending.clear()
        if not self._is_registered:
            self._in_transaction = False
            return
        epoch = self._epoch
        answer = self._request(lambda: self._id.end(epoch, commits=False), is_end=True)
        if not self._wait(answer, timeout):
            raise _error("_TIMED_OUT", "not aborted yet", retriable=True)
        if answer.value != b.OK:
            raise _error("_STATE", str(answer.value))
        self._in_transaction, self._error, self._ending = False, None, None

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def purge(self, blocking: bool = True) -> None:
        """The last that a producer does with its client."""
        self.end()

    def _wait(self, answer: Answer, timeout: float) -> bool:
        return answer.wait(max(0.0, timeout))


class Kafka:
    """A `KafkaPort`."""

    name = LEDGER

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world

    def prepare(self, lanes: int, ledger_retention_s: float) -> None:
        self._ask()
        broker = self._world.kafka
        broker.partitions = broker.partitions or lanes
        if broker.partitions < lanes:
            raise LedgerRefused(f"{broker.partitions} partitions, but needs {lanes}")

    def partitions(self) -> int:
        return int(self._world.kafka.partitions)

    def grow(self, topic: str, partitions: int) -> bool:
        """Of other topics nothing is simulated: they have enough."""
        broker = self._world.kafka
        if topic != self.name or not 0 < broker.partitions < partitions:
            return False
        broker.partitions = partitions
        return True

    def size_limits(self, topics: Iterable[str]) -> dict[str, int]:
        faults = self._world.faults
        with suppress(LedgerUnreachable):
            self._ask()
            return dict.fromkeys(topics, faults.limit) if faults.limit and faults.tells_limit else {}
        return {}

    def close(self) -> None:
        pass

    def transactional_id(self, lane: int) -> str:
        return f"outbox-{lane}"

    def producer(self, lane: int, request_bytes: int | None) -> TransactionalProducer:
        properties = {"process": self._process, "lane": lane}
        return TransactionalProducer(
            properties,
            kind=Client,  # type: ignore[arg-type]
            runtime=self._process.runtime,
        )

    def _ask(self) -> None:
        self._process.point("kafka")
        self._process.runtime.sleep(self._world.latency())
        if not self._process.kafka_ok:
            self._process.runtime.sleep(0.1)
            raise LedgerUnreachable("no broker answers")

    def last_entry(self, lane: int, give_up_at: float, *, waits: bool = True) -> Entry | None:
        """Below the end that it has when it is asked, once nothing there is open."""
        runtime, log = self._process.runtime, self._world.kafka.ledger(lane)
        self._ask()
        if lane >= self._world.kafka.partitions:
            raise LedgerMissing(f"there is no partition {lane}")
        high = log.end
        while self._world.kafka.waits_for_stable and log.stable < high:
            if not waits or runtime.monotonic() > give_up_at:
                raise LedgerOpen("a transaction is open", high)
            runtime.sleep(_STABLE_POLL_S)
        self._ask()
        record = log.last_committed(high)
        return None if record is None else ledger.decode(*record)
