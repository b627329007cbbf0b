"""Makes a job from the settings and the flags of `harvest --engine spark`, and checks both before the election."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from psycopg.conninfo import make_conninfo

from outbox.conf import EXACTLY_ONCE, Conf
from outbox.edges.postgres.at_least_once.marks import COLUMNS, WrongTable
from outbox.edges.postgres.common.leases import TableLease, settled_after
from outbox.edges.postgres.common.table import connect_session, parameters
from outbox.edges.postgres.counts import overview
from outbox.edges.postgres.preflight import keepers, numbering
from outbox.edges.postgres.spark import engine
from outbox.exceptions import OutboxError
from outbox.spark import sessions
from outbox.spark.engine.driver import resolve
from outbox.spark.engine.job import Job
from outbox.spark.source.statements import MODE

_TRANSACTION_TIMEOUT_S = 60.0  # a slice is one transaction, and larger than a batch of exactly-once delivery


@dataclass(frozen=True)
class Flags:
    """The flags of the command line about Spark; empty: the default."""

    master: str = "local[*,4]"
    transform: str = ""
    checkpoint: str = ""
    sink: str = ""
    slices: int = 4
    max_records: int = 50_000
    config: Sequence[str] = ()
    resend: bool = False
    connector: bool = False


def settled(conf: Conf) -> Conf:
    """The settings of a harvester with this engine: one lane, one delivery mode."""
    return replace(conf, delivery=EXACTLY_ONCE, election=replace(conf.election, lanes=1))


def notes(flags: Flags) -> list[str]:
    return sessions.exposed(_config(flags.config))


def check(flags: Flags) -> None:
    """Raises if this machine lacks something or a flag is wrong, before the election begins. Leaves no JVM behind."""
    sessions.check_extra()
    resolve(flags.transform)
    _config(flags.config)
    if flags.slices < 1 or flags.max_records < 1:
        raise OutboxError(f"--slices={flags.slices} --max-records={flags.max_records}: set both to 1 or more.")
    from outbox.spark import java_and_jars

    java_and_jars.java()
    if flags.connector:
        from pyspark import __version__ as version

        java_and_jars.connector(version)


def look(conf: Conf, owner: str) -> UUID | None:
    """Check the table, and whether this mode may have it. A standby leaves a table alone whose driver is running.
    Returns the number of the database."""
    with overview.connected(conf.database, connect_session) as connection:
        overview.check_columns(connection, conf.database, conf.table, [*COLUMNS, overview.BINARY])
        if not engine.exists(connection, f"{conf.table}_spark"):
            raise WrongTable(
                f"The database {conf.database!r} has no table {conf.table + '_spark'!r}. Run: python manage.py "
                f"migrate outbox --database {conf.database}"
            )
        keepers.check(connection, conf.table, marks=True)  # only the process that takes the lane logs warnings
        numbering.check(connection, conf.table, exactly_once=False)
        settled_s = settled_after(conf.exactly_once.transaction_timeout_s)
        keep = conf.harvest.keep_empty_key  # for the holds; the query itself divides records into no lanes
        lease = TableLease(
            conf.table, MODE, owner, conf.election.session_timeout_s, keep_empty_key=keep, settled_s=settled_s
        )
        if engine.mode(connection, conf.table) != MODE:
            lease.take(connection, lanes=conf.election.lanes, quietly=True)
        return lease.database(connection)


def job_of(conf: Conf, flags: Flags) -> Job:
    database = _database(conf)
    return Job(
        url=make_conninfo("", **{name: str(value) for name, value in parameters(conf.database).items() if value != ""}),
        table=conf.table,
        name=flags.sink or conf.name,
        checkpoint=flags.checkpoint or str(default_checkpoint(conf.name, database)),
        properties=conf.producer_properties,
        master=flags.master,
        transform=flags.transform,
        config=_config(flags.config),
        slices=flags.slices,
        max_records=flags.max_records,
        resend=flags.resend,
        connector=flags.connector,
        origin=database,
        id_header=conf.exactly_once.id_header or "",
        keep_empty_key=conf.harvest.keep_empty_key,
        transaction_timeout_s=max(_TRANSACTION_TIMEOUT_S, conf.exactly_once.transaction_timeout_s),
        ledger_retention_s=conf.exactly_once.ledger_retention_s,
    )


def _database(conf: Conf) -> str:
    """The UUID of the database, from the state row that `look` has made sure of."""
    with overview.connected(conf.database) as connection:
        found = engine.database(connection, conf.table)
    if found is None:
        raise WrongTable(
            f"Somebody deleted the row of {conf.table}_state while the harvester ran. Restart the harvester."
        )
    return str(found)


def default_checkpoint(name: str, database: str) -> Path:
    """A place on this machine, for this database. Harvesters on several machines need a place that all can read."""
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return root / "outbox" / "spark" / re.sub(r"[^\w.-]", "_", name) / database


def _config(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := [text for text, (name, sign, _) in zip(given, pairs, strict=True) if not (sign and name.strip())]:
        raise OutboxError(
            f"--spark-conf {wrong[0]!r} has no value. Write name=value, for instance spark.driver.memory=1g."
        )
    return {name.strip(): value for name, _, value in pairs}
