"""The simulated topic and group of consumers answer as Kafka does, call by call: one script for both.

Scenarios inject the faults of brokers and members. These tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbox.consumers import ports
from tests.simulation.conformance.consumer_topics import CASES, Script, real, simulated
from tests.simulation.conformance.test_conformance import ignored
from tests.simulation.consumers import topic

Case = Callable[[Script], None]
PORTS = (ports.GroupPort, ports.TopicsPort)
NOT_SIMULATED = {("TopicsPort", "ends"): "only the thread that shows the lag asks for them"}
"""An entry goes when a case calls it; none may be added."""
NOT_SIMULATED_MAX = 1
IGNORED = {("offset_at", "timestamp_ms")}  # no message has one
"""Arguments that a simulated call ignores. None may be added."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_simulated_topic_does_what_a_case_says(case: Case) -> None:
    simulated(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_both_sides_answer_the_same(case: Case, bootstrap_servers: str) -> None:
    found = real(case, bootstrap_servers).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    wanted = {
        (port.__name__, name)
        for port in PORTS
        for name, found in vars(port).items()
        if callable(found) and not name.startswith("_")
    }
    called = {call for case in CASES for call in simulated(case).called}
    assert wanted - NOT_SIMULATED.keys() == called
    assert wanted >= NOT_SIMULATED.keys()
    assert len(NOT_SIMULATED) <= NOT_SIMULATED_MAX


def test_every_argument_counts() -> None:
    """A simulated call uses all its arguments. But the group gives the partitions of one topic, whatever is asked."""
    of_ports = {name for port in PORTS for name in vars(port)}
    left_out = {
        (name, given)
        for port in (topic.Client, topic.Topics)
        for name in vars(port).keys() & of_ports
        for given in ignored(vars(port)[name])
        if not name.startswith("_")
    }
    assert left_out == IGNORED
