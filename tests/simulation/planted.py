"""What the planted bugs of all simulations share: each changes the product, or drops a rule of a simulated server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

SEEDS = 2_000


@dataclass(frozen=True)
class PlantedBug(ABC):
    changes: tuple[tuple[Any, str, Any], ...] = ()
    rules: Any = None
    theme: tuple[int, int] = (0, 1)
    """The seeds that are searched: with this remainder, divided by this number."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, replacement in self.changes:
                stack.enter_context(patch.object(owner, name, replacement))
            yield

    @abstractmethod
    def run(self, seed: int) -> Any:
        """Raises `Violation` when a checker notices the bug."""

    def search(self) -> None:
        """Raises for the first of many seeds that notices it."""
        first, step = self.theme
        for seed in range(first, step * SEEDS, step):
            self.run(seed)


def around(owner: Any, name: str, change: Callable[..., Any]) -> tuple[Any, str, Any]:
    """`change` is called with the method in the first place."""
    method = getattr(owner, name)

    def changed(*arguments: Any, **given: Any) -> Any:
        return change(method, *arguments, **given)

    return owner, name, changed
