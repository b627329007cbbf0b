"""The brokers as one simulated process reaches them: the client below the product's transactional producer, a member of
the group, and what lanes ask before they begin."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from outbox.core.consumers.values import ClientError, Fetched, Partition, Polled
from outbox.core.graphs import attempts, positions
from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.outputs import Produced
from outbox.core.graphs.positions import InputState, LaneEntry
from outbox.core.graphs.values import lane_id
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerOpen
from outbox.edges.kafka.exactly_once.transactional import ReportsMissing, TransactionalProducer
from outbox.exceptions import NotAvailable
from tests.simulation.exactly_once import broker as b
from tests.simulation.exactly_once import kafka
from tests.simulation.graphs.broker import ATTEMPTS, POSITIONS
from tests.simulation.group import OLD_GENERATION, UNKNOWN_MEMBER
from tests.simulation.runtime import Waiters

HEARTBEAT_S = 0.5
SIZE_LIMIT = 1_048_588
_STABLE_POLL_S, _STABLE_S, _UNREACHABLE_S = 0.01, 10.0, 0.1
_REFUSALS = {UNKNOWN_MEMBER: KafkaError.UNKNOWN_MEMBER_ID, OLD_GENERATION: KafkaError.ILLEGAL_GENERATION}


class LaneClient(kafka.Client):
    """With topics, and with offsets of a group."""

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
            raise kafka._error("_STATE", "no transaction to produce to")
        if partition < 0 and self._world.chance(self._world.faults.full):
            raise BufferError("no room")
        assert value is not None
        number = partition if partition >= 0 else zlib.crc32(key or value) % self._broker.partitions
        self._pending.append((((topic, number), (key, value)), callback, 1))
        if len(self._pending) == kafka._FRAME_ROWS:
            self._flush_pending()
        elif len(self._pending) == 1:
            self._world.after(kafka._LINGER_S, partial(self._runtime.when_running, self._flush_pending))

    def _flush_pending(self) -> None:
        pending, self._pending = self._pending, []
        if self._is_dropped:
            return
        by_log: dict[tuple[str, int], list[Any]] = {}
        for (log, record), callback, _ in pending:
            by_log.setdefault(log, []).append((record, callback))
        for log, records in by_log.items():
            self._write(log, [record for record, _ in records], [callback for _, callback in records])

    def _write(self, name: tuple[str, int], records: list[Any], reports: list[Any]) -> None:
        self._is_registered = True
        log = self._broker.log(*name)
        sequence = self._sequences.get(log, 0)
        self._sequences[log] = sequence + 1
        epoch, process, refused = self._epoch, self._process, self._world.refused

        def arrive() -> tuple[str, list[int]]:
            is_refused = any(value in refused for _, value in records)
            found = self._id.produce(epoch, log, sequence, [] if is_refused else records, process)
            return (b.REFUSED, []) if is_refused and found == b.OK else (found, [])

        answer = self._request(arrive, is_data=True)
        self._open[answer] = None
        answer.then = partial(self._acknowledged, answer, reports)

    def send_offsets_to_transaction(self, offsets: list[Any], group: Any, timeout: float) -> None:
        if self._error is not None or not self._in_transaction:
            raise kafka._error("_STATE", "no transaction")
        self._is_registered = True
        ((number, positions),) = offsets
        log = self._broker.log("offsets", number)
        sequence = self._sequences.get(log, 0)
        self._sequences[log] = sequence + 1
        epoch, process = self._epoch, self._process

        def arrive() -> tuple[str, list[int]]:
            # Their log is in the transaction before the group is asked.
            refusal = self._world.group.refusal(group)
            found = self._id.produce(epoch, log, sequence, [] if refusal else [(None, positions)], process)
            return (refusal, []) if refusal and found == b.OK else (found, [])

        answer = self._request(arrive, is_data=True)
        if not self._wait(answer, timeout):
            raise kafka._error("_TIMED_OUT", "no answer yet", retriable=True)
        code = answer.value[0]
        if code in _REFUSALS:
            self._error = KafkaError(_REFUSALS[code], code, txn_requires_abort=True)
            raise KafkaException(self._error)
        if code != b.OK:
            self._fail(code)
            assert self._error is not None
            raise KafkaException(self._error)


class Plain:
    """A `PlainPort`."""

    def __init__(self, process: Any) -> None:
        self._process, self._world, self._left = process, process.world, 0
        self._queue: list[tuple[Produced, Callable[[Any, Any], None]]] = []
        """Not at the brokers yet, which get them in this order."""

    def send(
        self, outputs: Sequence[Produced], give_up_at: float, report_of: Callable[[int], Callable[[Any, Any], None]]
    ) -> None:
        self._left += len(outputs)
        for at, output in enumerate(outputs):
            self._queue.append((output, report_of(at)))
            self._world.after(self._world.latency(), self._arrive)

    def _arrive(self) -> None:
        if not self._queue:
            return
        if not self._process.kafka_ok:
            self._world.after(_UNREACHABLE_S, self._arrive)
            return
        output, report = self._queue.pop(0)
        number = zlib.crc32(output.key or output.value or b"") % self._world.kafka.partitions
        error = KafkaError(KafkaError.POLICY_VIOLATION, "refused") if output.value in self._world.refused else None
        if error is None:
            self._world.kafka.append_plainly(output.topic, number, [(output.key, output.value)], self._process)

        def told() -> None:
            self._left -= 1
            report(error, None)

        self._process.runtime.when_running(told)

    def wait_reports(self, is_over: Callable[[], bool]) -> None:
        while self._left:
            if is_over():
                raise ReportsMissing(f"{self._left} records are not acknowledged")
            self._process.runtime.sleep(0.002)

    def close(self) -> None:
        self._queue.clear()


class LaneKafka:
    """A `LaneKafkaPort`."""

    positions_topic, attempts_topic = POSITIONS, ATTEMPTS

    def __init__(self, process: Any) -> None:
        self._process, self._world = process, process.world

    def transactional_id(self, partition: int) -> str:
        return lane_id("graph", self._world.processor.name, partition)

    def producer(self, partition: int, request_bytes: int | None) -> TransactionalProducer:
        properties = {"process": self._process, "lane": self.transactional_id(partition)}
        return TransactionalProducer(properties, kind=LaneClient, runtime=self._process.runtime)  # type: ignore[arg-type]

    def plain(self) -> Plain:
        return Plain(self._process)

    def prepare(self) -> str:
        self._ask()
        return ""

    def entry(self, partition: int, give_up_at: float) -> LaneEntry | None:
        found = self._last(POSITIONS, partition, give_up_at)
        return None if found is None else positions.decode(found)

    def begun(self, partition: int, give_up_at: float) -> Begun | None:
        found = self._last(ATTEMPTS, partition, give_up_at)
        return None if found is None else attempts.decode(found)

    def _last(self, topic: str, partition: int, give_up_at: float) -> bytes | None:
        self._ask()
        while not self._world.kafka.is_stable(topic, partition):
            if self._process.runtime.monotonic() > give_up_at:
                raise LedgerOpen("a transaction is open", 0)
            self._process.runtime.sleep(_STABLE_POLL_S)
        found: bytes | None = self._world.kafka.last(topic, partition, self._world.processor.name)
        return found

    def inputs(self, partition: int) -> Mapping[str, InputState]:
        self._ask()
        give_up_at = self._process.runtime.monotonic() + _STABLE_S
        while not self._world.kafka.is_stable("offsets", partition):
            if self._process.runtime.monotonic() > give_up_at:
                raise NotAvailable("UNSTABLE_OFFSET_COMMIT")
            self._process.runtime.sleep(_STABLE_POLL_S)
        self._process.placed[partition] = self._process.placed.get(partition, 0) + 1
        committed = self._world.kafka.committed[partition]
        return {
            topic: InputState(committed.get(topic), _id_of(topic), 0, self._world.kafka.sources[topic, partition].end)
            for topic in self._world.processor.topics
        }

    def topic_ids(self) -> Mapping[str, str]:
        self._ask()
        return {topic: _id_of(topic) for topic in self._world.processor.topics}

    def offsets(self, partition: int, positions: Mapping[str, int]) -> Sequence[Any]:
        return [(partition, dict(positions))]

    def close(self) -> None:
        pass

    def size_limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        return dict.fromkeys(self._there.intersection(topics), SIZE_LIMIT)

    def missing(self, topics: Iterable[str]) -> Mapping[str, str]:
        there, faults = self._there, self._world.faults
        return {
            topic: "it does not exist" for topic in topics if topic not in there or self._world.chance(faults.no_topic)
        }

    @property
    def _there(self) -> set[str]:
        processor = self._world.processor
        return {*processor.topics, *(stream.topic for stream in processor.outputs), processor.error_topic}

    def _ask(self) -> None:
        self._process.passed("ask")
        self._process.runtime.sleep(self._world.latency())
        if not self._process.kafka_ok:
            self._process.runtime.sleep(0.1)
            raise NotAvailable("no broker answers")


def _id_of(topic: str) -> str:
    return f"id of {topic}"


class Member:
    """A `LaneGroupPort`, and a member of the simulated group. It keeps a pause until it is told to resume."""

    def __init__(self, process: Any) -> None:
        self.process, self.world, self.name = process, process.world, process.name
        self._reading: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._owned: set[int] = set()
        self._news: list[tuple[str, int]] = []
        self._metadata: Any = None
        self._errors: list[ClientError] = []
        self._waiters = Waiters()
        self._is_member = False
        self._listener: Any = None

    def join(self, listener: Any) -> None:
        self._listener = listener
        self._enter()
        self._beat()

    def _enter(self) -> None:
        self._is_member, self._news = True, []
        self.world.group.join(self)

    def _beat(self) -> None:
        def beat() -> None:
            if self.process.is_closed:
                return
            if self.name in self.world.group.members:
                self.world.group.seen[self.name] = self.world.now
            else:
                self._is_member = False
            self._beat()

        self.world.after(HEARTBEAT_S, lambda: self.process.runtime.when_running(beat))

    def post(self, kind: str, partition: int) -> None:
        self._news.append((kind, partition))
        if kind == "assign":
            self._metadata = self.world.group.metadata(self.name)

    @property
    def metadata(self) -> Any:
        return self._metadata

    def _all(self, numbers: Iterable[int]) -> list[Partition]:
        return [Partition(topic, number) for topic in self.world.processor.topics for number in sorted(numbers)]

    def _rebalance(self) -> None:
        if not self._is_member:
            self._revoke()
            self._enter()
        news, self._news = self._news, []
        for kind, run in groupby(news, itemgetter(0)):
            numbers = [number for _, number in run]
            if kind == "assign":
                self._owned.update(numbers)
                self._listener.assigned(self._all(numbers))
            else:
                self._revoke()
                for number in numbers:
                    self.world.group.released(self.name, number)

    def _revoke(self) -> None:
        """All of them, always."""
        self._reading.clear()
        if self._owned:
            self._listener.revoked(self._all(self._owned))
            self._owned.clear()

    def poll(self, timeout_s: float, count: int) -> Polled:
        give_up_at = self.world.now + timeout_s
        while True:
            self._rebalance()
            messages = self._read(self.world.random.choice((1, 3, 10)), count)
            left_s = give_up_at - self.world.now
            if messages or self._errors or left_s <= 0:
                self.process.runtime.sleep(0.001)
                errors, self._errors = self._errors, []
                return Polled(messages, errors)
            self.process.runtime.wait(min(left_s, 0.05), self._waiters)

    def _read(self, of_each: int, count: int) -> list[Fetched]:
        found: list[Fetched] = []
        for partition, at in list(self._reading.items()):
            if partition in self._paused or self.world.chance(0.3):
                continue
            log = self.world.kafka.sources[partition]
            if at > log.end:
                del self._reading[partition]
                self._errors.append(ClientError(partition, "_AUTO_OFFSET_RESET", "Broker: Offset out of range"))
            for offset, key, uid in log.read(at, min(of_each, count - len(found))):
                found.append(Fetched(*partition, offset, 1, key, b"%d" % uid, (), 0))
                self._reading[partition] = offset + 1
        return found

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        self._reading.update({p: at for p, at in positions.items() if p.number in self._owned})

    def pause(self, partitions: Sequence[Partition]) -> None:
        self._paused.update(self._reading.keys() & partitions)

    def resume(self, partitions: Sequence[Partition]) -> None:
        self._paused.difference_update(partitions)

    def close(self) -> None:
        self._revoke()
        self.process.is_closed = True
        self.world.group.leave(self.name)
