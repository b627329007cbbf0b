"""The ``OUTBOX`` settings: one typed, frozen object, parsed once, with every error reported at once.

Each field of `Conf` carries its own documentation, so the reference in ``docs/settings.md`` is checked against it.
What a setting means for the protocol belongs to the module that uses it, not here.
"""

import difflib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.core.exceptions import ImproperlyConfigured

DEFAULT_TABLE = "outbox"
# PostgreSQL cuts identifiers at 63 bytes; the longest companion of the table adds "_id_seq".
TABLE_MAX_BYTES = 63 - len("_id_seq")
# A Kafka topic name has 249 characters at most, and ".ledger" is appended to NAME.
NAME_MAX = 200
# The client's limit on a message, and its default.
_SIZE_PROPERTY, _SIZE_DEFAULT = "message.max.bytes", 1_000_000
EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"
BLOCK = "block"
SKIP = "skip"

# Django signals of the harvester that may also become Celery tasks.
EVENTS = (
    "leader_acquired",
    "leader_refreshed",
    "leader_revoked",
    "leader_fenced",
    "meter_read",
    "record_held",
    "lane_stopped",
)
# What CELERY_EVENTS may say about a task beside its name.
TASK_OPTIONS = ("task", "queue", "exchange", "routing_key", "priority", "expires", "countdown", "serializer", "headers")

# Variables with the prefix that are not settings; the last three belong to outbox-harvest.
_NOT_SETTINGS = ("FAILPOINTS", "DEVSTACK_", "TEST_", "DEMO_", "DATA_SOURCE", "LOG_LEVEL", "MEMBER_NAME")


@dataclass(frozen=True)
class SettingError:
    """One wrong setting: which, what was seen, and what to do about it."""

    key: str
    problem: str
    hint: str

    @property
    def told(self) -> str:
        return f'OUTBOX["{self.key}"] {self.problem}' if self.key else f"OUTBOX {self.problem}"

    def __str__(self) -> str:
        return f"{self.told} {self.hint}"


class ConfErrors(ImproperlyConfigured):
    """All errors of the OUTBOX settings."""

    def __init__(self, errors: list[SettingError]) -> None:
        self.errors = errors
        super().__init__("\n".join(str(error) for error in errors))


class _Refused(Exception):
    def __init__(self, problem: str, hint: str) -> None:
        self.problem, self.hint = problem, hint


def seen(value: Any) -> str:
    """A wrong value for an error's text, without what may be a secret in it.

    Whoever sets the wrong key often sets it to an address with a password, or to the properties of a client.
    """
    if isinstance(value, str):
        if "\n" in value or value.lstrip().startswith(("{", "[")):
            return "a text of several lines or of JSON"
        value = re.sub(r"=.*", "=***", re.sub(r"(^|://).*@", r"\1***@", value))
    elif isinstance(value, int) and not -(2**64) < value < 2**64:  # Python refuses to write the longest ones
        return "a number of more than 64 bits"
    elif not isinstance(value, int | float | timedelta | None):
        return f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


# --- parsers: raw value -> typed value, or _Refused ---------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Refused(f"is {seen(value)}, not a non-empty string.", "Set a string or leave it out.")
    return value


def _optional_text(value: Any) -> str:
    return "" if value in (None, "") else _text(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Refused(f"is {seen(value)}, not True or False.", "Set True or False.")
    return value


def _count(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _Refused(f"is {seen(value)}.", f"Set a whole number from {low:,} to {high:,}.")
        return int(value)

    return parse


def _seconds(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _Refused(f"is {seen(value)}.", f"Set seconds from {low:g} to {high:g}, as a number or a timedelta.")
        return float(value)

    return parse


def _one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise _Refused(f"is {seen(value)}.", f"Set one of: {', '.join(choices)}.")
        return str(value)

    return parse


def _alias(value: Any) -> str:
    text = _text(value)
    if "://" in text:
        raise _Refused(f"is {seen(text)}.", 'Name an alias of DATABASES, e.g. "default"; addresses belong there.')
    return text


def _table(value: Any) -> str:
    text = _text(value)
    if re.search(r'[".%$\x00-\x1f\x7f\ud800-\udfff]', text):
        raise _Refused(
            f"is {seen(text)}: a quote, dot, per cent, dollar, surrogate or control character cannot be part.",
            "Name the table alone; choose its schema by the connection's search_path.",
        )
    if len(text.encode()) > TABLE_MAX_BYTES:
        raise _Refused(f"is {seen(text)}: over {TABLE_MAX_BYTES} bytes.", "Choose a shorter name.")
    return text


def _name(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text) or len(text) > NAME_MAX or text.strip(".") == "":
        raise _Refused(
            f"is {seen(text)}.",
            f"Use 1 to {NAME_MAX} letters, digits, dots, underscores and hyphens: topics are named after it.",
        )
    return text


def _header_name(value: Any) -> str:
    text = _optional_text(value)
    if re.search(r"[\x00\ud800-\udfff]", text) or len(text.encode()) > 249:
        raise _Refused(
            f"is {seen(text)}.", "Use at most 249 bytes without NUL and surrogates, or None for no such header."
        )
    return text


def _dotted_path(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"\w+([.:]\w+)+", text):
        raise _Refused(f"is {seen(text)}, not a dotted path.", 'Name a function, e.g. "myproject.kafka.to_json".')
    return text


def _properties(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _Refused("is not a dict of client properties.", 'Write e.g. {"security.protocol": "SSL"}.')
    return dict(value)


def _policies(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(topic, str) and topic for topic in value):
        raise _Refused("is not a dict of topics.", 'Write e.g. {"shop.orders": "skip"}, or leave it out.')
    if not all(policy in (BLOCK, SKIP) for policy in value.values()):
        raise _Refused("has something else than a policy for a topic.", f"Set each to one of: {BLOCK}, {SKIP}.")
    return dict(value)


def _celery_events(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise _Refused(
            f"is {seen(value)}, not a dict.", 'Write e.g. {"leader_acquired": "shop.tasks.warm_up"}, or leave it out.'
        )
    tasks: dict[str, dict[str, Any]] = {}
    for event, task in value.items():
        if event not in EVENTS:
            raise _Refused(f"has the event {seen(event)}.", _nearest(str(event), EVENTS))
        options = {"task": task} if isinstance(task, str) else task
        if not isinstance(options, Mapping) or not isinstance(options.get("task"), str) or not options["task"]:
            raise _Refused(
                f"has {seen(task)} for {event}.",
                'Name the task, or write {"task": "shop.tasks.warm_up", "queue": "ops"}.',
            )
        for option in options:
            if option not in TASK_OPTIONS:
                raise _Refused(f"has the option {seen(option)} for {event}.", _nearest(str(option), TASK_OPTIONS))
        tasks[event] = dict(options)
    return tasks


def _nearest(text: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    return f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(known)}."


def _servers(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = _optional_text(value)
    if "@" in text:
        raise _Refused(
            f"has {seen(text)}: a user or password before the host.",
            'Set host:port alone; the others belong into KAFKA, as "sasl.username" and "sasl.password".',
        )
    for server in filter(None, text.split(",")):
        if not re.fullmatch(r"\s*([a-zA-Z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+)(:\d{1,5})?\s*", server):
            raise _Refused(f"has {seen(server)}, which is not host:port.", 'Set your brokers, e.g. "localhost:9092".')
    return text


# --- the settings -------------------------------------------------------------------------------------------------


def _setting(
    parse: Callable[[Any], Any], default: Any, help: str, *, unit: str = "", shown: str = "", key: str = ""
) -> Any:
    """One setting; `shown` is how the documentation writes a default that is worked out, `key` a differing name."""
    metadata = {"parse": parse, "help": help, "unit": unit, "shown": shown, "key": key}
    return field(default=default, repr=parse not in (_properties, _celery_events), metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Conf:
    """The settings as the program uses them: seconds as floats in names that end in ``_s``."""

    name: str = _setting(
        _name,
        "",
        "Identifies the application in Kafka: leader topic, group, ledger and transactional ids derive from it.",
        shown="database and table, joined by a dot",
    )
    database: str = _setting(_alias, "default", "Alias of the database that holds the table.")
    table: str = _setting(_table, DEFAULT_TABLE, "Name of the table; companion tables are named after it.")
    delivery: str = _setting(
        _one_of(EXACTLY_ONCE, AT_LEAST_ONCE),
        EXACTLY_ONCE,
        "What the harvester promises; change it only as the page 'delivery' of the documents says.",
    )
    bootstrap_servers: str = _setting(_servers, "", 'Short for KAFKA["bootstrap.servers"].')
    kafka: Mapping[str, Any] = _setting(_properties, None, "librdkafka properties of every client.", shown="{}")
    producer: Mapping[str, Any] = _setting(
        _properties, None, "librdkafka properties of the producers, over those of KAFKA.", shown="{}"
    )
    key_max_bytes: int = _setting(_count(1, 1_000_000), 1024, "Longest key that stash() accepts.", unit="bytes")
    max_message_bytes: int = _setting(
        _count(1_000, 1_000_000_000),
        1_000_000,
        "Largest message (key, value and headers) that stash() accepts; not above the topics' max.message.bytes.",
        unit="bytes",
    )
    autocommit_stash: bool = _setting(_flag, False, "Let stash() work outside transaction.atomic().")
    binary_values: bool = _setting(
        _flag,
        None,
        "Accept bytes values. A classic harvester would send such a record as a tombstone.",
        shown='True exactly when DELIVERY is "exactly-once"',
    )
    serializer: str = _setting(
        _dotted_path, "outbox.serializers.json", "Function that turns a value into str or bytes.", unit="dotted path"
    )
    message_id_header: str = _setting(
        _header_name, "message-id", "Header that carries each message's own id; None for none."
    )
    correlation_id_header: str = _setting(
        _header_name, "correlation-id", "Header that carries outbox.correlation(); None for none."
    )
    tracing: bool = _setting(
        _flag,
        True,
        "Store the W3C trace context of the caller with each message and tell traces of its delivery, in processes "
        "that use OpenTelemetry.",
    )
    redactor: str = _setting(
        _dotted_path,
        "outbox.redaction.keep",
        "Function (record, text) -> text that decides what the admin shows of a value and of each value of a header.",
        unit="dotted path",
    )
    flush_timeout_s: float = _setting(
        _seconds(0.1, 3600),
        30.0,
        "How long a harvester that stops, or gives back a lane, waits for acknowledgements and for receivers of "
        "leader_revoked; never more than three quarters of SESSION_TIMEOUT.",
        unit="seconds",
        key="FLUSH_TIMEOUT",
    )
    leader_topic: str = _setting(
        _name, "", "Topic on which the members of the group elect the owners of the lanes.", shown="NAME + .neli"
    )
    lanes: int = _setting(
        _count(1, 1000), 1, "Lanes, each with one owner; the leader topic is created with as many partitions."
    )
    heartbeat_timeout_s: float = _setting(
        _seconds(0.5, 600),
        2.0,
        "A leader that has not read back its own heartbeat for so long is fenced; at most half of SESSION_TIMEOUT.",
        unit="seconds",
        key="HEARTBEAT_TIMEOUT",
    )
    session_timeout_s: float = _setting(
        _seconds(1, 3600),
        6.0,
        "A harvester that died is replaced after so long and up to 3 s more; "
        "within the limits of the brokers (6 s or more by default).",
        unit="seconds",
        key="SESSION_TIMEOUT",
    )
    assignor: str = _setting(
        _one_of("cooperative-sticky", "range"),
        "cooperative-sticky",
        "How lanes are dealt out: with cooperative-sticky only lanes that move pause; range is what classic "
        "harvesters of one group use.",
    )
    metrics_interval_s: float = _setting(
        _seconds(0.1, 3600),
        5.0,
        "Shortest time between two readings of a lane's meter.",
        unit="seconds",
        key="METRICS_INTERVAL",
    )

    @property
    def revoke_timeout_s(self) -> float:
        """Below the session time-out, so that a process that was paused while it finished is caught."""
        return min(self.flush_timeout_s, 0.75 * self.session_timeout_s)

    # --- the at-least-once worker ---------------------------------------------------------------------------------
    send_concurrency: int = _setting(
        _count(1, 256), 4, "Producers of an at-least-once lane that send side by side.", unit="producers"
    )
    in_flight_max: int = _setting(
        _count(1, 1_000_000), 5_000, "Records sent and not yet purged, at most, per lane.", unit="records"
    )
    mark_max: int = _setting(_count(1, 100_000), 2_000, "Records that one mark query claims at most.", unit="records")
    mark_bytes_max: int = _setting(
        _count(1, 1_000_000_000),
        32_000_000,
        "Bytes of keys, values and headers after which a mark query ends early, and which may be on their way, so that "
        "large records do not fill the memory.",
        unit="bytes",
    )
    send_buffer: int = _setting(
        _count(1, 1_000_000), 1_000, "Records per producer that wait in memory for their key's turn.", unit="records"
    )
    key_buffer: int = _setting(
        _count(1, 100_000),
        100,
        "Records of one key among them, never more than SEND_BUFFER; of the rest only the ids are kept.",
        unit="records",
    )
    deferred_max: int = _setting(
        _count(1, 10_000_000),
        100_000,
        "Ids kept of marked records that found no room; beyond it their keys are not marked.",
        unit="records",
    )
    queue_timeout_s: float = _setting(
        _seconds(0.001, 86_400),
        30.0,
        "How long a key may wait for its turn before a warning is logged.",
        unit="seconds",
        key="QUEUE_TIMEOUT",
    )
    delivery_timeout_s: float = _setting(
        _seconds(0.1, 3600),
        3.5,
        "How long the client tries to deliver a record before its key pauses; below session less heartbeat time-out.",
        unit="seconds",
        key="DELIVERY_TIMEOUT",
    )
    drain_timeout_s: float = _setting(
        _seconds(0.001, 3600),
        2.0,
        "How long records in flight may take to be decided before everything is marked anew.",
        unit="seconds",
        key="DRAIN_TIMEOUT",
    )
    io_backoff_s: float = _setting(
        _seconds(0.001, 3600),
        0.5,
        "Pause after a failed statement before it is tried again.",
        unit="seconds",
        key="IO_BACKOFF",
    )
    mark_backoff_s: float = _setting(
        _seconds(0.001, 3600),
        0.05,
        "Longest pause between two queries when there is nothing to do; at least once times the lanes that one process "
        "owns, exactly once times 1.12, however many they are.",
        unit="seconds",
        key="MARK_BACKOFF",
    )
    sweep_interval_s: float = _setting(
        _seconds(0.1, 86_400),
        30.0,
        "Time between two searches for forgotten records: at least once for those that are marked, "
        "exactly once for those whose ids break the rules.",
        unit="seconds",
        key="SWEEP_INTERVAL",
    )
    statement_timeout_s: float = _setting(
        _seconds(0.1, 3600),
        10.0,
        "Longest time a statement of the harvester may take; half of it may be spent waiting for a lock.",
        unit="seconds",
        key="STATEMENT_TIMEOUT",
    )
    keep_empty_key: bool = _setting(
        _flag, False, "Send the empty key as a key with its own order, as older harvesters did, instead of no key."
    )

    # --- the exactly-once worker ----------------------------------------------------------------------------------
    batch_max: int = _setting(_count(1, 100_000), 20_000, "Records of one transaction, at most.", unit="records")
    batch_bytes_max: int = _setting(
        _count(1, 1_000_000_000),
        8_000_000,
        "Bytes of keys, values and headers of a page: only its last record exceeds them.",
        unit="bytes",
    )
    transaction_timeout_s: float = _setting(
        _seconds(1, 900),
        15.0,
        "The brokers end a transaction that takes longer; readers wait so long, and up to 10 s more, for a harvester "
        "that died without successor.",
        unit="seconds",
        key="TRANSACTION_TIMEOUT",
    )
    commit_timeout_s: float = _setting(
        _seconds(0.1, 900),
        5.0,
        "How long the answer to a commit is awaited before the lane is taken over anew.",
        unit="seconds",
        key="COMMIT_TIMEOUT",
    )
    id_header: str = _setting(
        _header_name, "outbox-id", "Header that carries a record's id in exactly-once delivery; None for none."
    )
    notify: bool = _setting(
        _flag,
        False,
        "Listen for the trigger of outbox.wakeups, so that no record waits for a poll.",
    )
    audit_window_s: float = _setting(
        _seconds(0, 10_000_000_000),
        604_800.0,
        "So long the ledger keeps every entry; the last one of each lane stays for ever.",
        unit="seconds",
        key="AUDIT_WINDOW",
    )

    # --- refusals -------------------------------------------------------------------------------------------------
    refusal_policy: str = _setting(
        _one_of(BLOCK, SKIP),
        BLOCK,
        "What becomes of a record that Kafka refuses: block holds its key and tries it again, skip makes it a dead "
        "letter and lets the key go on.",
    )
    refusal_policies: Mapping[str, str] = _setting(
        _policies, None, "Topics with another policy than REFUSAL_POLICY.", shown="{}"
    )
    refusal_attempts: int = _setting(
        _count(1, 1000), 1, "Refusals after which skip makes a record a dead letter.", unit="attempts"
    )

    def skips(self, topic: str) -> bool:
        """Whether a refused record of the topic becomes a dead letter."""
        return self.refusal_policies.get(topic, self.refusal_policy) == SKIP

    # --- outbox.contrib.celery ------------------------------------------------------------------------------------
    celery_events: Mapping[str, Any] = _setting(
        _celery_events,
        None,
        "Celery task to send per event, by name or as a dict with task, queue, expires and the like.",
        shown="{}",
    )
    celery_app: str = _setting(
        lambda value: _dotted_path(value) if value else "",
        "",
        "The Celery application that sends them.",
        shown="celery_app of the settings package, or app of its celery module",
        unit="dotted path",
    )

    @property
    def client_properties(self) -> dict[str, Any]:
        """What every Kafka client is built from. A value that is a function is asked anew for each client: secrets that
        change are taken up with the next connection."""
        return _asked(self.kafka)

    @property
    def producer_properties(self) -> dict[str, Any]:
        """What every producer is built from: it can send whatever stash() accepts."""
        size = max(self.max_message_bytes, _SIZE_DEFAULT)
        return {_SIZE_PROPERTY: size, **_asked(self.kafka), **_asked(self.producer)}


def _asked(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The client calls functions of its own: those whose names end in cb, and a few more."""
    return {
        name: value() if callable(value) and not (name.endswith("_cb") or name in _CALLED_BY_CLIENT) else value
        for name, value in properties.items()
    }


def _key_of(spec: Any) -> str:
    return str(spec.metadata["key"] or spec.name.upper())


SPECS = {_key_of(spec): spec for spec in fields(Conf)}


def parse(raw: Mapping[str, Any]) -> Conf:
    """Read a dict of settings; raise `ConfErrors` with everything that is wrong with it."""
    errors = list(unknown_keys(raw))
    values: dict[str, Any] = {}
    for key, spec in SPECS.items():
        if key in raw:
            try:
                values[spec.name] = spec.metadata["parse"](raw[key])
            except _Refused as refused:
                errors.append(SettingError(key, refused.problem, refused.hint))
    errors.extend(_settle_kafka(values))
    errors.extend(_settle_times(values))
    errors.extend(_settle_headers(values))
    if errors:
        raise ConfErrors(errors)
    delivery = values.get("delivery", SPECS["DELIVERY"].default)
    values.setdefault("binary_values", delivery == EXACTLY_ONCE)
    if not values.get("name"):
        values["name"] = _default_name(values.get("database", "default"), values.get("table", DEFAULT_TABLE))
    values.setdefault("leader_topic", f"{values['name']}.neli")
    return Conf(**values)


def unknown_keys(raw: Mapping[str, Any]) -> Iterator[SettingError]:
    for key in raw:
        if key not in SPECS:
            near = difflib.get_close_matches(str(key).upper(), SPECS, n=1, cutoff=0.5)
            hint = f'Did you mean "{near[0]}"?' if near else f"Known settings: {', '.join(SPECS)}."
            yield SettingError(str(key), "is unknown.", hint)


_CALLED_BY_CLIENT = ("logger", "on_commit", "on_delivery")
# Properties that the protocol owns; a value listed here is the only one accepted, None means: not yours to set.
_OWNED: dict[str, tuple[str, ...] | None] = {
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "transactional.id": None,
    "group.id": None,
    "group.instance.id": None,
    "enable.auto.commit": ("false",),
    "group.protocol": ("classic",),
    "metadata.broker.list": None,
    # What an idempotent producer refuses when it is made.
    "max.in.flight": ("5", "4", "3", "2", "1"),
    "max.in.flight.requests.per.connection": ("5", "4", "3", "2", "1"),
    "queuing.strategy": ("fifo",),
    "session.timeout.ms": None,
    "heartbeat.interval.ms": None,
    "max.poll.interval.ms": None,
    "partition.assignment.strategy": None,
}
# Where such a property is not named after NAME.
_SETTING_OF = {
    "session.timeout.ms": "SESSION_TIMEOUT",
    "heartbeat.interval.ms": "HEARTBEAT_TIMEOUT",
    "max.poll.interval.ms": "SESSION_TIMEOUT",
    "partition.assignment.strategy": "ASSIGNOR",
    "metadata.broker.list": "BOOTSTRAP_SERVERS",
}


def _settle_kafka(values: dict[str, Any]) -> Iterator[SettingError]:
    """Merge BOOTSTRAP_SERVERS into KAFKA and refuse what contradicts the protocol."""
    kafka, producer = values.get("kafka") or {}, values.get("producer") or {}
    short, long = values.get("bootstrap_servers", ""), ""
    try:
        long = _servers(kafka.get("bootstrap.servers"))
    except _Refused as refused:
        yield SettingError("KAFKA", f"bootstrap.servers {refused.problem}", refused.hint)
    if short and long and _split(short) != _split(long):
        yield SettingError(
            "BOOTSTRAP_SERVERS",
            f'is {seen(short)} and KAFKA["bootstrap.servers"] is {seen(long)}.',
            "Set one of the two: the first is short for the second.",
        )
    if "bootstrap.servers" in producer:
        yield SettingError("PRODUCER", "has bootstrap.servers.", "Set it in KAFKA: every client talks to one cluster.")
    for key, properties in (("KAFKA", kafka), ("PRODUCER", producer)):
        for name, allowed in _OWNED.items():
            if name in properties and str(properties[name]).lower() not in (allowed or ()):
                remedy = f"Only {allowed[0]!r} keeps the promises" if allowed else _derives(name)
                yield SettingError(key, f"has {name}={seen(properties[name])}.", f"{remedy}: leave it out.")
    servers = short or long
    values["bootstrap_servers"] = servers
    values["kafka"] = {**kafka, **({"bootstrap.servers": servers} if servers else {})}
    values["producer"] = dict(producer)
    yield from _settle_size(values)
    values.setdefault("celery_events", {})
    values.setdefault("refusal_policies", {})


def _settle_size(values: dict[str, Any]) -> Iterator[SettingError]:
    """What stash() accepts the producers must be able to send."""
    limit = values.get("max_message_bytes", SPECS["MAX_MESSAGE_BYTES"].default)
    for key, properties in (("KAFKA", values["kafka"]), ("PRODUCER", values["producer"])):
        size = properties.get(_SIZE_PROPERTY)
        if size is not None and (not str(size).isdecimal() or int(size) < limit):
            yield SettingError(
                key,
                f"has {_SIZE_PROPERTY}={seen(size)}, below MAX_MESSAGE_BYTES = {limit:,}.",
                "Leave it out: it follows MAX_MESSAGE_BYTES. Or lower MAX_MESSAGE_BYTES.",
            )


def _split(servers: str) -> list[str]:
    return [server.strip() for server in servers.split(",")]


def _derives(name: str) -> str:
    return f"It derives from {_SETTING_OF.get(name, 'NAME')}"


def _settle_times(values: dict[str, Any]) -> Iterator[SettingError]:
    """A leader must have fenced itself, and what it sent be decided, before the brokers give its lanes to another."""
    heartbeat_s = values.get("heartbeat_timeout_s", SPECS["HEARTBEAT_TIMEOUT"].default)
    session_s = values.get("session_timeout_s", SPECS["SESSION_TIMEOUT"].default)
    if heartbeat_s > session_s / 2:
        yield SettingError(
            "HEARTBEAT_TIMEOUT",
            f"is {heartbeat_s:g} s with a SESSION_TIMEOUT of {session_s:g} s.",
            f"Set at most {session_s / 2:g}, or SESSION_TIMEOUT to {2 * heartbeat_s:g} or more.",
        )
        return
    left_s = session_s - heartbeat_s
    delivery_s = values.setdefault("delivery_timeout_s", min(SPECS["DELIVERY_TIMEOUT"].default, 0.9 * left_s))
    if delivery_s > left_s:
        yield SettingError(
            "DELIVERY_TIMEOUT",
            f"is {delivery_s:g} s with a SESSION_TIMEOUT of {session_s:g} s and a HEARTBEAT_TIMEOUT of "
            f"{heartbeat_s:g} s: a record could arrive after those of the next owner.",
            f"Set at most {left_s:g}, or SESSION_TIMEOUT to {delivery_s + heartbeat_s:g} or more.",
        )


def _settle_headers(values: dict[str, Any]) -> Iterator[SettingError]:
    message = values.get("message_id_header", SPECS["MESSAGE_ID_HEADER"].default)
    correlation = values.get("correlation_id_header", SPECS["CORRELATION_ID_HEADER"].default)
    if message and message == correlation:
        yield SettingError(
            "CORRELATION_ID_HEADER", f"is {seen(correlation)}, and so is MESSAGE_ID_HEADER.", "Name them differently."
        )


def _default_name(alias: str, table: str) -> str:
    """Named after the table alone: all processes that share it must agree, whatever settings module each has."""
    from django.conf import settings

    database = str(settings.DATABASES.get(alias, {}).get("NAME") or alias)
    text = re.sub(r"[^A-Za-z0-9._-]", "_", f"{database}.{table}")
    if len(text) <= NAME_MAX:
        return text
    return f"{text[: NAME_MAX - 9]}-{zlib.crc32(text.encode()):08x}"


# --- where settings come from -------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def current() -> Conf:
    """The settings of this process, parsed at first use and again after ``override_settings``."""
    from django.conf import settings

    raw = getattr(settings, "OUTBOX", None)
    if raw is not None and not isinstance(raw, Mapping):
        raise ConfErrors([SettingError("", "is not a dict.", "Write OUTBOX = {...} in your settings.")])
    return parse(raw or {})


def forget(*, setting: str = "OUTBOX", **kwargs: Any) -> None:
    """Drop the cached settings (receiver of Django's ``setting_changed``)."""
    if setting in ("OUTBOX", "DATABASES"):
        current.cache_clear()


def table_name() -> str:
    """The table's name for models and migrations, which must load even when the settings are wrong."""
    from django.conf import settings

    raw = getattr(settings, "OUTBOX", None) or {}
    try:
        return _table(raw.get("TABLE", DEFAULT_TABLE))
    except (_Refused, AttributeError):
        return DEFAULT_TABLE


def from_env(env: Any = None, prefix: str = "OUTBOX_") -> dict[str, Any]:
    """Build the OUTBOX dict from ``OUTBOX_*`` variables; what is absent keeps its default.

    Values are only given their shape here: `parse` judges them, so that a bad one is reported with all others.
    """
    import environ

    env = env or environ.Env()
    result: dict[str, Any] = {}
    for variable in sorted(env.ENVIRON if hasattr(env, "ENVIRON") else os.environ):
        key = variable.removeprefix(prefix)
        if key == variable or key.startswith(_NOT_SETTINGS):
            continue
        result[key] = _shape(env, variable, SPECS[key]) if key in SPECS else env.str(variable)
    return result


def _shape(env: Any, variable: str, spec: Any) -> Any:
    text = env.str(variable)
    kind = spec.type if isinstance(spec.type, str) else getattr(spec.type, "__name__", str(spec.type))
    try:
        if kind == "bool":
            lowered = text.strip().lower()
            if lowered in env.BOOLEAN_TRUE_STRINGS:
                return True
            return False if lowered in ("false", "off", "no", "n", "0") else text
        if kind in ("int", "float"):
            return int(text) if kind == "int" else float(text)
        if kind == "Mapping":
            return env.json(variable) if text.lstrip().startswith("{") else env.dict(variable)
    except ValueError:
        pass
    return text
