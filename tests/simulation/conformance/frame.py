"""What the suites share. Each has two sides (the simulated servers below the ports, and the real ones below the
product's), a script that asks a side and records the answers, and cases, which say what to ask.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError

from outbox.core.faults import Kind, kind_of
from tests.simulation.runtime import in_thread

Call = tuple[str, str]
"""A port and a method of it."""


class SimulatedServers:
    """A side of which the script runs in a thread of the simulated world."""

    world: Any
    runtime: Any

    def run(self, job: Callable[[], None]) -> None:
        ended: list[bool] = []

        def run() -> None:
            job()
            ended.append(True)

        self.runtime.thread(run, "script").start()
        self.world.run_until(self.world.now + 600, lambda: bool(ended))
        assert ended, "the script waits for something that never comes"


class RealServers:
    def run(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self.close()

    def close(self) -> None:
        pass


class Order:
    """Replaces ids, which differ from side to side, by the order in which they came."""

    def __init__(self) -> None:
        self._known: dict[str, list[Any]] = {}

    def nth(self, what: str, value: Any) -> str:
        known = self._known.setdefault(what, [])
        if value not in known:
            known.append(value)
        return f"{what} {known.index(value)}"

    def knows(self, what: str, value: Any) -> bool:
        return value in self._known.get(what, ())


def told_of(error: KafkaError) -> tuple[str, bool, bool, bool]:
    """A broker may refuse a record for many reasons."""
    name = "refused" if kind_of(error.name()) in (Kind.RECORD, Kind.BATCH) else error.name()
    return name, error.retriable(), error.fatal(), error.txn_requires_abort()


class Asking:
    """The base of scripts."""

    def __init__(self, side: Any) -> None:
        self.side, self.runtime = side, side.runtime
        self.lines: list[Any] = []
        self.called: set[Call] = set()

    def close(self) -> None:
        pass


A = TypeVar("A", bound=Asking)


def play(case: Callable[[A], None], script: A) -> A:
    def closing() -> None:
        try:
            case(script)
        finally:
            script.close()

    script.side.run(closing)
    return script


def play_simulated(case: Callable[[A], None], script: Callable[[], A]) -> A:
    return in_thread(lambda: play(case, script()))  # type: ignore[no-any-return]


# ---- for the tests


def for_each(cases: Collection[Callable[[Any], None]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.__name__)


def calls_of(ports: Iterable[type]) -> set[Call]:
    """All that a product can call."""
    return {
        (port.__name__, name)
        for port in ports
        for name, found in vars(port).items()
        if (callable(found) or isinstance(found, property)) and (not name.startswith("_") or name == "__len__")
    }


def calls_in(cases: Iterable[Any], simulated: Callable[[Any], Asking]) -> set[Call]:
    return {call for case in cases for call in simulated(case).called}


def ignored_by(simulated: Iterable[type], ports: Iterable[type], *, besides: Collection[str] = ()) -> set[Call]:
    """Methods, each with an argument that it leaves out."""
    names = {name for _, name in calls_of(ports)}
    return {
        (name, given)
        for one in simulated
        for name, found in vars(one).items()
        if name in names
        for given in ignored(found).difference(besides)
    }


def ignored(function: Any) -> set[str]:
    """Arguments."""
    if not inspect.isfunction(function):
        return set()
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return set(inspect.signature(function).parameters) - used - {"self", "connection"}
