"""``manage.py harvest``: runs a harvester with the settings and flags, stops it on a signal, sets the exit code."""

from __future__ import annotations

import logging
import sys
import threading
from argparse import ArgumentParser
from contextlib import nullcontext
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox import conf
from outbox.exceptions import OutboxError
from outbox.management.logs import show_log
from outbox.management.terminal import writer
from outbox.service.process_signals import FORCED, ProcessSignals, Stop

EXIT_CODES = {
    0: "the harvester finished the records in flight and stopped; with --once: no record that was visible is left",
    1: "an error ended the harvester, and the last line names it; or a stop ran out of time",
    2: "the arguments are wrong",
    3: "with --once: the harvester acquired no lane within --wait",
    4: "with --once: records are left that are held or whose lane is stopped, or a signal came early",
    FORCED: "a second signal forced the stop; the next harvester sends the records in flight again",
}
_FLAGS = {"database": "DATABASE", "delivery": "DELIVERY", "name": "NAME", "metrics_interval": "METRICS_INTERVAL"}


class Command(BaseCommand):
    help = (
        "Moves records from the outbox table to Kafka. Run one or more: they elect a leader and take over from each "
        "other."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument(
            "--once", action="store_true", help="Delivers the visible records once it owns a lane, and exits."
        )
        parser.add_argument(
            "--wait", type=float, default=60.0, metavar="SECONDS", help="The time that --once waits for a lane (60)."
        )
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        parser.add_argument(
            "--delivery",
            choices=[conf.EXACTLY_ONCE, conf.AT_LEAST_ONCE],
            help="The delivery mode, in place of DELIVERY.",
        )
        parser.add_argument(
            "--metrics-interval",
            type=float,
            metavar="SECONDS",
            help="The time between readings, in place of METRICS_INTERVAL.",
        )
        parser.add_argument("--name", help="The name of the application in Kafka, in place of NAME.")
        parser.add_argument(
            "--fail-fast",
            action="store_true",
            help="Exits with an error if PostgreSQL or Kafka is unavailable at the start.",
        )

        parser.add_argument(
            "--metrics-port", metavar="[ADDRESS:]PORT", help="Serves /metrics, /livez and /readyz at this address."
        )
        _add_spark(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        from outbox.harvest.once import HeldBack, NotElected
        from outbox.service import garbage

        show_log(options["verbosity"])
        garbage.relax()
        try:
            harvester, stop = _harvester(options)
            with ProcessSignals(stop) as signals:
                code = self._drain(harvester, options["wait"]) if options["once"] else self._run(harvester, options)
        except (NotElected, HeldBack) as error:
            raise CommandError(str(error), returncode=3 if isinstance(error, NotElected) else 4) from error
        except (OutboxError, ValueError, conf.ConfErrors) as error:
            raise CommandError(str(error)) from error
        if signals.is_forced:
            sys.exit(FORCED)
        if code:
            sys.exit(code)

    def _run(self, harvester: Any, options: dict[str, Any]) -> int:
        status = self._status(harvester)
        try:
            with _metrics(harvester, options["metrics_port"]), harvester:
                while not harvester.wait(1.0):
                    if status:
                        status.show()
        finally:
            if status:
                status.close()
        return 0

    def _drain(self, harvester: Any, wait_s: float) -> int:
        from outbox.harvest.once import drain, told

        def show(left: int) -> None:
            if self.stderr.isatty():
                self.stderr.write(f"\r\033[K{told(left)} left", ending="")

        drained = drain(harvester, wait_s, show)
        self.stdout.write(str(drained))
        return 0 if drained.left == 0 else 4

    def _status(self, harvester: Any) -> Any:
        if not self.stdout.isatty():
            return None
        from outbox.edges.postgres.counts.overview import Overview
        from outbox.service.status_line import StatusLine

        return StatusLine(harvester, Overview(harvester.conf.database, harvester.conf.table), writer(self.stdout))


def _settings(options: dict[str, Any]) -> conf.Conf:
    """The settings, in which flags replace values."""
    from django.conf import settings

    given = {key: options[flag] for flag, key in _FLAGS.items() if options[flag] is not None}
    if not given:
        return conf.current()
    return conf.parse({**(getattr(settings, "OUTBOX", None) or {}), **given})


def _harvester(options: dict[str, Any]) -> tuple[Any, Stop]:
    """The harvester, and the function that a signal calls."""
    from outbox.harvest.harvester import Harvester

    if options["engine"] == "spark":
        return _spark_harvester(options)
    harvester = Harvester(_settings(options), fail_fast=options["fail_fast"])
    return harvester, lambda force: harvester.stop(force=force)


def _add_spark(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=["python", "spark"], default="python", help="The program that moves the records (python)."
    )
    group = parser.add_argument_group("with --engine spark")
    group.add_argument("--master", default="local[*,4]", metavar="URL", help="The URL of Spark's master (local[*,4]).")
    group.add_argument(
        "--transform",
        default="",
        metavar="PATH",
        help="The dotted path of a function that takes and returns a DataFrame.",
    )
    group.add_argument(
        "--checkpoint",
        default="",
        metavar="PLACE",
        help="The folder of Spark's checkpoint, which all harvesters must reach.",
    )
    group.add_argument(
        "--sink", default="", metavar="NAME", help="The name of ledger and transactional ids, in place of NAME."
    )
    group.add_argument(
        "--slices", type=int, default=4, help="The number of Kafka transactions and tasks per micro-batch (4)."
    )
    group.add_argument(
        "--max-records", type=int, default=50_000, metavar="N", help="The maximum of records per micro-batch (50000)."
    )
    group.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="A setting of Spark. Repeat it for more.",
    )
    group.add_argument("--connector", action="store_true", help="Gives Spark its own Kafka connector, for --transform.")
    group.add_argument(
        "--resend",
        action="store_true",
        help="After a lost checkpoint: sends records again that may be in Kafka already.",
    )


def _spark_harvester(options: dict[str, Any]) -> tuple[Any, Stop]:
    from outbox.harvest.harvester import Harvester
    from outbox.harvest.lease_keeper import owner_name
    from outbox.spark.engine import settings as setup
    from outbox.spark.engine.worker import Engine

    names = ("master", "transform", "checkpoint", "sink", "slices", "max_records", "resend", "connector")
    flags = setup.Flags(config=options["spark_conf"], **{name: options[name] for name in names})
    setup.check(flags)
    for note in setup.notes(flags):
        logging.getLogger("outbox.spark").warning("configuration_note %s", note)
    conf = setup.settled(_settings(options))
    engine = Engine(lambda: setup.job_of(conf, flags))
    harvester = Harvester(
        conf,
        worker_factory=engine,
        check_table=lambda alias, table: setup.look(conf, owner_name()),
        fail_fast=options["fail_fast"],
    )

    def drain() -> None:
        """Ends the batch while this process still leads: a micro-batch may take longer than a rebalance waits."""
        engine.drain()
        harvester.stop()

    def stop(force: bool) -> None:
        if force:
            harvester.stop(force=True)
        else:
            threading.Thread(target=drain, name="outbox-spark-drain", daemon=True).start()

    return harvester, stop


def _metrics(harvester: Any, spec: str | None) -> Any:
    if not spec:
        return nullcontext()
    from outbox.contrib.metrics_server import serving

    return serving(harvester, spec)
