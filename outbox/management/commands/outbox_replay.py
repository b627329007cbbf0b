"""``manage.py outbox_replay``: a consumer handles a range of messages once more, and its position stays."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error as DatabaseError

from outbox import conf as settings
from outbox.core.consumers.overrun import OVERRUN
from outbox.core.consumers.replay import Replay
from outbox.exceptions import OutboxError
from outbox.management.logs import show_log
from outbox.operations import replays
from outbox.operations.arguments import actor_of
from outbox.service.process_signals import FORCED, ProcessSignals

LEFT_BEHIND = 4
EXIT_CODES = {
    0: "every message of the range is handled, or the replays are listed, or the replay is cancelled",
    1: "refused, for the reason named: nothing was begun; or stopped for an error, which the last line names",
    2: "the arguments are wrong",
    LEFT_BEHIND: "stopped before the end of the range: the same command continues there",
    FORCED: "forced by a second signal: what was being handled was rolled back",
    OVERRUN: "a function took longer than its timeout_s, or PostgreSQL did not answer",
}


class Command(BaseCommand):
    help = (
        "Handles a range of messages once more with a consumer. The position of the consumer stays. Without arguments: "
        "lists the replays that have not ended."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("consumer", nargs="?", metavar="NAME", help="The consumer.")
        parser.add_argument("--topic", help="The topic.")
        parser.add_argument("--partition", type=int, metavar="N", help="Replays this partition only.")
        parser.add_argument(
            "--from",
            dest="first",
            metavar="OFFSET|earliest|TIME",
            help="The first offset. TIME is an ISO time, with its offset or in TIME_ZONE: the first message is then "
            "the first one that is not older.",
        )
        parser.add_argument(
            "--to",
            metavar="OFFSET|TIME",
            help="The offset behind the last message. Default: the position of the consumer, which is also the limit.",
        )
        parser.add_argument(
            "--stash",
            action="store_true",
            help="stash() inserts records, which are sent again. Without this option it does nothing in a replay.",
        )
        parser.add_argument("--yes", action="store_true", help="Confirms --stash.")
        parser.add_argument(
            "--again", action="store_true", help="Begins another replay with arguments of one that has ended."
        )
        parser.add_argument(
            "--cancel", action="store_true", help="Ends the replay of NAME in --topic. What it has handled stays."
        )
        parser.add_argument("--threads", type=int, metavar="N", help="The threads, in place of CONSUMER_THREADS.")
        parser.add_argument("--reason", default="", metavar="TEXT", help="The reason, which the audit log keeps.")
        parser.add_argument(
            "--actor",
            default="",
            metavar="NAME",
            help="The operator's name for the audit log. Default: the system user.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Prints which offsets it would handle, and begins nothing."
        )
        parser.add_argument("--json", action="store_true", help="Prints one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        show_log(options["verbosity"])
        try:
            conf = settings.current()
            if options["consumer"] is None:
                self._list(conf, options)
            elif options["cancel"]:
                self._cancel(conf, options)
            else:
                self._replay(conf, options)
        except (OutboxError, settings.ConfErrors, ImportError) as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(f"PostgreSQL: {str(error).strip()} (Run: python manage.py migrate outbox)") from error

    def _list(self, conf: settings.Conf, options: dict[str, Any]) -> None:
        if options["topic"] or options["first"] or options["cancel"]:
            raise CommandError("--topic, --from and --cancel need the NAME of a consumer.", returncode=2)
        from outbox.consumers.registry import registered

        aliases = sorted({conf.database, *(one.using or conf.database for one in registered().values())})
        found = [one for alias in aliases for one in replays.left(conf, alias)]
        if options["json"]:
            self.stdout.write(json.dumps({"replays": [_as_dict(one.replay, one.left) for one in found]}))
            return
        for one in found:
            replay = one.replay
            command = f"outbox_replay {replay.consumer} --topic {replay.topic} {replay.request}"
            self.stdout.write(f"Replay {replay.id}: {sum(one.left.values()):,} offsets are left: {command}")
        if not found:
            self.stdout.write("Every replay has ended.")

    def _cancel(self, conf: settings.Conf, options: dict[str, Any]) -> None:
        if not options["topic"]:
            raise CommandError("--cancel needs --topic.", returncode=2)
        found = replays.cancelled(
            conf, _target(conf, options)[0], options["topic"], actor=actor_of(options), reason=options["reason"]
        )
        if options["json"]:
            self.stdout.write(json.dumps({"cancelled": found.id}))
        else:
            self.stdout.write(f"Replay {found.id} is cancelled. What it has handled stays.")

    def _replay(self, conf: settings.Conf, options: dict[str, Any]) -> None:
        if not options["topic"] or options["first"] is None:
            raise CommandError("A replay needs --topic and --from.", returncode=2)
        if options["threads"] is not None and options["threads"] < 1:
            raise CommandError(f"--threads {options['threads']} is less than 1.", returncode=2)
        target, consumer = _target(conf, options)
        request = replays.ReplayRequest(
            options["topic"], options["first"], options["to"], options["partition"], stashes=options["stash"]
        )
        if request.stashes and not options["dry_run"]:
            self._confirm(options)
        replay, is_new = replays.begun(
            conf,
            target,
            request,
            actor=actor_of(options),
            reason=options["reason"],
            is_again=options["again"],
            dry_run=options["dry_run"],
        )
        if not options["json"]:
            self._say(replay, "would handle" if options["dry_run"] else "begins with" if is_new else "continues with")
        handled = 0 if options["dry_run"] else self._run(conf, consumer, target.alias, replay, options)
        if options["json"]:
            self.stdout.write(json.dumps({**_as_dict(replay), "is_new": is_new, "handled": handled}))
        elif not options["dry_run"]:
            self.stdout.write(f"Replay {replay.id} has ended: handled {handled:,}")

    def _confirm(self, options: dict[str, Any]) -> None:
        said = "With --stash the function stashes its messages again, and a harvester sends them to Kafka."
        if options["yes"]:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"{said} Add --yes to confirm it.", returncode=2)
        if input(f"{said} Type 'yes' to continue: ") != "yes":
            raise CommandError("Nothing was begun.")

    def _say(self, replay: Replay, verb: str) -> None:
        name = f"Replay {replay.id}" if replay.id else "The replay"
        for (topic, number), span in sorted(replay.spans.items()):
            self.stdout.write(f"{name} {verb} {topic}[{number}] from {span.start} to before {span.stop}")

    def _run(self, conf: settings.Conf, consumer: Any, alias: str, replay: Replay, options: dict[str, Any]) -> int:
        from outbox.consumers.daemon import Consumers, LeftBehind
        from outbox.consumers.replay import run_of_replay

        threads = options["threads"] or conf.consumers.consumer_threads
        daemon = Consumers([run_of_replay(conf, consumer, replay)], threads=threads, once=True, fail_fast=True)
        try:
            with ProcessSignals(lambda force: daemon.stop(force=force)) as signals, daemon:
                while not daemon.wait(1.0):
                    pass
        except LeftBehind as error:
            if not replays.is_open(conf, alias, replay):
                raise CommandError(f"Replay {replay.id} was cancelled, or another process has ended it.") from error
            raise CommandError(f"Replay {replay.id} has stopped: {error}", returncode=LEFT_BEHIND) from error
        if signals.is_forced:
            sys.exit(FORCED)
        if not daemon.is_complete:
            raise CommandError(
                f"Replay {replay.id} was stopped before its end. Run the same command once more: it continues there.",
                returncode=LEFT_BEHIND,
            )
        replays.ended(conf, alias, replay)
        return daemon.handled[replay.name]


def _target(conf: settings.Conf, options: dict[str, Any]) -> tuple[replays.Target, Any]:
    from outbox.consumers.registry import registered
    from outbox.consumers.servers import ServersOf

    everything = registered()
    consumer = everything.get(options["consumer"])
    if consumer is None:
        known = ", ".join(everything) or "none"
        raise CommandError(f"No consumer is called {options['consumer']}. Known consumers: {known}.", returncode=2)
    servers = ServersOf(conf, consumer)
    servers.require_postgres()
    return replays.Target(consumer.name, servers.alias, consumer.matches), consumer


def _as_dict(replay: Replay, left: Any = None) -> dict[str, Any]:
    partitions = [
        {"partition": number, "from": span.start, "to": span.stop, **({} if left is None else {"left": left.get(one)})}
        for (one, span) in sorted(replay.spans.items())
        for number in [one.number]
    ]
    return {
        "replay": replay.id or None,
        "consumer": replay.consumer,
        "topic": replay.topic,
        "stash": replay.stashes,
        "request": replay.request,
        "partitions": partitions,
    }
