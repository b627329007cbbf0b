"""Whether messages fail, or the consumer does. Pure.

If messages of many keys fail in a row and none is handled between them, then it is not the messages: a service that the
function calls is unavailable, or the function is wrong. From then on nothing more is held, and no attempt is counted.
One message is tried after a pause, and another one after a longer pause. One that is handled ends this.
"""

from __future__ import annotations

from enum import Enum

from outbox.core.consumers.holding import pause
from outbox.core.consumers.values import Partition
from outbox.core.region import Region, Transitions

KEYS = 20
KEYLESS = 50
FIRST_S = 1.0


class Health(Enum):
    WORKING = "working"
    FAILING = "failing"


class HealthStep(Enum):
    TOO_MANY_FAILED = "messages of many keys failed in a row"
    HANDLED = "a message was handled"


HEALTH = Transitions(
    "health of a consumer",
    Health.WORKING,
    {
        (Health.WORKING, HealthStep.TOO_MANY_FAILED): Health.FAILING,
        (Health.FAILING, HealthStep.HANDLED): Health.WORKING,
    },
)


class Failing:
    """Of one consumer in one process."""

    def __init__(self) -> None:
        self.health = Region(HEALTH)
        self.not_before = float("-inf")
        """No message is tried before."""
        self.reason = ""
        self._keys: set[tuple[Partition, bytes]] = set()
        self._keyless = 0
        self._ids: list[int] = []
        self.to_give_back: list[int] = []
        """Rows whose last attempt was not the message's fault."""
        self._probes = 0

    @property
    def is_failing(self) -> bool:
        return self.health.state is Health.FAILING

    def failed(self, partition: Partition, key: bytes | None, reason: str) -> bool:
        """Whether it is not the message. Postponed ones do not count."""
        if self.is_failing:
            self.reason = reason
            return True
        if key is None:
            self._keyless += 1
        else:
            self._keys.add((partition, key))
        if len(self._keys) < KEYS and self._keyless < KEYLESS:
            return False
        self.health.on(HealthStep.TOO_MANY_FAILED)
        self.reason = reason
        self.to_give_back += self._ids
        self._ids.clear()
        return True

    def kept(self, ids: list[int]) -> None:
        """Rows of messages that failed, and are committed."""
        if not self.is_failing and (self._keys or self._keyless):
            self._ids += ids

    def given_back(self, ids: list[int]) -> None:
        """That is committed."""
        self.to_give_back = [id_ for id_ in self.to_give_back if id_ not in ids]

    def probed(self, now: float, draw: float) -> None:
        """One was tried in vain."""
        self.not_before = now + pause(FIRST_S, self._probes, draw)
        self._probes += 1

    def handled(self) -> bool:
        """Whether that has ended it."""
        was_failing = self.is_failing
        if was_failing:
            self.health.on(HealthStep.HANDLED)
        if was_failing or self._keys or self._keyless:
            self._keys.clear()
            self._ids.clear()
            self._keyless = self._probes = 0
            self.not_before, self.reason = float("-inf"), ""
        return was_failing
