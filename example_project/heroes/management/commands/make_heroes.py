"""``manage.py make_heroes N``: creates heroes for demonstrations and tests."""

import itertools
import json
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from example_project.heroes.creation import create_heroes

NAMES = ("Ada", "Grace", "Hedy", "Katherine", "Margaret", "Radia", "Barbara", "Frances")
POWERS = ("engines", "compilers", "frequency hopping", "orbits", "priority displays", "spanning trees")
# Distinguishes them from the kept ones, even if only the message is seen.
ROLLED_BACK_POWER = "never was"
PROGRESS_EVERY_S = 1.0


class _Regret(Exception):
    """Ends a transaction that must leave nothing behind."""


class Command(BaseCommand):
    help = "Creates heroes, and rolls back other transactions in between."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("count", type=int, help="the number of heroes to keep")
        parser.add_argument(
            "--per-transaction", type=int, default=10, help="the number of heroes of one transaction (10)"
        )
        parser.add_argument(
            "--rolled-back",
            type=int,
            default=1,
            help="the number of heroes of the transaction that is rolled back after each (1)",
        )
        parser.add_argument("--run", default="", help='the text of the header "run" of every message')
        parser.add_argument("--json", action="store_true", help="prints one JSON object")

    def handle(
        self, *args: Any, count: int, per_transaction: int, rolled_back: int, run: str, json: bool, **options: Any
    ) -> None:
        if count < 0 or per_transaction < 1 or rolled_back < 0:
            raise CommandError("Set count and --rolled-back to 0 or more, and --per-transaction to 1 or more.")
        headers = {"run": run} if run else None
        began = shown = time.monotonic()
        report = {"stashed": 0, "rolled_back": 0, "transactions": 0}
        number = itertools.count(1)
        while report["stashed"] < count:
            size = min(per_transaction, count - report["stashed"])
            create_heroes([_described(next(number)) for _ in range(size)], headers)
            self._make_and_regret(rolled_back, headers)
            report["stashed"] += size
            report["rolled_back"] += rolled_back
            report["transactions"] += 1
            if time.monotonic() - shown > PROGRESS_EVERY_S:
                shown = time.monotonic()
                self.stderr.write(f"made {report['stashed']:,} of {count:,} heroes")
        self._print({**report, "seconds": round(time.monotonic() - began, 3)}, as_json=json)

    def _make_and_regret(self, count: int, headers: dict[str, str] | None) -> None:
        try:
            with transaction.atomic():
                create_heroes([("Nobody", ROLLED_BACK_POWER)] * count, headers)
                raise _Regret
        except _Regret:
            pass

    def _print(self, report: dict[str, Any], *, as_json: bool) -> None:
        line = json.dumps(report) if as_json else " ".join(f"{name}={value}" for name, value in report.items())
        self.stdout.write(line)


def _described(number: int) -> tuple[str, str]:
    return f"{NAMES[number % len(NAMES)]} {number}", POWERS[number % len(POWERS)]
