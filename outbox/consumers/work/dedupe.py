"""Leaves out messages whose id was handled before: their sender may repeat them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from outbox.consumers.ports import SeenPort
from outbox.consumers.work.watch import CallWatch
from outbox.core.consumers.batch import ConsumerBatch
from outbox.core.consumers.values import ConsumerOptions, Fetched

TIDY_S = 60.0
"""How often ids that are older than the window are deleted."""


class Dedupe:
    """Of one worker. The ids of a transaction are committed with its effects."""

    def __init__(
        self, options: ConsumerOptions, identify: Callable[[Fetched], str], seen: SeenPort, watch: CallWatch
    ) -> None:
        """`identify` raises what is a failure of the message."""
        self._options, self._identify, self._seen, self._watch = options, identify, seen, watch
        self._tidy_at = float("-inf")

    def begin(self, connection: Any, batch: ConsumerBatch) -> None:
        """Those of it that are to be handled, in one statement before the first is."""
        messages = list(batch.left)
        ids = [self._identify(message) for message in messages]
        new = self._add(connection, zip(messages, ids, strict=True))
        repeated = []
        for message, id_ in zip(messages, ids, strict=True):
            if (message.topic, id_) in new:
                new.discard((message.topic, id_))
            else:
                repeated.append(message)
        batch.leave_out(repeated)

    def end(self, connection: Any, batch: ConsumerBatch) -> None:
        """What it did not come to is to be handled by another transaction."""
        if left := list(batch.left):
            with self._watch.during("seen"):
                for topic in {message.topic for message in left}:
                    ids = sorted({self._identify(message) for message in left if message.topic == topic})
                    self._seen.remove(connection, self._options.name, topic, ids)

    def is_new(self, connection: Any, message: Fetched) -> bool:
        return bool(self._add(connection, [(message, self._identify(message))]))

    def _add(self, connection: Any, given: Iterable[tuple[Fetched, str]]) -> set[tuple[str, str]]:
        of_topics: dict[str, set[str]] = {}
        for message, id_ in given:
            of_topics.setdefault(message.topic, set()).add(id_)
        with self._watch.during("seen"):
            return {
                (topic, id_)
                for topic in sorted(of_topics)
                for id_ in self._seen.add(connection, self._options.name, topic, sorted(of_topics[topic]))
            }

    def tidy(self, connection: Callable[[], Any], now: float) -> None:
        """Outside of a transaction: deletes a slice of old ids, if it is time."""
        if now < self._tidy_at:
            return
        self._tidy_at = now + TIDY_S
        with self._watch.during("tidy"):
            if self._seen.tidy(connection(), self._options.name):
                self._tidy_at = now  # there is more
