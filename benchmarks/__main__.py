"""`python -m benchmarks`, as `make bench` runs it: measures part by part and prints one table.

make bench                          three rounds
make bench ARGS="--rounds 1"        the quick form
make bench ARGS="--only latency"    one part; --list names them
make bench ARGS="--full"            also the long rows: consumers, 5 million records, 30,000 batches, Debezium
make bench ARGS="--json FILE"       also writes the figures into a file, for python -m benchmarks.chart
make bench ARGS="--brief"           a row of every part in five minutes, to see that each still runs
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bad_days, consume, contention, latency, spark, stash, verify
from benchmarks.drains import FEW, RECORDS, Drains
from benchmarks.report import Table, say
from benchmarks.servers import Fill, database, describe, required

_WARM_DRAINS = 3


@dataclass(frozen=True)
class Part:
    what: str
    run: Callable[[Drains], None]
    brief: Callable[[Drains], None] | None
    """Runs one row of it in seconds. None where the brief form of another part runs the same code."""
    long: bool = False
    once: bool = False
    """Not in every round."""


PARTS = {
    "drain": Part(
        "the drain, its ceilings, keys, lanes, header, cost",
        lambda drains: drains.main(RECORDS),
        lambda drains: drains.main(FEW, brief=True),
    ),
    "lanes": Part(
        "6 lanes in one process, compared with 1",
        lambda drains: drains.lanes(RECORDS),
        lambda drains: drains.lanes(FEW, warm=0),
    ),
    "baseline": Part(
        "one DELETE per record, the older method",
        lambda drains: drains.baseline(),
        lambda drains: drains.baseline(brief=True),
    ),
    "at-least-once": Part(
        "at-least-once, for comparison",
        lambda drains: drains.at_least_once(RECORDS // 4),
        lambda drains: drains.at_least_once(FEW // 4, brief=True),
    ),
    "latency": Part(
        "commit to consumer, at 200 and 1,000 records/s",
        lambda drains: latency.rates(drains, 8),
        lambda drains: latency.rates(drains, 3, partitions=(1,), per_s=(200,)),
    ),
    "silence": Part(
        "the first record after a silence, polled and woken",
        lambda drains: latency.silences(drains, 0.5, 12),
        lambda drains: latency.silences(drains, 0.5, 6, brief=True),
    ),
    "minute": Part(
        "the same after a minute", lambda drains: latency.silences(drains, 60, 10), None, long=True, once=True
    ),
    "payloads": Part(
        "records of 1 kB and 10 kB, and with five headers",
        lambda drains: drains.payloads(),
        lambda drains: drains.payloads(["5 headers"]),
    ),
    "pinned": Part(
        "a pinned xmin horizon, no autovacuum",
        lambda drains: drains.pinned(RECORDS),
        lambda drains: drains.pinned(FEW, brief=True),
    ),
    "stash": Part(
        "stash() and stash_many() compared with bare statements",
        stash.rows,
        lambda drains: stash.rows(drains, brief=True),
    ),
    "ordered": Part(
        "stash(ordered=True) under contention", contention.rows, lambda drains: contention.rows(drains, [1], 1.0)
    ),
    "consume": Part(
        "consumers: rates, locks, and the time from service to service", consume.rows, consume.brief, long=True
    ),
    "poison": Part(
        "a record that Kafka rejects, among 1,000 keys",
        lambda drains: bad_days.poison(drains),
        lambda drains: bad_days.poison(drains, FEW, ["for the client"]),
        once=True,
    ),
    "poison-long": Part(
        "the same in a drain of half a minute",
        lambda drains: bad_days.poison(drains, 4_000_000),
        None,
        long=True,
        once=True,
    ),
    "behind": Part(
        "rejected records in front of all others",
        lambda drains: bad_days.behind(drains),
        lambda drains: bad_days.behind(drains, FEW, 200, brief=True),
        once=True,
    ),
    "outage": Part(
        "Kafka unavailable, a million records behind",
        lambda drains: bad_days.outage(drains, 1_000_000),
        lambda drains: bad_days.outage(drains, FEW, away_s=1.0),
        once=True,
    ),
    "sampling": Part(
        "what metrics and the admin's samples cost",
        lambda drains: bad_days.sampling(drains),
        lambda drains: bad_days.sampling(drains, FEW),
        once=True,
    ),
    "spark": Part(
        "Spark: the naive sink compared with KafkaSink",
        spark.rows,
        lambda drains: spark.brief(drains, FEW),
        long=True,
        once=True,
    ),
    "verify": Part(
        "Spark: the verification compared with a count of the topic",
        lambda drains: verify.verified(drains),
        lambda drains: verify.verified(drains, FEW),
        once=True,
    ),
    "verify-large": Part(
        "Spark: outbox_verify of 10 million records, with its memory",
        lambda drains: verify.large(drains),
        lambda drains: verify.large(drains, FEW),
        long=True,
        once=True,
    ),
    "held-keys": Part(
        "resident memory of a consumer that holds 100,000 keys",
        lambda drains: consume.held_keys(drains, 100_000),
        lambda drains: consume.held_keys(drains, 1_000),
        long=True,
        once=True,
    ),
    "debezium": Part(
        "Debezium's outbox router on Kafka Connect",
        lambda drains: drains.debezium(100_000),
        lambda drains: drains.debezium(10_000),
        long=True,
        once=True,
    ),
    "flat": Part(
        "latency of 30,000 batches while xmin is pinned",
        lambda drains: latency.flat(drains, 30_000),
        lambda drains: latency.flat(drains, 600),
        long=True,
        once=True,
    ),
    "backlog": Part(
        "5 million records",
        lambda drains: drains.backlog(5_000_000),
        lambda drains: drains.backlog(2 * FEW, FEW),
        long=True,
        once=True,
    ),
}


def main() -> None:
    options = _arguments()
    if options.list:
        print("\n".join(f"{name:12} {part.what}" for name, part in PARTS.items()))
        return
    server, servers = required()
    table, begun = Table(), time.monotonic()
    failed: list[str] = []
    chosen = _chosen(options)
    with database(server, servers) as place:
        drains = Drains(table, place, server, servers)
        if not options.brief:
            say("warming up")
            _warm(drains)
        for number in range(options.rounds):
            for name, run in chosen.items():
                if not (PARTS[name].once and number):
                    say(f"round {number + 1} of {options.rounds}: {name}")
                    _run(name, run, drains, failed)
    head = describe(server)
    head.append(
        f"{options.rounds} rounds in {time.monotonic() - begun:.0f} s; load: the load average of the machine "
        "over a minute"
    )
    table.show(head)
    if options.json:
        table.write(options.json, command(sys.argv[1:]), head)
    if failed:
        sys.exit("\nNot measured:\n" + "\n".join(failed))


def _chosen(options: argparse.Namespace) -> dict[str, Callable[[Drains], None]]:
    """The parts of this run; the brief form has all of them."""
    names = options.only or PARTS
    if options.brief:
        return {name: brief for name in names if (brief := PARTS[name].brief)}
    return {name: PARTS[name].run for name in names if options.only or options.full or not PARTS[name].long}


def _warm(drains: Drains) -> None:
    """A broker that has just started compiles its own code for half a minute, on the cores of the measurement."""
    for _ in range(_WARM_DRAINS):
        drains.drain(Fill(RECORDS))
    latency.warm(drains)


def _run(name: str, run: Callable[[Drains], None], drains: Drains, failed: list[str]) -> None:
    """A failure costs the rows of its own part only."""
    try:
        run(drains)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        failed.append(f"{name}: {error}")


def command(arguments: list[str]) -> str:
    """The command as typed, without the file for the figures."""
    options = re.sub(r"--json[= ]\S+", "", " ".join(arguments)).split()
    return f'make bench ARGS="{" ".join(options)}"' if options else "make bench"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--brief", action="store_true", help="measure one round of few records, a row of each part, cold"
    )
    parser.add_argument("--full", action="store_true", help="measure the long rows as well")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="measure only these parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file as well")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    options = parser.parse_args()
    if options.brief:
        options.rounds = 1
    return options


if __name__ == "__main__":
    main()
