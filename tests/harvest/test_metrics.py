"""The counts of a harvester outlive its lanes."""

import uuid
from dataclasses import dataclass

from outbox.core.contract import BatchDelivered
from outbox.core.patience import CircuitState, CircuitView
from outbox.harvest.metrics import Histogram, Measurements


@dataclass
class Found:
    delivered: int = 0
    batches: int = 0
    in_flight: int = 0
    held_keys: int = 0
    unpurged: int = 0
    circuit: CircuitView = CircuitView(CircuitState.CLOSED)  # noqa: RUF009


class Worker:
    def __init__(self, **numbers):
        self.numbers, self.has_ended = numbers, False

    def statistics(self):
        return Found(**self.numbers)

    def join(self, timeout_s):
        return self.has_ended


def test_totals_outlive_the_workers_and_gauges_do_not():
    measurements, first, second = Measurements(), Worker(delivered=7, held_keys=2), Worker(delivered=5, in_flight=3)
    measurements.acquired(0, first)
    measurements.acquired(1, second)
    assert (found := measurements.read([1, 0])).delivered == 12
    assert (found.held_keys, found.in_flight, found.owned, found.elections) == (2, 3, (0, 1), 2)
    first.has_ended = True
    first.numbers["delivered"] = 8  # the last of it, after the last look
    for _ in range(2):
        assert (found := measurements.read([1])).delivered == 13
        assert (found.held_keys, found.in_flight) == (0, 3)


def test_a_worker_with_fewer_numbers_counts_as_far_as_it_goes():
    class Bare(Worker):
        def statistics(self):
            return object()

    measurements = Measurements()
    measurements.acquired(0, Bare())
    assert measurements.read([]).delivered == 0


def test_open_circuits_are_counted():
    measurements = Measurements()
    measurements.acquired(0, Worker(circuit=CircuitView(CircuitState.OPEN)))
    measurements.acquired(1, Worker(circuit=CircuitView(CircuitState.HALF_OPEN)))
    measurements.acquired(2, Worker())
    assert measurements.read([]).open_circuits == 2
    assert measurements.read([], is_cut_off=True).open_circuits == 3


def test_batches_fill_the_histograms_and_a_reading_stands_still():
    measurements = Measurements()
    event = BatchDelivered(0, uuid.uuid4(), 1, 5000, 0.003, 0, 1, delays_s=(0.004, 99.0))
    measurements.delivered(event)
    found = measurements.read([])
    measurements.delivered(event)
    assert (found.sizes.sum, sum(found.sizes.counts)) == (5000, 1)
    assert (found.delays.counts[0], sum(found.delays.counts), found.delays.sum) == (1, 2, 99.004)
    assert sum(found.commits.counts) == 1


def test_a_bound_belongs_to_its_bucket():
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
