"""The ``OUTBOX`` settings: one typed, frozen object with a section for each feature.

Each field carries its own documentation. A test compares ``docs/settings.md`` with it, in this order. The module that
uses a setting explains what it means for the protocol.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any

from outbox.conf import parsers
from outbox.conf.parsers import BLOCK, SKIP

DEFAULT_TABLE = "outbox"
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
# The client's limit on a message, and its default.
SIZE_PROPERTY, SIZE_DEFAULT = "message.max.bytes", 1_000_000
# Each lane costs a partition of two topics.
LANES_MAX = 10_000
_CALLED_BY_CLIENT = ("logger", "on_commit", "on_delivery")

# Values in which secrets may stand.
_HIDDEN = (parsers.properties, parsers.stores, parsers.celery_events)


def setting(
    parse: Callable[[Any], Any], default: Any, help: str, *, unit: str = "", shown: str = "", key: str = ""
) -> Any:
    """Declare one setting. `shown` is how the documents write a computed default; `key` is the name when it differs."""
    metadata = {"parse": parse, "help": help, "unit": unit, "shown": shown, "key": key}
    return field(
        default=default,
        repr=parse not in _HIDDEN,
        metadata=metadata,
    )


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """Clients: the brokers, and the properties of every client and every producer."""

    bootstrap_servers: str = setting(
        parsers.servers,
        "",
        'Kafka clients connect to these brokers. The setting is short for KAFKA["bootstrap.servers"].',
    )
    properties: Mapping[str, Any] = setting(
        parsers.properties, None, "Every Kafka client gets these librdkafka properties.", shown="{}", key="KAFKA"
    )
    producer: Mapping[str, Any] = setting(
        parsers.properties,
        None,
        "Producers also get these librdkafka properties. They override those of KAFKA.",
        shown="{}",
    )

    @property
    def client_properties(self) -> dict[str, Any]:
        """The properties of every Kafka client. A value that is a function is called for each new client, so that the
        next client uses a changed secret."""
        return _asked(self.properties)


@dataclass(frozen=True, kw_only=True)
class StashSettings:
    """The limits of stash(), and what it adds to a message."""

    key_max_bytes: int = setting(parsers.count(1, 1_000_000), 1024, "stash() rejects a longer key.", unit="bytes")
    max_message_bytes: int = setting(
        parsers.count(1_000, 1_000_000_000),
        1_000_000,
        "stash() rejects a larger message (key, value and headers). Do not set it above the topics' max.message.bytes.",
        unit="bytes",
    )
    autocommit_stash: bool = setting(parsers.flag, False, "If true, stash() also works outside transaction.atomic().")
    binary_values: bool = setting(
        parsers.flag,
        None,
        "If true, stash() accepts bytes as values. A goharvest-compatible harvester would send such a record as a "
        "tombstone.",
        shown='True exactly when DELIVERY is "exactly-once"',
    )
    serializer: str = setting(
        parsers.dotted_path,
        "outbox.serializers.json",
        "This function turns a value into str or bytes.",
        unit="dotted path",
    )
    message_id_header: str = setting(
        parsers.header_name, "message-id", "This header carries each message's own id. None turns it off."
    )
    correlation_id_header: str = setting(
        parsers.header_name,
        "correlation-id",
        "This header carries the id that outbox.correlation() sets. None turns it off.",
    )
    tracing: bool = setting(
        parsers.flag,
        True,
        "In a process that uses OpenTelemetry, stash() stores the caller's W3C trace context and the harvester "
        "emits spans for the delivery.",
    )


@dataclass(frozen=True, kw_only=True)
class AdminSettings:
    """Pages of the admin."""

    redactor: str = setting(
        parsers.dotted_path,
        "outbox.redaction.keep",
        "This function (record, text) -> text decides what the admin shows of a value and of each header's value.",
        unit="dotted path",
    )


@dataclass(frozen=True, kw_only=True)
class ElectionSettings:
    """The election of the lanes' owners, and how an owner gives a lane back."""

    flush_timeout_s: float = setting(
        parsers.seconds(0.1, 3600),
        30.0,
        "A harvester that stops or gives back a lane waits this long for acknowledgements and for receivers of "
        "leader_revoked. It never waits longer than three quarters of SESSION_TIMEOUT.",
        unit="seconds",
    )
    leader_topic: str = setting(
        parsers.name, "", "The members of the group elect the owners of the lanes on this topic.", shown="NAME + .neli"
    )
    lanes: int = setting(
        parsers.count(1, LANES_MAX),
        1,
        "The harvester creates the leader topic with this many partitions. Each partition stands for a lane, which "
        "has one owner.",
    )
    heartbeat_timeout_s: float = setting(
        parsers.seconds(0.5, 600),
        2.0,
        "A leader fences itself when it has not read back its own heartbeat for this long. Set at most half of "
        "SESSION_TIMEOUT.",
        unit="seconds",
    )
    session_timeout_s: float = setting(
        parsers.seconds(1, 3600),
        6.0,
        "Another harvester or consumer replaces a crashed one after this time plus up to 3 s. The brokers limit the "
        "value (by default to 6 s or more).",
        unit="seconds",
    )
    assignor: str = setting(
        parsers.one_of("cooperative-sticky", "range"),
        "cooperative-sticky",
        "Kafka assigns the lanes by this rule. With cooperative-sticky, only lanes that move pause. "
        "goharvest-compatible harvesters of one group use range.",
    )

    @property
    def revoke_timeout_s(self) -> float:
        """Below the session timeout, so that Kafka notices a process that was paused while it finished."""
        return min(self.flush_timeout_s, 0.75 * self.session_timeout_s)


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Readings of the lanes' meters."""

    metrics_interval_s: float = setting(
        parsers.seconds(0.1, 3600),
        5.0,
        "The harvester reads the meter of a lane at most once in this time.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceSettings:
    """Lanes in at-least-once delivery."""

    send_concurrency: int = setting(
        parsers.count(1, 256), 4, "An at-least-once lane sends with this many producers in parallel.", unit="producers"
    )
    in_flight_max: int = setting(
        parsers.count(1, 1_000_000),
        5_000,
        "A lane has at most this many records that are sent and not yet purged.",
        unit="records",
    )
    mark_max: int = setting(
        parsers.count(1, 100_000), 2_000, "One mark query marks at most this many records.", unit="records"
    )
    mark_bytes_max: int = setting(
        parsers.count(1, 1_000_000_000),
        32_000_000,
        "A mark query ends early after this many bytes of keys, values and headers. The same limit holds for the "
        "bytes in flight, so that large records do not fill the memory.",
        unit="bytes",
    )
    send_buffer: int = setting(
        parsers.count(1, 1_000_000),
        1_000,
        "Each producer keeps at most this many records in memory that wait for their key's turn.",
        unit="records",
    )
    key_buffer: int = setting(
        parsers.count(1, 100_000),
        100,
        "Each producer keeps at most this many records of one key in memory, never more than SEND_BUFFER. It keeps "
        "only the ids of the others.",
        unit="records",
    )
    deferred_max: int = setting(
        parsers.count(1, 10_000_000),
        100_000,
        "A lane keeps at most this many ids of marked records that do not fit into the buffers. Beyond this number "
        "it does not mark their keys.",
        unit="records",
    )
    queue_timeout_s: float = setting(
        parsers.seconds(0.001, 86_400),
        30.0,
        "The harvester logs a warning when a key has waited this long for its turn.",
        unit="seconds",
    )
    delivery_timeout_s: float = setting(
        parsers.seconds(0.1, 3600),
        3.5,
        "The client tries to deliver a record for this long. Then its key pauses. Set at most SESSION_TIMEOUT minus "
        "HEARTBEAT_TIMEOUT.",
        unit="seconds",
    )
    drain_timeout_s: float = setting(
        parsers.seconds(0.001, 3600),
        2.0,
        "The harvester waits this long for the outcome of records in flight. Then it marks everything again.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class HarvestSettings:
    """Lanes in any delivery mode."""

    io_backoff_s: float = setting(
        parsers.seconds(0.001, 3600),
        0.5,
        "The harvester waits this long before it repeats a failed statement.",
        unit="seconds",
    )
    mark_backoff_s: float = setting(
        parsers.seconds(0.001, 3600),
        0.05,
        "When there is nothing to do, the harvester pauses at most this long between two queries. In at-least-once "
        "delivery, the pause is multiplied by the number of lanes that the process owns. In exactly-once delivery, it "
        "is multiplied by 1.12, for any number of lanes.",
        unit="seconds",
    )
    sweep_interval_s: float = setting(
        parsers.seconds(0.1, 86_400),
        30.0,
        "The harvester searches for forgotten records after each such interval. In at-least-once delivery, these "
        "are records that are still marked. In exactly-once delivery, these are records whose ids break the rules.",
        unit="seconds",
    )
    statement_timeout_s: float = setting(
        parsers.seconds(0.1, 3600),
        10.0,
        "PostgreSQL ends a statement of the harvester after this time. A statement may wait for a lock for half of it.",
        unit="seconds",
    )
    keep_empty_key: bool = setting(
        parsers.flag,
        False,
        "If true, the harvester sends the empty key as a key with its own order, as older harvesters did. If false, "
        "it sends no key.",
    )


@dataclass(frozen=True, kw_only=True)
class ExactlyOnceSettings:
    """Lanes in exactly-once delivery."""

    batch_max: int = setting(
        parsers.count(1, 100_000), 20_000, "One transaction contains at most this many records.", unit="records"
    )
    batch_bytes_max: int = setting(
        parsers.count(1, 1_000_000_000),
        8_000_000,
        "The harvester ends a page after this many bytes of keys, values and headers. Only the last record of the "
        "page may exceed the limit.",
        unit="bytes",
    )
    transaction_timeout_s: float = setting(
        parsers.seconds(1, 900),
        15.0,
        "The brokers abort a transaction that takes longer. If a harvester dies without a successor, read_committed "
        "consumers wait for this time and up to 10 s more.",
        unit="seconds",
    )
    commit_timeout_s: float = setting(
        parsers.seconds(0.1, 900),
        5.0,
        "The harvester waits this long for the answer to a commit. Then it takes the lane over again.",
        unit="seconds",
    )
    id_header: str = setting(
        parsers.header_name,
        "outbox-id",
        "In exactly-once delivery, this header carries the record's id. None turns it off.",
    )
    notify: bool = setting(
        parsers.flag,
        False,
        "If true, the harvester listens for the trigger of outbox.wakeups, so that no record waits for a poll.",
    )
    ledger_retention_s: float = setting(
        parsers.seconds(0, 10_000_000_000),
        604_800.0,
        "The ledger keeps every entry for this time. It always keeps the last entry of each lane.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class RejectionsSettings:
    """Records that Kafka rejects."""

    rejection_policy: str = setting(
        parsers.one_of(BLOCK, SKIP),
        BLOCK,
        "The harvester applies this policy to a record that Kafka rejects. With block, it holds the key and retries "
        "the record. With skip, it makes the record a dead letter and continues with the key.",
    )
    rejection_policies: Mapping[str, str] = setting(
        parsers.policies, None, "These topics have another policy than REJECTION_POLICY.", shown="{}"
    )
    rejection_attempts: int = setting(
        parsers.count(1, 1000),
        1,
        "With the policy skip, a record becomes a dead letter after this many rejections.",
        unit="attempts",
    )

    def skips(self, topic: str) -> bool:
        """Return whether a rejected record of the topic becomes a dead letter."""
        return self.rejection_policies.get(topic, self.rejection_policy) == SKIP


@dataclass(frozen=True, kw_only=True)
class ConsumersSettings:
    """Consumers: functions that handle messages of Kafka."""

    consumer_threads: int = setting(
        parsers.count(1, 256),
        1,
        "How many threads each consumer has in one process. Each thread has its own connection to PostgreSQL.",
        unit="threads",
    )
    consumer_transaction_max_s: float = setting(
        parsers.seconds(0.001, 3600),
        0.25,
        "A consumer's transaction takes no further message after this time, because it keeps the locks of its "
        "functions.",
        unit="seconds",
    )
    dedupe_window_s: float = setting(
        parsers.seconds(60, 3650 * 86_400),
        7 * 86_400.0,
        "A consumer with dedupe remembers the ids of messages for this time.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class JournalSettings:
    """Journals: their stores, and what the keeper does."""

    stores: Mapping[str, Mapping[str, Any]] = setting(
        parsers.stores,
        None,
        "Journals keep their bytes on these stores. A store has a path or a url, options of its client, and a zone: "
        "stores of one zone may fail together.",
        shown="{}",
    )
    journal_store_timeout_s: float = setting(
        parsers.seconds(1, 3600),
        30.0,
        "An append goes on without a store that does not return from one call in this time.",
        unit="seconds",
    )
    journal_stage_age_s: float = setting(
        parsers.seconds(60, 3650 * 86_400),
        86_400.0,
        "The keeper removes what was staged and is not committed after this time.",
        unit="seconds",
    )
    journal_scrub_age_s: float = setting(
        parsers.seconds(60, 3650 * 86_400),
        30 * 86_400.0,
        "The keeper reads each replica again after this time.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class CelerySettings:
    """Tasks of ``outbox.contrib.celery``."""

    celery_events: Mapping[str, Any] = setting(
        parsers.celery_events,
        None,
        "The harvester sends a Celery task for each event named here. Name the task, or write a dict with task, "
        "queue, expires and the like.",
        shown="{}",
    )
    celery_app: str = setting(
        lambda value: parsers.dotted_path(value) if value else "",
        "",
        "The harvester sends the tasks of CELERY_EVENTS with this Celery application.",
        shown="celery_app of the settings package, or app of its celery module",
        unit="dotted path",
    )


@dataclass(frozen=True, kw_only=True)
class Conf:
    """The settings of the application as a whole, and the sections.

    Keys in ``OUTBOX`` are flat: the name of a field in capitals, without the unit. A new feature adds a section: a
    class above with its fields, and its name here. No other module changes for it.
    """

    name: str = setting(
        parsers.name,
        "",
        "The name identifies the application in Kafka. The leader topic, group, ledger and transactional ids derive "
        "from it.",
        shown="database and table, joined by a dot",
    )
    database: str = setting(parsers.alias, "default", "The database with this alias holds the table.")
    table: str = setting(
        parsers.table, DEFAULT_TABLE, "The outbox table has this name. Its companion tables are named after it."
    )
    delivery: str = setting(
        parsers.one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "The harvester delivers in this mode. Change it only as the page 'delivery' of the documents says.",
    )

    kafka: KafkaSettings
    stash: StashSettings
    admin: AdminSettings
    election: ElectionSettings
    metrics: MetricsSettings
    at_least_once: AtLeastOnceSettings
    harvest: HarvestSettings
    exactly_once: ExactlyOnceSettings
    rejections: RejectionsSettings
    consumers: ConsumersSettings
    journal: JournalSettings
    celery: CelerySettings

    @property
    def producer_properties(self) -> dict[str, Any]:
        """The properties of every producer. It can send every message that stash() accepts."""
        size = max(self.stash.max_message_bytes, SIZE_DEFAULT)
        return {SIZE_PROPERTY: size, **self.kafka.client_properties, **_asked(self.kafka.producer)}


def _asked(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Call the functions among the values, except callbacks of the client: names that end in cb, and a few more."""
    return {
        name: value() if callable(value) and not (name.endswith("_cb") or name in _CALLED_BY_CLIENT) else value
        for name, value in properties.items()
    }


def _key(spec: Field[Any]) -> str:
    return str(spec.metadata["key"] or spec.name.removesuffix("_s").upper())


def _specs(section: Any) -> Iterator[tuple[str, Field[Any]]]:
    for spec in fields(section):
        if is_dataclass(spec.type):
            yield from _specs(spec.type)
        else:
            yield _key(spec), spec


SPECS = dict(_specs(Conf))


def made(section: Any, values: Mapping[str, Any]) -> Any:
    """Make `Conf` or a section of it from values by their keys. A value that is absent keeps its default."""
    found = {}
    for spec in fields(section):
        if is_dataclass(spec.type):
            found[spec.name] = made(spec.type, values)
        elif _key(spec) in values:
            found[spec.name] = values[_key(spec)]
    return section(**found)


def by_key(section: Any) -> dict[str, Any]:
    """Return every value of a section by its key in ``OUTBOX``: the reverse of `made`."""
    found: dict[str, Any] = {}
    for spec in fields(section):
        value = getattr(section, spec.name)
        found |= by_key(value) if is_dataclass(value) else {_key(spec): value}
    return found
