"""Metrics of a harvester for Prometheus, and the sampling of what only the database and the brokers know.

Names and labels are in `CATALOGUE`; the one label is the lane's number. Totals come from the harvester's own counts.
What concerns the whole application (backlog, age, dead letters, the ledger's lag) is sampled by the owner of lane 0
alone, in a thread of its own, and by the last owner while the brokers are away; a sample that fails changes nothing but
its age, and one of the ledger leaves those of the table alone. Needs the extra ``metrics``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from outbox import __version__
from outbox.conf import EXACTLY_ONCE
from outbox.edges.kafka.common.stable_lag import stable_lag
from outbox.edges.postgres.common import table
from outbox.edges.postgres.counts import backlog as backlogs
from outbox.exceptions import missing_extra
from outbox.harvest.metrics import Histogram, Measured
from outbox.harvest.readings import Troubles

try:
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    missing_extra("metrics", error)

logger = logging.getLogger("outbox.metrics")

SAMPLE_INTERVAL_S = 5.0
STATEMENT_TIMEOUT_S = 2.0

CATALOGUE: Mapping[str, tuple[str, str]] = {
    "outbox_info": ("gauge", "1; labels: version, name, delivery."),
    "outbox_ready": ("gauge", "1 when both servers have answered and the process leads, or could lead."),
    "outbox_lane_owned": ("gauge", "1 per lane that this process owns; label: lane."),
    "outbox_in_flight_records": ("gauge", "Read and not yet known to be delivered and deleted."),
    "outbox_held_keys": (
        "gauge",
        "Keys, topics and records without key behind a record that Kafka rejected or that is poison; no pauses.",
    ),
    "outbox_circuits_open": (
        "gauge", "Lanes of this process that cannot use Kafka or PostgreSQL, and 1 while its election hears nothing."
    ),
    "outbox_delivered_records_total": ("counter", "Delivered by this process."),
    "outbox_rejected_records_total": ("counter", "Attempts that Kafka rejected for a record's or its topic's sake."),
    "outbox_batches_total": ("counter", "Transactions committed (exactly-once)."),
    "outbox_takeovers_total": ("counter", "Takeovers of lanes: at an election, and after failures (exactly-once)."),
    "outbox_producer_renewals_total": ("counter", "Producers given up for safety's sake (exactly-once)."),
    "outbox_elections_total": ("counter", "Lanes acquired."),
    "outbox_fences_total": ("counter", "Lanes lost without having been given back."),
    "outbox_events_dropped_total": ("counter", "Events that receivers of signals were too slow for."),
    "outbox_ledger_lag_batches": ("gauge", "In Kafka, and their rows not deleted yet (exactly-once)."),
    "outbox_batch_size_records": ("histogram", "Records of a transaction (exactly-once)."),
    "outbox_commit_duration_seconds": ("histogram", "Of a transaction in Kafka (exactly-once)."),
    "outbox_delivery_delay_seconds": (
        "histogram", "From the begin of the stashing transaction to Kafka's commit, of sampled records (exactly-once)."
    ),
    "outbox_backlog_records": ("gauge", "Waiting in the table; an estimate above 100,000. Owner of lane 0 only."),
    "outbox_oldest_record_age_seconds": ("gauge", "Of the record that waits longest. Owner of lane 0 only."),
    "outbox_stashed_records_total": (
        "counter", "Inserted into the table as PostgreSQL counts, also what was rolled back. Owner of lane 0 only."
    ),
    "outbox_dead_letters": ("gauge", "Kept for an operator. Owner of lane 0 only."),
    "outbox_lso_lag_offsets": (
        "gauge", "Between the last stable offset and the end of a ledger partition, the largest. Owner of lane 0 only."
    ),
    "outbox_sample_age_seconds": ("gauge", "Since the last look at the table. Owner of lane 0 only."),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableSample:
    taken_at: float
    backlog: backlogs.Backlog
    dead_letters: int | None
    lso_lag: int | None = None


class Sampler:
    """Looks every few seconds, while the harvester is the last that is known to have owned lane 0."""

    def __init__(self, harvester: Any, interval_s: float = SAMPLE_INTERVAL_S) -> None:
        self._harvester, self._interval_s = harvester, interval_s
        self._stopping = threading.Event()
        self._troubles = Troubles(0)
        self.sample: TableSample | None = None
        self._thread = threading.Thread(target=self._run, name="outbox-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._harvester.led_last:
                self._take()
            else:
                self.sample = None
            self._stopping.wait(self._interval_s)

    def _take(self) -> None:
        """The table first: the brokers may be away, and take ten seconds to say nothing."""
        conf, before = self._harvester.conf, self.sample
        try:
            self.sample = replace(take_sample(conf), lso_lag=before.lso_lag if before is not None else None)
        except Exception as error:
            self._troubles.seen("sampling", _told(error))
        else:
            self._troubles.over("sampling")
        lag = None
        try:
            lag = take_lag(conf)
        except Exception as error:
            self._troubles.seen("lag_sampling", _told(error))
        else:
            self._troubles.over("lag_sampling")
        if self.sample is not None:
            self.sample = replace(self.sample, lso_lag=lag)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def take_sample(conf: Any) -> TableSample:
    with closing(
        table.connect_bounded(
            table.parameters(conf.database),
            statement_timeout_s=STATEMENT_TIMEOUT_S,
            application_name="outbox metrics",
        )
    ) as connection:
        waiting = backlogs.backlog(connection, conf.table)
        dead = backlogs.count_rows(connection, f"{conf.table}_dead")
    return TableSample(time.monotonic(), waiting, dead)


def take_lag(conf: Any) -> int | None:
    """None without a ledger."""
    lags = stable_lag(conf.kafka.client_properties, f"{conf.name}.ledger") if conf.delivery == EXACTLY_ONCE else {}
    return max(lags.values()) if lags else None


class HarvesterCollector(Collector):
    """What `CATALOGUE` promises, of one harvester."""

    def __init__(self, harvester: Any, sampler: Sampler | None = None) -> None:
        self._harvester, self._sampler = harvester, sampler

    def describe(self) -> list[Any]:
        return []  # a registration must not ask a harvester that has not begun

    def collect(self) -> Iterator[Any]:
        harvester, measured = self._harvester, self._harvester.measured
        info = _gauge("outbox_info", labels=("version", "name", "delivery"))
        info.add_metric([__version__, harvester.conf.name, harvester.conf.delivery], 1)
        yield info
        owned = _gauge("outbox_lane_owned", labels=("lane",))
        for lane in measured.owned:
            owned.add_metric([str(lane)], 1)
        yield owned
        for name, read in _VALUES.items():
            yield _family(name, read(harvester, measured))
        for name, histogram in (
            ("outbox_batch_size_records", measured.sizes),
            ("outbox_commit_duration_seconds", measured.commits),
            ("outbox_delivery_delay_seconds", measured.delays),
        ):
            yield _histogram(name, histogram)
        sample = self._sampler.sample if self._sampler is not None else None
        if sample is not None:
            yield from _sampled(sample)


_VALUES: Mapping[str, Callable[[Any, Measured], float]] = {
    "outbox_ready": lambda harvester, measured: harvester.is_ready,
    "outbox_in_flight_records": lambda harvester, measured: measured.in_flight,
    "outbox_held_keys": lambda harvester, measured: measured.held_keys,
    "outbox_circuits_open": lambda harvester, measured: measured.open_circuits,
    "outbox_delivered_records_total": lambda harvester, measured: measured.delivered,
    "outbox_rejected_records_total": lambda harvester, measured: measured.rejected,
    "outbox_batches_total": lambda harvester, measured: measured.batches,
    "outbox_takeovers_total": lambda harvester, measured: measured.takeovers,
    "outbox_producer_renewals_total": lambda harvester, measured: measured.renewals,
    "outbox_elections_total": lambda harvester, measured: measured.elections,
    "outbox_fences_total": lambda harvester, measured: measured.fences,
    "outbox_events_dropped_total": lambda harvester, measured: harvester.events_dropped,
    "outbox_ledger_lag_batches": lambda harvester, measured: measured.unpurged,
}


def _sampled(sample: TableSample) -> Iterator[Any]:
    yield _family("outbox_backlog_records", sample.backlog.records)
    yield _family("outbox_oldest_record_age_seconds", sample.backlog.oldest_age_s)
    yield _family("outbox_stashed_records_total", sample.backlog.stashed_total)
    yield _family("outbox_sample_age_seconds", time.monotonic() - sample.taken_at)
    if sample.dead_letters is not None:
        yield _family("outbox_dead_letters", sample.dead_letters)
    if sample.lso_lag is not None:
        yield _family("outbox_lso_lag_offsets", sample.lso_lag)


def _family(name: str, value: float) -> Any:
    if CATALOGUE[name][0] == "counter":
        return CounterMetricFamily(name, CATALOGUE[name][1], value=value)
    return GaugeMetricFamily(name, CATALOGUE[name][1], value=value)


def _gauge(name: str, labels: tuple[str, ...]) -> Any:
    return GaugeMetricFamily(name, CATALOGUE[name][1], labels=labels)


def _histogram(name: str, found: Histogram) -> Any:
    buckets, total = [], 0
    for bound, count in zip([*map(str, map(float, found.bounds)), "+Inf"], found.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, CATALOGUE[name][1], buckets=buckets, sum_value=found.sum)


def registry_of(harvester: Any, sampler: Sampler | None = None) -> CollectorRegistry:
    """A registry of its own: that of the project may hold its own metrics, and is not to be mixed with this one."""
    registry = CollectorRegistry()
    registry.register(HarvesterCollector(harvester, sampler))
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)
