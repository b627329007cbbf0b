"""The simulated topic and group of consumers answer as Kafka does, call by call: one script for both.

Scenarios inject the faults of brokers and members. These tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

from outbox.consumers import ports
from tests.simulation.conformance.consumer_topics import CASES, Script, real, simulated
from tests.simulation.conformance.frame import calls_in, calls_of, for_each, ignored_by
from tests.simulation.consumers import topic

Case = Callable[[Script], None]
PORTS = (ports.GroupPort, ports.TopicsPort)
NOT_SIMULATED = {("TopicsPort", "ends"): "only the thread that shows the lag asks for them"}
"""An entry goes when a case calls it; none may be added."""
NOT_SIMULATED_MAX = 1
IGNORED = {("offset_at", "timestamp_ms")}  # no message has one
"""Arguments that a simulated call ignores. None may be added."""


@for_each(CASES)
def test_the_simulated_topic_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_sides_answer_the_same(case: Case, bootstrap_servers: str) -> None:
    found = real(case, bootstrap_servers).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    wanted = calls_of(PORTS)
    assert wanted - NOT_SIMULATED.keys() == calls_in(CASES, simulated)
    assert wanted >= NOT_SIMULATED.keys()
    assert len(NOT_SIMULATED) <= NOT_SIMULATED_MAX


def test_every_argument_counts() -> None:
    """A simulated call uses all its arguments. But the group gives the partitions of one topic, whatever is asked."""
    assert ignored_by((topic.Client, topic.Topics), PORTS) == IGNORED
