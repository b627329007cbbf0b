"""``manage.py outbox_pause``: sends nothing more of a topic, a key or a lane until outbox_resume."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from outbox.operations import actions
from outbox.operations.arguments import EXIT_CODES as EXIT_CODES
from outbox.operations.arguments import add_common, given_of, run, shown


class Command(BaseCommand):
    help = "Sends nothing more of a topic, a key or a lane until outbox_resume. Records in flight still arrive."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--topic", help="Pauses this topic.")
        parser.add_argument("--key", help="Pauses only this key of the topic.")
        parser.add_argument("--lane", type=int, metavar="N", help="Pauses this lane.")
        add_common(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        what = {name: options[name] for name in ("topic", "key", "lane")}
        self.stdout.write(shown(run(lambda: actions.pause(**what, **given_of(options))), options))
