"""What a harvester counts over its whole life, for metrics. Lanes and their workers come and go; these numbers stay.

Fed from the threads of lanes once per batch, and read by whoever serves metrics. Nothing here blocks or raises.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from outbox.core.contract import BatchDelivered
from outbox.core.election.neli import LeaderFenced
from outbox.service.histogram import Histogram

DELAY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZE_BOUNDS = (1, 2, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000)
TOTALS = ("delivered", "batches", "takeovers", "renewals")


class Worker(Protocol):
    def statistics(self) -> Any: ...
    def join(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """The numbers of one moment. Totals are since the harvester began."""

    delivered: int
    batches: int
    takeovers: int
    """Of lanes in exactly-once delivery: at an election, and after whatever made a producer unusable."""
    renewals: int
    elections: int
    fences: int
    rejected: int
    in_flight: int
    held_keys: int
    unpurged: int
    """Batches that are in Kafka and whose rows are not deleted yet."""
    owned: tuple[int, ...]
    open_circuits: int
    """Of lanes, and one of the election."""
    delays: Histogram
    commits: Histogram
    sizes: Histogram


class Measurements:
    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._workers: dict[Worker, int] = {}
        self._ended: dict[str, int] = dict.fromkeys(TOTALS, 0)
        self._elections = self._fences = self._rejected = 0
        self._delays, self._commits = Histogram(DELAY_BOUNDS_S), Histogram(COMMIT_BOUNDS_S)
        self._sizes = Histogram(SIZE_BOUNDS)

    # ---- what happens

    def acquired(self, lane: int, worker: Worker) -> None:
        with self._mutex:
            self._elections += 1
            self._workers[worker] = lane

    def fenced(self, event: LeaderFenced) -> None:
        with self._mutex:
            self._fences += 1

    def rejected(self) -> None:
        """A record, once more."""
        with self._mutex:
            self._rejected += 1

    def delivered(self, event: BatchDelivered) -> None:
        with self._mutex:
            self._commits.add(event.commit_s)
            self._sizes.add(event.count)
            for delay_s in event.delays_s:
                self._delays.add(delay_s)

    # ---- what is asked

    def read(self, owned: Iterable[int], *, is_cut_off: bool = False) -> Measured:
        """`owned`: the lanes of this moment. `is_cut_off`: the election hears nothing from the brokers. It loses the
        lanes within seconds, and they take what they know of the outage with them."""
        live = self._forget_ended()
        with self._mutex:
            totals = {
                name: self._ended[name] + sum(getattr(found, name, 0) for found in live.values()) for name in TOTALS
            }
            return Measured(
                **totals,
                elections=self._elections,
                fences=self._fences,
                rejected=self._rejected,
                in_flight=_sum(live, "in_flight"),
                held_keys=_sum(live, "held_keys"),
                unpurged=_sum(live, "unpurged"),
                owned=tuple(sorted(owned)),
                open_circuits=sum(_is_open(found) for found in live.values()) + is_cut_off,
                delays=self._delays.copy(),
                commits=self._commits.copy(),
                sizes=self._sizes.copy(),
            )

    def _forget_ended(self) -> dict[Worker, Any]:
        """The statistics of the workers that are at work; those of the others are added up for good."""
        live = {}
        for worker in list(self._workers):
            has_ended = worker.join(0.0)  # before its numbers are taken: then they are its last
            found = worker.statistics()
            if not has_ended:
                live[worker] = found
                continue
            with self._mutex:
                if self._workers.pop(worker, None) is not None:  # else somebody else has asked at the same time
                    for name in TOTALS:
                        self._ended[name] += getattr(found, name, 0)
        return live


def _sum(live: dict[Worker, Any], name: str) -> int:
    return sum(int(getattr(found, name, 0) or 0) for found in live.values())


def _is_open(found: Any) -> bool:
    circuit = getattr(found, "circuit", None)
    return circuit is not None and circuit.state != "closed"
