"""What is known of the batch that a lane has begun and not committed: how often, and which inputs it chose. Pure.

A record in the topic of attempts, written by the lane's own producer in a transaction of its own: before the first
batch of an owner, before a step is repeated, and before the steps of an alts. It belongs to the positions that it
names: if the lane stands elsewhere, that batch was committed, and the record says nothing any more.

A process that dies cannot say why. So the steps of a batch that was begun and not committed are repeated one by one,
each recorded before it is run. A step that was begun alone as often as it may has failed for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outbox.core.graphs.inputs import Choice

DEATHS = 2
"""A step that ends its process has so many attempts at least: a single death may have any cause."""


class UnreadableRecord(ValueError):
    """Somebody else writes to the graph's own topic."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The record."""

    positions: Mapping[str, int]
    steps: int
    """Of the batch."""
    attempt: int = 1
    """Of a batch with one step: how often that was begun."""
    choice: Choice = ()
    error: str = ""
    """Why the attempt before has failed; empty: there was none, or its process has died."""

    def encode(self, processor: str) -> bytes:
        value = {
            "processor": processor,
            "positions": dict(self.positions),
            "steps": self.steps,
            "attempt": self.attempt,
            "choice": [list(run) for run in self.choice],
            "error": self.error,
        }
        return json.dumps(value, separators=(",", ":")).encode()


def processor_of(value: bytes) -> str:
    """Whose record it is."""
    return str(_object(value)["processor"])


def decode(value: bytes) -> Begun:
    found = _object(value)
    try:
        return Begun(
            {str(topic): int(at) for topic, at in found["positions"].items()},
            int(found["steps"]),
            int(found["attempt"]),
            tuple((str(topic), int(count)) for topic, count in found["choice"]),
            str(found["error"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRecord(f"{value[:200]!r}: {error}") from error


def _object(value: bytes) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise UnreadableRecord(f"{value[:200]!r}: {error}") from error
    if not isinstance(found, dict) or "processor" not in found:
        raise UnreadableRecord(f"{value[:200]!r} names no processor")
    return found


@dataclass(frozen=True, slots=True)
class Repeat:
    """How the lane begins again."""

    careful: int = 0
    """So many steps are run one by one."""
    attempts: int = 0
    """Of the first step, alone, before."""
    choice: Choice = ()
    """These are taken first."""
    error: str = ""


def after(found: Begun | None, positions: Mapping[str, int]) -> Repeat:
    """What the owner concludes that begins at these positions."""
    if found is None or dict(found.positions) != dict(positions):
        return Repeat()
    if found.steps == 1:
        return Repeat(1, found.attempt, found.choice, found.error)
    return Repeat(found.steps, 0, found.choice)
