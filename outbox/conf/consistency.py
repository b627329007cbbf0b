"""Checks that compare settings with each other, and defaults that follow from other settings.

``values`` has the settings that were given, parsed, each under its key in ``OUTBOX``.
"""

import difflib
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from outbox.conf import parsers
from outbox.conf.errors import SettingError, WrongValue, seen
from outbox.conf.settings import EXACTLY_ONCE, SIZE_PROPERTY, SPECS

# Properties that the protocol owns. Only a value listed here is accepted; None means that no value is.
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
    # An idempotent producer rejects other values when it is made.
    "max.in.flight": ("5", "4", "3", "2", "1"),
    "max.in.flight.requests.per.connection": ("5", "4", "3", "2", "1"),
    "queuing.strategy": ("fifo",),
    "session.timeout.ms": None,
    "heartbeat.interval.ms": None,
    "max.poll.interval.ms": None,
    "partition.assignment.strategy": None,
}
# The setting from which a property derives, where it is not NAME.
_SETTING_OF = {
    "session.timeout.ms": "SESSION_TIMEOUT",
    "heartbeat.interval.ms": "HEARTBEAT_TIMEOUT",
    "max.poll.interval.ms": "SESSION_TIMEOUT",
    "partition.assignment.strategy": "ASSIGNOR",
    "metadata.broker.list": "BOOTSTRAP_SERVERS",
}


def unknown_keys(raw: Mapping[str, Any]) -> Iterator[SettingError]:
    for key in raw:
        if key not in SPECS:
            near = difflib.get_close_matches(str(key).upper(), SPECS, n=1, cutoff=0.5)
            hint = f'Did you mean "{near[0]}"?' if near else f"Known settings: {', '.join(SPECS)}."
            yield SettingError(str(key), "is unknown.", hint)


def settle(values: dict[str, Any]) -> Iterator[SettingError]:
    """Complete the values, and yield the errors between them."""
    yield from _settle_kafka(values)
    yield from _settle_times(values)
    yield from _settle_headers(values)


def derive(values: dict[str, Any]) -> None:
    """Set the defaults that follow from other settings, once there is no error."""
    for key in ("CELERY_EVENTS", "REJECTION_POLICIES", "STORES"):
        values.setdefault(key, {})
    values.setdefault("BINARY_VALUES", _given(values, "DELIVERY") == EXACTLY_ONCE)
    if not values.get("NAME"):
        values["NAME"] = _default_name(_given(values, "DATABASE"), _given(values, "TABLE"))
    values.setdefault("LEADER_TOPIC", f"{values['NAME']}.neli")


def _given(values: Mapping[str, Any], key: str) -> Any:
    return values.get(key, SPECS[key].default)


def _settle_kafka(values: dict[str, Any]) -> Iterator[SettingError]:
    """Merge BOOTSTRAP_SERVERS into KAFKA and reject properties that contradict the protocol."""
    kafka, producer = values.get("KAFKA") or {}, values.get("PRODUCER") or {}
    short, long = values.get("BOOTSTRAP_SERVERS", ""), ""
    try:
        long = parsers.servers(kafka.get("bootstrap.servers"))
    except WrongValue as refused:
        yield SettingError("KAFKA", f"bootstrap.servers {refused.problem}", refused.hint)
    if short and long and _split(short) != _split(long):
        yield SettingError(
            "BOOTSTRAP_SERVERS",
            f'is {seen(short)} and KAFKA["bootstrap.servers"] is {seen(long)}.',
            "Set one of the two only: the first is short for the second.",
        )
    if "bootstrap.servers" in producer:
        yield SettingError(
            "PRODUCER", "has bootstrap.servers.", "Set it in KAFKA: every client connects to the same cluster."
        )
    for key, properties in (("KAFKA", kafka), ("PRODUCER", producer)):
        for name, allowed in _OWNED.items():
            if name in properties and str(properties[name]).lower() not in (allowed or ()):
                remedy = f"Only {allowed[0]!r} keeps the promises" if allowed else _derives(name)
                yield SettingError(key, f"has {name}={seen(properties[name])}.", f"{remedy}: leave it out.")
    servers = short or long
    values["BOOTSTRAP_SERVERS"] = servers
    values["KAFKA"] = {**kafka, **({"bootstrap.servers": servers} if servers else {})}
    values["PRODUCER"] = dict(producer)
    yield from _settle_size(values)


def _settle_size(values: dict[str, Any]) -> Iterator[SettingError]:
    """The producers must be able to send every message that stash() accepts."""
    limit = _given(values, "MAX_MESSAGE_BYTES")
    for key, properties in (("KAFKA", values["KAFKA"]), ("PRODUCER", values["PRODUCER"])):
        size = properties.get(SIZE_PROPERTY)
        if size is not None and (not str(size).isdecimal() or int(size) < limit):
            yield SettingError(
                key,
                f"has {SIZE_PROPERTY}={seen(size)}, below MAX_MESSAGE_BYTES = {limit:,}.",
                "Leave it out: it follows MAX_MESSAGE_BYTES. Or lower MAX_MESSAGE_BYTES.",
            )


def _split(servers: str) -> list[str]:
    return [server.strip() for server in servers.split(",")]


def _derives(name: str) -> str:
    return f"It derives from {_SETTING_OF.get(name, 'NAME')}"


def _settle_times(values: dict[str, Any]) -> Iterator[SettingError]:
    """Before the brokers give a leader's lanes to another process, it must have fenced itself, and the outcome of its
    records must be certain."""
    heartbeat_s = _given(values, "HEARTBEAT_TIMEOUT")
    session_s = _given(values, "SESSION_TIMEOUT")
    if heartbeat_s > session_s / 2:
        yield SettingError(
            "HEARTBEAT_TIMEOUT",
            f"is {heartbeat_s:g} s with a SESSION_TIMEOUT of {session_s:g} s.",
            f"Set at most {session_s / 2:g}, or SESSION_TIMEOUT to {2 * heartbeat_s:g} or more.",
        )
        return
    left_s = session_s - heartbeat_s
    delivery_s = values.setdefault("DELIVERY_TIMEOUT", min(SPECS["DELIVERY_TIMEOUT"].default, 0.9 * left_s))
    if delivery_s > left_s:
        yield SettingError(
            "DELIVERY_TIMEOUT",
            f"is {delivery_s:g} s with a SESSION_TIMEOUT of {session_s:g} s and a HEARTBEAT_TIMEOUT of "
            f"{heartbeat_s:g} s: a record could arrive after those of the next owner.",
            f"Set at most {left_s:g}, or SESSION_TIMEOUT to {delivery_s + heartbeat_s:g} or more.",
        )


def _settle_headers(values: dict[str, Any]) -> Iterator[SettingError]:
    message = _given(values, "MESSAGE_ID_HEADER")
    correlation = _given(values, "CORRELATION_ID_HEADER")
    if message and message == correlation:
        yield SettingError(
            "CORRELATION_ID_HEADER", f"is {seen(correlation)}, and so is MESSAGE_ID_HEADER.", "Set two different names."
        )


def _default_name(alias: str, table: str) -> str:
    """The name derives only from the database and the table, so that all processes that share the table agree."""
    from django.conf import settings

    database = str(settings.DATABASES.get(alias, {}).get("NAME") or alias)
    text = re.sub(r"[^A-Za-z0-9._-]", "_", f"{database}.{table}")
    if len(text) <= parsers.NAME_MAX:
        return text
    return f"{text[: parsers.NAME_MAX - 9]}-{zlib.crc32(text.encode()):08x}"
