"""``manage.py outbox_lanes``: shows the lane count and the owners, or requests another count and waits for it.

The owner of lane 0 carries the change out. This command only writes the request into the state row and reads it.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from outbox import conf as settings
from outbox.core.exactly_once.decisions import StateRow
from outbox.edges.postgres.common import table
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.exceptions import OutboxError

EXIT_CODES = {
    0: "the command has shown the lanes, or the count was changed as requested",
    1: "the request was refused or has failed, as the command says; the count is as before",
    3: "the change was not done within --wait; the next owner of lane 0 carries the request out",
}
_ALIVE_S = 10.0  # heartbeats come every two seconds
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Owner:
    lane: int
    name: str
    seconds_ago: float

    @property
    def is_alive(self) -> bool:
        return self.seconds_ago <= _ALIVE_S


@dataclass(frozen=True, slots=True)
class Shown:
    state: StateRow
    note: str
    owners: list[Owner]

    def as_dict(self) -> dict[str, Any]:
        state = self.state
        counts = {"lanes": state.lane_count, "wanted": state.wanted, "closed_for": state.resize_to}
        return {**counts, "note": self.note, "owners": [asdict(owner) for owner in self.owners]}

    @property
    def is_lane_0_alive(self) -> bool:
        return any(owner.lane == 0 and owner.is_alive for owner in self.owners)


class Command(BaseCommand):
    help = "Shows the lanes and their owners, or changes the number of lanes while harvesters run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument(
            "lanes", type=int, nargs="?", metavar="N", help="The new lane count. The present count cancels a request."
        )
        parser.add_argument(
            "--wait", type=float, default=60.0, metavar="SECONDS", help="The time to wait for the change (60)."
        )
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Prints one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        conf = settings.current()
        requested = options["lanes"]
        if conf.delivery != settings.EXACTLY_ONCE:
            raise CommandError(
                f'OUTBOX["DELIVERY"] is {conf.delivery!r}, which takes its lane count from the setting LANES '
                f"({conf.election.lanes}). Stop every harvester, change LANES, add partitions to the leader topic, and "
                "start the harvesters."
            )
        if requested is not None and not 1 <= requested <= settings.LANES_MAX:
            raise CommandError(f"{requested} is not a valid lane count. Set a number from 1 to {settings.LANES_MAX}.")
        try:
            with closing(_Row(conf, options["database"] or conf.database)) as row:
                shown = row.show() if requested is None else self._change(row, requested, options["wait"])
        except (OutboxError, psycopg.Error) as error:
            raise CommandError(f"The command cannot read or change the lane count: {error}") from error
        self._print(shown, as_json=options["json"])

    def _change(self, row: _Row, requested: int, wait_s: float) -> Shown:
        row.request(requested)
        give_up_at = time.monotonic() + wait_s
        is_told = False
        while True:
            shown = row.show()
            state = shown.state
            if state.lane_count == requested and state.wanted is None and state.resize_to is None:
                return shown
            if state.wanted != requested and state.resize_to != requested:
                raise CommandError(_refusal(shown, requested))
            if time.monotonic() >= give_up_at:
                raise CommandError(_overdue(shown, requested, wait_s), returncode=3)
            if not is_told and not shown.is_lane_0_alive and state.resize_to is None:
                is_told = True
                self.stderr.write(f"The command waits up to {wait_s:g} s for an owner of lane 0 ({_lane_0(shown)}).")
            time.sleep(_POLL_S)

    def _print(self, shown: Shown, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(shown.as_dict()))
            return
        state = shown.state
        self.stdout.write(f"lanes: {state.lane_count}" + _pending(state))
        if shown.note:
            self.stdout.write(f"the last request was refused: {shown.note}")
        owners = {owner.lane: owner for owner in shown.owners}
        for lane in range(state.lane_count):
            owner = owners.get(lane)
            self.stdout.write(f"lane {lane}: " + (_described(owner) if owner else "no owner"))


class _Row:
    """The state row, on a connection of its own."""

    def __init__(self, conf: settings.Conf, alias: str) -> None:
        self._lanes = conf.election.lanes
        self._connection = companions.connect(
            table.parameters(alias),
            statement_timeout_s=conf.harvest.statement_timeout_s,
            application_name="outbox lanes",
        )
        self._timeout_s = conf.harvest.statement_timeout_s
        self._statements = self._ask(
            lambda connection: Companions(conf.table, companions.sequence_of(connection, conf.table))
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        self._connection.give_up_at = time.monotonic() + self._timeout_s
        return question(self._connection)

    def show(self) -> Shown:
        return Shown(
            self._ask(lambda connection: self._statements.state(connection, self._lanes))[1],
            self._ask(self._statements.resize_note),
            [Owner(*found) for found in self._ask(self._statements.owners)],
        )

    def request(self, lanes: int) -> None:
        state = self.show().state
        if state.resize_to is None and state.lane_count == lanes:
            if state.wanted is not None:
                self._ask(lambda connection: self._statements.refuse_request(connection, state.wanted, ""))
        elif state.resize_to != lanes:
            self._ask(lambda connection: self._statements.request(connection, lanes))

    def close(self) -> None:
        self._connection.close()


def _pending(state: StateRow) -> str:
    if state.resize_to is not None:
        return f" (closed: the owner of lane 0 changes the count to {state.resize_to})"
    return f" (a change to {state.wanted} is requested)" if state.wanted is not None else ""


def _described(owner: Owner) -> str:
    if owner.is_alive:
        return f"{owner.name} (heartbeat {owner.seconds_ago:.1f} s ago)"
    return f"no owner; the last one was {owner.name}, {owner.seconds_ago:.0f} s ago"


def _lane_0(shown: Shown) -> str:
    return next((_described(owner) for owner in shown.owners if owner.lane == 0), "lane 0 has no owner")


def _refusal(shown: Shown, requested: int) -> str:
    count = shown.state.lane_count
    reason = shown.note or "another operator has requested another count in the meantime"
    return f"The lane count is {count}, not {requested}: {reason}{_pending(shown.state)}"


def _overdue(shown: Shown, requested: int, wait_s: float) -> str:
    count = shown.state.lane_count
    if shown.state.resize_to is not None:
        return (
            f"The change of the lane count from {count} to {requested} did not end within {wait_s:g} s. The lanes stay "
            f"closed until the owner of lane 0 has completed it ({_lane_0(shown)}). Read its log, or start a harvester."
        )
    return (
        f"The lane count is still {count} after {wait_s:g} s, because the owner of lane 0 has not started the change "
        f"({_lane_0(shown)}). Start a harvester, or search its log for lane_stopped. The next owner of lane 0 carries "
        f"out the request for {requested} lanes. To cancel it, run: manage.py outbox_lanes {count}"
    )
