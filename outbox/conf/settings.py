"""The ``OUTBOX`` settings: one typed, frozen object with a section for each feature.

Each field carries its own documentation, so the reference in ``docs/settings.md`` is checked against it, in this order.
What a setting means for the protocol belongs to the module that uses it, not here.
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


def setting(
    parse: Callable[[Any], Any], default: Any, help: str, *, unit: str = "", shown: str = "", key: str = ""
) -> Any:
    """One setting; `shown` is how the documentation writes a default that is worked out, `key` a differing name."""
    metadata = {"parse": parse, "help": help, "unit": unit, "shown": shown, "key": key}
    return field(default=default, repr=parse not in (parsers.properties, parsers.celery_events), metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class KafkaSettings:
    """Clients: where the brokers are, and what every client and every producer gets beside."""

    bootstrap_servers: str = setting(parsers.servers, "", 'Short for KAFKA["bootstrap.servers"].')
    properties: Mapping[str, Any] = setting(
        parsers.properties, None, "librdkafka properties of every client.", shown="{}", key="KAFKA"
    )
    producer: Mapping[str, Any] = setting(
        parsers.properties, None, "librdkafka properties of the producers, over those of KAFKA.", shown="{}"
    )

    @property
    def client_properties(self) -> dict[str, Any]:
        """What every Kafka client is built from. A value that is a function is asked anew for each client: secrets that
        change are taken up with the next connection."""
        return _asked(self.properties)


@dataclass(frozen=True, kw_only=True)
class StashSettings:
    """What stash() accepts and adds."""

    key_max_bytes: int = setting(parsers.count(1, 1_000_000), 1024, "Longest key that stash() accepts.", unit="bytes")
    max_message_bytes: int = setting(
        parsers.count(1_000, 1_000_000_000),
        1_000_000,
        "Largest message (key, value and headers) that stash() accepts; not above the topics' max.message.bytes.",
        unit="bytes",
    )
    autocommit_stash: bool = setting(parsers.flag, False, "Let stash() work outside transaction.atomic().")
    binary_values: bool = setting(
        parsers.flag,
        None,
        "Accept bytes values. A goharvest-compatible harvester would send such a record as a tombstone.",
        shown='True exactly when DELIVERY is "exactly-once"',
    )
    serializer: str = setting(
        parsers.dotted_path,
        "outbox.serializers.json",
        "Function that turns a value into str or bytes.",
        unit="dotted path",
    )
    message_id_header: str = setting(
        parsers.header_name, "message-id", "Header that carries each message's own id; None for none."
    )
    correlation_id_header: str = setting(
        parsers.header_name, "correlation-id", "Header that carries outbox.correlation(); None for none."
    )
    tracing: bool = setting(
        parsers.flag,
        True,
        "Store the W3C trace context of the caller with each message and tell traces of its delivery, in processes "
        "that use OpenTelemetry.",
    )


@dataclass(frozen=True, kw_only=True)
class AdminSettings:
    """Pages of the admin."""

    redactor: str = setting(
        parsers.dotted_path,
        "outbox.redaction.keep",
        "Function (record, text) -> text that decides what the admin shows of a value and of each value of a header.",
        unit="dotted path",
    )


@dataclass(frozen=True, kw_only=True)
class ElectionSettings:
    """Who owns which lane, how long, and how a lane is given back."""

    flush_timeout_s: float = setting(
        parsers.seconds(0.1, 3600),
        30.0,
        "How long a harvester that stops, or gives back a lane, waits for acknowledgements and for receivers of "
        "leader_revoked; never more than three quarters of SESSION_TIMEOUT.",
        unit="seconds",
    )
    leader_topic: str = setting(
        parsers.name, "", "Topic on which the members of the group elect the owners of the lanes.", shown="NAME + .neli"
    )
    lanes: int = setting(
        parsers.count(1, LANES_MAX),
        1,
        "Lanes, each with one owner; the leader topic is created with as many partitions.",
    )
    heartbeat_timeout_s: float = setting(
        parsers.seconds(0.5, 600),
        2.0,
        "A leader that has not read back its own heartbeat for so long is fenced; at most half of SESSION_TIMEOUT.",
        unit="seconds",
    )
    session_timeout_s: float = setting(
        parsers.seconds(1, 3600),
        6.0,
        "A harvester that died is replaced after so long and up to 3 s more; "
        "within the limits of the brokers (6 s or more by default).",
        unit="seconds",
    )
    assignor: str = setting(
        parsers.one_of("cooperative-sticky", "range"),
        "cooperative-sticky",
        "How lanes are dealt out: with cooperative-sticky only lanes that move pause; range is what "
        "goharvest-compatible harvesters of one group use.",
    )

    @property
    def revoke_timeout_s(self) -> float:
        """Below the session time-out, so that a process that was paused while it finished is caught."""
        return min(self.flush_timeout_s, 0.75 * self.session_timeout_s)


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Readings of lanes."""

    metrics_interval_s: float = setting(
        parsers.seconds(0.1, 3600),
        5.0,
        "Shortest time between two readings of a lane's meter.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class AtLeastOnceSettings:
    """Lanes in at-least-once delivery."""

    send_concurrency: int = setting(
        parsers.count(1, 256), 4, "Producers of an at-least-once lane that send side by side.", unit="producers"
    )
    in_flight_max: int = setting(
        parsers.count(1, 1_000_000), 5_000, "Records sent and not yet purged, at most, per lane.", unit="records"
    )
    mark_max: int = setting(
        parsers.count(1, 100_000), 2_000, "Records that one mark query marks at most.", unit="records"
    )
    mark_bytes_max: int = setting(
        parsers.count(1, 1_000_000_000),
        32_000_000,
        "Bytes of keys, values and headers after which a mark query ends early, and which may be on their way, so that "
        "large records do not fill the memory.",
        unit="bytes",
    )
    send_buffer: int = setting(
        parsers.count(1, 1_000_000),
        1_000,
        "Records per producer that wait in memory for their key's turn.",
        unit="records",
    )
    key_buffer: int = setting(
        parsers.count(1, 100_000),
        100,
        "Records of one key among them, never more than SEND_BUFFER; of the rest only the ids are kept.",
        unit="records",
    )
    deferred_max: int = setting(
        parsers.count(1, 10_000_000),
        100_000,
        "Ids kept of marked records that found no room; beyond it their keys are not marked.",
        unit="records",
    )
    queue_timeout_s: float = setting(
        parsers.seconds(0.001, 86_400),
        30.0,
        "How long a key may wait for its turn before a warning is logged.",
        unit="seconds",
    )
    delivery_timeout_s: float = setting(
        parsers.seconds(0.1, 3600),
        3.5,
        "How long the client tries to deliver a record before its key pauses; below session less heartbeat time-out.",
        unit="seconds",
    )
    drain_timeout_s: float = setting(
        parsers.seconds(0.001, 3600),
        2.0,
        "How long records in flight may take to be decided before everything is marked anew.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class HarvestSettings:
    """Lanes in any delivery mode."""

    io_backoff_s: float = setting(
        parsers.seconds(0.001, 3600),
        0.5,
        "Pause after a failed statement before it is tried again.",
        unit="seconds",
    )
    mark_backoff_s: float = setting(
        parsers.seconds(0.001, 3600),
        0.05,
        "Longest pause between two queries when there is nothing to do; at least once times the lanes that one process "
        "owns, exactly once times 1.12, however many they are.",
        unit="seconds",
    )
    sweep_interval_s: float = setting(
        parsers.seconds(0.1, 86_400),
        30.0,
        "Time between two searches for forgotten records: at least once for those that are marked, "
        "exactly once for those whose ids break the rules.",
        unit="seconds",
    )
    statement_timeout_s: float = setting(
        parsers.seconds(0.1, 3600),
        10.0,
        "Longest time a statement of the harvester may take; half of it may be spent waiting for a lock.",
        unit="seconds",
    )
    keep_empty_key: bool = setting(
        parsers.flag,
        False,
        "Send the empty key as a key with its own order, as older harvesters did, instead of no key.",
    )


@dataclass(frozen=True, kw_only=True)
class ExactlyOnceSettings:
    """Lanes in exactly-once delivery."""

    batch_max: int = setting(parsers.count(1, 100_000), 20_000, "Records of one transaction, at most.", unit="records")
    batch_bytes_max: int = setting(
        parsers.count(1, 1_000_000_000),
        8_000_000,
        "Bytes of keys, values and headers of a page: only its last record exceeds them.",
        unit="bytes",
    )
    transaction_timeout_s: float = setting(
        parsers.seconds(1, 900),
        15.0,
        "The brokers end a transaction that takes longer; readers wait so long, and up to 10 s more, for a harvester "
        "that died without successor.",
        unit="seconds",
    )
    commit_timeout_s: float = setting(
        parsers.seconds(0.1, 900),
        5.0,
        "How long the answer to a commit is awaited before the lane is taken over anew.",
        unit="seconds",
    )
    id_header: str = setting(
        parsers.header_name, "outbox-id", "Header that carries a record's id in exactly-once delivery; None for none."
    )
    notify: bool = setting(
        parsers.flag,
        False,
        "Listen for the trigger of outbox.wakeups, so that no record waits for a poll.",
    )
    ledger_retention_s: float = setting(
        parsers.seconds(0, 10_000_000_000),
        604_800.0,
        "So long the ledger keeps every entry; the last one of each lane stays for ever.",
        unit="seconds",
    )


@dataclass(frozen=True, kw_only=True)
class RejectionsSettings:
    """Records that Kafka rejects."""

    rejection_policy: str = setting(
        parsers.one_of(BLOCK, SKIP),
        BLOCK,
        "What becomes of a record that Kafka rejects: block holds its key and tries it again, skip makes it a dead "
        "letter and lets the key go on.",
    )
    rejection_policies: Mapping[str, str] = setting(
        parsers.policies, None, "Topics with another policy than REJECTION_POLICY.", shown="{}"
    )
    rejection_attempts: int = setting(
        parsers.count(1, 1000), 1, "Rejections after which skip makes a record a dead letter.", unit="attempts"
    )

    def skips(self, topic: str) -> bool:
        """Whether a rejected record of the topic becomes a dead letter."""
        return self.rejection_policies.get(topic, self.rejection_policy) == SKIP


@dataclass(frozen=True, kw_only=True)
class CelerySettings:
    """Tasks of ``outbox.contrib.celery``."""

    celery_events: Mapping[str, Any] = setting(
        parsers.celery_events,
        None,
        "Celery task to send per event, by name or as a dict with task, queue, expires and the like.",
        shown="{}",
    )
    celery_app: str = setting(
        lambda value: parsers.dotted_path(value) if value else "",
        "",
        "The Celery application that sends them.",
        shown="celery_app of the settings package, or app of its celery module",
        unit="dotted path",
    )


@dataclass(frozen=True, kw_only=True)
class Conf:
    """What belongs to the whole, and the sections.

    Keys in ``OUTBOX`` are flat: the name of a field in capitals, without the unit. A new feature brings a section of
    its own: a class above with its fields, and its name here. Nothing else has to know of it.
    """

    name: str = setting(
        parsers.name,
        "",
        "Identifies the application in Kafka: leader topic, group, ledger and transactional ids derive from it.",
        shown="database and table, joined by a dot",
    )
    database: str = setting(parsers.alias, "default", "Alias of the database that holds the table.")
    table: str = setting(parsers.table, DEFAULT_TABLE, "Name of the table; companion tables are named after it.")
    delivery: str = setting(
        parsers.one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "What the harvester promises; change it only as the page 'delivery' of the documents says.",
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
    celery: CelerySettings

    @property
    def producer_properties(self) -> dict[str, Any]:
        """What every producer is built from: it can send whatever stash() accepts."""
        size = max(self.stash.max_message_bytes, SIZE_DEFAULT)
        return {SIZE_PROPERTY: size, **self.kafka.client_properties, **_asked(self.kafka.producer)}


def _asked(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The client calls functions of its own: those whose names end in cb, and a few more."""
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
    """`Conf` or a section of it, from values by their keys; what is absent keeps its default."""
    found = {}
    for spec in fields(section):
        if is_dataclass(spec.type):
            found[spec.name] = made(spec.type, values)
        elif _key(spec) in values:
            found[spec.name] = values[_key(spec)]
    return section(**found)


def by_key(section: Any) -> dict[str, Any]:
    """The reverse: every value under its key in ``OUTBOX``."""
    found: dict[str, Any] = {}
    for spec in fields(section):
        value = getattr(section, spec.name)
        found |= by_key(value) if is_dataclass(value) else {_key(spec): value}
    return found
