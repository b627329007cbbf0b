"""The simulated servers answer as the real ones do, call by call: one script for both.

Scenarios inject the faults of servers and connections (crashes, copies that take over, statements that are slow or
lost, frames that arrive late). These tests compare neither them nor a transaction that the brokers end for its age.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache

from outbox.edges.kafka.exactly_once import transactional
from outbox.harvest.exactly_once import ports
from tests.simulation.conformance import graph_cases, graphs
from tests.simulation.conformance.cases import CASES
from tests.simulation.conformance.frame import calls_in, calls_of, for_each, ignored
from tests.simulation.conformance.sides import Script, real, simulated
from tests.simulation.exactly_once import database, holds, kafka

Case = Callable[[Script], None]

PORTS = (
    ports.StatementsPort,
    ports.HoldsPort,
    ports.ReaderPort,
    ports.SweeperPort,
    ports.LeasePort,
    ports.DatabasePort,
    ports.KafkaPort,
)
NOT_SIMULATED = {
    ("StatementsPort", "allow"): "a read may take as long as any statement",
    ("StatementsPort", "why_kept"): "no row survives its purge",
}
"""The simulated servers do nothing there, or say so. An entry goes when a case calls it; none may be added."""
NOT_SIMULATED_MAX = 2

IGNORED = {
    ("StatementsPort", "state"): {"lanes"},  # the row is there
    ("StatementsPort", "refuse_request"): {"note"},  # nobody reads it
    ("StatementsPort", "open_lanes"): {"note"},
    ("ReaderPort", "read"): {"bytes_max"},  # all records are small
    ("HoldsPort", "run_soon"): {"wait_ms"},  # nobody locks what it wants for so long
    ("LeasePort", "take"): {"lanes", "owned"},  # the row is there, and nobody reads which lanes a process has
    ("DatabasePort", "lease"): {"owner"},
    ("KafkaPort", "prepare"): {"ledger_retention_s"},  # nothing is compacted
    ("KafkaPort", "producer"): {"request_bytes"},
    ("client", "produce"): {"on_delivery", "timestamp"},
    ("client", "list_topics"): {"timeout"},  # every topic is there
    ("client", "purge"): {"blocking"},
}
"""Arguments that a simulated call ignores. None may be added."""


@for_each(CASES)
def test_the_simulated_servers_do_what_a_case_says(case: Case) -> None:
    simulated(case)


@for_each(CASES)
def test_both_sides_answer_the_same(case: Case, url: str, bootstrap_servers: str) -> None:
    found = real(case, url, bootstrap_servers).lines
    assert simulated(case).lines == found


def test_every_method_of_a_port_is_called() -> None:
    wanted = calls_of(PORTS)
    wanted |= {("client", name) for name in called_on_a_client(inspect.getsource(transactional))}
    of_graphs = calls_in(graph_cases.CASES, graphs.simulated)
    assert wanted - NOT_SIMULATED.keys() == (called() | of_graphs) & wanted
    assert wanted >= NOT_SIMULATED.keys()
    assert len(NOT_SIMULATED) <= NOT_SIMULATED_MAX


def test_what_a_producer_calls_on_its_client_is_found() -> None:
    text = "self.client.produce(1)\nself._client = None\nheld.client.flush()\nclient.poll(0)\nrun = self.client.purge\n"
    assert called_on_a_client(text) == {"produce", "flush", "poll", "purge"}


def test_every_argument_counts() -> None:
    """A simulated call uses all its arguments, but those for parts that are not simulated."""
    of = {
        "StatementsPort": database.Statements,
        "HoldsPort": holds.Holds,
        "ReaderPort": database.Reader,
        "SweeperPort": database.Sweeper,
        "LeasePort": database.TakeLane,
        "DatabasePort": database.Database,
        "KafkaPort": kafka.Kafka,
        "client": kafka.Client,
    }
    found = {(port, name): ignored(getattr(of[port], name, None)) for port, name in called() if port in of}
    assert {call: names for call, names in found.items() if names} == IGNORED


@cache
def called() -> frozenset[tuple[str, str]]:
    return frozenset(calls_in(CASES, simulated))


def called_on_a_client(text: str) -> set[str]:
    """Attributes of whatever is called `client`."""
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if _is_client(node.value)}


def _is_client(node: ast.expr) -> bool:
    name = getattr(node, "attr", None) or getattr(node, "id", None)
    return name in ("client", "_client")
