"""The producer of a lane that writes its outputs outside of a transaction: at-least-once and at-most-once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from outbox.core.graphs.outputs import Produced
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import idempotent_producer
from outbox.edges.kafka.common.disposal import dispose
from outbox.edges.kafka.exactly_once.transactional import ReportsMissing
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS

_ROOM_S, _SLICE_S = 0.05, 0.25


class PlainProducer:
    """A `PlainPort`. Used by one thread."""

    def __init__(self, properties: Mapping[str, Any], *, delivery_timeout_s: float, runtime: Runtime = THREADS) -> None:
        self._runtime = runtime
        given = {**properties, "delivery.timeout.ms": int(delivery_timeout_s * 1000), "logger": ClientLog()}
        self._held = [idempotent_producer(given)]

    def send(
        self, outputs: Sequence[Produced], give_up_at: float, report_of: Callable[[int], Callable[[Any, Any], None]]
    ) -> None:
        sent = 0
        while sent < len(outputs):
            topic, key, value, headers = outputs[sent]
            with suppress(BufferError):
                self._held[0].produce(topic, value, key, on_delivery=report_of(sent), headers=list(headers))
                sent += 1
                continue
            if self._runtime.monotonic() > give_up_at:
                raise ReportsMissing("The Kafka client's queue stayed full: the brokers accept no records.")
            self._held[0].poll(_ROOM_S)

    def wait_reports(self, is_over: Callable[[], bool]) -> None:
        while left := self._held[0].flush(_SLICE_S):
            if is_over():
                raise ReportsMissing(f"The brokers did not acknowledge {left} records in time.")

    def close(self) -> None:
        held, self._held = self._held, []
        if held:
            dispose(held, lambda client: client.purge(), self._runtime)
