"""Reads the YAML file of the goharvest-compatible reaper: ``harvest:`` and ``logging:``, every key and every rule.

The result is plain: values by path, with defaults, checked as the goharvest-compatible harvester checks them.
``configuration`` merges them with flags and environment."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox.cli import keys, logs
from outbox.cli.document import Document, DocumentEntry, Problem, Scalar, load
from outbox.cli.durations import parse_duration, show_duration
from outbox.cli.keys import KEYS, SettingKey


class _Unfit(ValueError):
    """A value of the wrong kind; the text completes "harvest.x "."""


@dataclass
class Reaper:
    """The values of a file. `given` are the paths that the file sets, with the place of each."""

    values: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    level: str = logs.DEFAULT_LEVEL
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def log_at(self, level: str, where: str) -> None:
        self.level = level
        self.given[keys.LOG_LEVEL] = where


def read(text: str, name: str) -> Reaper:
    document = load(text, name)
    found = Reaper(problems=document.problems)
    _refuse_unknown(document, document.top, ("harvest", "logging"))
    harvest = document.section(document.top.get("harvest"))
    limits = document.section(harvest.get("limits"))
    top = [key.path for key in KEYS if "." not in key.path]
    _refuse_unknown(document, harvest, (*top, "limits"))
    _refuse_unknown(document, limits, [key.name for key in KEYS if "." in key.path])
    for key in KEYS:
        entry = (limits if "." in key.path else harvest).get(key.name)
        _read_key(document, key, entry, found)
    _read_level(document, found)
    _refuse_forced(document, harvest, found)
    found.problems.sort(key=_line)
    return found


def _line(problem: Problem) -> int:
    parts = problem.where.split(":")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


def _refuse_unknown(document: Document, section: Mapping[str, DocumentEntry], known: Iterable[str]) -> None:
    known = tuple(known)
    for name, entry in section.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(known)}."
            document.complain(entry, f"is unknown. {hint}")


def _read_key(document: Document, key: SettingKey, entry: DocumentEntry | None, found: Reaper) -> None:
    value: Any = None
    if entry is not None and entry.content is not None:
        try:
            value = _VALUES[key.kind](key, entry, found)
            _judge(key, value, found)
            found.given[key.path] = document.where(entry)
        except _Unfit as unfit:
            document.complain(entry, str(unfit))
            value = None
    if value is None or value == "":
        value = key.default(found.values) if callable(key.default) else key.default
        found.given.pop(key.path, None)
    if value is not None:
        found.values[key.path] = value


def _judge(key: SettingKey, value: Any, found: Reaper) -> None:
    """The rules of the goharvest-compatible harvester, in its words."""
    least = key.least
    if key.path == "limits.maxPollInterval" and "limits.minPollInterval" in found.given:
        least = found.values["limits.minPollInterval"]
    if least is None:
        return
    shown = show_duration if key.kind == "duration" else str
    if key.required and value == 0:
        raise _Unfit(f"cannot be blank. It is {shown(value)}: set at least {shown(least)}, or remove it.")
    if value < least:
        raise _Unfit(f"must be no less than {shown(least)}. It is {shown(value)}: raise it, or remove it.")


def _read_level(document: Document, found: Reaper) -> None:
    section = document.section(document.top.get("logging"))
    _refuse_unknown(document, section, ("level",))
    entry = section.get("level")
    if entry is None or entry.content is None:
        return
    level = entry.content.text if isinstance(entry.content, Scalar) else ""
    if level not in logs.LEVELS:
        document.complain(entry, f"is {level!r}. Set one of: {', '.join(logs.LEVELS)}. Upper and lower case matter.")
        return
    found.log_at(level, document.where(entry))


def _refuse_forced(document: Document, harvest: Mapping[str, DocumentEntry], found: Reaper) -> None:
    sections = {
        "baseKafkaConfig": (*keys.FORCED_EVERYWHERE, *keys.FORCED_BASE),
        "producerKafkaConfig": keys.FORCED_EVERYWHERE,
    }
    for section, forced in sections.items():
        content = getattr(harvest.get(section), "content", None)
        for name in forced:
            if isinstance(content, dict) and name in content:
                document.complain(content[name], f"cannot override configuration '{name}'. Remove it.")
                found.values[section].pop(name, None)


# --- one value of each kind ---------------------------------------------------------------------------------------


def _scalar(entry: DocumentEntry) -> Scalar:
    if not isinstance(entry.content, Scalar):
        raise _Unfit("holds a section or a list. Write one value.")
    return entry.content


def _text(key: SettingKey, entry: DocumentEntry, found: Reaper) -> str:
    text = _scalar(entry).text
    if key.path == "name" and "%" in text:
        raise _Unfit(f"is {text!r}: a heartbeat cannot carry a per cent sign. Use another character.")
    return text


def _duration(key: SettingKey, entry: DocumentEntry, found: Reaper) -> float:
    scalar = _scalar(entry)
    if isinstance(scalar.value, int) and not isinstance(scalar.value, bool):
        if key in keys.OWN and scalar.value:
            raise _Unfit(f"is {scalar.text} without a unit. Write e.g. {scalar.text}s or {scalar.text}ms.")
        if abs(scalar.value) < 2**63:
            return scalar.value / 1e9  # Go reads a number without a unit as nanoseconds
    try:
        return parse_duration(scalar.text)
    except ValueError as error:
        raise _Unfit(f"is {error}") from None


def _count(key: SettingKey, entry: DocumentEntry, found: Reaper) -> int:
    scalar = _scalar(entry)
    value = scalar.value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Unfit(f"is {scalar.text!r}, not a whole number.")
    return int(value)


def _flag(key: SettingKey, entry: DocumentEntry, found: Reaper) -> bool:
    scalar = _scalar(entry)
    if not isinstance(scalar.value, bool):
        raise _Unfit(f"is {scalar.text!r}. Set true or false.")
    return scalar.value


def _properties(key: SettingKey, entry: DocumentEntry, found: Reaper) -> dict[str, str]:
    """Client properties as strings, which librdkafka takes. Go's own ``go.*`` are dropped."""
    if not isinstance(entry.content, dict):
        raise _Unfit("is not a section. Put one property per line below it, e.g. security.protocol: ssl")
    result: dict[str, str] = {}
    for name, item in entry.content.items():
        if name in ("default.topic.config", "{topic}.config") and isinstance(item.content, dict):
            result |= _properties(key, item, found)
        elif name.startswith("go."):
            found.notes.append(f"{item.path} is ignored: it concerns the Go client.")
        elif isinstance(item.content, Scalar):
            result[name] = _property(item.content)
        else:
            raise _Unfit(f"has no usable value for {name}. Write a text, a number, true or false.")
    return result


def _property(scalar: Scalar) -> str:
    if isinstance(scalar.value, bool):
        return str(scalar.value).lower()
    if isinstance(scalar.value, int) and ":" not in scalar.text:  # only old YAML reads 1:30 as a number
        return str(scalar.value)
    return scalar.text


_VALUES = {"text": _text, "duration": _duration, "count": _count, "flag": _flag, "properties": _properties}
