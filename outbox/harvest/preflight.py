"""The questions that a harvester asks its servers before it joins the election: is the table right, and is it free?"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import Any
from uuid import UUID

from outbox.conf import EXACTLY_ONCE, Conf
from outbox.core.patience import Hope
from outbox.documents import page
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerUnreachable
from outbox.edges.kafka.exactly_once.transaction_log import BrokersMissing, TransactionLog
from outbox.edges.kafka.exactly_once.transactional import TransactionsRefused
from outbox.edges.postgres.at_least_once.marks import COLUMNS
from outbox.edges.postgres.common import table
from outbox.edges.postgres.counts import overview
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.edges.postgres.exactly_once.reader import Reader, check_ages
from outbox.edges.postgres.preflight import keepers, numbering, plans, privileges
from outbox.election.errors import KafkaUnreachable
from outbox.harvest.lease_keeper import lease_of

logger = logging.getLogger("outbox.harvest")

BROKERS_S = 30.0  # brokers of a cluster that starts join one after the other


def look(conf: Conf, owner: str) -> UUID | None:
    """The number of the database. Raises what is wrong. Takes the lease on the table already here: if two delivery
    modes wait for the end of a third, one of them gets it. A standby need not renew it."""
    is_exact = conf.delivery == EXACTLY_ONCE
    with overview.connected(conf.database, companions.connect if is_exact else table.connect_session) as connection:
        columns = [*COLUMNS, overview.BINARY] if is_exact else COLUMNS
        overview.check_columns(connection, conf.database, conf.table, columns)
        privileges.check(connection, conf.table, exactly_once=is_exact)
        sequence = companions.sequence_of(connection, conf.table) if is_exact else ""
        notes = keepers.check(connection, conf.table, marks=not is_exact)
        notes += numbering.check(connection, conf.table, exactly_once=is_exact)
        if is_exact:
            check_ages(connection)
            _look_at_plans(conf, connection, sequence)
        lease = lease_of(conf, owner)
        lease.take(connection, lanes=conf.election.lanes, quietly=True)
        if is_exact and overview.may_lack_a_time(connection, conf.table):
            statement = f"ALTER TABLE {conf.table} ALTER create_time SET NOT NULL"
            remedy = f"Read {page('table', 'create_time')}. Then run: {statement}"
            logger.warning("create_time_nullable table=%s remedy=%r", conf.table, remedy)
        for note in notes:
            logger.warning("table_warning table=%s reason=%r", conf.table, note)
        return lease.database(connection)


class LookAtBrokers:
    """Raises why the brokers cannot have what the delivery needs of them. Called again and again while they are away.

    Brokers that were never heard of may still be starting, beside the first one: they are waited for, but not for
    ever. With `fail_fast` nothing is waited for.
    """

    def __init__(self, conf: Conf, *, fail_fast: bool = False) -> None:
        self._conf, self._hope_s = conf, 0.0 if fail_fast else BROKERS_S
        self._hope = Hope()

    def __call__(self) -> bool:
        if self._conf.delivery == EXACTLY_ONCE:
            with closing(TransactionLog(self._conf.kafka.client_properties)) as log:
                try:
                    log.check()
                except LedgerUnreachable as error:
                    self._give_up(error)
                    raise KafkaUnreachable(str(error)) from error
        return True

    def _give_up(self, error: LedgerUnreachable) -> None:
        if not isinstance(error, BrokersMissing) or not error.is_hopeless:
            self._hope.renewed()
        elif self._hope.missing(time.monotonic(), self._hope_s):
            raise TransactionsRefused(str(error)) from error


def _look_at_plans(conf: Conf, connection: Any, sequence: str) -> None:
    reader = Reader(conf.table, sequence, max(2, conf.election.lanes), keep_empty_key=conf.harvest.keep_empty_key)
    plans.check(connection, conf.table, [*reader.examples(), *Companions(conf.table, sequence).examples()])
