"""``manage.py outbox_resolve``: explain why a lane has stopped, or settle it as an operator decides."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError

from outbox import conf as settings
from outbox.core.exactly_once.resolution import Case, Resolution, ResolutionOutcome
from outbox.exceptions import OutboxError

EXIT_CODES = {
    0: "nothing to decide, or settled",
    1: "refused or failed, for the reason named: nothing was changed",
    4: "explained only: somebody must decide",
}


class Command(BaseCommand):
    help = "Explain why an exactly-once lane has stopped, with both sides; settle it with --delete-sent or --resend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--lane", type=int, required=True, metavar="N", help="The lane that has stopped.")
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument(
            "--delete-sent",
            action="store_true",
            help="Delete the rows that the newer ledger entries list and that match: they are in Kafka.",
        )
        ways.add_argument(
            "--resend", action="store_true", help="Keep every row: what is in Kafka already is sent once more."
        )
        parser.add_argument(
            "--adopt-ledger", action="store_true", help="Take over a ledger that was written for another database."
        )
        parser.add_argument("--dry-run", action="store_true", help="Say what would be done, and change nothing.")
        parser.add_argument("--database", metavar="ALIAS", help="Alias of the database, instead of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        decision = Resolution(options["delete_sent"], options["resend"], options["adopt_ledger"])
        if decision.adopt and not decision.acts:
            raise CommandError("--adopt-ledger needs --delete-sent or --resend: say what becomes of the rows.")
        outcome = self._run(options, decision)
        is_open = outcome.case.reason is not None and not (decision.acts and not options["dry_run"])
        if options["json"]:
            self.stdout.write(
                json.dumps({**_as_dict(outcome.case), "deleted": outcome.deleted, "settled": not is_open})
            )
        else:
            self.stdout.write("\n".join(_lines(outcome, is_open=is_open)))
        if is_open:
            raise SystemExit(4)

    @staticmethod
    def _run(options: dict[str, Any], decision: Resolution) -> ResolutionOutcome:
        from outbox.core.exactly_once.resolution import objection
        from outbox.harvest.exactly_once.resolve import NotResolved, Resolver

        conf = _conf(options["database"])
        try:
            with Resolver(conf) as resolver:
                if decision.acts and not options["dry_run"]:
                    return resolver.resolve(options["lane"], decision)
                case = resolver.examine(options["lane"])
                reason = objection(case, decision) if decision.acts and case.reason is not None else ""
                if reason:
                    raise NotResolved(f"lane {case.lane} would be left as it is: {reason}.")
                return ResolutionOutcome(case, decision)
        except (OutboxError, psycopg.Error) as error:
            raise CommandError(str(error)) from error


def _conf(alias: str | None) -> settings.Conf:
    from dataclasses import replace

    conf = settings.current()
    if conf.delivery != settings.EXACTLY_ONCE:
        raise CommandError(
            f'OUTBOX["DELIVERY"] is {conf.delivery!r}, which has no ledger: there is nothing to resolve. '
            "Set it as the harvesters have it."
        )
    return replace(conf, database=alias) if alias else conf


def _as_dict(case: Case) -> dict[str, Any]:
    last = case.last
    return {
        "lane": case.lane,
        "database": str(case.database),
        "purged": case.purged,
        "committed": case.committed,
        "reason": str(getattr(case.reason, "value", case.reason)) if case.reason is not None else None,
        "text": case.text,
        "last_entry": last
        and {
            "batch": last.batch,
            "database": str(last.database),
            "owner": str(last.owner),
            "read_at": last.read_at.isoformat(),
            "records": last.count,
        },
        "entries": len(case.listed),
        "entries_missing": case.missing,
        "records_listed": case.records,
        "rows_found": case.found,
        "rows_sent": case.sent,
    }


def _lines(outcome: ResolutionOutcome, *, is_open: bool) -> list[str]:
    case, decision = outcome.case, outcome.decision
    lines = [case.text, f"table:  database {case.database}, last batch purged: {case.purged}"]
    if (last := case.last) is not None:
        lines.append(
            f"ledger: last batch: {last.batch}, of {last.count} records read at {last.read_at.isoformat()} by owner "
            f"{last.owner} from database {last.database}"
        )
    else:
        lines.append("ledger: no entry of this lane")
    if case.reason is None:
        return [*lines, "Nothing was changed."]
    lines += _between(case)
    if is_open:
        return [*lines, *_offers(case, decision)]
    done = f"{outcome.deleted} rows were deleted. " if decision.delete_sent else "No row was deleted. "
    adopted = "The ledger goes on in this database's name. " if case.needs_copy else ""
    return [*lines, f"{done}{adopted}Both sides stand at batch {case.committed} now; the lane goes on within seconds."]


def _between(case: Case) -> list[str]:
    if not case.listed and not case.missing:
        return []
    found = f"{case.sent} match and were sent, {case.found - case.sent} do not (younger, or changed since)"
    lines = [
        f"between: {len(case.listed)} entries list {case.records} records, {case.found} of them in the table: {found}"
    ]
    if case.missing:
        lines.append(
            f"{case.missing} batches have no entry any more (older than LEDGER_RETENTION, or of another database): "
            "rows of theirs that are in the table cannot be told from unsent ones, and are sent again either way"
        )
    return lines


def _offers(case: Case, decision: Resolution) -> list[str]:
    if decision.delete_sent:
        return [f"Would delete {case.sent} rows and set the table to batch {case.committed}. Nothing was changed."]
    if decision.resend:
        return [f"Would keep every row and set the table to batch {case.committed}. Nothing was changed."]
    return ["Nothing was changed. Run this again with the option that you choose."]
