"""pytest plugin: the kit as fixtures. Load it with ``pytest_plugins = ["outbox.testing.pytest_plugin"]``.

It needs pytest-django: the fixtures use its ``db``, and also work with ``transactional_db`` and the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import pytest

from outbox.testing.broker import Delivered
from outbox.testing.consumers import Handled
from outbox.testing.kit import OutboxKit
from outbox.testing.messages import StashedMessage, listing


class StashedView(Sequence[StashedMessage]):
    """Shows the messages stashed at the time of reading, so that a test may request the fixture before it stashes."""

    def __init__(self, kit: OutboxKit) -> None:
        self._kit = kit

    @overload
    def __getitem__(self, at: int) -> StashedMessage: ...
    @overload
    def __getitem__(self, at: slice) -> list[StashedMessage]: ...
    def __getitem__(self, at: Any) -> Any:
        return self._kit.stashed[at]

    def __len__(self) -> int:
        return len(self._kit.stashed)

    def __iter__(self) -> Iterator[StashedMessage]:
        return iter(self._kit.stashed)

    def __eq__(self, other: object) -> bool:
        return self._kit.stashed == (list(other) if isinstance(other, StashedView) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return listing(self._kit.stashed)


@pytest.fixture
def outbox_kit(db: None) -> OutboxKit:
    """Return the kit of this test, with `broker`, `advance`, `held` and more. The package already has the name
    outbox."""
    return OutboxKit()


@pytest.fixture
def stashed(outbox_kit: OutboxKit) -> StashedView:
    """Return the messages stashed by this test, in order."""
    return StashedView(outbox_kit)


@pytest.fixture
def assert_stashed(outbox_kit: OutboxKit) -> Callable[..., StashedMessage]:
    """Return the function ``assert_stashed(topic, key=…, value=…, headers=…)``."""
    return outbox_kit.assert_stashed


@pytest.fixture
def harvest_all(outbox_kit: OutboxKit) -> Callable[[], list[Delivered]]:
    """Return the function that moves stashed messages to the broker in memory."""
    return outbox_kit.harvest_all


@pytest.fixture
def deliver(outbox_kit: OutboxKit) -> Callable[..., Handled]:
    """Return the function ``deliver(consumer, value, key=…, headers=…)``."""
    return outbox_kit.deliver


@pytest.fixture
def run_chain(outbox_kit: OutboxKit) -> Callable[..., dict[str, list[Handled]]]:
    """Return the function that harvests and consumes until nothing is left."""
    return outbox_kit.run_chain
