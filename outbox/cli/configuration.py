"""Merges flags over environment over file over defaults, and checks the result as a whole.

The daemon takes the result. All problems are reported at once, each with the place where the value was set.
"""

import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import environ

from outbox import conf
from outbox.cli import dsn, keys, logs, options, reaper
from outbox.cli.document import Problem
from outbox.cli.durations import show_duration
from outbox.cli.options import DATA_SOURCE, LOG_LEVEL, MEMBER_NAME, Overrides
from outbox.conf import secrets

# The partitioner of goharvest-compatible harvesters: a key must stay in its partition when another kind of member takes
PARTITIONER = "consistent_random"
BOOTSTRAP = "bootstrap.servers"
DELIVERY_PROPERTIES = ("delivery.timeout.ms", "message.timeout.ms")
# The election decides these, but a goharvest-compatible file may set them too.
_DERIVED = ("heartbeat.interval.ms", "max.poll.interval.ms", "partition.assignment.strategy", "group.protocol")


class ConfigurationRefused(Exception):
    """The configuration cannot be used; the text has all reasons."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


@dataclass
class Configuration:
    """All values that a run needs."""

    conf: conf.Conf
    settings: dict[str, Any] = field(repr=False)  # as OUTBOX in a Django project
    database: dict[str, Any] = field(repr=False)  # as an entry of DATABASES
    member_name: str = ""
    level: str = logs.DEFAULT_LEVEL
    notes: list[str] = field(default_factory=list)


def settle(text: str, name: str, environment: Mapping[str, str], flags: Overrides, process_id: int) -> Configuration:
    """Check all sources together; raise `ConfigurationRefused` with all problems."""
    file = reaper.read(text, name)
    variables = options.from_environment(environment)
    problems = [*flags.problems, *variables.problems, *file.problems]
    where = _places(file) | variables.where | flags.where
    settings = _merge(file, variables, flags)
    schema = _split_table(settings, where, problems)
    _settle_properties(settings, file, {**variables.settings, **flags.settings})
    program = {**variables.program, **flags.program}
    database = _database(program, file, environment, where, schema, problems)
    level = _level(program, file, where, problems)
    parsed = _parse(settings, where, problems)
    if problems or parsed is None:
        raise ConfigurationRefused(problems)
    notes = [*file.notes, *_exposed(flags)]
    member = program.get(MEMBER_NAME) or file.values.get("name") or _member_name(process_id)
    return Configuration(parsed, settings, database, member, level, notes)


def _exposed(flags: Overrides) -> list[str]:
    """Warnings about secrets on the command line."""
    source = dsn.parse(flags.program.get(DATA_SOURCE, ""))
    found = {DATA_SOURCE: ["the password"] if any(source[name] for name in source if secrets.is_secret(name)) else []}
    for setting in ("KAFKA", "PRODUCER"):
        found[setting] = [name for name in flags.settings.get(setting, {}) if secrets.is_secret(name)]
    paths = {**{key.setting: key.path for key in keys.KEYS}, DATA_SOURCE: "dataSource"}
    return [
        secrets.warning_of(keys.flag(name), names, f"Set {keys.variable(name)}, or {paths[name]} in the file.")
        for name, names in found.items()
        if names
    ]


def _places(file: reaper.Reaper) -> dict[str, str]:
    """The place where each setting was set; settings of this program by their name here."""
    places = {key.setting: file.given[key.path] for key in keys.KEYS if key.setting and key.path in file.given}
    for path, name in (("dataSource", DATA_SOURCE), (keys.LOG_LEVEL, LOG_LEVEL), ("name", MEMBER_NAME)):
        if path in file.given:
            places[name] = file.given[path]
    return places


def _merge(file: reaper.Reaper, variables: Overrides, flags: Overrides) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key in keys.KEYS:
        if key.setting and key.path in file.values:
            value = file.values[key.path]
            settings[key.setting] = value if key.floor is None else max(value, key.floor)
    for source in (variables, flags):
        for setting, value in source.settings.items():
            merges = isinstance(value, Mapping) and isinstance(settings.get(setting), Mapping)
            settings[setting] = {**settings[setting], **value} if merges else value
    given = {*variables.settings, *flags.settings}
    # A value that follows from another one follows from its final value.
    if "NAME" in given and "LEADER_TOPIC" not in given and "leaderTopic" not in file.given:
        settings["LEADER_TOPIC"] = f"{settings['NAME']}.neli"
    heartbeat = settings["HEARTBEAT_TIMEOUT"]
    own_session = "SESSION_TIMEOUT" in given or "limits.sessionTimeout" in file.given
    if not own_session and isinstance(heartbeat, int | float):
        settings["SESSION_TIMEOUT"] = 3 * heartbeat
    return {**settings, **keys.FORCED}


def _split_table(settings: dict[str, Any], where: Mapping[str, str], problems: list[Problem]) -> str:
    """Leave only the table in the settings; the schema becomes the connection's search_path."""
    parts = split_identifier(str(settings["TABLE"]))
    if parts is None:
        text = f'is {settings["TABLE"]!r}. Write table, schema.table, or each in double quotes as in SQL: "My Table".'
        problems.append(Problem(where.get("TABLE", "outboxTable"), text))
        del settings["TABLE"]
        return ""
    settings["TABLE"] = parts[-1]
    return parts[0] if len(parts) == 2 else ""


def split_identifier(text: str) -> list[str] | None:
    """One or two names as PostgreSQL reads them: folded to lower case, unless in double quotes."""
    part = r'(?:"((?:[^"]|"")+)"|([^".\s]+))'
    found = re.fullmatch(rf"\s*{part}(?:\.{part})?\s*", text)
    if not found:
        return None
    names = []
    for quoted, plain in (found.group(1, 2), found.group(3, 4)):
        if quoted:
            names.append(quoted.replace('""', '"'))
        elif plain:
            names.append(plain.lower())
    return names


def _settle_properties(settings: dict[str, Any], file: reaper.Reaper, given: Mapping[str, Any]) -> None:
    """Turn the client properties of such a file into values of the settings."""
    base, producer = dict(settings["KAFKA"]), dict(settings["PRODUCER"])
    for properties, section in ((base, "baseKafkaConfig"), (producer, "producerKafkaConfig")):
        for name in _DERIVED:
            if properties.pop(name, None) is not None:
                file.notes.append(
                    f"{section}.{name} is ignored: the harvester derives it from heartbeatTimeout and the group."
                )
    if "BOOTSTRAP_SERVERS" in given or "bootstrapServers" in file.given:
        base.pop(BOOTSTRAP, None)
    elif BOOTSTRAP not in base:
        base[BOOTSTRAP] = "localhost:9092"
    if producer.get(BOOTSTRAP) == base.get(BOOTSTRAP):
        producer.pop(BOOTSTRAP, None)
    if "partitioner" not in base:
        producer.setdefault("partitioner", PARTITIONER)
    _settle_delivery(settings, producer, file, given)
    if settings.get("LEADER_TOPIC") in keys.INTERNAL_TOPICS:
        instead = f"{settings['NAME']}.neli"
        file.notes.append(
            f"leaderTopic {settings['LEADER_TOPIC']} cannot take heartbeats; the harvester uses {instead} instead."
        )
        settings["LEADER_TOPIC"] = instead
    settings["KAFKA"], settings["PRODUCER"] = base, producer


def _settle_delivery(
    settings: dict[str, Any], producer: dict[str, Any], file: reaper.Reaper, given: Mapping[str, Any]
) -> None:
    """A producer must not try for longer than a leader is trusted: its last records could follow its successor's."""
    requested = [producer.pop(name) for name in DELIVERY_PROPERTIES if name in producer]
    if not requested or "DELIVERY_TIMEOUT" in given or "limits.deliveryTimeout" in file.given:
        return
    if not re.fullmatch(r"\d+", str(requested[0])):
        producer[DELIVERY_PROPERTIES[0]] = requested[0]  # the client refuses it
        return
    longest_s = 0.9 * (settings["SESSION_TIMEOUT"] - settings["HEARTBEAT_TIMEOUT"])
    settings["DELIVERY_TIMEOUT"] = max(0.1, min(int(requested[0]) / 1000, longest_s))
    if int(requested[0]) / 1000 > longest_s:
        file.notes.append(
            f"delivery.timeout.ms {requested[0]} is cut to {show_duration(longest_s)}: the group trusts a leader no "
            "longer."
        )


def _database(
    program: Mapping[str, str],
    file: reaper.Reaper,
    environment: Mapping[str, str],
    where: Mapping[str, str],
    schema: str,
    problems: list[Problem],
) -> dict[str, Any]:
    source = program.get(DATA_SOURCE) or (file.values["dataSource"] if "dataSource" in file.given else "")
    if not source and environment.get("DATABASE_URL"):
        return _from_database_url(environment["DATABASE_URL"], schema, problems)
    try:
        return dsn.django_database(source or file.values["dataSource"], environment, schema)
    except dsn.BadDataSource as error:
        problems.append(Problem(where.get(DATA_SOURCE, "dataSource"), str(error)))
        return {}


def _from_database_url(url: str, schema: str, problems: list[Problem]) -> dict[str, Any]:
    """As Django projects read it."""
    try:
        entry: dict[str, Any] = environ.Env.db_url_config(url)
    except Exception:  # any error of the reader; do not repeat the URL, it may hold a password
        entry = {}
    if "postgresql" not in str(entry.get("ENGINE")):
        problems.append(Problem("DATABASE_URL", "is not a postgres:// URL. Correct it, or set dataSource in the file."))
        return {}
    if schema:
        chosen = dsn.search_path(schema)
        given = entry.setdefault("OPTIONS", {}).get("options", "")
        entry["OPTIONS"]["options"] = f"{given} {chosen}".strip()
    return entry


def _level(program: Mapping[str, str], file: reaper.Reaper, where: Mapping[str, str], problems: list[Problem]) -> str:
    level = program.get(LOG_LEVEL, file.level)
    if level not in logs.LEVELS:
        text = f"is {level!r}. Set one of: {', '.join(logs.LEVELS)}. Upper and lower case matter."
        problems.append(Problem(where[LOG_LEVEL], text))
    return level


def _parse(settings: dict[str, Any], where: Mapping[str, str], problems: list[Problem]) -> conf.Conf | None:
    try:
        return conf.parse(settings)
    except conf.ConfErrors as errors:
        for error in errors.errors:
            place = where.get(error.key) or f"harvest ({error.key})"
            problems.append(Problem(place, f"{error.problem} {error.hint}"))
    return None


def _member_name(process_id: int) -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname() or "localhost")
    return f"{host}_{process_id}_{int(time.time())}"
