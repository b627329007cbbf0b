"""The commands for records that, with --consumer, are for held messages of a consumer."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from outbox import conf
from outbox.consumers.registry import registered
from outbox.operations.arguments import SelectingCommand, age, given_of
from outbox.operations.held import MessageSelector, alias_of_consumer
from outbox.operations.outcomes import Outcome


def add_consumer_selector(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--consumer",
        metavar="NAME",
        help="Selects held messages, or dead letters, of this consumer in place of records. --id is then the id that "
        "outbox_held prints.",
    )
    parser.add_argument("--partition", type=int, metavar="N", help="Selects this partition of the topic (--consumer).")
    parser.add_argument(
        "--offset",
        type=int,
        action="append",
        default=[],
        metavar="OFFSET",
        help="Selects this offset of the partition (--consumer). Repeat it for more.",
    )


def message_selector_of(options: dict[str, Any]) -> MessageSelector:
    if options.get("lane") is not None:
        raise CommandError("Messages of consumers have no lane. Leave out --lane.")
    return MessageSelector(
        consumer=options["consumer"],
        topic=options["topic"],
        partition=options["partition"],
        key=options["key"],
        offsets=tuple(options["offset"]),
        ids=tuple(options["id"]),
        older_than=age(options["older_than"]) if options["older_than"] else None,
        all=options["all"],
    )


def alias_of_messages(options: dict[str, Any]) -> str:
    """Of the consumer that the options name. Imports the modules `inbox`."""
    default = conf.current().database
    declared = {name: one.using or default for name, one in registered().items()}
    return alias_of_consumer(options["consumer"], declared, options["database"])


class SelectingCommandOfBoth(SelectingCommand):
    """Of records, or with --consumer of messages."""

    of_messages: Callable[..., Outcome]

    def messages_of(self, options: dict[str, Any]) -> Callable[..., Outcome]:
        return type(self).of_messages

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_consumer_selector(parser)
        super().add_arguments(parser)

    def operate(self, options: dict[str, Any]) -> Outcome:
        if options["consumer"] is None:
            if options["partition"] is not None or options["offset"]:
                raise CommandError("--partition and --offset select messages of a consumer. Add --consumer NAME.")
            return super().operate(options)
        given = {**given_of(options), "alias": alias_of_messages(options)}
        return self.messages_of(options)(message_selector_of(options), **given)
