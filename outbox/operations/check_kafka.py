"""The checks that ask Kafka: brokers, topics, transactions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE, Conf
from outbox.core import faults
from outbox.edges.kafka.common.clients import make
from outbox.edges.kafka.exactly_once import transactional
from outbox.exceptions import OutboxError, missing_extra
from outbox.operations.findings import Finding, Level, error, ok, sentence, skipped, warning

_REQUEST_S = 5.0
_INIT_S = 15.0
_CLIENT = "outbox-election-admin"  # a harvester's name, so that its quotas are those of this client
_MISSING = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
_FETCH = re.compile(r"ApiKey Fetch \(1\) Versions \d+\.\.(\d+)")
# The newest version of the request Fetch, by release of the brokers.
_SINCE = ((18, "4.1 or newer"), (17, "3.9 or 4.0"), (16, "3.7 or 3.8"), (15, "3.5 or 3.6"))
_FETCH_TRIED = 17


def examine(conf: Conf, topics: Sequence[str]) -> Iterator[Finding]:
    if not conf.kafka.bootstrap_servers:
        yield error("kafka", "The settings name no bootstrap servers.", 'Set OUTBOX["BOOTSTRAP_SERVERS"].')
        return
    try:
        brokers = _Brokers(conf)
    except (OutboxError, ImportError) as failure:
        yield error("kafka", str(failure), "Correct KAFKA in OUTBOX.")
        return
    reached = brokers.reached()
    yield reached
    if reached.level is Level.ERROR:
        yield skipped("topics", "The check left out the topics, because the brokers do not answer.")
        return
    yield brokers.own_topic("leader topic", conf.election.leader_topic, compact=False)
    if conf.delivery == EXACTLY_ONCE:
        yield brokers.own_topic("ledger topic", f"{conf.name}.ledger", compact=True)
        yield _transactions(conf)
    for topic in topics:
        yield from brokers.topic_of_records(topic)


class _Heard:
    """The client's log lines about the brokers' protocol. No answer of a broker names its version."""

    def __init__(self) -> None:
        self.fetch_versions: list[int] = []

    def log(self, level: int, text: str, *arguments: Any) -> None:
        line = text % arguments if arguments else text
        if found := _FETCH.search(line):
            self.fetch_versions.append(int(found[1]))


def _spoken(fetch: int) -> str:
    return next((name for since, name in _SINCE if fetch >= since), "before 3.5")


class _Brokers:
    def __init__(self, conf: Conf) -> None:
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError as failure:
            missing_extra("harvest", failure)
        self._conf, self._reason = conf, ""
        self._heard = _Heard()
        own = {"client.id": _CLIENT, "error_cb": self._note, "debug": "feature"}
        self._admin: AdminClient = make(AdminClient, {**conf.kafka.client_properties, **own}, logger=self._heard)

    def _note(self, error: Any) -> None:
        if error.name() != "_ALL_BROKERS_DOWN":
            self._reason = error.str()

    def reached(self) -> Finding:
        servers = self._conf.kafka.bootstrap_servers
        try:
            found = self._admin.list_topics(timeout=_REQUEST_S)
        except Exception as failure:
            reason = self._reason or _words(failure)
            return error(
                "kafka",
                f"The brokers at {servers} do not answer: {reason}.",
                "Check that they run. If they do, compare security.protocol, sasl.* and ssl.* with theirs.",
            )
        brokers = "1 broker" if len(found.brokers) == 1 else f"{len(found.brokers)} brokers"
        return self._version(f"{brokers} at {servers}")

    def _version(self, brokers: str) -> Finding:
        from confluent_kafka import libversion

        self._admin.poll(0)  # delivers the client's log lines
        fetch = min(self._heard.fetch_versions, default=None)
        spoken = "an unknown version" if fetch is None else f"version {_spoken(fetch)}"
        text = f"Kafka answers with {spoken}, by {brokers}. The client is librdkafka {libversion()[0]}."
        if fetch is not None and fetch < _FETCH_TRIED:
            return warning(
                "kafka",
                text,
                "Upgrade to Kafka 3.9 or newer, or run your own tests first: outbox is tested with Kafka 3.9 and 4.1.",
            )
        return ok("kafka", text)

    def own_topic(self, subject: str, name: str, *, compact: bool) -> Finding:
        partitions, denied, failure = self._described(name, "READ", "WRITE")
        if failure in _MISSING:
            return ok(subject, f"The topic {name!r} does not exist yet. The first harvester creates it.")
        if failure:
            return error(
                subject,
                f"Kafka does not describe the topic {name!r}: {failure}.",
                "Allow the user DESCRIBE, READ and WRITE on the topic.",
            )
        if denied:
            return error(
                subject, f"The user lacks {denied} on the topic {name!r}.", f"Allow the user {denied} on the topic."
            )
        # In exactly-once delivery the count is the database's, and harvesters add what is missing.
        if partitions < self._conf.election.lanes and self._conf.delivery == AT_LEAST_ONCE:
            return error(
                subject,
                f"The topic {name!r} has too few partitions: {partitions} for {self._conf.election.lanes} lanes.",
                f"Run: kafka-topics.sh --alter --topic {name} --partitions {self._conf.election.lanes}",
            )
        policy = self._config(name).get("cleanup.policy")
        if compact and policy not in (None, "compact"):
            return error(
                subject,
                f"The topic {name!r} has cleanup.policy={policy}, so Kafka would delete ledger entries.",
                f"Run: kafka-configs.sh --alter --entity-type topics --entity-name {name} "
                "--add-config cleanup.policy=compact",
            )
        return ok(subject, f"The topic {name!r} has {_partitions(partitions)}.")

    def topic_of_records(self, name: str) -> Iterator[Finding]:
        subject = f"topic {name!r}"
        partitions, denied, failure = self._described(name, "WRITE")
        if failure or denied:
            failure = failure or f"TOPIC_AUTHORIZATION_FAILED: the user lacks {denied}"
            _, step = faults.in_plain_words(failure.partition(":")[0])
            yield error(subject, f"A harvester cannot use the topic: {failure}.", sentence(step))
            return
        config = self._config(name)
        size = int(config.get("max.message.bytes") or 0)
        if 0 < size < self._conf.stash.max_message_bytes:
            yield warning(
                subject,
                f"The topic's max.message.bytes is {size:,}, but stash() accepts "
                f"{self._conf.stash.max_message_bytes:,} bytes. Kafka would reject a large record long after stash().",
                "Raise max.message.bytes, or lower MAX_MESSAGE_BYTES.",
            )
        else:
            yield ok(subject, f"The topic has {_partitions(partitions)}.")

    def _described(self, name: str, *wanted: str) -> tuple[int, str, str]:
        """(partitions, the missing ACLs of `wanted`, "") or (0, "", the client's name of the error). To list a topic by
        its name would create it."""
        from confluent_kafka import TopicCollection

        try:
            futures = self._admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=_REQUEST_S
            )
            found = futures[name].result(2 * _REQUEST_S)
        except Exception as failure:
            return 0, "", _name(failure)
        # None if the brokers do not report it.
        given = None if found.authorized_operations is None else {acl.name for acl in found.authorized_operations}
        denied = [acl for acl in wanted if given is not None and acl not in given]
        return len(found.partitions), " and ".join(denied), ""

    def _config(self, name: str) -> dict[str, str]:
        """Empty if the user may not read it."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            future = self._admin.describe_configs([resource], request_timeout=_REQUEST_S)[resource]
            return {key: entry.value for key, entry in future.result(2 * _REQUEST_S).items()}
        except Exception:
            return {}


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


def _transactions(conf: Conf) -> Finding:
    """Initialise a transactional id that no lane uses."""
    name = f"{conf.name}-check"
    properties = transactional.properties_of(
        conf.producer_properties, name, transaction_timeout_s=conf.exactly_once.transaction_timeout_s
    )
    give_up_at = time.monotonic() + _INIT_S
    try:
        producer = transactional.initialised(
            lambda: transactional.TransactionalProducer(properties), name, give_up_at, lambda: True
        )
    except (transactional.TransactionsRefused, transactional.NoProducer) as failure:
        return error("transactions", str(failure), "Correct the cause that the text names.")
    except Exception as failure:
        return error("transactions", _words(failure), "Correct KAFKA or PRODUCER in OUTBOX.")
    if producer is not None:
        producer.drop_and_wait()
    return ok("transactions", "The user may use transactions.")


def _name(failure: BaseException) -> str:
    found = transactional.kafka_error(failure)
    return found.name() if found is not None else "_FAIL"


def _words(failure: BaseException) -> str:
    found = transactional.kafka_error(failure)
    return f"{found.name()}: {found.str()}" if found is not None else f"{type(failure).__name__}: {failure}"
