"""No port of the harvester is left out of the comparisons."""

from __future__ import annotations

from outbox.election import ports as election
from outbox.harvest.at_least_once import ports as at_least_once
from outbox.harvest.exactly_once import ports as exactly_once
from tests.simulation.conformance import test_clients, test_conformance, test_marks


def test_every_port_is_compared() -> None:
    compared = {*test_conformance.PORTS, *test_marks.PORTS, *test_clients.PORTS}
    for module in (election, at_least_once, exactly_once):
        defined = [found for found in vars(module).values() if getattr(found, "_is_protocol", False)]
        ports = {found for found in defined if found.__module__ == module.__name__}
        assert ports
        assert ports <= compared, module.__name__
