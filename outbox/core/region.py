"""A state that is written down: one enumeration, one table of its transitions, and nothing beside them.

A machine is made of one region or several, which go on independently. Who owns the machine tells it what has happened;
an event that a state does not expect is a defect of ours and is refused. `docs/protocol.md` draws the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class UnexpectedEvent(AssertionError):
    """The table has no transition for this event in this state."""


@dataclass(frozen=True, slots=True)
class Transitions(Generic[S, E]):
    """All transitions of one region; the first state is the one that it begins in."""

    name: str
    first: S
    transitions: Mapping[tuple[S, E], S]

    def after(self, state: S, event: E) -> S:
        try:
            return self.transitions[state, event]
        except KeyError:
            raise UnexpectedEvent(f"{self.name}: {event.name} cannot happen in {state.name}") from None

    def expects(self, state: S, event: E) -> bool:
        return (state, event) in self.transitions

    def unreachable(self) -> set[S]:
        """States that no series of events leads to."""
        found, new = {self.first}, {self.first}
        while new:
            new = {after for (before, _), after in self.transitions.items() if before in new} - found
            found |= new
        return set(type(self.first)) - found

    def edges(self) -> Iterator[tuple[S, str, S]]:
        """For a drawing: each pair of states once, with the names of the events that lead from one to the other."""
        labels: dict[tuple[S, S], list[str]] = {}
        for (before, event), after in self.transitions.items():
            labels.setdefault((before, after), []).append(event.name)
        for (before, after), names in labels.items():
            yield before, ", ".join(names), after


class Region(Generic[S, E]):
    """Where one thing stands in its table."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Transitions[S, E]) -> None:
        self._table = table
        self.state = table.first

    def on(self, event: E) -> S:
        """`event` has happened; the state that follows."""
        self.state = self._table.after(self.state, event)
        return self.state

    def expects(self, event: E) -> bool:
        return self._table.expects(self.state, event)
