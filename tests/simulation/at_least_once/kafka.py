"""The idempotent producer of a simulated process. Its records go to the checkers: nobody else reads them.

Each key has a partition of its own, so that one that stalls or is rejected keeps back no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError

from tests.simulation.runtime import Waiters

DELIVERY_TIMEOUT_S = 1.5
_RETRY_S = 0.1


class Message:
    """A record handed to a client, until it is reported."""

    __slots__ = (
        "appended",
        "cancelled",
        "evicted",
        "handed_at",
        "id",
        "key",
        "report",
        "reported",
        "sequence",
        "stale",
    )

    def __init__(self, row: Any, handed_at: float, report: Callable[[Any, Any], None]) -> None:
        self.id, self.key, self.sequence = row.id, row.key, row.sequence
        self.handed_at, self.report = handed_at, report
        self.stale = self.evicted = self.cancelled = self.appended = self.reported = False


class Client:
    """What `edges.kafka.at_least_once.idempotent` takes for a Producer of confluent-kafka."""

    def __init__(self, process: Any, lane: int, properties: Mapping[str, Any]) -> None:
        self._process, self._world, self._runtime, self.lane = process, process.world, process.runtime, lane
        self._messages: dict[Message, None] = {}
        self._reports: list[Callable[[], None]] = []
        self._waiters = Waiters()
        self.is_purged = False
        process.clients[self] = None

    # ---- what the product calls

    def produce(self, topic: str, value: Any, key: Any, *, headers: Any, on_delivery: Any) -> None:
        row = self._world.checkers.rows[int(value)]
        assert (row.key or None) == key
        message = Message(row, self._world.now, on_delivery)
        # Until it learns of its successor by the heartbeats that it reads, what it hands over goes on as after a pause.
        message.evicted = self._process.is_evicted
        self._process.handed(self.lane, message)
        self._messages[message] = None
        self._later(partial(self._arrive, message), self._world.latency())

    def poll(self, timeout: float) -> int:
        if timeout and not self._reports:
            self._runtime.wait(timeout, self._waiters)
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)

    def flush(self, timeout: float) -> int:
        give_up_at = self._world.now + timeout
        while len(self) and (left_s := give_up_at - self._world.now) > 0:
            self.poll(left_s)
        self.poll(0)
        return len(self)

    def purge(self, *, blocking: bool) -> None:
        """What was not written yet is never written."""
        assert not blocking
        self.is_purged = True
        for message in list(self._messages):
            if not message.appended:
                message.cancelled = True
            self._report(message, KafkaError(KafkaError._PURGE_QUEUE, "simulated"))

    def __len__(self) -> int:
        return len(self._messages) + len(self._reports)

    # ---- faults of the process

    @property
    def undecided(self) -> list[Message]:
        return [] if self.is_purged else list(self._messages)

    def evict(self) -> None:
        for message in self._messages:
            message.evicted = True

    def crash(self) -> None:
        for message in self._messages:
            message.cancelled = not message.appended and self._world.chance(0.5)
            if not message.cancelled and not message.appended:  # it is on the wire
                self._world.after(self._world.latency(), partial(self._append, message))

    def pause(self) -> None:
        for message in self._messages:
            message.stale = not message.appended
            if message.stale and not message.cancelled and self._world.chance(0.2):
                self._append(message)  # it was on the wire

    def resume(self) -> None:
        for message in list(self._messages):
            if message.stale and self._world.chance(0.5):  # the client's thread may run before all others
                self._arrive(message)

    # ---- the client's own thread

    def _later(self, action: Callable[[], None], delay_s: float) -> None:
        self._world.after(delay_s, partial(self._runtime.when_running, action))

    def _arrive(self, message: Message) -> None:
        """The client brings one message to the broker, or tries again."""
        world, faults = self._world, self._world.faults
        if message.cancelled or message.appended or message.reported:
            return
        if message.key in faults.refuse_keys:
            self._report(message, KafkaError(KafkaError.INVALID_RECORD, "simulated"))
        elif not self._process.kafka_ok or message.key in faults.stall_keys:
            if world.now - message.handed_at > DELIVERY_TIMEOUT_S and not message.stale:
                self._report(message, KafkaError(KafkaError._MSG_TIMED_OUT, "simulated"))
            else:
                self._later(partial(self._arrive, message), _RETRY_S)
        else:
            self._append(message)

    def _append(self, message: Message) -> None:
        world, faults = self._world, self._world.faults
        if message.cancelled or message.appended:
            return
        message.appended = True
        world.note("append", self._process.name, message.id)
        world.checkers.appended_to_topic(
            message, self._process.name, handed_before_pause=message.stale or message.evicted
        )
        if world.chance(faults.report_lost):
            return
        if world.chance(faults.ack_lost):
            error = KafkaError(KafkaError._MSG_TIMED_OUT, "simulated")
            self._later(partial(self._report, message, error), DELIVERY_TIMEOUT_S)
        else:
            delay_s = world.random.uniform(0.2, 1.4) if world.chance(faults.ack_late) else world.latency()
            self._later(partial(self._report, message, None), delay_s)

    def _report(self, message: Message, error: Any) -> None:
        if message.reported:
            return
        message.reported = True
        self._messages.pop(message, None)
        self._reports.append(lambda: message.report(error, None))
        self._runtime.wake(self._waiters)
