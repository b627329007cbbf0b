"""``manage.py outbox_pump``: makes a plan from the arguments, runs the pump, and prints its numbers."""

import json
import sys
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from outbox.devstack.pump import Numbers, Pump, PumpPlan
from outbox.exceptions import OutboxError

INTERRUPTED = 130  # what shells report for Ctrl-C
BAR_WIDTH = 30


class Command(BaseCommand):
    help = "Writes load into the outbox table: transactions of 20 records whose order and completeness can be checked."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = (
            f"Exit codes: 0: all records are written; 1: an error, which the last line names; 2: the arguments are "
            f"wrong; {INTERRUPTED}: Ctrl-C ended the command early, and it wrote the transactions in flight."
        )
        add = parser.add_argument
        add(
            "--keys",
            type=int,
            required=True,
            metavar="N",
            help="The number of different keys: key-0, key-1, ... in hex.",
        )
        add(
            "--records",
            type=int,
            required=True,
            metavar="N",
            help="The number of records to commit; rolled-back ones come on top.",
        )
        add(
            "--interval",
            type=float,
            default=0,
            metavar="MS",
            help="The milliseconds per record and writer. Default: 0.",
        )
        add("--topic", default="pump", help="The topic of the records. Default: pump.")
        add("--blank", action="store_true", help="Writes NULL values (tombstones).")
        add("--value-size", type=int, metavar="BYTES", help="The size of each value. Default: that of a random number.")
        add(
            "--transactions-per-second",
            type=float,
            metavar="RATE",
            help="The rate of all writers together. Default: no limit.",
        )
        add(
            "--rollback-share",
            type=float,
            default=0,
            metavar="SHARE",
            help="The share of transactions rolled back (0-1).",
        )
        add("--writers", type=int, default=1, metavar="N", help="The number of concurrent connections. Default: 1.")
        add("--database", metavar="ALIAS", help="The database alias. Default: the routers' for writing OutboxRecord.")
        add("--seed", type=int, metavar="N", help="Makes keys, values and rollbacks of each writer repeatable.")
        add("--meter-interval", type=float, default=5, metavar="S", help="The seconds between meter lines. Default: 5.")
        add("--json", action="store_true", help="Prints the summary as one JSON object.")

    def handle(self, *args: Any, meter_interval: float, **options: Any) -> None:
        plan = _plan(options)
        if problems := list(plan.problems()):
            raise CommandError("\n".join(problems))
        if not 0 < meter_interval < 1e6:
            raise CommandError(f"--meter-interval is {meter_interval:g}. Set more than 0 seconds.")
        pump = Pump(plan)
        self.stderr.write(
            f"pumping run={pump.run} keys={plan.keys} records={plan.records} writers={plan.writers} topic={plan.topic}"
        )
        interrupted = self._run(pump, _Display(self, plan, meter_interval))
        self._summarise(pump.numbers(), as_json=options["json"])
        if interrupted:
            sys.exit(INTERRUPTED)

    def _run(self, pump: Pump, display: "_Display") -> bool:
        """Returns when all is written. True: Ctrl-C came, and the writers have ended their transactions."""
        interrupted = False
        pump.start()
        while True:
            try:
                if pump.wait(0.2):
                    display.clear()
                    return interrupted
                display.update(pump.numbers())
            except KeyboardInterrupt:
                if interrupted:
                    raise  # the second Ctrl-C does not wait
                interrupted = True
                pump.stop()
            except (DatabaseError, OutboxError) as error:
                display.clear()
                self._summarise(pump.numbers(), as_json=False)
                raise CommandError(f"A writer failed, and the others have stopped: {error}") from error

    def _summarise(self, numbers: Numbers, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(numbers.as_dict()))
            return
        state = "complete" if numbers.complete else "incomplete"
        self.stdout.write(
            f"{state}: {numbers.committed:,} records committed, {numbers.rolled_back:,} rolled back in "
            f"{numbers.transactions:,} transactions and {numbers.seconds:,.1f} s: {numbers.records_per_second:,.0f} "
            f"records/s. Transactions took {numbers.transaction_ms_p50:g} ms (median), "
            f"{numbers.transaction_ms_p99:g} ms (99%), {numbers.transaction_ms_max:g} ms (longest). Run: {numbers.run}"
        )


def _plan(options: dict[str, Any]) -> PumpPlan:
    names = ("keys", "records", "topic", "blank", "value_size", "transactions_per_second")
    return PumpPlan(
        **{name: options[name] for name in (*names, "rollback_share", "writers", "seed")},
        interval_s=options["interval"] / 1000,
        using=options["database"],
    )


class _Display:
    """A bar on a terminal, and a line from time to time."""

    def __init__(self, command: BaseCommand, plan: PumpPlan, meter_interval_s: float) -> None:
        self._out, self._records, self._interval_s = command.stderr, plan.records, meter_interval_s
        self._terminal = command.stderr.isatty()
        self._last_time, self._last = time.monotonic(), 0

    def update(self, numbers: Numbers) -> None:
        elapsed_s = time.monotonic() - self._last_time
        if elapsed_s >= self._interval_s:
            current = (numbers.committed - self._last) / elapsed_s
            self.clear()
            self._out.write(
                f"meter committed={numbers.committed} rolled_back={numbers.rolled_back} "
                f"rate_current={current:.0f} rate_average={numbers.records_per_second:.0f}"
            )
            self._last_time, self._last = time.monotonic(), numbers.committed
        if self._terminal:
            share = numbers.committed / self._records
            bar = "#" * round(share * BAR_WIDTH)
            self._out.write(
                f"\r[{bar:<{BAR_WIDTH}}] {share:4.0%} {numbers.committed:,} {numbers.records_per_second:,.0f}/s\x1b[K",
                ending="",
            )

    def clear(self) -> None:
        if self._terminal:
            self._out.write("\r\x1b[K", ending="")
