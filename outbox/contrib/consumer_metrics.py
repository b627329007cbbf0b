"""Metrics of a process with consumers for Prometheus. Needs the extra ``metrics``.

Names and labels are in `CATALOGUE`. The labels are the consumer and the state of partitions; no topic is a label, since
there may be many. Totals come from the process's own counts. Where the partitions end is what its observer has learnt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from outbox import __version__
from outbox.contrib import exposition
from outbox.contrib.exposition import Catalogue, Collector, CollectorRegistry, Families
from outbox.core.consumers.partition import Life

CATALOGUE: Catalogue = {
    "outbox_consumer_info": ("gauge", "The value is always 1. The labels are version and name."),
    "outbox_consumer_ready": (
        "gauge", "The value is 1 when both servers have answered and the process runs its consumers."
    ),
    "outbox_consumer_handled_messages_total": (
        "counter", "The consumer has handled this many messages in this process. Their effects are committed."
    ),
    "outbox_consumer_failed_attempts_total": (
        "counter", "This many attempts to handle a message have failed in this process. Outages do not count."
    ),
    "outbox_consumer_batch_duration_seconds": (
        "histogram", "A transaction of the consumer takes this long, from its messages to the end of COMMIT."
    ),
    "outbox_consumer_lag_messages": (
        "gauge",
        "This many offsets lie between the positions of the process and the last stable offsets. It is a sum.",
    ),
    "outbox_consumer_lag_seconds": (
        "gauge",
        "The oldest message that waits in a partition of the process was produced this long ago. 0: none waits.",
    ),
    "outbox_consumer_partitions": (
        "gauge", "The process has this many partitions of the consumer in this state. The other label is state."
    ),
    "outbox_consumer_waiting": ("gauge", "The value is 1 while the consumer waits for Kafka or PostgreSQL."),
    "outbox_consumer_failing": (
        "gauge", "The value is 1 while messages of many keys fail in a row: the consumer is at fault, and no message."
    ),
    "outbox_consumer_held_messages": (
        "gauge",
        "This many messages of the consumer are held, in all partitions: they failed, or wait behind one that did.",
    ),
    "outbox_consumer_undecided_messages": (
        "gauge", "This many held messages of the consumer are not tried again before an operator decides."
    ),
    "outbox_consumer_dead_letters": ("gauge", "The consumer has this many dead letters, of all partitions."),
    "outbox_consumer_sample_age_seconds": (
        "gauge", "Kafka has answered this long ago where the partitions of the process end. It has no label consumer."
    ),
}  # fmt: skip
_FAMILIES = Families(CATALOGUE)
STATES = (Life.ASSIGNED, Life.LOADING, Life.PLACED, Life.READING, Life.OUT_OF_BOUNDS, Life.STOPPED)
"""Of partitions that the group has given to the process."""


class ConsumersCollector(Collector):
    """Collects the metrics in `CATALOGUE` from one process."""

    def __init__(self, consumers: Any, name: str) -> None:
        """`name` is the application's."""
        self._consumers, self._name = consumers, name

    def describe(self) -> list[Any]:
        return []  # a registration must not read from a daemon that has not started

    def collect(self) -> Iterator[Any]:
        consumers = self._consumers
        info = _FAMILIES.labelled("outbox_consumer_info", "version", "name")
        info.add_metric([__version__, self._name], 1)
        yield info
        yield _FAMILIES.value("outbox_consumer_ready", consumers.is_ready)
        yield from self._counted()
        yield from self._observed()
        yield from self._held()
        yield self._partitions()
        waiting, failing = (
            _FAMILIES.labelled(f"outbox_consumer_{name}", "consumer") for name in ("waiting", "failing")
        )
        for name, is_waiting in consumers.is_waiting.items():
            waiting.add_metric([name], is_waiting)
        for name, reason in consumers.failing.items():
            failing.add_metric([name], bool(reason))
        yield from (waiting, failing)
        if (age_s := consumers.seen_age_s) is not None:
            yield _FAMILIES.value("outbox_consumer_sample_age_seconds", age_s)

    def _counted(self) -> Iterator[Any]:
        handled, failed, durations = (
            _FAMILIES.labelled(f"outbox_consumer_{name}", "consumer")
            for name in ("handled_messages_total", "failed_attempts_total", "batch_duration_seconds")
        )
        for name, counted in self._consumers.counted.items():
            handled.add_metric([name], counted.handled)
            failed.add_metric([name], counted.failed)
            durations.add_metric([name], exposition.buckets(counted.durations), counted.durations.sum)
        yield from (handled, failed, durations)

    def _observed(self) -> Iterator[Any]:
        lag = _FAMILIES.labelled("outbox_consumer_lag_messages", "consumer")
        lag_s = _FAMILIES.labelled("outbox_consumer_lag_seconds", "consumer")
        for name, rows in self._consumers.seen.items():
            lags = [row.lag for row in rows if row.lag is not None]
            ages = [row.oldest_age_s for row in rows if row.oldest_age_s is not None]
            if lags:
                lag.add_metric([name], sum(lags))
            if ages:
                lag_s.add_metric([name], max(ages))
        yield from (lag, lag_s)

    def _held(self) -> Iterator[Any]:
        held, undecided, dead = (
            _FAMILIES.labelled(f"outbox_consumer_{name}", "consumer")
            for name in ("held_messages", "undecided_messages", "dead_letters")
        )
        for name, counts in self._consumers.held.items():
            for family, count in zip((held, undecided, dead), counts, strict=True):
                family.add_metric([name], count)
        yield from (held, undecided, dead)

    def _partitions(self) -> Any:
        found = _FAMILIES.labelled("outbox_consumer_partitions", "consumer", "state")
        for name, partitions in self._consumers.partitions.items():
            counts = Counter(state for state, _ in partitions.values())
            for state in STATES:
                found.add_metric([name, state.value], counts[state])
        return found


def registry_of(consumers: Any, name: str) -> CollectorRegistry:
    return exposition.registry_of(ConsumersCollector(consumers, name))
