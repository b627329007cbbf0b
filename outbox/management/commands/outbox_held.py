"""``manage.py outbox_held``: lists held messages or dead letters of a consumer, and changes nothing."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from outbox.management.messages import alias_of_messages
from outbox.operations import held
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import run
from outbox.operations.held import ListedMessage, MessageSelector


class Command(BaseCommand):
    help = (
        "Lists the held messages of a consumer, or its dead letters: those that failed, with the number of later "
        "messages that wait behind each. Changes nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("consumer", metavar="NAME", help="The consumer.")
        parser.add_argument("--dead-letters", action="store_true", help="Lists dead letters.")
        parser.add_argument("--topic", help="Lists messages of this topic only.")
        parser.add_argument("--partition", type=int, metavar="N", help="Lists messages of this partition only.")
        parser.add_argument("--key", help="Lists messages of this key of the topic only.")
        parser.add_argument(
            "--limit", type=int, default=held.LISTED_MAX, metavar="N", help=f"Lists N at most ({held.LISTED_MAX})."
        )
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of the consumer's.")
        parser.add_argument("--json", action="store_true", help="Prints one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        limit, (found, is_cut) = options["limit"], run(lambda: _found(options))
        if options["json"]:
            self.stdout.write(json.dumps({"messages": [one.as_dict() for one in found], "is_cut": is_cut}))
            return
        for one in found:
            self.stdout.write(_line(one))
        if not found:
            self.stdout.write("No dead letter." if options["dead_letters"] else "No held message.")
        elif is_cut:
            self.stdout.write(f"There are more than {limit:,}. Set --limit, --topic, --partition or --key.")


def _found(options: dict[str, Any]) -> tuple[list[ListedMessage], bool]:
    selector = MessageSelector(options["consumer"], options["topic"], options["partition"], options["key"], all=True)
    selector.require()
    limit, alias = max(0, options["limit"]), alias_of_messages(options)
    found = held.listed(selector, dead=options["dead_letters"], limit=limit + 1, alias=alias)
    return found[:limit], len(found) > limit


def _line(one: ListedMessage) -> str:
    key = "no key" if one.key is None else f"key {one.key!r}"
    parts = [f"{one.id} {one.topic}[{one.partition}] offset {one.offset}", key, one.reason]
    parts.append(f"attempts {one.attempts}")
    if one.delays:
        parts.append(f"postponed {one.delays} times")
    if one.wanted:
        parts.append(f"requested: {one.wanted}")
    elif one.next_try is not None:
        parts.append(f"next try {one.next_try.isoformat(' ', 'seconds')}")
    elif one.died_at is None:
        parts.append("waits for an operator")
    if one.behind:
        parts.append(f"{one.behind:,} behind it")
    return ", ".join(parts) + (f": {' '.join(one.error.split())}" if one.error else "")
