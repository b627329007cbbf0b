"""From the settings and the flags of `harvest --engine spark` to a job, and what is looked at before the election."""

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

_TRANSACTION_TIMEOUT_S = 60.0  # a slice is one transaction, and larger than a batch of the other engine


@dataclass(frozen=True)
class Flags:
    """What the command line says about Spark; empty: the default."""

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
    """The settings of a harvester with this engine: one lane, one promise."""
    return replace(conf, delivery=EXACTLY_ONCE, election=replace(conf.election, lanes=1))


def notes(flags: Flags) -> list[str]:
    return sessions.exposed(_config(flags.config))


def check(flags: Flags) -> None:
    """Raises what is missing on this machine, or wrong with the flags, before anything begins. Starts no JVM that
    stays."""
    sessions.check_extra()
    resolve(flags.transform)
    _config(flags.config)
    if flags.slices < 1 or flags.max_records < 1:
        raise OutboxError(f"--slices={flags.slices} --max-records={flags.max_records}: give numbers above 0.")
    from outbox.spark import java_and_jars

    java_and_jars.java()
    if flags.connector:
        from pyspark import __version__ as version

        java_and_jars.connector(version)


def look(conf: Conf, owner: str) -> UUID | None:
    """The table, and whether this mode may have it. A driver that is at work has it already; a standby lets it be. The
    number of the database."""
    with overview.connected(conf.database, connect_session) as connection:
        overview.check_columns(connection, conf.database, conf.table, [*COLUMNS, overview.BINARY])
        if not engine.exists(connection, f"{conf.table}_spark"):
            raise WrongTable(
                f"The table {conf.table + '_spark'!r} does not exist on the alias {conf.database!r}. "
                f"Run: python manage.py migrate outbox --database {conf.database}"
            )
        keepers.check(connection, conf.table, marks=True)  # warnings are for whoever takes the lane
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
    """The UUID of the database, from the state row that `look` has seen to."""
    with overview.connected(conf.database) as connection:
        found = engine.database(connection, conf.table)
    if found is None:
        raise WrongTable(f"The row of {conf.table}_state was deleted while the harvester ran. Start it again.")
    return str(found)


def default_checkpoint(name: str, database: str) -> Path:
    """On this machine, and of this database: a harvester elsewhere needs a place that both see."""
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return root / "outbox" / "spark" / re.sub(r"[^\w.-]", "_", name) / database


def _config(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := [text for text, (name, sign, _) in zip(given, pairs, strict=True) if not (sign and name.strip())]:
        raise OutboxError(f"--spark-conf {wrong[0]!r}: give name=value, for instance spark.driver.memory=1g.")
    return {name.strip(): value for name, _, value in pairs}
