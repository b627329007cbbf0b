"""From settings to what the threads of a processor act through."""

from __future__ import annotations

from collections.abc import Sequence

from outbox.conf import Conf
from outbox.core.graphs.outputs import OutputMaker
from outbox.core.graphs.values import GraphValue, Processor, owner_of
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerRefused, LedgerUnreachable
from outbox.edges.kafka.graphs.group import LaneGroup, properties_of
from outbox.edges.kafka.graphs.topics import LaneTopics
from outbox.exceptions import NotAvailable, OutboxError
from outbox.graphs.handle import StepCalls
from outbox.graphs.lane_worker import LaneOptions
from outbox.serializers import resolve


class ServersOfProcessor:
    """A `ConnectLanes`."""

    def __init__(self, conf: Conf, graph: GraphValue, processor: Processor) -> None:
        self._conf, self._graph, self._processor = conf, graph, processor

    def kafka(self) -> LaneTopics:
        conf = self._conf
        return LaneTopics(
            self._graph,
            self._processor,
            conf.kafka.client_properties,
            conf.producer_properties,
            transaction_timeout_s=conf.exactly_once.transaction_timeout_s,
        )

    def group(self) -> LaneGroup:
        properties = properties_of(
            self._conf.kafka.client_properties,
            owner_of(self._graph.name, self._processor.name),
            session_timeout_s=self._conf.election.session_timeout_s,
        )
        return LaneGroup(properties, self._processor.topics)

    def steps(self) -> StepCalls:
        return StepCalls(self._processor, owner_of(self._graph.name, self._processor.name))

    def maker(self) -> OutputMaker:
        serializer = resolve(self._conf.stash.serializer)

        def encode(value: object) -> bytes:
            found = serializer(value)
            return found.encode() if isinstance(found, str) else found

        return OutputMaker(
            self._processor,
            encode=encode,
            provenance=self._graph.provenance,
            bytes_max=self._conf.stash.max_message_bytes,
        )


def options_of(conf: Conf, graph: GraphValue) -> LaneOptions:
    return LaneOptions(
        graph.name,
        conf.exactly_once.transaction_timeout_s,
        conf.exactly_once.commit_timeout_s,
        conf.stash.max_message_bytes,
    )


class LookAtTopics:
    """Raises everything that keeps the processors from working: `NotAvailable` while brokers do not answer."""

    def __init__(self, servers: Sequence[ServersOfProcessor]) -> None:
        self._servers = servers

    def __call__(self) -> bool:
        found = [text for one in self._servers for text in self._of(one)]
        if found:
            raise OutboxError(" ".join(found))
        return True

    @staticmethod
    def _of(servers: ServersOfProcessor) -> list[str]:
        kafka, processor = servers.kafka(), servers._processor
        try:
            found = [kafka.prepare()]
            outputs = {stream.topic for stream in processor.outputs} | {processor.error_topic} - {""}
            found += [
                f"The output topic {topic!r}: {text}. Create it." for topic, text in kafka.missing(outputs).items()
            ]
        except LedgerUnreachable as error:
            raise NotAvailable(str(error)) from error
        except LedgerRefused as error:
            found = [str(error)]
        finally:
            kafka.close()
        return [f"{processor.kind} {processor.name!r}: {text}" for text in found if text]
