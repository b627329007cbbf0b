"""The simulated brokers and group of graphs answer as Kafka does, call by call: one script for both.

Scenarios inject the faults of brokers and members. These tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.graphs import ports
from tests.simulation.conformance.frame import calls_in, calls_of, for_each, ignored_by
from tests.simulation.conformance.graph_cases import CASES
from tests.simulation.conformance.graphs import Script, real, simulated
from tests.simulation.graphs import kafka

Case = Callable[[Script], None]
PORTS = (ports.LaneGroupPort, ports.PlainPort, ports.LaneKafkaPort)
OF_CLIENT = {("client", "send_offsets_to_transaction")}
"""The harvester's suite compares its other methods."""
IGNORED = {
    ("producer", "request_bytes"),  # all records are small
    ("send", "give_up_at"),  # its queue is never full
}
"""Arguments that a simulated call ignores. None may be added."""


@for_each(CASES)
def test_the_simulated_brokers_do_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_sides_answer_the_same(case: Case, bootstrap_servers: str) -> None:
    found = real(case, bootstrap_servers).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    assert calls_of(PORTS) | OF_CLIENT == calls_in(CASES, simulated)


def test_every_argument_counts() -> None:
    simulated_ones = (kafka.Member, kafka.Plain, kafka.LaneKafka, kafka.LaneClient)
    assert ignored_by(simulated_ones, PORTS) == IGNORED
    assert "send_offsets_to_transaction" in vars(kafka.LaneClient)
