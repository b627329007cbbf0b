"""Checks whether harvesters can run with this configuration on the real PostgreSQL and Kafka. Changes nothing there.

One exception: to check the ACLs for transactions, it initialises the transactional id NAME-check, which no lane uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE, Conf
from outbox.documents import page
from outbox.edges.postgres.at_least_once import marks
from outbox.edges.postgres.common import backends, locks, table
from outbox.edges.postgres.common.backends import Pooled
from outbox.edges.postgres.counts import overview
from outbox.edges.postgres.operations import companions
from outbox.edges.postgres.operations.server import server, topics_at_the_ends, unreadable_sequence
from outbox.edges.postgres.preflight import keepers, privileges
from outbox.edges.postgres.preflight.keepers import RowsKept
from outbox.exceptions import OutboxError
from outbox.messages.inserts import ORDER_LOCK
from outbox.operations import check_kafka, stats
from outbox.operations.findings import Finding, Level, error, ok, skipped, warning

_ENDS_ROWS = 500
_TOPICS_MAX = 100
_PAST = f"Connect the harvester's alias to PostgreSQL without the pooler. See {page('production')}."
_POSTGRESQL = range(14, 19)  # major versions that the tests run on


def examine(conf: Conf, alias: str, *, topics: tuple[str, ...] = ()) -> list[Finding]:
    """All findings, in the order in which an operator should read them."""
    findings = [*system_checks(alias)]
    seen: set[str] = set(topics)
    database = [*_database(conf, alias, seen)]
    findings += database
    others = sorted(seen.difference(topics))
    findings += check_kafka.examine(conf, [*dict.fromkeys(topics), *others[:_TOPICS_MAX]])
    if len(others) > _TOPICS_MAX:
        more = len(others) - _TOPICS_MAX
        text = f"The check left out {more:,} more {'topic' if more == 1 else 'topics'}. Name them with --topic."
        findings.append(skipped("topics", text))
    if conf.delivery == EXACTLY_ONCE:
        if any(finding.level is Level.ERROR for finding in findings if finding.subject != "checks"):
            findings.append(skipped("ledger and table", "The check did not compare them, because of the errors above."))
        else:
            findings += _positions(conf, alias)
    return findings


def system_checks(alias: str) -> Iterator[Finding]:
    """The findings of `manage.py check` for this application."""
    from django.apps import apps
    from django.core.checks import ERROR, run_checks

    found = run_checks(app_configs=[apps.get_app_config("outbox")], databases=[alias])
    ours = [message for message in found if str(message.id).startswith("outbox.")]
    for message in ours:
        make = error if message.level >= ERROR else warning
        yield make("checks", f"{message.id}: {message.msg}", str(message.hint or ""))
    if not ours:
        yield ok("checks", "The settings and the table pass manage.py check.")


# ---- PostgreSQL


def _database(conf: Conf, alias: str, topics: set[str]) -> Iterator[Finding]:
    """Also collects the topics of waiting records."""
    try:
        connection = stats.connect(conf, alias)
    except Pooled as failure:
        yield error("database", str(failure), _PAST)
        return
    except OutboxError as failure:
        yield error("database", str(failure), "Start PostgreSQL, or correct DATABASES.")
        return
    with closing(connection):
        try:
            yield from _server(connection)
            yield from _session(connection, conf, alias)
            overview.check_columns(connection, alias, conf.table)
            yield ok("table", f"PostgreSQL has the table {conf.table!r} with all its columns.")
            yield from _rights(connection, conf)
            yield from _locks(connection, conf)
            yield from _kept(connection, conf)
            topics |= topics_at_the_ends(connection, conf.table, _ENDS_ROWS)
        except (OutboxError, psycopg.Error) as failure:
            yield error(
                "table", " ".join(str(failure).split()), f"Run: python manage.py migrate outbox --database {alias}"
            )


def _server(connection: stats.Connection) -> Iterator[Finding]:
    found = server(connection)
    yield ok("database", f"PostgreSQL {found.version} answers for database {found.database!r} and user {found.user!r}.")
    yield from _judged(found.major)
    if found.is_standby or found.read_only == "on":
        yield error("database", "The server is a standby or read-only.", "Point DATABASES at the primary.")
    if found.fsync == "off":
        yield warning(
            "database",
            "PostgreSQL runs with fsync = off, so a crash of the server may lose records.",
            "Set fsync = on where records matter.",
        )


def _session(connection: stats.Connection, conf: Conf, alias: str) -> Iterator[Finding]:
    connect = partial(
        table.connect_bounded,
        table.parameters(alias),
        statement_timeout_s=conf.harvest.statement_timeout_s,
        application_name=table.BESIDE,
    )
    try:
        backends.require_own(connection, connect)
    except Pooled as failure:
        yield error("database", str(failure), _PAST)


def _kept(connection: stats.Connection, conf: Conf) -> Iterator[Finding]:
    try:
        notes = keepers.check(connection, conf.table, marks=conf.delivery != EXACTLY_ONCE)
    except RowsKept as failure:
        yield error("table", str(failure), "Remove the rule, trigger or policy that keeps them.")
        return
    for note in notes:
        yield warning("table", note, f"See {page('table')}.")


def _judged(major: int) -> Iterator[Finding]:
    first, last = _POSTGRESQL[0], _POSTGRESQL[-1]
    if major < first:
        yield error("database", f"PostgreSQL {major} is too old.", f"Upgrade to PostgreSQL {first} to {last}.")
    elif major > last:
        yield warning(
            "database", f"PostgreSQL {major} is untested.", f"Use PostgreSQL {first} to {last}, which are tested."
        )


def _rights(connection: stats.Connection, conf: Conf) -> Iterator[Finding]:
    is_exact = conf.delivery == EXACTLY_ONCE
    for suffix in ("state", "purged", "lane", "hold", "dead", "watch"):
        companion = f"{conf.table}_{suffix}"
        if is_exact and not companions.exists(connection.cursor(), companion):
            quoted = table.identifier(companion).as_string()
            yield error("rights", f"The companion table {quoted} is missing.", "Run: python manage.py migrate outbox")
    found = privileges.missing(connection, conf.table, exactly_once=is_exact)
    missing = [f"{', '.join(given)} on {name}" for name, given in found.items()]
    if sequence := unreadable_sequence(connection, conf.table):
        missing.append(f"SELECT on the sequence {sequence}")
    if missing:
        yield error(
            "rights",
            f"The database user lacks privileges: {'; '.join(missing)}.",
            "Run the SQL that manage.py outbox_roles --harvester prints.",
        )
    else:
        yield ok("rights", "The database user has all privileges of a harvester.")


def _locks(connection: stats.Connection, conf: Conf) -> Iterator[Finding]:
    """Our advisory locks that another session holds, or that a session holds for long."""
    if waiting := locks.waiting(connection, ORDER_LOCK):
        text = (
            f"Writers with ordered=True wait for {locks.told(waiting.holders)}. Their number is {waiting.sessions}, "
            f"and the longest has waited for {waiting.longest_s:.0f} s."
        )
        yield warning("locks", text, locks.remedy(waiting.holders))
    for lane in range(conf.election.lanes if conf.delivery == AT_LEAST_ONCE else 0):
        if others := marks.strangers(connection, conf.table, lane):
            text = f"The owner of lane {lane} may have to wait for {locks.told(others)}."
            yield warning("locks", text, locks.remedy(others))


# ---- both sides


def _positions(conf: Conf, alias: str) -> Iterator[Finding]:
    """In each lane, the last batch of the ledger must be the last one purged or the next one."""
    found = stats.collect(conf, alias)
    ledger = found["ledger"]
    if ledger["error"]:
        is_new = all(not lane["purged_batch"] for lane in found["lanes"])
        if is_new:
            yield ok("ledger and table", "No harvester has used this table yet.")
        else:
            yield error(
                "ledger and table",
                ledger["error"],
                "Run manage.py outbox_resolve for each lane; it explains the state.",
            )
        return
    here = found["state"]["database_uuid"] if found["state"] else None
    for lane in found["lanes"]:
        there = lane["ledger_database"]
        if there is not None and there != here:
            yield error(
                "ledger and table",
                f"The ledger of lane {lane['lane']} belongs to database {there}, but this is database {here}.",
                "Correct DATABASES or NAME. If this database replaces the other one, run: "
                f"manage.py outbox_resolve --lane {lane['lane']} --adopt-ledger, and add --delete-sent or --resend to "
                "decide about the rows.",
            )
            return
        purged, last = lane["purged_batch"] or 0, lane["ledger_batch"]
        if last is not None and last - purged not in (0, 1) and not lane["is_owned"]:
            yield error(
                "ledger and table",
                f"In lane {lane['lane']} the table is at batch {purged}, but the ledger is at batch {last}.",
                f"Run: manage.py outbox_resolve --lane {lane['lane']}",
            )
            return
    yield ok("ledger and table", f"They agree in every lane ({len(found['lanes'])}).")


def configuration(conf: Conf, alias: str, shown: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The configuration that a harvester would use; `shown` hides secrets."""
    from django.db import connections

    settings = connections[alias].settings_dict
    return {
        "name": conf.name,
        "table": conf.table,
        "delivery": conf.delivery,
        "database": {key.lower(): settings[key] for key in ("NAME", "USER", "HOST", "PORT")},
        "lanes": conf.election.lanes,
        "leader_topic": conf.election.leader_topic,
        "kafka": shown(conf.kafka.client_properties),
        "producer": shown(conf.kafka.producer),
    }
