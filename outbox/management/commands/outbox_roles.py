"""``manage.py outbox_roles``: prints SQL for roles with the fewest privileges, and changes nothing."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from outbox import conf
from outbox.edges.postgres.common.table import identifier
from outbox.edges.postgres.preflight import catalog
from outbox.schema import roles


class Command(BaseCommand):
    help = "Prints SQL for roles with the fewest privileges, and changes nothing. The owner of the tables runs the SQL."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="The database alias, in place of DATABASE.")
        for purpose, text in roles.HELP.items():
            parser.add_argument(
                f"--{purpose}", metavar="ROLE", help=f"The name of the role that {text}. Default: outbox_{purpose}."
            )

    def handle(self, *args: Any, **options: Any) -> None:
        given = {purpose: options[purpose] for purpose in roles.HELP if options[purpose]}
        names = given or {purpose: f"outbox_{purpose}" for purpose in roles.HELP}
        alias = options["database"] or conf.current().database
        found = relations(alias, conf.current().table)
        for comment, statement in roles.statements(found, names):
            if comment:
                self.stdout.write(f"\n-- {comment}")
            self.stdout.write(f"{statement.as_string()};")


def relations(alias: str, name: str) -> roles.Relations:
    """The table and its companions, as far as they exist."""
    quoted = identifier(name).as_string()
    with connections[alias].cursor() as cursor:
        row = catalog.sequence(cursor, quoted)
        if row is None:
            raise CommandError(
                f"The table {name!r} does not exist on the alias {alias!r}, or its ids have no sequence. "
                f"Run: python manage.py migrate outbox --database {alias}"
            )
        schema, table, sequence = row
        companions = []
        for suffix in roles.COMPANIONS:
            companion = f"{table}_{suffix}"
            if catalog.exists(cursor, identifier(f"{schema}.{companion}").as_string()):
                companions.append(companion)
    return roles.Relations(schema, table, sequence, tuple(companions))
