"""What a process says about its consumers: as values, and as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from outbox.core.consumers.partition import Life
from outbox.core.consumers.values import Partition
from outbox.service.lifecycle import State


class Running(Protocol):
    @property
    def state(self) -> State: ...

    @property
    def waiting_for(self) -> str: ...

    @property
    def handled(self) -> Mapping[str, int]: ...

    @property
    def partitions(self) -> Mapping[str, Mapping[Partition, tuple[Life, str]]]: ...


def state_of(daemon: Running) -> dict[str, Any]:
    """What can be written as JSON."""
    partitions = daemon.partitions
    return {
        "state": str(daemon.state),
        "waiting_for": daemon.waiting_for,
        "consumers": {
            name: {
                "handled": handled,
                "partitions": [
                    {"topic": topic, "partition": number, "state": life.value, "reason": reason}
                    for (topic, number), (life, reason) in sorted(partitions[name].items())
                ],
            }
            for name, handled in daemon.handled.items()
        },
    }


class ConsumersLine:
    """For a terminal, written again and again."""

    def __init__(self, daemon: Running) -> None:
        self._daemon = daemon
        self._before = (0.0, 0)

    def text(self, now: float) -> str:
        daemon = self._daemon
        if daemon.waiting_for:
            return f"{daemon.state}, waiting: {daemon.waiting_for}"
        lives = [life for partitions in daemon.partitions.values() for life, _ in partitions.values()]
        handled = sum(daemon.handled.values())
        (then, before), self._before = self._before, (now, handled)
        rate = max(0, handled - before) / max(0.001, now - then)
        text = f"{daemon.state}, {len(daemon.handled)} consumers, {len(lives)} partitions, handled {handled:,}"
        stopped = lives.count(Life.STOPPED)
        return f"{text}, {rate:,.0f}/s" + (f", {stopped} stopped: see the log" if stopped else "")
