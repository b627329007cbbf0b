"""``manage.py outbox_resolve``: explains why a lane has stopped, or settles it as an operator decides."""

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
    0: "the lane needs no decision, or the command has settled it",
    1: "the command has printed an error, and has changed nothing",
    4: "the command has only explained the lane, and you must decide",
}


class Command(BaseCommand):
    help = "Explains why an exactly-once lane has stopped, or settles it with --delete-sent or --resend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--lane", type=int, required=True, metavar="N", help="The lane that has stopped.")
        ways = parser.add_mutually_exclusive_group()
        ways.add_argument(
            "--delete-sent",
            action="store_true",
            help="Deletes the rows that match the newer ledger entries, because they are in Kafka.",
        )
        ways.add_argument(
            "--resend",
            action="store_true",
            help="Keeps every row; the harvester sends again those that are in Kafka.",
        )
        parser.add_argument(
            "--adopt-ledger", action="store_true", help="Takes over a ledger that was written for another database."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Prints what the command would change, and changes nothing."
        )
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Prints one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        decision = Resolution(options["delete_sent"], options["resend"], options["adopt_ledger"])
        if decision.adopt and not decision.acts:
            raise CommandError(
                "--adopt-ledger needs --delete-sent or --resend. Add one of them to decide about the rows."
            )
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
                    raise NotResolved(f"This decision would not change lane {case.lane}: {reason}.")
                return ResolutionOutcome(case, decision)
        except (OutboxError, psycopg.Error) as error:
            raise CommandError(str(error)) from error


def _conf(alias: str | None) -> settings.Conf:
    from dataclasses import replace

    conf = settings.current()
    if conf.delivery != settings.EXACTLY_ONCE:
        raise CommandError(
            f'OUTBOX["DELIVERY"] is {conf.delivery!r}, which has no ledger, so no lane needs a decision. '
            "Set it to the value that the harvesters use."
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
        lines.append("ledger: it has no entry of this lane")
    if case.reason is None:
        return [*lines, "Nothing was changed."]
    lines += _between(case)
    if is_open:
        return [*lines, *_offers(case, decision)]
    done = f"The command deleted {_rows(outcome.deleted)}. " if decision.delete_sent else "The command kept every row. "
    adopted = "The ledger now belongs to this database. " if case.needs_copy else ""
    return [*lines, f"{done}{adopted}Both sides are at batch {case.committed}, and the lane resumes within seconds."]


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _between(case: Case) -> list[str]:
    if not case.listed and not case.missing:
        return []
    found = f"{case.sent} match and were sent, {case.found - case.sent} do not match (younger, or changed since)"
    lines = [
        f"between: {len(case.listed)} entries list {case.records} records; the table has {case.found} of them: {found}"
    ]
    if case.missing:
        lines.append(
            f"The ledger has no entry of {case.missing} batches: they are older than LEDGER_RETENTION, or of another "
            "database. The command cannot recognise their rows, and the harvester sends these again with either option."
        )
    return lines


def _offers(case: Case, decision: Resolution) -> list[str]:
    if decision.delete_sent:
        would = f"delete {_rows(case.sent)}"
    elif decision.resend:
        would = "keep every row"
    else:
        return ["Nothing was changed. Run the command again with --delete-sent or --resend."]
    return [f"The command would {would} and set the table to batch {case.committed}. Nothing was changed."]
