"""The lease of a process on its table, which the lanes of the process share: when to take it, renew it and trust it.

Statements run in the threads of the sessions that call `take` and `release`; lanes, the reader and purges ask from
their own threads. One lock guards all of it and is held for a few assignments, never during a statement. A thread that
takes it may hold the lock of the rounds, and takes no other lock meanwhile.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from outbox.conf import EXACTLY_ONCE, Conf
from outbox.core import lease
from outbox.edges.postgres.common import leases
from outbox.edges.postgres.common.leases import settled_after
from outbox.harvest.exactly_once.ports import LeasePort
from outbox.runtime import Runtime
from outbox.runtime.threads import THREADS


def owner_name() -> str:
    """What this process is called where processes name each other."""
    return f"{socket.gethostname()}_{os.getpid()}"


def lease_of(conf: Conf, owner: str) -> leases.TableLease:
    """On the table of `conf` for its delivery mode, with its timeouts."""
    return leases.TableLease(
        conf.table,
        conf.delivery,
        owner,
        conf.election.session_timeout_s,
        keep_empty_key=conf.harvest.keep_empty_key,
        settled_s=settled_after(conf.exactly_once.transaction_timeout_s),
        name=conf.name,
    )


class LeaseKeeper:
    def __init__(self, conf: Conf, table_lease: LeasePort, runtime: Runtime = THREADS) -> None:
        self._table_lease, self._lanes_max, self._runtime = table_lease, conf.election.lanes, runtime
        self._mutex = runtime.lock("lease")
        self._needs_row = conf.delivery == EXACTLY_ONCE
        self._times = lease.Times(conf.election.session_timeout_s, lease.BEAT_S)
        self._owned: dict[int, UUID] = {}

    def enter(self, lane: int, leader_id: UUID) -> None:
        """The process works on this lane: each renewal of the lease shows it."""
        with self._mutex:
            self._owned[lane] = leader_id

    def leave(self, lane: int, leader_id: UUID) -> bool:
        """Whether it was the last one, so that the lease may be released. A lane that was acquired again stays."""
        with self._mutex:
            if self._owned.get(lane) == leader_id:
                del self._owned[lane]
            return not self._owned

    @property
    def beat_s(self) -> float:
        return self._times.beat_s

    @property
    def is_kept(self) -> bool:
        with self._mutex:
            return self._times.is_kept

    def prepared(self) -> None:
        """From now on it is to be repeated."""
        with self._mutex:
            self._times.prepared()

    def released(self) -> None:
        """No heartbeat may take it again: it is about to be given back."""
        with self._mutex:
            self._times.released()

    def is_trusted(self) -> bool:
        now = self._runtime.monotonic()
        with self._mutex:
            return self._times.is_trusted(now)

    def is_lost(self) -> bool:
        now = self._runtime.monotonic()
        with self._mutex:
            return self._times.is_lost(now)

    def beats(self) -> bool:
        """Whether the caller is to take it now; nobody else is told so for a while."""
        now = self._runtime.monotonic()
        with self._mutex:
            is_due = self._times.is_due(now)
            if is_due:
                self._times.sent(now)
            return is_due

    # ---- in the threads of the sessions

    def take(self, connection: Any, owned: Mapping[int, UUID] | None = None) -> None:
        """Raises `OtherMode` when the table is harvested in another mode. `owned`: the lanes to be shown, if not all
        that have entered. Exactly-once delivery cannot do without its companion tables: where they are missing, trust
        ends as usual."""
        begun = self._runtime.monotonic()
        with self._mutex:
            shown = dict(self._owned if owned is None else owned)
        exists = self._table_lease.take(connection, lanes=self._lanes_max, owned=shown)
        with self._mutex:
            self._times.taken(begun, exists=exists or self._needs_row, shows_lanes=bool(shown))

    def release(self, connection: Any) -> None:
        self._table_lease.release(connection)
