"""Flags and environment variables of ``outbox-harvest``, each brought into the form of the Django settings."""

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import environ

from outbox import __version__, conf
from outbox.cli import keys, logs
from outbox.cli.document import Problem
from outbox.cli.durations import parse_duration

# Settings of this program that a Django project does not have.
DATA_SOURCE = "DATA_SOURCE"
LOG_LEVEL = "LOG_LEVEL"
MEMBER_NAME = "MEMBER_NAME"
PROGRAM_ONLY = {
    DATA_SOURCE: "The address of the database: host=... dbname=..., or a postgres:// URL. File: dataSource.",
    MEMBER_NAME: "The name of this process in its heartbeats and logs. File: name.",
    LOG_LEVEL: f"The level from which on the program logs: {', '.join(logs.LEVELS)}. File: logging.level.",
}
SETTINGS = {key.setting: key for key in keys.KEYS if key.setting}
DESCRIPTION = """\
Move the records of an outbox table to Kafka, at least once. Several processes form a group and elect a leader.

A flag wins over the environment variable of the same name (OUTBOX_...), the variable over the file, the file over the
default. The program uses DATABASE_URL only if no other source names the database."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"Error: {message}\nFor help: {self.prog} --help\n")


def parser() -> ArgumentParser:
    made = _Parser(
        prog="outbox-harvest", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    made.add_argument(
        "-f",
        "--f",
        "-file",
        "--file",
        dest="file",
        metavar="FILE",
        help="Read the configuration from this YAML file. Required.",
    )
    made.add_argument("--check", action="store_true", help="Check the configuration, print the final values, and exit.")
    made.add_argument(
        "--fail-fast", action="store_true", help="Exit with 1 if PostgreSQL or Kafka is unavailable at the start."
    )
    made.add_argument("--version", action="version", version=f"outbox {__version__}")
    own = made.add_argument_group("this program")
    for name, text in PROGRAM_ONLY.items():
        own.add_argument(keys.flag(name), dest=name, metavar="TEXT", help=text)
    settings = made.add_argument_group("settings", "Write durations as 100ms, 1.5s, 2m, or in seconds.")
    for setting, key in SETTINGS.items():
        text = f"{conf.SPECS[setting].metadata['help']} File: {key.path}.".replace("%", "%%")
        settings.add_argument(keys.flag(setting), dest=setting, metavar=key.kind.upper(), help=text)
    return made


@dataclass
class Overrides:
    """The values of one source: by setting, with the place of each for error texts."""

    settings: dict[str, Any] = field(default_factory=dict)
    program: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def from_flags(arguments: Namespace) -> Overrides:
    given = {name: value for name, value in vars(arguments).items() if value is not None and name.isupper()}
    return _overrides(given, {name: keys.flag(name) for name in given})


def from_environment(environment: Mapping[str, str]) -> Overrides:
    """All ``OUTBOX_*`` variables, without those that matter only for stashing records."""
    given = {
        name: environment[keys.variable(name)] for name in PROGRAM_ONLY if environment.get(keys.variable(name), "")
    }
    reader = environ.Env()
    reader.ENVIRON = dict(environment)
    shaped = conf.from_env(reader)
    shaped.pop(MEMBER_NAME, None)
    found = _overrides(given, {name: keys.variable(name) for name in given})
    for setting in shaped:
        where = keys.variable(setting)
        if setting in keys.FORCED and shaped[setting] != keys.FORCED[setting]:
            text = f"is {shaped[setting]!r}, but this program uses {keys.FORCED[setting]!r}. Remove it."
            found.problems.append(Problem(where, text))
        elif setting not in conf.SPECS:
            error = next(conf.unknown_keys({setting: None}))
            found.problems.append(Problem(where, f"{error.problem} {error.hint}"))
    relevant = {name: environment[keys.variable(name)] for name in shaped if name in SETTINGS}
    more = _overrides(relevant, {name: keys.variable(name) for name in relevant})
    return Overrides(more.settings, found.program, {**found.where, **more.where}, found.problems + more.problems)


def _overrides(given: Mapping[str, str], where: Mapping[str, str]) -> Overrides:
    found = Overrides(program={name: given[name] for name in given if name in PROGRAM_ONLY}, where=dict(where))
    texts = {name: value for name, value in given.items() if name not in PROGRAM_ONLY}
    for setting, text in list(texts.items()):
        if SETTINGS[setting].kind == "duration" and not _is_number(text):
            try:
                found.settings[setting] = parse_duration(text)
            except ValueError as error:
                found.problems.append(Problem(where[setting], f"is {error}"))
            del texts[setting]
    reader = environ.Env()
    reader.ENVIRON = {keys.variable(setting): text for setting, text in texts.items()}
    found.settings.update(conf.from_env(reader))
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
