"""``manage.py consume``: arguments to consumers, signals to a stop, results to an exit code."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox import conf
from outbox.core.consumers.overrun import OVERRUN
from outbox.exceptions import OutboxError
from outbox.management.logs import show_log
from outbox.management.terminal import writer
from outbox.service.process_signals import FORCED, ProcessSignals

LEFT_BEHIND = 4
EXIT_CODES = {
    0: "stopped after finishing what was being handled; with --once: everything that was there is handled",
    1: "stopped for an error, which the last line names",
    2: "the arguments are wrong",
    LEFT_BEHIND: "--once: partitions were stopped before their end, or messages are held",
    FORCED: "forced by a second signal: what was being handled was rolled back",
    OVERRUN: "a function took longer than its timeout_s, or PostgreSQL did not answer",
}


class Command(BaseCommand):
    help = "Handles messages of Kafka with the consumers of the modules `inbox`. You can run several processes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("names", nargs="*", metavar="NAME", help="Runs these consumers only.")
        parser.add_argument(
            "--threads", type=int, metavar="N", help="The threads of each consumer, in place of CONSUMER_THREADS."
        )
        parser.add_argument(
            "--once", action="store_true", help="Handles the messages that Kafka has at the start, and exits."
        )
        parser.add_argument(
            "--json", action="store_true", help="Prints the state as a JSON object each second, with --once at the end."
        )
        parser.add_argument(
            "--fail-fast",
            action="store_true",
            help="Exits with an error if PostgreSQL, Kafka or a topic is unavailable at the start.",
        )

        parser.add_argument(
            "--metrics-port",
            metavar="[ADDRESS:]PORT",
            help="Serves /metrics, /livez and /readyz at this address. Needs the extra metrics.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        from outbox.consumers.daemon import LeftBehind
        from outbox.service import garbage

        show_log(options["verbosity"])
        garbage.relax()
        try:
            daemon = _daemon(options)
            with ProcessSignals(lambda force: daemon.stop(force=force)) as signals:
                self._run(daemon, options)
        except LeftBehind as error:
            raise CommandError(str(error), returncode=LEFT_BEHIND) from error
        except (OutboxError, conf.ConfErrors, ImportError) as error:
            raise CommandError(str(error)) from error
        if signals.is_forced:
            sys.exit(FORCED)

    def _run(self, daemon: Any, options: dict[str, Any]) -> None:
        from outbox.consumers.status import ConsumersLine, state_of

        line = ConsumersLine(daemon, writer(self.stdout)) if self.stdout.isatty() and not options["json"] else None

        def show() -> None:
            if options["json"]:
                self.stdout.write(json.dumps(state_of(daemon)))
            elif line:
                line.show()

        port = options["metrics_port"]
        try:
            with _serving(daemon, port) if port else nullcontext(), daemon:
                while not daemon.wait(1.0):
                    if not options["once"] or line:
                        show()
        finally:
            if options["once"] and options["json"]:
                show()
            elif line:
                line.close()
        if options["once"] and not options["json"]:
            for name, handled in daemon.handled.items():
                self.stdout.write(f"{name}: handled {handled:,}")


def _serving(daemon: Any, port: str) -> AbstractContextManager[Any]:
    from outbox.contrib.consumer_metrics import registry_of
    from outbox.contrib.exposition import page_of
    from outbox.service.http import listening

    return listening(daemon, port, page_of(registry_of(daemon, conf.current().name)))


def _daemon(options: dict[str, Any]) -> Any:
    from outbox.consumers.daemon import Consumers
    from outbox.consumers.registry import registered
    from outbox.consumers.servers import Preflight, runs_of

    settings, everything = conf.current(), registered()
    if unknown := [name for name in options["names"] if name not in everything]:
        known = ", ".join(everything) or "none"
        raise CommandError(f"No consumer is called {', '.join(unknown)}. Known consumers: {known}.", returncode=2)
    found = [everything[name] for name in options["names"]] or list(everything.values())
    if not found:
        raise CommandError("No app has a consumer. Declare one with outbox.consumer in the module inbox of an app.")
    threads = settings.consumers.consumer_threads if options["threads"] is None else options["threads"]
    if threads < 1:
        raise CommandError(f"--threads {threads} is less than 1.", returncode=2)
    fail_fast = options["fail_fast"] or options["once"]
    return Consumers(
        runs_of(settings, found),
        threads=threads,
        once=options["once"],
        prepare=Preflight(settings, found, list(everything), topics=fail_fast),
        fail_fast=fail_fast,
    )
