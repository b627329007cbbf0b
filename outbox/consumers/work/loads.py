"""Where partitions are read from, and what their owners before have left: asked when they are assigned."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from outbox.consumers.ports import OwnersPort, PositionsPort, TopicsPort, TransactionPort
from outbox.consumers.work.watch import CallWatch
from outbox.core.consumers import blame, crashes, log
from outbox.core.consumers.crashes import Suspicion
from outbox.core.consumers.holding import holds
from outbox.core.consumers.start import Placing, places
from outbox.core.consumers.values import EARLIEST, LATEST, ConsumerOptions, Partition, Position
from outbox.core.patience import Backoff
from outbox.exceptions import NotAvailable

logger = logging.getLogger("outbox.consumers")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Partitions that are in neither of the first two are to be asked for again."""

    found: dict[Partition, Position] = field(default_factory=dict)
    stopped: dict[Partition, str] = field(default_factory=dict)
    suspicions: dict[Partition, Suspicion] = field(default_factory=dict)
    pause_s: float = 0.0
    """Before they are asked for again."""


class Loads:
    """Of one worker."""

    def __init__(
        self,
        options: ConsumerOptions,
        servers: tuple[PositionsPort, OwnersPort, TransactionPort, TopicsPort],
        watch: CallWatch,
        pauses: Backoff,
    ) -> None:
        self._options, self._watch, self._pauses = options, watch, pauses
        self._positions, self._owners, self._transaction, self._topics = servers
        self._unavailable = ""
        """What keeps positions from being loaded, as it was logged."""

    @property
    def is_waiting(self) -> bool:
        """For Kafka."""
        return bool(self._unavailable)

    def load(self, partitions: Sequence[Partition], acknowledged: Mapping[Partition, Position]) -> Loaded:
        """`acknowledged` are positions that this process has committed. Raises what PostgreSQL says."""
        loaded, unavailable = Loaded(), ""
        for topic, wanted in groupby(sorted(partitions), lambda partition: partition.topic):
            try:
                self._place(topic, list(wanted), acknowledged, loaded)
            except NotAvailable as error:
                unavailable = str(error)  # the other topics may be there
        self._log_what_went_back(loaded, acknowledged)
        if unavailable and unavailable != self._unavailable:
            logger.warning("consumer_waits consumer=%s error=%r", self._options.name, unavailable)
        self._unavailable = unavailable
        self._own(loaded)
        if len(loaded.found) + len(loaded.stopped) < len(partitions):
            return replace(loaded, pause_s=self._pauses.failed())
        self._pauses.worked()
        return loaded

    def leave(self, partitions: Sequence[Partition]) -> None:
        """Nothing of them is under way any more."""
        with self._watch.during("leave"):
            self._owners.leave(self._transaction.connection(), self._options.name, partitions)

    # ---- positions

    def _place(
        self, topic: str, wanted: Sequence[Partition], acknowledged: Mapping[Partition, Position], loaded: Loaded
    ) -> None:
        topic_id = self._topics.ids([topic]).get(topic)
        if not topic_id:
            return
        every = [Partition(topic, number) for number in range(self._topics.partitions(topic))]
        copies = self._topics.copies(every)
        with self._watch.during("connect"):
            connection = self._transaction.connection()
        for _ in range(2):  # again when rows were created, by whomever
            with self._watch.during("load"):
                rows = self._positions.load(connection, self._options.name, every)
            placing = Placing(wanted, len(every), topic_id, rows, copies, acknowledged)
            placed = places(placing, self._options.start)
            if not placed.create:
                break
            created = self._begun(topic_id, placed.create)
            with self._watch.during("create"):
                self._positions.create(connection, self._options.name, created)
        loaded.found.update(placed.found)
        loaded.stopped.update(placed.stopped)

    def _begun(self, topic_id: str, create: Mapping[Partition, str | int]) -> dict[Partition, Position]:
        """Without partitions whose broker does not answer, if they begin at their first message when they are created
        later."""
        created = {}
        for partition, at in create.items():
            try:
                created[partition] = self._begin(partition, topic_id, at)
            except NotAvailable:
                if at != EARLIEST:
                    raise
        return created

    def _begin(self, partition: Partition, topic_id: str, start: str | int) -> Position:
        if isinstance(start, int):
            return Position(self._topics.offset_at(partition, start), topic_id)
        first, end = self._topics.bounds(partition)
        return Position({EARLIEST: first, LATEST: end}[start], topic_id)

    def _log_what_went_back(self, loaded: Loaded, acknowledged: Mapping[Partition, Position]) -> None:
        for partition, position in loaded.found.items():
            if log.went_back(before := acknowledged.get(partition), position) and before is not None:
                logger.warning(
                    "database_went_back consumer=%s topic=%s partition=%d acknowledged=%d position=%d",
                    self._options.name,
                    *partition,
                    before.next,
                    position.next,
                )

    # ---- owners

    def _own(self, loaded: Loaded) -> None:
        if not loaded.found:
            return
        connection: Any = self._transaction.connection()
        with self._watch.during("owners"):
            owners = self._owners.load(connection, self._options.name, list(loaded.found))
        owned: dict[Partition, tuple[int, Suspicion]] = {}
        for partition, position in loaded.found.items():
            suspicion = crashes.after(owners.get(partition), self._owners.owner, position.next)
            loaded.suspicions[partition] = suspicion
            stops = _stops(self._options, suspicion, position)
            owned[partition] = position.next, crashes.stopped(suspicion) if stops else suspicion
        try:
            with self._watch.during("own"):
                self._owners.own(connection, self._options.name, owned)
        except Exception as error:
            attempt = blame.BatchAttempt(0, is_locking=True)
            if isinstance(blame.blame(attempt, self._transaction.failure(error)), blame.Unblock):
                self.unblock(list(owned))
            raise
        for partition, suspicion in loaded.suspicions.items():
            self._log_suspicion(partition, suspicion)
            if suspicion.poison is not None and _stops(self._options, suspicion, loaded.found[partition]):
                del loaded.found[partition]
                loaded.stopped[partition] = log.poison(partition, suspicion.poison)

    def unblock(self, partitions: Sequence[Partition]) -> None:
        """Ends the sessions that keep the positions locked. An owner that keeps its row locked has locked its position
        before."""
        with self._watch.during("unblock"):
            ended = self._positions.unblock(self._transaction.connection(), self._options.name, partitions)
        if ended:
            logger.warning("blocking_session_ended consumer=%s sessions=%d", self._options.name, ended)

    def _log_suspicion(self, partition: Partition, suspicion: Suspicion) -> None:
        if suspicion.poison is not None:
            logger.error(
                "poison_message consumer=%s topic=%s partition=%d offset=%s",
                self._options.name,
                *partition,
                crashes.named(suspicion.poison),
            )
        elif suspicion.is_careful:
            logger.warning(
                "unclean_partition consumer=%s topic=%s partition=%d suspect=%s deaths=%d",
                self._options.name,
                *partition,
                crashes.named(suspicion.suspect),
                suspicion.deaths,
            )


def _stops(options: ConsumerOptions, suspicion: Suspicion, position: Position) -> bool:
    """Whether the partition stops at a message that ends the process."""
    return suspicion.poison is not None and suspicion.poison >= position.next and not holds(options)
