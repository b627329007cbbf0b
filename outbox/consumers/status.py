"""What a process says about its consumers: as values, and as one line for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from outbox.core.consumers.partition import Life
from outbox.core.consumers.shown import COUNT_MAX, MessageCounts, ShownPartition
from outbox.core.consumers.values import Partition
from outbox.service.lifecycle import State
from outbox.service.status_line import TerminalLine


class Running(Protocol):
    @property
    def state(self) -> State: ...

    @property
    def waiting_for(self) -> str: ...

    @property
    def handled(self) -> Mapping[str, int]: ...

    @property
    def partitions(self) -> Mapping[str, Mapping[Partition, tuple[Life, str]]]: ...

    @property
    def failing(self) -> Mapping[str, str]: ...

    @property
    def held(self) -> Mapping[str, MessageCounts]: ...

    @property
    def with_held(self) -> Mapping[str, Collection[Partition]]: ...

    @property
    def seen(self) -> Mapping[str, Sequence[ShownPartition]]: ...


def state_of(daemon: Running) -> dict[str, Any]:
    """What can be written as JSON."""
    partitions, held, with_held = daemon.partitions, daemon.held, daemon.with_held
    seen = {(name, row.partition): row for name, rows in daemon.seen.items() for row in rows}
    return {
        "state": str(daemon.state),
        "waiting_for": daemon.waiting_for,
        "consumers": {
            name: {
                "handled": handled,
                "failing": daemon.failing[name],
                **_held(held.get(name)),
                "partitions": [
                    {
                        "topic": partition.topic,
                        "partition": partition.number,
                        "state": life.value,
                        "reason": reason,
                        "has_held": partition in with_held[name],
                        **_lag(seen.get((name, partition))),
                    }
                    for partition, (life, reason) in sorted(partitions[name].items())
                ],
            }
            for name, handled in daemon.handled.items()
        },
    }


def _lag(seen: ShownPartition | None) -> dict[str, Any]:
    """As it was observed last: every few seconds. None: unknown."""
    return {"lag": seen.lag if seen else None, "lag_s": seen.oldest_age_s if seen else None}


def _held(counts: MessageCounts | None) -> dict[str, Any]:
    """As they were counted last, up to `COUNT_MAX`. None: unknown."""
    names = {"held": "held", "undecided": "undecided", "dead_letters": "dead"}
    return {name: getattr(counts, of, None) for name, of in names.items()}


def _many(count: int, one: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,}{'+' if count >= COUNT_MAX else ''} {one}s"


class ConsumersLine(TerminalLine):
    def __init__(self, daemon: Running, write: Callable[[str], Any]) -> None:
        super().__init__(write)
        self._daemon = daemon

    def line(self) -> str:
        daemon = self._daemon
        if daemon.waiting_for:
            return f"{daemon.state}, waiting: {daemon.waiting_for}"
        lives = [life for partitions in daemon.partitions.values() for life, _ in partitions.values()]
        handled = sum(daemon.handled.values())
        text = f"{daemon.state}, {len(daemon.handled)} consumers, {len(lives)} partitions, handled {handled:,}"
        stopped = lives.count(Life.STOPPED)
        failing = [name for name, reason in daemon.failing.items() if reason]
        parts = [
            text,
            self.rate(handled),
            self._behind(),
            *self._held(),
            f"{stopped} stopped: see the log" if stopped else "",
            f"{', '.join(failing)} failing: see the log" if failing else "",
        ]
        return ", ".join(part for part in parts if part)

    def _held(self) -> Iterator[str]:
        counts = self._daemon.held.values()
        held, undecided, dead = (sum(numbers) for numbers in zip(*counts, strict=True)) if counts else (0, 0, 0)
        if held:
            yield f"{_many(held, 'message')} held" + (f" ({undecided:,} for an operator)" if undecided else "")
        if dead:
            yield _many(dead, "dead letter")

    def _behind(self) -> str:
        """As it was observed last; empty without a partition. A plus sign: it is unknown of other partitions."""
        rows = [row for rows in self._daemon.seen.values() for row in rows]
        lags = [row.lag for row in rows if row.lag is not None]
        if not lags:
            return "behind by an unknown number of messages" if rows else ""
        ages = [row.oldest_age_s for row in rows if row.oldest_age_s is not None]
        more = "+" if len(lags) < len(rows) else ""
        seconds = f"{max(ages):,.0f} s" if ages else "an unknown time"
        return f"behind by {sum(lags):,}{more} messages and {seconds}"
