"""Asks Kafka, now and then, whether the topics still are those that the positions belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from outbox.consumers.assignment import Assignment
from outbox.consumers.ports import TopicsPort
from outbox.exceptions import NotAvailable
from outbox.runtime import Runtime, Thread

LOOK_S = 1.0
"""At partitions that are out of bounds."""
IDS_S = 5.0
"""The client does not notice that a topic was deleted and created again."""


Matches = Callable[[str], bool]
"""Whether a consumer handles messages of the topic of this name."""


class TopicWatch:
    def __init__(
        self,
        name: str,
        assignment: Assignment,
        topics: TopicsPort,
        *,
        matches: Matches | None,
        runtime: Runtime,
        fail: Callable[[BaseException], None],
    ) -> None:
        """`matches`: None if the consumer names all of its topics."""
        self._assignment, self._topics, self._matches = assignment, topics, matches
        self._runtime, self._fail = runtime, fail
        self._ending = runtime.event()
        self._asked_at = float("-inf")
        self._thread: Thread = runtime.thread(self._run, f"outbox-topics-{name}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.wait(LOOK_S):
            try:
                self._ask()
            except NotAvailable:
                continue  # the member's client reports it
            except BaseException as error:
                self._fail(error)
                return

    def _ask(self) -> None:
        for partition in self._assignment.out_of_bounds():
            with suppress(NotAvailable):  # the others may have a leader
                self._assignment.bounds(partition, self._topics.bounds(partition))
        now = self._runtime.monotonic()
        if now >= self._asked_at + IDS_S or self._assignment.is_in_doubt:
            self._asked_at = now
            if self._matches is not None:
                self._assignment.found(filter(self._matches, self._topics.names()))
            held = self._assignment.held()
            if topics := sorted({partition.topic for partition in held}):
                self._assignment.topic_ids(self._ids(topics), held, now)

    def _ids(self, topics: Sequence[str]) -> dict[str, str]:
        """One that the user may not see does not keep the others from being compared."""
        try:
            return self._topics.ids(topics)
        except NotAvailable:
            found: dict[str, str] = {}
            for topic in topics:
                with suppress(NotAvailable):
                    found |= self._topics.ids([topic])
            return found
