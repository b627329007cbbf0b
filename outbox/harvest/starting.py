"""What a harvester asks PostgreSQL before it joins the election: is the table the right one, and may it have it."""

from __future__ import annotations

from outbox.conf import EXACTLY_ONCE, Conf
from outbox.edges import companions, overview
from outbox.edges.marks import COLUMNS
from outbox.edges.ways import Claim


def look(conf: Conf, owner: str) -> None:
    """Raises what is wrong. The claim on the table is made here already: of two ways that wait for the end of a third
    one has it, and a standby need not repeat it."""
    with overview.connected(conf.database) as connection:
        binary = [overview.BINARY] if conf.delivery == EXACTLY_ONCE else []
        overview.check_columns(connection, conf.database, conf.table, [*COLUMNS, *binary])
        if conf.delivery == EXACTLY_ONCE:
            companions.sequence_of(connection, conf.table)
        Claim(conf.table, conf.delivery, owner, conf.session_timeout_s).take(connection, lanes=conf.lanes, quietly=True)
