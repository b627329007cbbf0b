"""The errors between a member and the brokers: those for which waiting helps, and those that need an operator."""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.core.faults import Kind, kind_of
from outbox.exceptions import NotAvailable, OutboxError

logger = logging.getLogger("outbox.election")


class KafkaUnreachable(NotAvailable):
    """No broker answers (in time): worth another attempt."""


class ElectionRefused(OutboxError):
    """The brokers or the topic do not allow what the election needs: an operator must change something."""


def is_outage(error: Any) -> bool:
    """Whether a KafkaError may go away by itself."""
    return bool(error.retriable()) or kind_of(error.name()) is Kind.OUTAGE


def group_refusal(error: Any, conf: Conf) -> ElectionRefused | None:
    """The error if only an operator can remove its cause, with the remedy; else None."""
    from confluent_kafka import KafkaError

    remedies = {
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"Allow the user READ on the group {conf.name!r}.",
        KafkaError.TOPIC_AUTHORIZATION_FAILED: f"Allow the user READ and WRITE on the topic "
        f"{conf.election.leader_topic!r}.",
        KafkaError.INCONSISTENT_GROUP_PROTOCOL: f"Members of the group {conf.name!r} use another assignor than "
        f"ASSIGNOR = {conf.election.assignor!r}. Give all members the same one, or this application a NAME of its own.",
        KafkaError.INVALID_SESSION_TIMEOUT: "Set SESSION_TIMEOUT within group.min.session.timeout.ms and "
        "group.max.session.timeout.ms of the brokers.",
    }
    if error.code() not in remedies:
        return None
    return ElectionRefused(
        f"The harvester cannot join the group {conf.name!r}: {error.str()}. {remedies[error.code()]}"
    )


def foreign_database(conf: Conf, ours: UUID | None, name: str, theirs: UUID) -> ElectionRefused:
    return ElectionRefused(
        f"The group {conf.name!r} belongs to harvesters of another database: {name!r} harvests database {theirs}, and "
        f"this process harvests database {ours}. Each would wait for lanes that the other one owns. Give every "
        "environment that shares this Kafka a NAME of its own in OUTBOX. If you have created the tables again, stop "
        "the harvesters of the old ones."
    )


def denied(conf: Conf, seconds: float) -> ElectionRefused:
    return ElectionRefused(
        f"The brokers at {conf.kafka.bootstrap_servers} have rejected the credentials of this harvester for "
        f"{seconds:.0f} s, including those of new clients. Correct sasl.*, ssl.* and security.protocol in KAFKA, and "
        "start the harvester again. If a secret changes while it runs, give the secret as a function."
    )


class Seldom:
    """True once, and then False for `pause_s`."""

    def __init__(self, clock: Callable[[], float], pause_s: float = 60.0) -> None:
        self._clock, self._pause_s, self._next_at = clock, pause_s, 0.0

    def __bool__(self) -> bool:
        now = self._clock()
        if now < self._next_at:
            return False
        self._next_at = now + self._pause_s
        return True


class Denials:
    """Which clients the brokers have rejected for their credentials, and since when. A client continues to try with the
    same credentials, and does not report when it succeeds: so its owner asks the brokers with it now and then."""

    _NAMES = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL")
    _EVERY_S = 2.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._ask_at: dict[str, float] = {}

    def note(self, client: str, error: Any) -> None:
        if error.name() in self._NAMES:
            self._since.setdefault(client, self._clock())

    def is_due(self, client: str) -> bool:
        """Whether this denied client is to be tried."""
        now = self._clock()
        if client not in self._since or now < self._ask_at.get(client, 0.0):
            return False
        self._ask_at[client] = now + self._EVERY_S
        return True

    def over(self, client: str) -> None:
        self._since.pop(client, None)

    @property
    def lasting_s(self) -> float:
        """Of the one that has lasted longest; 0 without any."""
        return max((self._clock() - since for since in list(self._since.values())), default=0.0)


class ElectionTroubles:
    """Logs each kind of error once, until it is over."""

    def __init__(self) -> None:
        self._kinds: dict[str, None] = {}

    def note(self, kind: str, text: str) -> None:
        if kind not in self._kinds:
            self._kinds[kind] = None
            logger.warning("election_failed kind=%s reason=%r", kind, text)

    def over(self) -> None:
        if self._kinds:
            kinds, self._kinds = ",".join(self._kinds), {}
            logger.info("election_works_again kinds=%s", kinds)
