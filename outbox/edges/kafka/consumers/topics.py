"""What Kafka knows of topics: their ids, how far their partitions reach, the group's own offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as NoAnswer
from typing import TYPE_CHECKING, Any

from outbox.core.consumers.values import Partition
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import let_go, make, require_bootstrap
from outbox.exceptions import NotAvailable, missing_extra
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

_REQUEST_S = 5.0
_COORDINATOR = ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS")
_COORDINATOR_S, _COORDINATOR_POLL_S = 10.0, 0.1
_SILENT = ("_TIMED_OUT", "_TRANSPORT")
_MISSING = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")


class CoordinatorLoading(NotAvailable):
    """A broker that was just given the group does not know it yet."""


class Topics:
    """Any thread may ask. Raises `NotAvailable` for whatever the brokers do not answer."""

    def __init__(self, properties: Mapping[str, Any], group: str) -> None:
        """`properties` are those of every client."""
        require_bootstrap(properties)
        self._group = group
        self._properties = {**properties, "client.id": "outbox-consumer-admin", "logger": ClientLog()}
        self._admin: AdminClient = make(_admin_client(), self._properties)
        self._reader: Consumer | None = None
        """Asks for the group's offsets, and never joins the group."""

    def names(self) -> set[str]:
        """Without those that are internal."""
        found = self._answer("The list of topics", lambda: self._admin.list_topics(timeout=_REQUEST_S))
        return {name for name in found.topics if not name.startswith("__")}

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Without those that do not exist."""
        return {topic: str(found.topic_id) for topic, found in self._described(topics).items()}

    def denied(self, topics: Sequence[str]) -> dict[str, str]:
        """Of each topic that exists: the rights that a consumer lacks, empty if none."""
        found = {}
        for topic, described in self._described(topics, include_authorized_operations=True).items():
            given = described.authorized_operations
            names = None if given is None else {right.name for right in given}  # None: the brokers do not say
            found[topic] = "" if names is None or "READ" in names else "READ"
        return found

    def partitions(self, topic: str) -> int:
        """0: there is no such topic."""
        found = self._described([topic]).get(topic)
        return len(found.partitions) if found else 0

    def copies(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The group's own offsets, of those that have one. Not by an AdminClient: librdkafka 2.16 ends the process when
        the coordinator of the group answers that it is loading."""
        if not partitions:
            return {}
        asked = [_plain(partition) for partition in partitions]
        reader = self._reader = self._reader or self._group_reader()
        found = self._answer("The group's offsets", lambda: reader.committed(asked, timeout=2 * _REQUEST_S))
        for one in found:
            if one.error is not None:
                raise NotAvailable(f"The group's offset of {one.topic}[{one.partition}]: {one.error.str()}")
        return {Partition(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def _group_reader(self) -> Consumer:
        try:
            from confluent_kafka import Consumer
        except ImportError as error:
            missing_extra("harvest", error)
        given = {"group.id": self._group, "enable.auto.commit": False, "group.protocol": "classic"}
        reader: Consumer = make(Consumer, {**self._properties, **given})
        return reader

    def members(self) -> int:
        """How many processes the group has."""

        def ask() -> Any:
            futures = self._admin.describe_consumer_groups([self._group], request_timeout=_REQUEST_S)
            return futures[self._group].result(2 * _REQUEST_S)

        give_up_at = THREADS.monotonic() + _COORDINATOR_S
        while True:
            try:
                found = self._answer("The group", ask, ("GROUP_ID_NOT_FOUND",))
                return len(found.members) if found is not None else 0
            except CoordinatorLoading:
                if THREADS.monotonic() > give_up_at:
                    raise
            THREADS.sleep(_COORDINATOR_POLL_S)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """The first offset and the last stable one."""
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        first, end = self._offsets(partition, OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return first, end

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The last stable offsets, by one request to each broker. Without those of which the broker does not say it;
        raises `NotAvailable` if no broker answers."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        if not partitions:
            return {}
        asked = {_plain(partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        futures = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_S
        )
        found, failure = {}, None
        for one, future in futures.items():
            try:
                answer = self._answer("The last stable offsets", lambda future=future: future.result(2 * _REQUEST_S))
            except NotAvailable as error:
                failure = error
            else:
                found[Partition(one.topic, one.partition)] = answer.offset
        if failure is not None and not found:
            raise failure
        return found

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Of the first message that is not older; the last stable offset if there is none."""
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        found, end = self._offsets(partition, OffsetSpec.for_timestamp(timestamp_ms), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return found if found >= 0 else end

    def _offsets(self, partition: Partition, *specs: Any) -> list[int]:
        from confluent_kafka import IsolationLevel

        one = _plain(partition)
        futures = [
            self._admin.list_offsets(
                {one: spec}, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_S
            )[one]
            for spec in specs
        ]
        what = f"The offsets of {partition.topic}[{partition.number}]"
        return [self._answer(what, lambda future=future: future.result(2 * _REQUEST_S)).offset for future in futures]

    def _described(self, topics: Sequence[str], **options: Any) -> dict[str, Any]:
        """Not listed by name, which makes brokers create what is not there."""
        from confluent_kafka import TopicCollection

        if not topics:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_REQUEST_S, **options)
        found = {
            topic: self._answer(f"The topic {topic!r}", lambda future=future: future.result(2 * _REQUEST_S), _MISSING)
            for topic, future in futures.items()
        }
        return {topic: described for topic, described in found.items() if described is not None}

    def _answer(self, what: str, ask: Any, missing: Sequence[str] = ()) -> Any:
        """None for an error whose name is in `missing`. When brokers were lost or have started again, the client may
        wait for ever for the coordinator, or for minutes for the controller, that it knew before (librdkafka 2.16). So
        after silence another client asks the next time."""
        from confluent_kafka import KafkaException

        found = None
        try:
            return ask()
        except KafkaException as error:
            found = let_go(error).args[0]
        except NoAnswer:
            pass
        if found is None or found.name() in _SILENT:
            self._admin, self._reader = make(_admin_client(), self._properties), None
        if found is None:
            raise NotAvailable(f"{what}: Kafka did not answer in {2 * _REQUEST_S:g} s.")
        if found.name() in missing:
            return None
        kind = CoordinatorLoading if found.name() in _COORDINATOR else NotAvailable
        raise kind(f"{what}: {found.name()}: {found.str()}")


def _admin_client() -> Any:
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        missing_extra("harvest", error)
    return AdminClient


def _plain(partition: Partition) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(partition.topic, partition.number)
