"""Parsers: each turns the value that a user wrote into a typed one, or raises `WrongValue`. It sees no other value."""

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from outbox.conf.errors import WrongValue, seen

# PostgreSQL cuts identifiers at 63 bytes; the longest companion of the table adds "_id_seq".
TABLE_MAX_BYTES = 63 - len("_dead_record")  # the longest of the names that are made from it
# A Kafka topic name has 249 characters at most, and ".ledger" is appended to NAME.
NAME_MAX = 200
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
# The options of a task in CELERY_EVENTS.
TASK_OPTIONS = ("task", "queue", "exchange", "routing_key", "priority", "expires", "countdown", "serializer", "headers")


def non_empty(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise WrongValue(f"is {seen(value)}, not a non-empty string.", "Set a string or leave it out.")
    return value


def optional_text(value: Any) -> str:
    return "" if value in (None, "") else non_empty(value)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise WrongValue(f"is {seen(value)}, not True or False.", "Set True or False.")
    return value


def count(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise WrongValue(f"is {seen(value)}.", f"Set a whole number from {low:,} to {high:,}.")
        return int(value)

    return parse


def seconds(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise WrongValue(f"is {seen(value)}.", f"Set seconds from {low:g} to {high:g}, as a number or a timedelta.")
        return float(value)

    return parse


def one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise WrongValue(f"is {seen(value)}.", f"Set one of: {', '.join(choices)}.")
        return str(value)

    return parse


def alias(value: Any) -> str:
    text = non_empty(value)
    if "://" in text:
        raise WrongValue(
            f"is {seen(text)}.", 'Set an alias of DATABASES, e.g. "default". Addresses belong into DATABASES.'
        )
    return text


def table(value: Any) -> str:
    text = non_empty(value)
    if re.search(r'[".%$\x00-\x1f\x7f\ud800-\udfff]', text):
        raise WrongValue(
            f"is {seen(text)}, with a quote, dot, per cent sign, dollar sign, surrogate or control character.",
            "Set a plain table name. Choose its schema with the connection's search_path.",
        )
    if len(text.encode()) > TABLE_MAX_BYTES:
        raise WrongValue(f"is {seen(text)}, longer than {TABLE_MAX_BYTES} bytes.", "Set a shorter name.")
    return text


def name(value: Any) -> str:
    text = non_empty(value)
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text) or len(text) > NAME_MAX or text.strip(".") == "":
        raise WrongValue(
            f"is {seen(text)}.",
            f"Use 1 to {NAME_MAX} letters, digits, dots, underscores and hyphens: topics are named after it.",
        )
    return text


def header_name(value: Any) -> str:
    text = optional_text(value)
    if re.search(r"[\x00\ud800-\udfff]", text) or len(text.encode()) > 249:
        raise WrongValue(
            f"is {seen(text)}.", "Use at most 249 bytes without NUL and surrogates, or None to send no such header."
        )
    return text


def dotted_path(value: Any) -> str:
    text = non_empty(value)
    if not re.fullmatch(r"\w+([.:]\w+)+", text):
        raise WrongValue(
            f"is {seen(text)}, not a dotted path.", 'Set the path of a function, e.g. "myproject.kafka.to_json".'
        )
    return text


def properties(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise WrongValue("is not a dict of client properties.", 'Write e.g. {"security.protocol": "SSL"}.')
    return dict(value)


def stores(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name) and _is_store(store)
        for name, store in value.items()
    ):
        raise WrongValue(
            "is not a dict of stores.",
            'Write e.g. {"a": {"path": "/srv/a"}, "b": {"url": "s3://bucket", "zone": "b"}}.',
        )
    return {name: {"zone": name, "options": {}, **store} for name, store in value.items()}


def _is_store(value: Any) -> bool:
    """A folder by its absolute path, or a URL with options of its client."""
    if not isinstance(value, Mapping) or not {*value} <= {"path", "url", "zone", "options"}:
        return False
    texts = [value.get(key, "x") for key in ("path", "url", "zone")]
    return (
        all(isinstance(text, str) and text for text in texts)
        and ("path" in value) != ("url" in value)
        and ("path" not in value or value["path"].startswith("/"))
        and ("path" not in value or "options" not in value)
        and isinstance(value.get("options", {}), Mapping)
    )


def policies(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(topic, str) and topic for topic in value):
        raise WrongValue("is not a dict of topics.", 'Write e.g. {"shop.orders": "skip"}, or leave it out.')
    if not all(policy in (BLOCK, SKIP) for policy in value.values()):
        raise WrongValue("has a topic with an unknown policy.", f"Set each to one of: {BLOCK}, {SKIP}.")
    return dict(value)


def celery_events(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise WrongValue(
            f"is {seen(value)}, not a dict.", 'Write e.g. {"leader_acquired": "shop.tasks.warm_up"}, or leave it out.'
        )
    tasks: dict[str, dict[str, Any]] = {}
    for event, task in value.items():
        if event not in EVENTS:
            raise WrongValue(f"has the event {seen(event)}.", _nearest(str(event), EVENTS))
        options = {"task": task} if isinstance(task, str) else task
        if not isinstance(options, Mapping) or not isinstance(options.get("task"), str) or not options["task"]:
            raise WrongValue(
                f"has {seen(task)} for {event}.",
                'Name the task, or write {"task": "shop.tasks.warm_up", "queue": "ops"}.',
            )
        for option in options:
            if option not in TASK_OPTIONS:
                raise WrongValue(f"has the option {seen(option)} for {event}.", _nearest(str(option), TASK_OPTIONS))
        tasks[event] = dict(options)
    return tasks


def _nearest(text: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    return f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(known)}."


def servers(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = optional_text(value)
    if "@" in text:
        raise WrongValue(
            f"has {seen(text)}, with a user or password before the host.",
            'Set only host:port. Set "sasl.username" and "sasl.password" in KAFKA.',
        )
    for server in filter(None, text.split(",")):
        if not re.fullmatch(r"\s*([a-zA-Z_]+://)?(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+)(:\d{1,5})?\s*", server):
            raise WrongValue(f"has {seen(server)}, which is not host:port.", 'Set your brokers, e.g. "localhost:9092".')
    return text
