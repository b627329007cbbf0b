"""``manage.py harvest``: arguments to settings to the harvester, signals to a stop, results to an exit code."""

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
from outbox.service.process_signals import FORCED, ProcessSignals, Stop

EXIT_CODES = {
    0: "stopped after finishing what was in flight; with --once: nothing that was visible is left in the table",
    1: "stopped for an error, which the last line names; also a stop that ran out of time",
    2: "the arguments are wrong",
    3: "--once: no lane was acquired within --wait",
    4: "--once: records stay behind that are held back or whose lane is stopped, or the drain was stopped early",
    FORCED: "forced by a second signal: what was in flight is sent again by the next harvester",
}
_FLAGS = {"database": "DATABASE", "delivery": "DELIVERY", "name": "NAME", "metrics_interval": "METRICS_INTERVAL"}


class Command(BaseCommand):
    help = "Move records from the outbox table to Kafka. Any number may run: they elect who works."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument(
            "--once", action="store_true", help="Deliver what is visible once a lane is owned, and exit."
        )
        parser.add_argument(
            "--wait", type=float, default=60.0, metavar="SECONDS", help="How long --once waits for a lane (60)."
        )
        parser.add_argument("--database", metavar="ALIAS", help="Alias of the database, instead of DATABASE.")
        parser.add_argument(
            "--delivery", choices=[conf.EXACTLY_ONCE, conf.AT_LEAST_ONCE], help="What is promised, instead of DELIVERY."
        )
        parser.add_argument(
            "--metrics-interval",
            type=float,
            metavar="SECONDS",
            help="Time between readings, instead of METRICS_INTERVAL.",
        )
        parser.add_argument("--name", help="Name of the application in Kafka, instead of NAME.")
        parser.add_argument(
            "--fail-fast", action="store_true", help="Exit with an error when PostgreSQL or Kafka is away at the start."
        )

        parser.add_argument(
            "--metrics-port", metavar="[ADDRESS:]PORT", help="Serve /metrics, /livez and /readyz there."
        )
        _add_spark(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        from outbox.harvest.once import HeldBack, NotElected
        from outbox.service import garbage

        _show_log(options["verbosity"])
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

        def write(text: str) -> None:
            self.stdout.write(text, ending="")
            self.stdout.flush()

        return StatusLine(harvester, Overview(harvester.conf.database, harvester.conf.table), write)


def _settings(options: dict[str, Any]) -> conf.Conf:
    """The settings, with what the flags say instead."""
    from django.conf import settings

    given = {key: options[flag] for flag, key in _FLAGS.items() if options[flag] is not None}
    if not given:
        return conf.current()
    return conf.parse({**(getattr(settings, "OUTBOX", None) or {}), **given})


def _harvester(options: dict[str, Any]) -> tuple[Any, Stop]:
    """And what a signal calls."""
    from outbox.harvest.harvester import Harvester

    if options["engine"] == "spark":
        return _spark_harvester(options)
    harvester = Harvester(_settings(options), fail_fast=options["fail_fast"])
    return harvester, lambda force: harvester.stop(force=force)


def _add_spark(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=["python", "spark"], default="python", help="What moves the records (python)."
    )
    group = parser.add_argument_group("with --engine spark")
    group.add_argument("--master", default="local[*,4]", metavar="URL", help="Spark's master (local[*,4]).")
    group.add_argument(
        "--transform", default="", metavar="PATH", help="Dotted path of a function that takes a DataFrame, returns one."
    )
    group.add_argument(
        "--checkpoint", default="", metavar="PLACE", help="Where Spark keeps it; all harvesters must reach it."
    )
    group.add_argument(
        "--sink", default="", metavar="NAME", help="Names ledger and transactional ids, instead of NAME."
    )
    group.add_argument("--slices", type=int, default=4, help="Kafka transactions and tasks per micro-batch (4).")
    group.add_argument("--max-records", type=int, default=50_000, metavar="N", help="Of a micro-batch (50000).")
    group.add_argument(
        "--spark-conf", action="append", default=[], metavar="NAME=VALUE", help="A setting of Spark; repeatable."
    )
    group.add_argument("--connector", action="store_true", help="Give Spark its own Kafka connector, for --transform.")
    group.add_argument(
        "--resend", action="store_true", help="After a lost checkpoint: send again what may be in Kafka already."
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
        """The batch ends while this process still leads: a micro-batch may take longer than a rebalance waits."""
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


def _show_log(verbosity: int) -> None:
    """Transitions appear on stderr where the project has not said where they should go."""
    logger = logging.getLogger("outbox")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel([logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG][verbosity])
