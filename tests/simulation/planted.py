"""What the planted bugs of both simulations share: each changes the product, or drops a rule of a simulated server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class PlantedBug:
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

    def seeds(self, count: int) -> range:
        first, step = self.theme
        return range(first, step * count, step)


def around(owner: Any, name: str, change: Callable[..., Any]) -> tuple[Any, str, Any]:
    """`change` is called with the method in the first place."""
    method = getattr(owner, name)

    def changed(*arguments: Any, **given: Any) -> Any:
        return change(method, *arguments, **given)

    return owner, name, changed
