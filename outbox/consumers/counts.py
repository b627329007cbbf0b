"""What one consumer has done in this process since it started, for metrics. Partitions come and go; these numbers stay.

The assignment calls this under its lock, but for `failed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outbox.core.consumers.values import Partition
from outbox.service.histogram import Histogram

DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers of one moment."""

    handled: int
    """Messages, for good."""
    failed: int
    """Attempts."""
    durations: Histogram
    """Of transactions, from taking the messages to the end of COMMIT."""


class ConsumerCounts:
    def __init__(self, workers: int) -> None:
        self._handled: Counter[Partition] = Counter()
        self._failed = [0] * workers
        self._durations = Histogram(DURATION_BOUNDS_S)
        self._began_at = [0.0] * workers

    def began(self, worker: int, now: float) -> None:
        """A task of this worker."""
        self._began_at[worker] = now

    def committed(self, worker: int, counts: Mapping[Partition, int], now: float) -> None:
        """The batch that was the worker's task."""
        self._handled.update(counts)
        self._durations.add(now - self._began_at[worker])

    def failed(self, worker: int) -> None:
        """Each worker counts its own, so no lock is needed."""
        self._failed[worker] += 1

    def of(self, partition: Partition) -> int:
        """Messages that this process has handled, in all assignments of the partition."""
        return self._handled[partition]

    def read(self) -> Counted:
        return Counted(self._handled.total(), sum(self._failed), self._durations.copy())
