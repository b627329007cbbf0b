"""``manage.py outbox_graph``: checks message graphs, draws them, runs one."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from outbox import conf
from outbox.core.graphs.declaration import InvalidGraph
from outbox.exceptions import OutboxError
from outbox.management.logs import show_log
from outbox.service.process_signals import FORCED, ProcessSignals

EXIT_CODES = {
    0: "check: no mistake; run: stopped after the batches under way were finished",
    1: "a mistake, or stopped for an error, which the last line names",
    2: "the arguments are wrong",
    FORCED: "forced by a second signal: what was under way is given up, and its successor repeats it",
}


class Command(BaseCommand):
    help = "Checks the message graphs of the modules `inbox`, draws them, or runs one. You can run several processes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parts = parser.add_subparsers(dest="act", required=True, metavar="{check,topology,run}")
        check = parts.add_parser("check", help="Names every mistake of every graph. Asks no server.")
        check.add_argument("names", nargs="*", metavar="NAME", help="Checks these graphs only.")
        topology = parts.add_parser("topology", help="Shows processors and topics.")
        topology.add_argument("names", nargs="*", metavar="NAME", help="Shows these graphs only.")
        topology.add_argument("--mermaid", action="store_true", help="Prints a flowchart for documents.")
        run = parts.add_parser("run", help="Runs the processors of a graph, and its sinks.")
        run.add_argument("name", metavar="NAME", help="The graph.")
        run.add_argument(
            "--only", action="append", metavar="PROCESSOR", help="Runs this processor only. Can be given several times."
        )
        run.add_argument("--json", action="store_true", help="Prints the state as a JSON object each second.")
        run.add_argument(
            "--fail-fast", action="store_true", help="Exits with an error if Kafka is unavailable at the start."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        from outbox.graphs.registry import registered

        try:
            graphs = registered()
            if options["act"] == "run":
                self._run(_chosen(graphs, [options["name"]])[options["name"]], options)
                return
            found = _chosen(graphs, options["names"])
            if options["act"] == "check":
                self._check(found)
            else:
                self._show(found, mermaid=options["mermaid"])
        except InvalidGraph as error:
            raise CommandError("\n".join(error.mistakes)) from error
        except (OutboxError, conf.ConfErrors, ImportError) as error:
            raise CommandError(str(error)) from error

    def _check(self, graphs: Mapping[str, Any]) -> None:
        mistakes = []
        for name, graph in graphs.items():
            try:
                value = graph.value
            except InvalidGraph as error:
                mistakes += [f"{name}: {text}" for text in error.mistakes]
            else:
                self.stdout.write(f"{name}: {len(value.processors)} processors, no mistake")
        if mistakes:
            raise CommandError("\n".join(mistakes))

    def _show(self, graphs: Mapping[str, Any], *, mermaid: bool) -> None:
        from outbox.core.graphs import topology

        draw = topology.mermaid if mermaid else topology.text
        self.stdout.write("\n\n".join(draw(graph.value) for graph in graphs.values()))

    def _run(self, graph: Any, options: dict[str, Any]) -> None:
        from outbox.service import garbage

        show_log(options["verbosity"])
        garbage.relax()
        daemon = _daemon(graph, options)
        with ProcessSignals(lambda force: daemon.stop(force=force)) as signals, daemon:
            while not daemon.wait(1.0):
                if options["json"]:
                    self.stdout.write(json.dumps(daemon.state_of_all))
        if signals.is_forced:
            sys.exit(FORCED)


def _chosen(graphs: Mapping[str, Any], names: list[str]) -> Mapping[str, Any]:
    if unknown := [name for name in names if name not in graphs]:
        known = ", ".join(graphs) or "none"
        raise CommandError(f"No graph is called {', '.join(unknown)}. Known graphs: {known}.", returncode=2)
    if not graphs:
        raise CommandError("No app has a graph. Declare one with outbox.Graph in the module inbox of an app.")
    return {name: graphs[name] for name in names} if names else graphs


def _daemon(graph: Any, options: dict[str, Any]) -> Any:
    from outbox.consumers.daemon import Consumers
    from outbox.consumers.registry import registered
    from outbox.consumers.servers import Preflight, runs_of
    from outbox.graphs.daemon import GraphDaemon
    from outbox.graphs.processing import Processing
    from outbox.graphs.servers import LookAtTopics, ServersOfProcessor, options_of
    from outbox.runtime.threads import THREADS

    settings, value, only = conf.current(), graph.value, options["only"]
    known = {one.name for one in value.processors}
    if unknown := sorted(set(only or ()) - known):
        raise CommandError(
            f"The graph {value.name!r} has no processor {', '.join(unknown)}. It has: {', '.join(sorted(known))}.",
            returncode=2,
        )
    chosen = [one for one in value.processing if only is None or one.name in only]
    servers = [ServersOfProcessor(settings, value, one) for one in chosen]
    consumers = [one for one in graph.sinks if only is None or one.name.rpartition(".")[2] in only]
    sinks = None
    if consumers:
        prepare = Preflight(settings, consumers, list(registered()), topics=options["fail_fast"])
        sinks = Consumers(
            runs_of(settings, consumers),
            threads=settings.consumers.consumer_threads,
            prepare=prepare,
            fail_fast=options["fail_fast"],
        )

    careful_turn = THREADS.lock("careful turn")

    def make(fail: Any) -> list[Processing]:
        return [
            Processing(
                one, options_of(settings, value), server.maker(), server.steps(), server, careful_turn, fail=fail
            )
            for one, server in zip(chosen, servers, strict=True)
        ]

    return GraphDaemon(value.name, make, sinks=sinks, prepare=LookAtTopics(servers), fail_fast=options["fail_fast"])
