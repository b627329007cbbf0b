"""Whether the brokers can keep transactions: asked once at the start, because a transaction log that cannot be
replicated looks like brokers that never answer.

Rights on the transactional ids are not asked for here: nothing but their use tells about them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outbox.core.faults import Kind, kind_of
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import brokers_at_work, require_bootstrap
from outbox.edges.kafka.common.disposal import dispose
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerUnreachable
from outbox.edges.kafka.exactly_once.transactional import TransactionsRefused
from outbox.exceptions import missing_extra

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger("outbox.kafka")

TOPIC = "__transaction_state"
_FACTOR, _MIN_ISR = "transaction.state.log.replication.factor", "transaction.state.log.min.isr"
_REQUEST_S = 5.0


class BrokersMissing(LedgerUnreachable):
    """Fewer brokers take part than the transaction log shall have replicas. `is_hopeless`: no others are known of."""

    def __init__(self, text: str, *, is_hopeless: bool) -> None:
        self.is_hopeless = is_hopeless
        super().__init__(text)


class TransactionLog:
    """The brokers' own topic. `close` lets go of the client: errors that were raised here hold this object."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        require_bootstrap(properties)
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            missing_extra("harvest", error)
        self._servers = properties["bootstrap.servers"]
        self._admin: AdminClient = AdminClient({**properties, "log.connection.close": False}, logger=ClientLog())

    def close(self) -> None:
        held = [self._admin]
        del self._admin
        dispose(held)

    def check(self) -> None:
        """Raises `TransactionsRefused` where no transaction could ever be committed, `BrokersMissing` where none can
        begin before more brokers take part."""
        from confluent_kafka import KafkaException

        try:
            brokers, wanted, needed = self._brokers()
            replicas = self._replicas()
            if replicas is not None:
                needed = int(self._config("TOPIC", TOPIC)["min.insync.replicas"].value)
        except (KafkaException, KeyError, IndexError, TypeError, ValueError) as error:
            logger.info("transaction_log_unknown reason=%r", str(error))
            return
        if replicas is None and wanted > brokers:
            raise self._missing(brokers, wanted)
        if replicas is not None and needed > replicas:
            raise TransactionsRefused(
                f"Kafka can commit no transaction: the brokers' transaction log has {replicas} replicas and needs "
                f"{needed} in sync (min.insync.replicas of the topic {TOPIC}; {_MIN_ISR} when Kafka creates it). Lower "
                f"that number: kafka-configs.sh --alter --entity-type topics --entity-name {TOPIC} --add-config "
                f"min.insync.replicas={replicas}. Or give the topic more replicas."
            )

    def _missing(self, brokers: int, wanted: int) -> BrokersMissing:
        """A broker that is away for a while is still among the replicas of some topic."""
        from confluent_kafka import KafkaException

        try:
            topics = self._admin.list_topics(timeout=_REQUEST_S).topics.values()
        except KafkaException as error:
            raise self._silent(error) from error
        known = {number for topic in topics for part in topic.partitions.values() for number in part.replicas}
        begun = (
            f"Kafka can begin no transaction: the brokers want {wanted} replicas of their transaction log ({_FACTOR}), "
            f"but there are {brokers} brokers"
        )
        if len(known) >= wanted:
            listed = ", ".join(map(str, sorted(known)))
            return BrokersMissing(
                f"{begun} now. Start the missing brokers: topics are kept by {listed}.", is_hopeless=False
            )
        return BrokersMissing(
            f"{begun}. Set {_FACTOR} to {brokers} and {_MIN_ISR} to no more than that on every broker, "
            'or start more brokers. Or use DELIVERY="at-least-once".',
            is_hopeless=True,
        )

    def _brokers(self) -> tuple[int, int, int]:
        """How many there are, and the replicas that a transaction log will have and need."""
        brokers = self._result(brokers_at_work(self._admin, _REQUEST_S))
        found = self._config("BROKER", str(brokers[0]))
        return len(brokers), int(found[_FACTOR].value), int(found[_MIN_ISR].value)

    def _config(self, kind: str, name: str) -> Any:
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resource = ConfigResource(ResourceType[kind], name)
        return self._result(self._admin.describe_configs([resource], request_timeout=_REQUEST_S)[resource])

    def _replicas(self) -> int | None:
        """Of the partition that has the fewest; None where the log is still to be made."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        futures = self._admin.describe_topics(TopicCollection([TOPIC]), request_timeout=_REQUEST_S)
        try:
            found = self._result(futures[TOPIC])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        return min(len(partition.replicas) for partition in found.partitions)

    def _result(self, future: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return future.result(timeout=2 * _REQUEST_S)
        except (TimeoutError, KafkaException) as error:
            if isinstance(error, KafkaException) and not (
                error.args[0].retriable() or kind_of(error.args[0].name()) is Kind.OUTAGE
            ):
                raise
            raise self._silent(error) from error

    def _silent(self, error: BaseException) -> LedgerUnreachable:
        return LedgerUnreachable(f"The brokers at {self._servers} do not answer questions about transactions: {error}")
