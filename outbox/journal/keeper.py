"""Keeps journals in order: removes what was never committed, writes index objects, reads replicas again, copies those
that are missing, removes what is older than the retention. One keeper works at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import Enum

from outbox.core.journal.fragments import (
    INDEX,
    append_of,
    index_begin,
    index_end,
    index_path,
    index_text,
    is_intact,
    prefix_of,
)
from outbox.core.journal.replication import suffices, zones_of
from outbox.core.journal.values import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    Fragment,
    JournalState,
    ObjectMissing,
    Placed,
    Replication,
    StageRow,
    StoreFailed,
)
from outbox.failpoints import failpoint
from outbox.journal.ports import KeeperPort, StorePort

PAGE = 100


class Seen(Enum):
    """What a look at a replica has found."""

    INTACT = "intact"
    BAD = "missing, or with other bytes"
    UNKNOWN = "its store does not answer"


class Keeper:
    def __init__(
        self,
        table: KeeperPort,
        stores: Mapping[str, StorePort],
        zones: Mapping[str, str],
        *,
        stage_age_s: float,
        scrub_age_s: float,
    ) -> None:
        self._table, self._stores, self._zones = table, stores, zones
        self._stage_age_s, self._scrub_age_s = stage_age_s, scrub_age_s
        self._failing: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        """What this round has done, by name."""

    @property
    def failing(self) -> Mapping[str, str]:
        """Stores that failed in this round, and why. What needs them waits for the next one."""
        return self._failing

    def round(self) -> Mapping[str, int]:
        self.counts, self._failing = Counter(), {}
        self._prune()
        self._sweep()
        self._index()
        self._compare()
        self._repair()
        self._scrub()
        self._remove_strangers()
        return self.counts

    # ---- stages that were never committed, and appends that are removed

    def _prune(self) -> None:
        for state in self._table.journals():
            if pruned := self._table.prune(state.name):
                self.counts["pruned"] += pruned

    def _sweep(self) -> None:
        """A stage expires first, for good: a keeper may end between any two of these steps, and no append may commit
        when its objects are going. The row goes last, or nobody would find what is left."""
        tried: list[str] = []
        for _ in range(PAGE):
            stage = self._table.expire(self._stage_age_s, tried)
            if stage is None:
                return
            tried.append(stage.append)
            failpoint("stage-expired")
            if self._is_removed(stage):
                failpoint("stage-emptied")
                self._table.forget(stage.append)
                self.counts["swept"] += 1

    def _is_removed(self, stage: StageRow) -> bool:
        """If not, the next round tries again."""
        removed = True
        for name in stage.stores:
            if name not in self._stores:
                continue  # an operator has taken the store out of STORES
            try:
                store = self._stores[name]
                for path in [*store.list(prefix_of(stage.journal, stage.day, stage.append))]:
                    store.delete(path)
                for begin in stage.begins:
                    store.delete(index_path(stage.journal, begin))
            except StoreFailed as error:
                self._failing[name] = str(error)
                removed = False
        return removed

    # ---- index objects

    def _index(self) -> None:
        for journal, placed in self._table.unindexed(PAGE):
            missing = [name for name in placed.fragment.replicas if not self._has_index(journal, placed, name)]
            if not missing:
                self._table.indexed(journal, [placed.begin])
                self.counts["indexed"] += 1

    def _has_index(self, journal: str, placed: Placed, name: str) -> bool:
        path, text = index_path(journal, placed.begin), index_text(journal, placed)
        try:
            store = self._stores[name]
            if not store.put(path, text) and store.get(path) != text:
                self._table.suspect(
                    journal, f"The store {name!r} has another index object at offset {placed.begin} than the database."
                )
        except (StoreFailed, KeyError) as error:
            self._failing[name] = str(error)
            return False
        return True

    def _compare(self) -> None:
        """A store that is ahead of the database says that the database went back in time. The stores are read first:
        appends go on meanwhile."""
        last = {
            (state.name, name): self._last(state.name, name)
            for state in self._table.journals()
            for name in state.stores
            if not state.suspect
        }
        heads = {state.name: state.head for state in self._table.journals()}
        for (journal, name), found in last.items():
            if found is not None and journal in heads and found[0] >= heads[journal]:
                begin, end = found
                self._table.suspect(
                    journal, f"The store {name!r} has bytes {begin} to {end}, and the head is {heads[journal]}."
                )

    def _last(self, journal: str, name: str) -> tuple[int, int] | None:
        try:
            return last_index(self._stores[name], journal)
        except (StoreFailed, KeyError) as error:
            self._failing[name] = str(error)
            return None

    # ---- replicas

    def _repair(self) -> None:
        for state, placed in self._table.lacking(sorted(self._stores), PAGE):
            found = self._look(placed, placed.fragment.replicas)
            others = [name for name in state.stores if name not in placed.fragment.replicas]
            good = found[Seen.INTACT]
            good += self._look(placed, others)[Seen.INTACT]  # they were too slow, and have it after all
            for name in others:
                if not good or suffices(Replication(state.replicas, self._zones), good):
                    break
                if name not in good and self._has_copy(placed, good[0], name):
                    good.append(name)
                    self.counts["repaired"] += 1
            self._record(state, placed, found)

    def _has_copy(self, placed: Placed, source: str, target: str) -> bool:
        try:
            self._copy(placed.fragment, self._stores[source], self._stores[target])
        except (StoreFailed, KeyError) as error:
            self._failing[target] = str(error)
            return False
        failpoint("replica-copied")
        return self._seen(placed, target) is Seen.INTACT

    def _copy(self, fragment: Fragment, source: StorePort, target: StorePort) -> None:
        target.delete(fragment.path)
        writer = target.create(fragment.path)
        try:
            for start in range(0, fragment.length, BLOCK_BYTES):
                writer.write(source.read(fragment.path, start, min(BLOCK_BYTES, fragment.length - start)))
            writer.finish()
            writer.seal()
        except BaseException:
            with suppress(StoreFailed):
                writer.abort()
            raise

    def _scrub(self) -> None:
        for state, placed in self._table.unscrubbed(self._scrub_age_s, PAGE):
            self._record(state, placed, self._look(placed, placed.fragment.replicas))
            self.counts["scrubbed"] += 1

    def _look(self, placed: Placed, stores: Iterable[str]) -> dict[Seen, list[str]]:
        found: dict[Seen, list[str]] = {seen: [] for seen in Seen}
        for name in stores:
            found[self._seen(placed, name)].append(name)
        return found

    def _seen(self, placed: Placed, name: str) -> Seen:
        if name not in self._stores:
            return Seen.UNKNOWN
        try:
            return Seen.INTACT if self._has(self._stores[name], placed.fragment) else Seen.BAD
        except ObjectMissing:
            return Seen.BAD
        except StoreFailed as error:
            self._failing[name] = str(error)
            return Seen.UNKNOWN

    def _has(self, store: StorePort, fragment: Fragment) -> bool:
        """Exactly its bytes, and none behind them."""
        for number in range(len(fragment.blocks) // DIGEST_BYTES):
            block = store.read(fragment.path, number * BLOCK_BYTES, BLOCK_BYTES)
            if not is_intact(fragment.blocks, number, block):
                return False
        return not store.read(fragment.path, fragment.length, 1)

    def _record(self, state: JournalState, placed: Placed, found: dict[Seen, list[str]]) -> None:
        """A bad replica does not count any more, unless it would be the last one. One that does not answer counts."""
        if found[Seen.BAD]:
            self.counts["bad_replicas"] += len(found[Seen.BAD])
        kept = [*found[Seen.INTACT], *found[Seen.UNKNOWN]] or found[Seen.BAD]
        self._table.scrubbed(state.name, placed.begin, kept, zones_of(kept, self._zones))

    # ---- what no row names

    def _remove_strangers(self) -> None:
        """Objects that no row names: a store was slow to do what it was asked, and the append went on without it.
        Those of a fragment with too few replicas stay, because a repair may need them.

        The objects are listed first and the rows asked for later. A row is there before the first object of an append
        and lasts as long as they do: an append without any row is nobody's. But when a store may know more than the
        database, everything stays until an operator has decided."""
        for state in self._table.journals():
            if state.suspect:
                continue
            for name in state.stores:
                try:
                    self._remove_strangers_of(state, name)
                except StoreFailed as error:
                    self._failing[name] = str(error)
                except KeyError:
                    continue  # an operator has taken the store out of STORES

    def _remove_strangers_of(self, state: JournalState, name: str) -> None:
        store, wanted = self._stores[name], Replication(state.replicas, self._zones)
        paths = [*store.list(f"{state.name}/")]
        found = {path: owner for path in paths if (owner := append_of(path)) is not None}
        known = self._table.known(state.name, sorted({append for append, _ in found.values()}))
        for path, (append, part) in found.items():
            if append in known:
                replicas = (known[append] or {}).get(part)
                if replicas is None or name in replicas or not suffices(wanted, replicas):
                    continue
            store.delete(path)
            self.counts["strangers"] += 1
        begins = [begin for path in paths if (begin := index_begin(path)) is not None]
        for begin in self._table.vacant(state.name, begins):
            store.delete(index_path(state.name, begin))
            self.counts["strangers"] += 1


def last_index(store: StorePort, journal: str) -> tuple[int, int] | None:
    """Where the fragment of the last index object of a store begins and ends."""
    begins = [begin for path in store.list(f"{journal}/{INDEX}/") if (begin := index_begin(path)) is not None]
    if not begins:
        return None
    return max(begins), index_end(store.get(index_path(journal, max(begins)))) or max(begins)
