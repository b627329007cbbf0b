"""From bytes to a staged append: outside of any transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from outbox.core.journal.append import Append
from outbox.core.journal.fragments import cut
from outbox.core.journal.health import StoreHealth
from outbox.core.journal.values import BLOCK_BYTES, AppendRefusal, Conditions, JournalState, Staged
from outbox.failpoints import failpoint
from outbox.journal.errors import error_of, unknown
from outbox.journal.ports import StorePort, TablePort
from outbox.journal.upload import STALL_S, Upload
from outbox.runtime import Runtime

UNSET = Conditions()


class Staging:
    """Of the journals of one table, on the stores of this process."""

    def __init__(
        self,
        table: TablePort,
        stores: Mapping[str, StorePort],
        zones: Mapping[str, str],
        runtime: Runtime,
        new_id: Callable[[], str],
        health: StoreHealth,
        *,
        stall_s: float = STALL_S,
    ) -> None:
        self._table, self._stores, self._zones = table, stores, zones
        self._runtime, self._new_id, self._stall_s = runtime, new_id, stall_s
        self._health = health

    def stage(
        self, journal: str, chunks: Iterable[bytes | bytearray | memoryview], conditions: Conditions = UNSET
    ) -> Staged:
        """Raises what the journal or its stores have against it, and what `chunks` raises."""
        state = self._table.state(journal)
        if state is None:
            raise unknown(journal)
        append_id = self._new_id()
        zones = {store: self._zones[store] for store in state.stores if store in self._zones}
        append = Append(append_id, state, zones, conditions)
        _require(self._resolved(append, state))
        _require(append.checked())
        append.opened(self._table.open(append_id, journal, state.stores))
        failpoint("append-opened")
        upload = Upload(append, self._stores, self._runtime, stall_s=self._stall_s)
        found = upload.send(cut(chunks, BLOCK_BYTES), lambda: self._table.extend(append_id))
        self._learn(append)
        if isinstance(found, AppendRefusal):
            raise error_of(found)
        return found

    def _resolved(self, append: Append, state: JournalState) -> AppendRefusal | None:
        errors = self._health.errors(state.stores, self._runtime.monotonic())
        errors |= {store: "it is not in STORES" for store in state.stores if store not in self._zones}
        return append.resolved([store for store in state.stores if store not in errors], errors)

    def _learn(self, append: Append) -> None:
        now = self._runtime.monotonic()
        for store, error in append.dropped.items():
            if store in self._stores:
                self._health.failed(store, error, now, self._runtime.random())
        for store in append.writing:
            self._health.worked(store)


def _require(refusal: AppendRefusal | None) -> None:
    if refusal is not None:
        raise error_of(refusal)
