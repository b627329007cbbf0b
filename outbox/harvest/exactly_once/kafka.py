"""The brokers as exactly-once delivery uses them: the ledger topic, and a producer for each lane. No decisions here."""

from __future__ import annotations

from outbox.conf import Conf
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, properties_of


class LaneKafka(LedgerTopic):
    """A `KafkaPort`."""

    def __init__(self, conf: Conf) -> None:
        super().__init__(lambda: conf.kafka.client_properties, f"{conf.name}.ledger")
        self._conf = conf

    def transactional_id(self, lane: int) -> str:
        return f"{self._conf.name}-{lane}"

    def producer(self, lane: int, request_bytes: int | None = None) -> TransactionalProducer:
        conf = self._conf
        properties = properties_of(  # with the secrets of this moment
            conf.producer_properties,
            self.transactional_id(lane),
            transaction_timeout_s=conf.exactly_once.transaction_timeout_s,
        )
        if request_bytes is not None:
            properties["batch.size"] = min(int(properties.get("batch.size") or request_bytes), request_bytes)
        return TransactionalProducer(
            properties, id_header=conf.exactly_once.id_header, keep_empty_key=conf.harvest.keep_empty_key
        )
