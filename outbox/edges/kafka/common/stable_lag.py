"""How far readers of what is committed are behind: for metrics and commands, never for decisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outbox.edges.kafka.common.client_log import ClientLog

_REQUEST_S = 5.0


def stable_lag(properties: Mapping[str, Any], topic: str) -> dict[int, int]:
    """Per partition: how many offsets lie between the last stable one and the end. What stands still above 0 is a
    transaction that nobody ends, behind which `read_committed` consumers wait."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

    settings: dict[str, Any] = {**properties, "logger": ClientLog()}
    admin = AdminClient(settings)
    # Not listed by its name, which makes brokers create a topic that is not there, with a policy that forgets.
    described = admin.describe_topics(TopicCollection([topic]), request_timeout=_REQUEST_S)
    try:
        partitions = [found.id for found in described[topic].result(2 * _REQUEST_S).partitions]
    except KafkaException as error:
        if error.args[0].name() in ("UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED"):
            return {}
        raise
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = dict.fromkeys((TopicPartition(topic, number) for number in partitions), latest)
    ends = [
        {
            partition.partition: future.result(_REQUEST_S).offset
            for partition, future in admin.list_offsets(
                asked, isolation_level=level, request_timeout=_REQUEST_S
            ).items()
        }
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    stable, end = ends
    return {number: max(0, end[number] - stable[number]) for number in stable}
