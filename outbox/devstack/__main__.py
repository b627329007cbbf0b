"""Command line: `python -m outbox.devstack run|up|down|status|lock`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from outbox.devstack import keeper, origins
from outbox.devstack.keeper import Place
from outbox.devstack.stack import StackOptions
from outbox.downloads.cache import LOCK_FILE
from outbox.downloads.errors import DevstackError
from outbox.downloads.progress import say
from outbox.exceptions import OutboxError


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    # The arguments after the first "--" are the command, even if they look like options.
    own, command = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    chosen = _parser().parse_args(own)
    chosen.command = command
    try:
        code: int = chosen.do(chosen)
    except OutboxError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outbox.devstack",
        description="Start a real PostgreSQL and Kafka, from wheels and Maven jars, for tests and demos.",
    )
    commands = parser.add_subparsers(required=True, metavar="run|up|down|status|lock")
    run = commands.add_parser("run", help="start both servers, run a command, stop both: run [options] -- COMMAND")
    up = commands.add_parser("up", help="start both servers, keep them running, and print the variables to export")
    keep = commands.add_parser("keep")
    for command in (run, up, keep):
        _add_options(command)
    down = commands.add_parser("down", help="stop the servers that `up` started, and remove their data")
    status = commands.add_parser("status", help="print which servers run, and their versions and origins")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    for command in (up, down, status, keep):
        command.add_argument(
            "--dir", type=Path, default=Path(".devstack"), help="folder of the state (default: %(default)s)"
        )
    lock = commands.add_parser("lock", help="write the lock file of the downloads again, with the newest releases")
    lock.add_argument("--output", type=Path, default=LOCK_FILE, help="the file to write (default: %(default)s)")
    for command, action in ((run, _run), (up, _up), (down, _down), (status, _status), (keep, _keep), (lock, _lock)):
        command.set_defaults(do=action)
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", metavar="3.9|4.1", help="release line of Kafka (default: the newest)")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="brokers of the cluster (default: 1)")
    parser.add_argument(
        "--postgres", metavar="14...18", help="major version of PostgreSQL (default: that of the wheel)"
    )
    parser.add_argument(
        "--kafka-property", metavar="NAME=VALUE", action="append", default=[], help="a broker property; repeatable"
    )
    parser.add_argument(
        "--kafka-java-option",
        metavar="OPTION",
        action="append",
        default=[],
        help="an option of Kafka's JVM, placed after those for short runs; repeatable; write it with an equals sign",
    )
    parser.add_argument(
        "--postgres-setting", metavar="NAME=VALUE", action="append", default=[], help="a server setting; repeatable"
    )


def _options(chosen: argparse.Namespace) -> StackOptions:
    return StackOptions(
        kafka=chosen.kafka,
        brokers=chosen.brokers,
        postgres=chosen.postgres,
        kafka_properties=_pairs("--kafka-property", chosen.kafka_property),
        kafka_java_options=tuple(chosen.kafka_java_option),
        postgres_settings=_pairs("--postgres-setting", chosen.postgres_setting),
    )


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    for text in given:
        if "=" not in text:
            raise DevstackError(f"{option} {text!r} has no value. Write NAME=VALUE.")
    return {name: value for name, _, value in (text.partition("=") for text in given)}


def _option_arguments(chosen: argparse.Namespace) -> list[str]:
    """The options again, as arguments for the keeper."""
    given = [f"--brokers={chosen.brokers}"]
    given += [f"--{name}={value}" for name in ("kafka", "postgres") if (value := getattr(chosen, name))]
    given += [f"--kafka-property={text}" for text in chosen.kafka_property]
    given += [f"--kafka-java-option={text}" for text in chosen.kafka_java_option]
    return given + [f"--postgres-setting={text}" for text in chosen.postgres_setting]


def _run(chosen: argparse.Namespace) -> int:
    from outbox.devstack.run import run

    if not chosen.command:
        raise DevstackError("You gave no command. Write it after a double dash: run [options] -- COMMAND.")
    return run(_options(chosen), chosen.command)


def _up(chosen: argparse.Namespace) -> int:
    _options(chosen)
    origins.check_extra()
    state = keeper.up(Place(chosen.dir), _option_arguments(chosen))
    for name, value in state["environment"].items():
        if name != origins.VARIABLE:
            _out(f"export {name}={shlex.quote(value)}")
    return 0


def _keep(chosen: argparse.Namespace) -> int:
    keeper.keep(Place(chosen.dir), _options(chosen))
    return 0


def _down(chosen: argparse.Namespace) -> int:
    place = Place(chosen.dir)
    say(f"The servers of {place.folder} are stopped." if keeper.down(place) else f"No servers run in {place.folder}.")
    return 0


def _status(chosen: argparse.Namespace) -> int:
    place = Place(chosen.dir)
    state = place.state
    if chosen.json:
        parts = state["origin"] if state else origins.origin()
        _out(json.dumps({**(state or {}), "running": state is not None, "origin": parts}, indent=1))
        return 0
    _out(f"Servers run in {place.folder}:" if state else f"No servers run in {place.folder}.")
    for name, value in (state["environment"] if state else {}).items():
        if name != origins.VARIABLE:
            _out(f"  {name}={value}")
    _show_origin(state["origin"] if state else None)
    return 0


def _show_origin(parts: origins.Origins | None) -> None:
    try:
        shown = parts or origins.origin()
    except OutboxError as error:
        _out(f"  {error}")  # a status always succeeds: it only prints
        return
    for name, part in shown.items():
        _out(f"  {name} {part['version']} from {part['origin']} ({part['path']})")


def _lock(chosen: argparse.Namespace) -> int:
    from outbox.downloads import lock

    lock.regenerate(chosen.output)
    say(f"wrote {chosen.output}")
    return 0


def _out(text: str) -> None:
    print(text)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
