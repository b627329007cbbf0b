"""The program of ``make demo CHAIN=1``, inside the devstack: it places orders while it kills processes, and counts.

An order is stashed by the orders service, harvested to Kafka, and consumed by the payments service, which stashes a
receipt. The receipt is harvested to Kafka, and consumed by the orders service. Each process is killed once with SIGKILL
while it is busy, and started again.
"""

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import psycopg

from example_project.chain.count import Counted, count
from example_project.chain.services import COMMANDS, Process, Service, database
from example_project.demo import STOP_TIMEOUT_S, end, origins, step, table

ORDERS = 20_000
PROCESSES = 2  # of each kind
LANES = 2
PARTITIONS = 4
TICK_S = 0.25  # between two batches of orders
TICKS_OF_A_STEP = 20
BATCH_MAX = 200
SHOWN_EVERY_S = 3.0
QUIET_S = 3.0
LIMIT_S = 240.0
TAKEOVER_S = 9.0  # SESSION_TIMEOUT by default, and 3 s


class Interrupted(Exception):
    """A signal has come. The program stops its processes before it ends."""


class Failed(Exception):
    """The demo cannot go on. The text says why."""


class Chain:
    """The processes of both services, and the orders that go through them."""

    def __init__(
        self, services: list[Service], orders: int, each: int, folder: Path, limit_s: float, signals: Sequence[int]
    ) -> None:
        """`signals`: those that have come."""
        self.orders_service, self.payments_service = services
        self.processes = [
            Process(service, command, number, folder)
            for number in range(1, each + 1)
            for service in services
            for command in COMMANDS
        ]
        self.orders = orders
        self.placed = 0
        self._steps_left: int | None = None
        """Each process is killed, and seen at work again. None: that has not begun."""
        self._pause_s = TAKEOVER_S if each > 1 else 0.0
        self._restarts: list[tuple[float, Process]] = []
        self._tick_at = self._show_at = 0.0
        self._limit_s, self._ends_at = limit_s, time.monotonic() + limit_s
        self._random = random.Random(1)
        self._signals = signals

    def run(self) -> None:
        step(f"starting {len(self.processes)} processes: manage.py harvest and manage.py consume of both services")
        for process in self.processes:
            process.start()
        step("placing one order, and waiting for its receipt")
        self._place(1)
        self._until(lambda: self.orders_service.rows("orders_receipt") > 0, "No receipt has come back")
        step("placing orders, and killing processes")
        self._steps_left = 2 * len(self.processes)
        for _, group in itertools.groupby(self.processes, key=lambda process: process.number):
            killed = list(group)
            for process in killed:
                self._kill(process)
            self._until(lambda: not self._restarts, "A process was not started again")
            for process in killed:
                self._until_busy(process)
                self._steps_left -= 1
            step(f"at work again: {', '.join(process.name for process in killed)}")
        step("placing the other orders, and waiting for the last receipt")
        self._wait(self._is_through)
        step(f"waiting {QUIET_S:g} s for duplicates")
        quiet_until = time.monotonic() + QUIET_S
        self._wait(lambda: time.monotonic() > quiet_until)

    def stop(self) -> None:
        running = [process for process in self.processes if process.is_started]
        step(f"stopping {len(running)} processes")
        for process in running:
            process.child.terminate()
        give_up_at = time.monotonic() + STOP_TIMEOUT_S
        for process in running:
            try:
                process.child.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                step(f"killed {process.name}, which did not stop within {STOP_TIMEOUT_S:g} s")
                process.kill()

    def _kill(self, process: Process) -> None:
        self._until_busy(process)
        process.kill()
        self._steps_left -= 1
        self._restarts.append((time.monotonic() + self._pause_s, process))
        later = f"after {self._pause_s:g} s" if self._pause_s else "at once"
        step(f"killed {process.name} (pid {process.child.pid}) {process.busy_when}; it starts again {later}")

    def _until_busy(self, process: Process) -> None:
        self._until(process.is_busy, f"{process.name} had nothing to do", every_s=0.01)

    def _until(self, condition: Callable[[], bool], failure: str, every_s: float = 0.1) -> None:
        if not self._wait(condition, every_s):
            raise Failed(f"{failure} within {self._limit_s:g} s. Set --limit to more seconds.")

    def _wait(self, condition: Callable[[], bool], every_s: float = 0.1) -> bool:
        """Places orders and starts killed processes again until the condition holds. False: the time is over."""
        while not condition():
            if self._signals:
                raise Interrupted
            now = time.monotonic()
            if now > self._ends_at:
                return False
            if now >= self._tick_at:
                self._tick_at = now + TICK_S
                self._place(self._size())
                self._attend(now)
            time.sleep(every_s)
        return True

    def _size(self) -> int:
        """Of the next batch. Each step needs a process that has something to do, so some orders are left for it."""
        left = self.orders - self.placed
        if self._steps_left:
            return min(left, BATCH_MAX, 1 + left // (self._steps_left * TICKS_OF_A_STEP))
        return min(left, BATCH_MAX) if self._steps_left == 0 else 0

    def _place(self, size: int) -> None:
        if size:
            from example_project.orders.placing import place_orders

            place_orders([Decimal(self._random.randint(1, 99_999)) / 100 for _ in range(size)])
            self.placed += size

    def _attend(self, now: float) -> None:
        for due in [due for due in self._restarts if due[0] <= now]:
            self._restarts.remove(due)
            due[1].start()
        for process in self.processes:
            if process.is_started and process.child.poll() is not None:
                raise Failed(f"{process.name} ended by itself with exit code {process.child.returncode}.")
        if now >= self._show_at:
            self._show_at = now + SHOWN_EVERY_S
            payments, receipts = self._progress()
            step(f"  {self.placed:,} of {self.orders:,} orders placed, {payments:,} payments, {receipts:,} receipts")

    def _progress(self) -> tuple[int, int]:
        return self.payments_service.rows("payments_payment"), self.orders_service.rows("orders_receipt")

    def _is_through(self) -> bool:
        return self.placed == self.orders and min(self._progress()) >= self.orders


@contextlib.contextmanager
def migrated(server_url: str) -> Iterator[list[Service]]:
    """Both services, each with a new database. Their names in Kafka are of this run."""
    run = os.urandom(4).hex()
    topics = {"ORDERS_TOPIC": f"orders-{run}", "RECEIPTS_TOPIC": f"receipts-{run}"}
    services = []
    with contextlib.ExitStack() as stack:
        for name in ("orders", "payments"):
            url = stack.enter_context(database(server_url, f"{name}_{run}"))
            connection = stack.enter_context(psycopg.connect(url, autocommit=True))
            environment = {
                **topics,
                "DATABASE_URL": url,
                "DJANGO_SETTINGS_MODULE": f"example_project.{name}.settings",
                "OUTBOX_NAME": f"{name}-{run}",
                "OUTBOX_LANES": str(LANES),
            }
            services.append(Service(name, url, environment, connection))
        step("migrating two databases, and creating two topics")
        migrations = [service.start("migrate", "--verbosity", "0", process_group=0) for service in services]
        stack.callback(end, migrations)
        create_topics(list(topics.values()))
        if [code for migration in migrations if (code := migration.wait())]:
            raise Failed("manage.py migrate failed; its output is above.")
        yield services


def create_topics(names: list[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"], "log_level": 4})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result(30)


def send_through(orders: int, each: int, folder: Path, limit_s: float, signals: Sequence[int]) -> Counted:
    with migrated(os.environ["DATABASE_URL"]) as services:
        # This process places orders, as a web process of the orders service would.
        os.environ.update(services[0].environment)
        import django

        django.setup()
        chain = Chain(services, orders, each, folder, limit_s, signals)
        try:
            chain.run()
        finally:
            chain.stop()
        step("counting in both databases, in plain SQL")
        return count(*(service.connection for service in services))


def report(counted: Counted, kills: int) -> None:
    table(
        [
            *origins(),
            ("orders", f"{counted.orders:,}  ({counted.not_paid:,} not marked as paid)"),
            ("payments", counted.payments),
            ("receipts", counted.receipts),
            ("killed", f"{kills} processes, each once, while it was busy"),
            ("rate", f"{counted.rate:,.0f} orders/s from the first order to the last receipt"),
            ("order to receipt", f"median {counted.delay_s(0.5):.2f} s, p99 {counted.delay_s(0.99):.2f} s"),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m example_project.chain", description=__doc__)
    parser.add_argument("--orders", type=int, default=ORDERS, help=f"the number of orders ({ORDERS})")
    parser.add_argument(
        "--processes", type=int, default=PROCESSES, help=f"harvesters and consumers of each service ({PROCESSES})"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help=f"the seconds after which it counts what is there ({LIMIT_S:g})"
    )
    arguments = parser.parse_args()
    # They only take note: the program looks at them where it can stop everything that it has started.
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    folder = Path(tempfile.mkdtemp(prefix="outbox-demo-chain-"))
    try:
        counted = send_through(arguments.orders, arguments.processes, folder, arguments.limit, signals)
    except Interrupted:
        shutil.rmtree(folder)
        return 128 + signals[0]
    except Failed as error:
        print(f"demo: {error} The logs of the processes are in {folder}.", file=sys.stderr)
        return 1
    report(counted, len(COMMANDS) * 2 * arguments.processes)
    if counted.is_right(arguments.orders):
        shutil.rmtree(folder)
        return 0
    print(
        "demo: each order must have one payment and one receipt of its amount, and be marked as paid. "
        f"The logs of the processes are in {folder}.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
