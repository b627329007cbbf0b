"""Metrics of a harvester for Prometheus, and samples of numbers that only the database and the brokers know.

Names and labels are in `CATALOGUE`; the one label is the lane's number. Totals come from the harvester's own counts.
Only the owner of lane 0 samples numbers of the whole application: backlog, age, dead letters, the ledger's lag. It does
so in a thread of its own. While the brokers are unavailable, the last owner samples. When a sample of the table fails,
only its age changes. A failed sample of the ledger does not affect those of the table. Needs the extra ``metrics``.
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
from outbox.contrib import exposition
from outbox.contrib.exposition import Catalogue, Collector, CollectorRegistry, Families
from outbox.edges.kafka.common.stable_lag import stable_lag
from outbox.edges.postgres.common import table
from outbox.edges.postgres.counts import backlog as backlogs
from outbox.harvest.metrics import Measured
from outbox.harvest.readings import Troubles

logger = logging.getLogger("outbox.metrics")

SAMPLE_INTERVAL_S = 5.0
STATEMENT_TIMEOUT_S = 2.0

CATALOGUE: Catalogue = {
    "outbox_info": ("gauge", "The value is always 1. The labels are version, name and delivery."),
    "outbox_ready": ("gauge", "The value is 1 when both servers have answered and the process leads or could lead."),
    "outbox_lane_owned": ("gauge", "The value is 1 for each lane that this process owns. The label is lane."),
    "outbox_in_flight_records": (
        "gauge", "The process has read this many records that are not yet known to be delivered and deleted."
    ),
    "outbox_held_keys": (
        "gauge",
        "Behind rejected or poison records, this many keys, topics and records without key wait. Pauses do not count.",
    ),
    "outbox_circuits_open": (
        "gauge",
        "This many lanes of the process cannot use Kafka or PostgreSQL. Its election adds 1 while it hears nothing.",
    ),
    "outbox_delivered_records_total": ("counter", "The process has delivered this many records."),
    "outbox_rejected_records_total": (
        "counter", "Kafka has rejected this many attempts of the process, because of the record or its topic."
    ),
    "outbox_batches_total": ("counter", "The process has committed this many transactions (exactly-once)."),
    "outbox_takeovers_total": (
        "counter", "The process has taken over this many lanes, at elections and after failures (exactly-once)."
    ),
    "outbox_producer_renewals_total": (
        "counter", "The process has replaced this many producers for safety (exactly-once)."
    ),
    "outbox_elections_total": ("counter", "The process has acquired this many lanes."),
    "outbox_fences_total": ("counter", "The process has lost this many lanes without giving them back."),
    "outbox_events_dropped_total": (
        "counter", "The process has dropped this many events, because receivers of signals were too slow."
    ),
    "outbox_ledger_lag_batches": (
        "gauge", "Kafka has this many batches whose rows are not deleted yet (exactly-once)."
    ),
    "outbox_batch_size_records": ("histogram", "A transaction contains this many records (exactly-once)."),
    "outbox_commit_duration_seconds": ("histogram", "Kafka takes this long to commit a transaction (exactly-once)."),
    "outbox_delivery_delay_seconds": (
        "histogram",
        "Sampled records take this long from the begin of the stashing transaction to Kafka's commit (exactly-once).",
    ),
    "outbox_backlog_records": (
        "gauge",
        "This many records wait in the table; above 100,000 it is an estimate. Only the owner of lane 0 reports it.",
    ),
    "outbox_oldest_record_age_seconds": (
        "gauge", "The oldest record has waited this long. Only the owner of lane 0 reports it."
    ),
    "outbox_stashed_records_total": (
        "counter",
        "PostgreSQL has counted this many inserts, also rolled-back ones. Only the owner of lane 0 reports it.",
    ),
    "outbox_dead_letters": (
        "gauge", "This many dead letters wait for an operator. Only the owner of lane 0 reports it."
    ),
    "outbox_lso_lag_offsets": (
        "gauge",
        "The ledger's last stable offsets are at most this far from the ends. Only the owner of lane 0 reports it.",
    ),
    "outbox_sample_age_seconds": (
        "gauge", "The process read the table this long ago. Only the owner of lane 0 reports it."
    ),
}  # fmt: skip
_FAMILIES = Families(CATALOGUE)


@dataclass(frozen=True, slots=True)
class TableSample:
    taken_at: float
    backlog: backlogs.Backlog
    dead_letters: int | None
    lso_lag: int | None = None


class Sampler:
    """Takes a sample every few seconds, while this harvester is the last known owner of lane 0."""

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
        """Sample the table first: brokers that are unavailable take ten seconds to time out."""
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
    """Collects the metrics in `CATALOGUE` from one harvester."""

    def __init__(self, harvester: Any, sampler: Sampler | None = None) -> None:
        self._harvester, self._sampler = harvester, sampler

    def describe(self) -> list[Any]:
        return []  # a registration must not read from a harvester that has not started

    def collect(self) -> Iterator[Any]:
        harvester, measured = self._harvester, self._harvester.measured
        info = _FAMILIES.labelled("outbox_info", "version", "name", "delivery")
        info.add_metric([__version__, harvester.conf.name, harvester.conf.delivery], 1)
        yield info
        owned = _FAMILIES.labelled("outbox_lane_owned", "lane")
        for lane in measured.owned:
            owned.add_metric([str(lane)], 1)
        yield owned
        for name, read in _VALUES.items():
            yield _FAMILIES.value(name, read(harvester, measured))
        for name, histogram in (
            ("outbox_batch_size_records", measured.sizes),
            ("outbox_commit_duration_seconds", measured.commits),
            ("outbox_delivery_delay_seconds", measured.delays),
        ):
            yield _FAMILIES.histogram(name, histogram)
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
    yield _FAMILIES.value("outbox_backlog_records", sample.backlog.records)
    yield _FAMILIES.value("outbox_oldest_record_age_seconds", sample.backlog.oldest_age_s)
    yield _FAMILIES.value("outbox_stashed_records_total", sample.backlog.stashed_total)
    yield _FAMILIES.value("outbox_sample_age_seconds", time.monotonic() - sample.taken_at)
    if sample.dead_letters is not None:
        yield _FAMILIES.value("outbox_dead_letters", sample.dead_letters)
    if sample.lso_lag is not None:
        yield _FAMILIES.value("outbox_lso_lag_offsets", sample.lso_lag)


def registry_of(harvester: Any, sampler: Sampler | None = None) -> CollectorRegistry:
    return exposition.registry_of(HarvesterCollector(harvester, sampler))
