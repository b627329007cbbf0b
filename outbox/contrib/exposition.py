"""Metrics of a daemon as Prometheus reads them: families by a catalogue of names, and the page `/metrics`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outbox.exceptions import missing_extra
from outbox.service.histogram import Histogram
from outbox.service.http import TEXT, Answer

try:
    from prometheus_client import CollectorRegistry as CollectorRegistry
    from prometheus_client import ProcessCollector, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector as Collector
except ImportError as error:
    missing_extra("metrics", error)

logger = logging.getLogger("outbox.metrics")

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}

Catalogue = Mapping[str, tuple[str, str]]
"""Of each name, the kind and the meaning."""


@dataclass(frozen=True, slots=True)
class Families:
    catalogue: Catalogue

    def value(self, name: str, value: float) -> Any:
        kind, meaning = self.catalogue[name]
        return _KINDS[kind](name, meaning, value=value)

    def labelled(self, name: str, *labels: str) -> Any:
        kind, meaning = self.catalogue[name]
        return _KINDS[kind](name, meaning, labels=labels)

    def histogram(self, name: str, found: Histogram) -> Any:
        return HistogramMetricFamily(name, self.catalogue[name][1], buckets=buckets(found), sum_value=found.sum)


def buckets(found: Histogram) -> Sequence[tuple[str, float]]:
    result, total = [], 0
    for bound, count in zip([*map(str, map(float, found.bounds)), "+Inf"], found.counts, strict=True):
        total += count
        result.append((bound, float(total)))
    return result


def registry_of(collector: Collector) -> CollectorRegistry:
    """For the daemon alone, so that metrics of the project do not mix with its own."""
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)


def page_of(registry: CollectorRegistry) -> Callable[[str], Answer | None]:
    """Answers requests for `/metrics`."""

    def page(path: str) -> Answer | None:
        if path != "/metrics":
            return None
        try:
            return 200, exposition(registry), _METRICS
        except Exception as error:
            logger.exception("metrics_failed")
            return 500, f"{type(error).__name__}: see the log\n".encode(), TEXT

    return page
