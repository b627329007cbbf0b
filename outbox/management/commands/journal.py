"""``manage.py journal``: the keeper of journals. Signals to a stop, results to an exit code."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox import conf
from outbox.exceptions import OutboxError
from outbox.management.logs import show_log
from outbox.service.process_signals import FORCED, ProcessSignals

NOT_WELL = 4
EXIT_CODES = {
    0: "stopped; with --once: one round is done, every store answered and no journal is suspect",
    1: "stopped for an error, which the last line names",
    2: "the arguments are wrong",
    NOT_WELL: "--once: another keeper works, a store failed, or a journal is suspect",
    FORCED: "forced by a second signal",
}


class Command(BaseCommand):
    help = (
        "Keeps journals: removes what was not committed, repairs and checks replicas, and removes what is older than "
        "the retention. You can run several processes: one works, the others wait."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--once", action="store_true", help="Does one round, prints what it did, and exits.")
        parser.add_argument("--json", action="store_true", help="With --once: prints a JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        from outbox.journal.daemon import JournalKeeper

        show_log(options["verbosity"])
        try:
            settings = conf.current()
            daemon = JournalKeeper(settings, settings.database, once=options["once"])
            with ProcessSignals(lambda force: daemon.stop(force=force)) as signals, daemon:
                while not daemon.wait(1.0):
                    pass
        except (OutboxError, conf.ConfErrors, ImportError) as error:
            raise CommandError(str(error)) from error
        if signals.is_forced:
            sys.exit(FORCED)
        if options["once"]:
            self._report(daemon, as_json=options["json"])

    def _report(self, daemon: Any, *, as_json: bool) -> None:
        done = dict(sorted(daemon.counts.items()))
        if as_json:
            found = {"done": done, "failing": daemon.failing, "suspect": sorted(daemon.suspect)}
            self.stdout.write(json.dumps(found))
        else:
            self.stdout.write(", ".join(f"{name} {count:,}" for name, count in done.items()) or "nothing to do")
        problems = [f"the store {store} failed: {error}" for store, error in sorted(daemon.failing.items())]
        problems += [f"the journal {name} is suspect" for name in sorted(daemon.suspect)]
        problems += [] if daemon.is_keeper else ["another keeper works"]
        if problems:
            raise CommandError("; ".join(problems) + ".", returncode=NOT_WELL)
