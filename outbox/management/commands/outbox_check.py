"""``manage.py outbox_check``: checks the configuration against the real database and the real brokers."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from outbox import conf as settings
from outbox.conf.secrets import Redactor, shown
from outbox.exceptions import OutboxError
from outbox.operations import check, inbox_check, stats
from outbox.operations.findings import Finding, Level, overall

EXIT_CODES = {
    0: "harvesters, or with --consumers consumers, can run; the command may have printed warnings",
    1: "they cannot run before you correct the errors that the command has printed",
}
_SAID = {
    Level.OK: "{} can run with this configuration",
    Level.WARNING: "{} can run, but read the warnings",
    Level.ERROR: "{} cannot run before you correct the errors",
}


class Command(BaseCommand):
    help = (
        "Checks the configuration against the real PostgreSQL and Kafka: privileges, topics, sizes, table and ledger."
    )
    requires_system_checks = []  # they are part of the result

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = "Exit codes: " + "; ".join(f"{code}: {text}" for code, text in EXIT_CODES.items()) + "."
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        parser.add_argument("--json", action="store_true", help="Prints one JSON object.")
        parser.add_argument(
            "--consumers", action="store_true", help="Checks what consumers need, in place of harvesters."
        )
        parser.add_argument(
            "--topic", action="append", default=[], metavar="TOPIC", help="Checks this topic too. Repeat it for more."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            conf = settings.current()
        except settings.ConfErrors as error:
            raise CommandError(str(error)) from error
        alias = options["database"] or conf.database
        try:
            stats.require_alias(alias)
        except OutboxError as error:
            raise CommandError(str(error)) from error
        redact = Redactor(conf.kafka.client_properties, conf.producer_properties, _database_secrets(alias))
        if options["consumers"]:
            findings = _of_consumers(conf, alias)
        else:
            findings = check.examine(conf, alias, topics=tuple(options["topic"]))
        said = overall(findings)
        if options["json"]:
            found = {
                "result": str(said),
                "findings": [finding.as_dict() for finding in findings],
                "configuration": check.configuration(conf, alias, shown),
            }
            self.stdout.write(json.dumps(redact.all(found)))
        else:
            for finding in findings:
                self.stdout.write(redact(f"{finding.level:8} {finding.subject}: {finding.text}"))
                if finding.remedy:
                    self.stdout.write(redact(f"         -> {finding.remedy}"))
            self.stdout.write(f"result: {_SAID[said].format('consumers' if options['consumers'] else 'harvesters')}")
        if said is Level.ERROR:
            sys.exit(1)


def _of_consumers(conf: settings.Conf, alias: str) -> list[Finding]:
    from outbox.consumers.registry import registered

    found = [*check.system_checks(alias)]
    if overall(found) is Level.ERROR:
        return found
    examined = [
        inbox_check.Examined(name, consumer.using or alias, consumer.names) for name, consumer in registered().items()
    ]
    return [*found, *inbox_check.examine(conf, examined)]


def _database_secrets(alias: str) -> dict[str, Any]:
    return {"password": connections[alias].settings_dict.get("PASSWORD") or ""}
