"""The common arguments of the operators' commands: selectors, ages, the actor; and the text of an outcome."""

from __future__ import annotations

import getpass
import json
import re
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from outbox import conf as settings
from outbox.exceptions import OutboxError
from outbox.operations.outcomes import Outcome
from outbox.operations.selection import Selector

Result = TypeVar("Result")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
EXIT_CODES = {
    0: "the command has done its work, or there was nothing to do",
    1: "the command has printed an error, and has changed nothing",
}
_DONE = {
    "retry": "retried", "requeue": "requeued", "skip": "skipped", "discard": "discarded", "pause": "paused",
    "resume": "resumed", "edit": "edited",
}  # fmt: skip


def add_common(parser: ArgumentParser, *, database: str = "The database alias, in place of DATABASE.") -> None:
    parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
    parser.add_argument("--reason", default="", metavar="TEXT", help="The reason, which the audit log keeps.")
    parser.add_argument(
        "--actor", default="", metavar="NAME", help="The operator's name for the audit log. Default: the system user."
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="Prints what the command would change, and changes nothing."
    )
    parser.add_argument("--database", metavar="ALIAS", help=database)
    parser.add_argument("--json", action="store_true", help="Prints one JSON object.")


def add_selector(parser: ArgumentParser) -> None:
    parser.add_argument("--topic", help="Selects this topic.")
    parser.add_argument("--key", help="Selects this key of the topic.")
    parser.add_argument(
        "--id",
        type=int,
        action="append",
        default=[],
        metavar="ID",
        help="Selects the record with this id. Repeat it for more.",
    )
    parser.add_argument("--lane", type=int, metavar="N", help="Selects this lane.")
    parser.add_argument(
        "--older-than", metavar="AGE", help="Selects rows that have been held or dead for longer: 90s, 15m, 12h or 30d."
    )
    parser.add_argument("--all", action="store_true", help="Selects everything. Needed if no other option selects.")


def selector_of(options: dict[str, Any]) -> Selector:
    return Selector(
        topic=options["topic"],
        key=options["key"],
        ids=tuple(options["id"]),
        lane=options["lane"],
        older_than=age(options["older_than"]) if options["older_than"] else None,
        all=options["all"],
    )


def age(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if not found:
        raise CommandError(f"{text!r} is not a valid age. Write a number and s, m, h or d, e.g. 90s, 15m, 12h or 30d.")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def actor_of(options: dict[str, Any]) -> str:
    try:
        return str(options["actor"] or getpass.getuser())
    except (KeyError, OSError):  # the user of a container may have no name
        return "unknown"


def given_of(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that every operation takes."""
    return {
        "actor": actor_of(options),
        "reason": options["reason"],
        "dry_run": options["dry_run"],
        "alias": options["database"],
    }


def run(operation: Callable[[], Result]) -> Result:
    try:
        return operation()
    except (OutboxError, settings.ConfErrors) as error:
        raise CommandError(str(error)) from error
    except (DatabaseError, psycopg.Error) as error:
        reason = " ".join(str(error).split())
        raise CommandError(
            f"PostgreSQL reports an error: {reason}. If a table is missing, run: python manage.py migrate outbox"
        ) from error


def shown(outcome: Outcome, options: dict[str, Any]) -> str:
    if options["json"]:
        return json.dumps(outcome.as_dict())
    done = _DONE[outcome.what]
    if outcome.dry_run:
        return f"{_rows(outcome.matched)} would be {done}. Nothing was changed."
    if not outcome.matched:
        return "No row matches. Nothing was changed."
    parts = []
    if outcome.changed:
        parts.append(f"{_rows(outcome.changed)} {'was' if outcome.changed == 1 else 'were'} {done}.")
    if outcome.pending:
        parts.append(outcome.request_text)
    if outcome.rest_text:
        parts.append(outcome.rest_text)
    return " ".join(parts)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


class SelectingCommand(BaseCommand):
    """A bulk operation on the rows that a selector finds."""

    operation: Callable[..., Outcome]

    def operation_of(self, options: dict[str, Any]) -> Callable[..., Outcome]:
        return type(self).operation

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_selector(parser)
        add_common(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(shown(run(lambda: self.operate(options)), options))

    def operate(self, options: dict[str, Any]) -> Outcome:
        return self.operation_of(options)(selector_of(options), **given_of(options))
