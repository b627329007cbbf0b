"""The daemon of `manage.py journal`: a keeper between `start` and `stop`. Of several, one works and the others wait."""

from __future__ import annotations

import logging
from collections import Counter

from django.db import Error, connections

from outbox.conf import Conf
from outbox.edges.postgres.journal.keeper import KeeperTable
from outbox.exceptions import NotAvailable, OutboxError
from outbox.journal.keeper import Keeper
from outbox.journal.stores import stores, zones
from outbox.service.lifecycle import Daemon, State

logger = logging.getLogger("outbox.journal")

PAUSE_S = 10.0


class JournalKeeper(Daemon):
    """Every method is thread-safe."""

    def __init__(self, conf: Conf, alias: str, *, once: bool = False) -> None:
        super().__init__("keeper", thread="outbox-journal", logger=logger, fail_fast=once)
        self._conf, self._alias, self._once = conf, alias, once
        self._suspect: set[str] = set()
        self._is_keeper = False
        self.counts: Counter[str] = Counter()
        """What was done since the start, by name."""
        self.failing: dict[str, str] = {}
        """Stores that failed in the last round, and why."""

    @property
    def is_keeper(self) -> bool:
        """It has the lock. The others wait until its session ends."""
        return self._is_keeper

    @property
    def suspect(self) -> frozenset[str]:
        """Journals that take no appends."""
        return frozenset(self._suspect)

    def _work(self) -> None:
        while self._until_available(self._rounded) and not self._once:
            if self._stopping.wait(PAUSE_S):
                return

    def _rounded(self) -> bool:
        connection = connections[self._alias]
        table = KeeperTable(connection, self._conf.table)
        try:
            if not self._is_keeper and not table.take():
                return True
            self._is_keeper = True
            self._keep(table)
        except Error as error:  # of the database
            self._is_keeper = False
            connection.close()
            raise NotAvailable(f"PostgreSQL does not answer as it should: {error}".strip()) from error
        return True

    def _keep(self, table: KeeperTable) -> None:
        conf = self._conf.journal
        keeper = Keeper(
            table, stores(), zones(), stage_age_s=conf.journal_stage_age_s, scrub_age_s=conf.journal_scrub_age_s
        )
        done = keeper.round()
        self.counts.update(done)
        if done:
            self._logger.info("journals_kept done=%r", dict(sorted(done.items())))
        for store, error in keeper.failing.items():
            if store not in self.failing:
                self._logger.warning("store_failed store=%s error=%r", store, error)
        self.failing = dict(keeper.failing)
        suspect = {state.name: state.suspect for state in table.journals() if state.suspect}
        for name in suspect.keys() - self._suspect:
            self._logger.error("journal_suspect journal=%r reason=%r", name, suspect[name])
        self._suspect = set(suspect)

    def _tear_down(self) -> None:
        connections[self._alias].close()

    def _abandon(self) -> None:
        """A step of a round ends by itself, and the next keeper continues."""

    def _log_state(self, state: State) -> None:
        if state is State.RUNNING:
            self._logger.info("keeper_started")
        elif state is State.STOPPING:
            self._logger.info("keeper_stopping")
        else:
            self._logger.info("keeper_stopped")

    def _log_failure(self, error: BaseException) -> None:
        known = isinstance(error, OutboxError)
        self._logger.error("keeper_failed reason=%r", str(error), exc_info=None if known else error)
