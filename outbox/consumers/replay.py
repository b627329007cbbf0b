"""A replay as the threads of consumers run it: a consumer of its own name, with other ports and no group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outbox.conf import Conf
from outbox.consumers.daemon import Run
from outbox.consumers.handle import Handling
from outbox.consumers.registry import Consumer
from outbox.consumers.servers import ServersOf, timed
from outbox.core.consumers.replay import REMEDY, Replay
from outbox.core.consumers.values import STOP, Fetched, Partition
from outbox.edges.kafka.consumers.group import properties_of
from outbox.edges.kafka.consumers.ranges import Ranges
from outbox.edges.kafka.consumers.topics import Topics
from outbox.edges.postgres.consumers.transactions import Transaction


class ReplayTopics(Topics):
    """What Kafka knows, and the range of the replay in place of what the group knows."""

    def __init__(self, properties: Any, group: str, replay: Replay) -> None:
        super().__init__(properties, group)
        self._replay = replay

    def copies(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Every position has been written. So the row of one that is missing now was deleted."""
        return {one: span.start for one, span in self._replay.spans.items() if one in partitions}

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The lag is that of the replay."""
        return {one: min(end, self._replay.ends[one]) for one, end in super().ends(partitions).items()}


class ReplayServers(ServersOf):
    def __init__(self, conf: Conf, consumer: Consumer, replay: Replay) -> None:
        super().__init__(conf, consumer)
        self._replay = replay

    def transaction(self) -> Transaction:
        return Transaction(
            self.alias,
            consumer=self._replay.name,
            durable=self._consumer.durable,
            session_timeout_s=self._conf.election.session_timeout_s,
        )

    def topics(self) -> ReplayTopics:
        return ReplayTopics(self._conf.kafka.client_properties, self._group, self._replay)

    def group(self) -> Ranges:
        properties = properties_of(
            self._conf.kafka.client_properties, self._group, session_timeout_s=self._conf.election.session_timeout_s
        )
        return Ranges(properties, self._replay.ends)


def run_of_replay(conf: Conf, consumer: Consumer, replay: Replay) -> Run:
    """It holds no message: one that fails stops its partition."""
    servers = ReplayServers(conf, consumer, replay)
    options = replace(consumer.options, name=replay.name, on_error=STOP, error_topic="", remedy=REMEDY)
    handling = Handling(
        consumer, servers.alias, id_header=conf.stash.message_id_header, is_replay=True, stashes=replay.stashes
    )
    held = servers.held()

    def held_messages(connection: Any, messages: Sequence[Fetched]) -> list[Fetched]:
        """The consumer has not handled them."""
        return held.of_offsets(connection, consumer.name, replay.topic, replay.topic_id, messages)

    return Run(
        timed(conf, options),
        handling,
        servers,
        servers.rows(),
        (replay.topic,),
        identify=handling.identify if consumer.dedupe else None,
        leaves_out=held_messages,
        ends=replay.ends,
    )
