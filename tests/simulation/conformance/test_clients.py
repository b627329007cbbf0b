"""The simulated clients of the election and the simulated producer do as those of confluent-kafka: one script for both.

Scenarios inject the faults of members and connections (evictions, sessions that end, records that arrive late). These
tests do not compare them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbox.edges.kafka.at_least_once import idempotent
from outbox.election import ports
from tests.simulation.conformance.clients import CASES, Script, real, simulated

Case = Callable[[Script], None]
PORTS = (
    ports.GroupConsumer,
    ports.HeartbeatReader,
    ports.HeartbeatProducer,
    ports.ElectionClients,
    idempotent.Client,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_simulated_clients_do_what_a_case_says(case: Case) -> None:
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
        if callable(found) and (not name.startswith("_") or name == "__len__")
    }
    assert wanted == {call for case in CASES for call in simulated(case).called} & wanted
