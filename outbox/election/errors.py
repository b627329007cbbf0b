"""What can go wrong between a member and the brokers, told apart by whether waiting helps."""

import logging
import time
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core.faults import Kind, kind_of
from outbox.exceptions import OutboxError

logger = logging.getLogger("outbox.election")


class KafkaUnreachable(OutboxError):
    """No broker answers (in time): worth another attempt."""


class ElectionRefused(OutboxError):
    """The brokers or the topic do not allow what the election needs: an operator must change something."""


def is_outage(error: Any) -> bool:
    """Whether a KafkaError may go away by itself."""
    return bool(error.retriable()) or kind_of(error.name()) is Kind.OUTAGE


def group_refusal(error: Any, conf: Conf) -> ElectionRefused | None:
    """What only an operator can solve, with the remedy."""
    from confluent_kafka import KafkaError

    remedies = {
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"Allow the user READ on the group {conf.name!r}.",
        KafkaError.TOPIC_AUTHORIZATION_FAILED: f"Allow the user READ and WRITE on the topic {conf.leader_topic!r}.",
        KafkaError.INCONSISTENT_GROUP_PROTOCOL: f"The group {conf.name!r} has members with another assignor than "
        f"ASSIGNOR = {conf.assignor!r}: give all members one, or this application a NAME of its own.",
        KafkaError.INVALID_SESSION_TIMEOUT: "Set SESSION_TIMEOUT within group.min.session.timeout.ms and "
        "group.max.session.timeout.ms of the brokers.",
    }
    if error.code() not in remedies:
        return None
    return ElectionRefused(f"The group {conf.name!r} cannot be joined: {error.str()}. {remedies[error.code()]}")


def foreign_database(conf: Conf, ours: UUID | None, name: str, theirs: UUID) -> ElectionRefused:
    return ElectionRefused(
        f"The group {conf.name!r} belongs to harvesters of another database: {name!r} harvests database {theirs}, this "
        f"process database {ours}. Each would wait for lanes that the other one has. Environments that share a Kafka "
        "need a NAME each: change it in OUTBOX. If the tables were made anew, stop the harvesters of the old ones."
    )


class Seldom:
    """Says yes once a minute."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def __bool__(self) -> bool:
        if time.monotonic() < self._next_at:
            return False
        self._next_at = time.monotonic() + 60
        return True


class Troubles:
    """Logs each kind of trouble once, until it is over."""

    def __init__(self) -> None:
        self._kinds: dict[str, None] = {}

    def note(self, kind: str, text: str) -> None:
        if kind not in self._kinds:
            self._kinds[kind] = None
            logger.warning("election_trouble kind=%s reason=%r", kind, text)

    def over(self) -> None:
        if self._kinds:
            kinds, self._kinds = ",".join(self._kinds), {}
            logger.info("election_trouble_over kinds=%s", kinds)
