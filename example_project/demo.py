"""The demo that ``make demo`` runs inside the devstack, from a Django transaction to a counted Kafka topic.

Each step is a command that a user would run. A consumer that knows nothing of outbox counts the messages at the end.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TOPIC = "heroes"
HEROES = 5_000
QUIET_S = 3.0
COUNT_TIMEOUT_S = 60.0
ROLLED_BACK_POWER = "never was"  # make_heroes gives it to heroes whose transaction it rolls back
STOP_TIMEOUT_S = 15.0
ADMIN = ("--noinput", "--username", "admin", "--email", "admin@localhost")


def step(text: str) -> None:
    print(f"· {text}", file=sys.stderr, flush=True)


def run_command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(HERE / "manage.py"), *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )


def manage(*arguments: str) -> str:
    done = run_command(*arguments)
    if done.returncode:
        sys.exit(f"demo: manage.py {' '.join(arguments)} failed with exit code {done.returncode}.\n{done.stdout}")
    return done.stdout


def create_topic(servers: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})  # must live until its futures are done
    try:
        admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


@dataclass
class Seen:
    """The messages that a consumer found on the topic."""

    times: Counter[str] = field(default_factory=Counter)  # per message id
    phantoms: int = 0  # messages of transactions that were rolled back
    first_ms: int = 0
    last_ms: int = 0

    def add(self, message_id: str, value: bytes, timestamp_ms: int) -> None:
        if ROLLED_BACK_POWER.encode() in value:
            self.phantoms += 1
            return
        self.times[message_id] += 1
        self.first_ms = min(self.first_ms or timestamp_ms, timestamp_ms)
        self.last_ms = max(self.last_ms, timestamp_ms)

    @property
    def rate(self) -> float:
        return len(self.times) / max((self.last_ms - self.first_ms) / 1000, 0.001)


def count(servers: str, run: str, expected: int) -> Seen:
    """The messages of this run, as a `read_committed` consumer sees them. It shows their number once a second."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"demo-{run}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    seen = Seen()
    deadline, quiet_since = time.monotonic() + COUNT_TIMEOUT_S, time.monotonic()
    shown_at = time.monotonic()
    try:
        # It reads for a while after the last expected message, because a duplicate would come late.
        while time.monotonic() < deadline and (len(seen.times) < expected or time.monotonic() < quiet_since + QUIET_S):
            for message in consumer.consume(1000, 0.2):
                if message.error():
                    continue
                headers = dict(message.headers() or [])
                if headers.get("run") == run.encode():
                    seen.add(headers["message-id"].decode(), message.value() or b"", message.timestamp()[1])
                    quiet_since = time.monotonic()
            if time.monotonic() >= shown_at + 1:
                shown_at = time.monotonic()
                waits = ", waiting for duplicates" if len(seen.times) >= expected else ""
                step(f"  {len(seen.times):,} of {expected:,}{waits}")
    finally:
        consumer.close()
    return seen


def origins() -> list[tuple[str, str]]:
    """Version and origin of each part that ran, from the devstack."""
    from outbox.devstack import origin

    return [(name, f"{part['version']}  ({part['origin']})") for name, part in origin().items()]


def table(rows: list[tuple[str, Any]]) -> None:
    width = max(len(name) for name, _ in rows)
    print()
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heroes", type=int, default=HEROES, help=f"the number of heroes ({HEROES})")
    parser.add_argument("--serve", action="store_true", help="keeps the site and the admin running until Ctrl-C")
    parser.add_argument("--spark", action="store_true", help="harvests with Spark, and verifies the result with Spark")
    parser.add_argument("--port", type=int, default=8000, help="the port of the site (8000)")
    arguments = parser.parse_args()
    servers = os.environ["OUTBOX_BOOTSTRAP_SERVERS"]
    os.environ.setdefault("OUTBOX_NAME", "heroes-demo")
    # Not a secret: this process and its database end with the demo.
    os.environ.setdefault("SECRET_KEY", os.urandom(16).hex())
    run = os.urandom(8).hex()

    step("migrating the database")
    manage("migrate", "--verbosity", "0")
    create_topic(servers)
    step(f"making {arguments.heroes:,} heroes, each in one transaction with its message")
    made = json.loads(manage("make_heroes", str(arguments.heroes), "--run", run, "--json"))
    checkpoint = tempfile.TemporaryDirectory(prefix="outbox-demo-spark-")
    engine = ("--engine", "spark", "--checkpoint", checkpoint.name) if arguments.spark else ()
    step(f"moving their messages to Kafka: manage.py harvest --once{' --engine spark' if arguments.spark else ''}")
    manage("harvest", "--once", *engine)
    step("counting with an independent read_committed consumer")
    seen = count(servers, run, made["stashed"])
    lost, doubled = made["stashed"] - len(seen.times), sum(times - 1 for times in seen.times.values())

    table(
        [
            *origins(),
            ("stashed", f"{made['stashed']:,}  ({made['rolled_back']:,} more rolled back)"),
            ("delivered", f"{len(seen.times):,}"),
            ("lost", f"{lost:,}"),
            ("doubled", f"{doubled:,}"),
            ("phantoms", f"{seen.phantoms:,}"),
            ("rate", f"{seen.rate:,.0f} records/s between the first and the last on the topic"),
        ]
    )
    if lost or doubled or seen.phantoms:
        print("demo: messages were lost, doubled or rolled back; these three numbers must be 0.", file=sys.stderr)
        return 1
    if arguments.spark and (code := verify()):
        return code
    return serve(f"127.0.0.1:{arguments.port}", engine) if arguments.serve else 0


def verify() -> int:
    """One Spark job compares topics, ledger and table."""
    step("comparing topics, ledger and table: manage.py outbox_verify")
    done = run_command("outbox_verify")
    print(done.stdout, end="", flush=True)
    return done.returncode


def serve(address: str, engine: tuple[str, ...] = ()) -> int:
    """Runs site, admin, harvester and consumer until Ctrl-C, or until one of them ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that the child processes end with this one
    os.environ.setdefault("DJANGO_SUPERUSER_PASSWORD", "admin")
    step("making the admin's account")
    subprocess.run(
        [sys.executable, str(HERE / "manage.py"), "createsuperuser", *ADMIN],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    # runserver serves the admin's style sheets only under DEBUG; a harvester under DEBUG would keep every query.
    commands = {
        ("runserver", "--noreload", address): "1",
        ("consume_heroes",): "0",
        ("harvest", "-v", "0", *engine): "0",
    }
    children: list[subprocess.Popen[bytes]] = []
    try:
        for command, debug in commands.items():
            environment = {**os.environ, "DEBUG": os.environ.get("DEBUG", debug)}
            # In a group of its own: otherwise Ctrl-C and SIGTERM would be two signals, and the second forces the stop.
            child = subprocess.Popen(
                [sys.executable, str(HERE / "manage.py"), *command], env=environment, process_group=0
            )
            children.append(child)
        step(f"site http://{address}/heroes/ · admin http://{address}/admin/ (admin, admin) · Ctrl-C stops")
        while all(child.poll() is None for child in children):
            time.sleep(0.2)
        ended = [command[0] for command, child in zip(commands, children, strict=True) if child.poll() is not None]
    except KeyboardInterrupt:
        return 0
    finally:
        end(children)
    print(f"demo: {', '.join(ended)} ended before Ctrl-C; the output above names the cause.", file=sys.stderr)
    return 1


def end(children: "list[subprocess.Popen[bytes]]") -> None:
    for child in children:
        child.terminate()
    for child in children:
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()


if __name__ == "__main__":
    sys.exit(main())
