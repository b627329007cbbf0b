"""``manage.py outbox_roles``: print SQL that makes roles with the fewest rights; nothing is changed."""

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
    help = "Print SQL for roles with the fewest rights, to be run by the owner of the tables. Nothing is changed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", metavar="ALIAS", help="Alias of the database, instead of DATABASE.")
        for purpose, text in roles.HELP.items():
            parser.add_argument(
                f"--{purpose}", metavar="ROLE", help=f"Name of the role that {text}. Without any: outbox_{purpose}."
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
    """What there is of the table and its companions."""
    quoted = identifier(name).as_string()
    with connections[alias].cursor() as cursor:
        row = catalog.sequence(cursor, quoted)
        if row is None:
            raise CommandError(
                f"The table {name!r} does not exist on the alias {alias!r}, or no sequence draws its ids. "
                f"Run: python manage.py migrate outbox --database {alias}"
            )
        schema, table, sequence = row
        companions = []
        for suffix in roles.COMPANIONS:
            companion = f"{table}_{suffix}"
            if catalog.exists(cursor, identifier(f"{schema}.{companion}").as_string()):
                companions.append(companion)
    return roles.Relations(schema, table, sequence, tuple(companions))
