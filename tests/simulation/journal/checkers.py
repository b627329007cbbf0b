"""What journals promise, counted apart from them: when a transaction takes effect, when an object goes, when bytes are
read, and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox.core.journal.chain import chained, genesis
from outbox.core.journal.fragments import append_of, index_begin, index_path
from outbox.core.journal.replication import suffices
from outbox.core.journal.values import Placed, Replication, Staged
from tests.simulation.checkers import Violation


class Checker:
    def __init__(self, world: Any) -> None:
        self.world = world
        self.contents: dict[str, bytes] = {}
        """What each append was given, and whether it was given all of it."""
        self.incomplete: set[str] = set()
        self.counters: dict[str, int] = {}
        self.truth = b""
        """The bytes of the journal, in the order of the commits."""
        self.spoiled: set[tuple[str, str]] = set()
        self.removed: dict[str, None] = {}
        self.jumps_until = 0
        self._counted = 0

    def committed(self, staged: Staged) -> None:
        if staged.append in self.incomplete:
            raise Violation(f"append {staged.append} is committed, and its content had raised")
        content, at = self.contents[staged.append], 0
        for fragment in staged.fragments:
            expected = content[at : at + fragment.length]
            at += fragment.length
            good = [name for name in fragment.replicas if self._has(name, fragment.path, expected)]
            if not suffices(Replication(self.world.replicas, self.world.zones), good):
                raise Violation(
                    f"{fragment.path} is committed, and only {good} of {fragment.replicas} have it as it was sent"
                )
        if at != len(content):
            raise Violation(f"append {staged.append} has {at} bytes of {len(content)}")
        if (number := self.counters.get(staged.append)) is not None:
            if number != self._counted + 1:
                raise Violation(f"the register goes from {self._counted} to {number}")
            self._counted = number
        self.truth += content

    def _has(self, name: str, path: str, expected: bytes) -> bool:
        found = self.world.stores[name].objects.get(path)
        return (name, path) in self.spoiled or found == expected

    def deleting(self, store: Any, path: str) -> None:
        if path not in store.objects:
            return
        for rows in self.world.database.rows.values():
            for row in rows:
                placed = row.placed
                if index_begin(path) == placed.begin:
                    raise Violation(f"{path} is deleted, and the journal has a fragment there")
                if path == placed.fragment.path and store.name in placed.fragment.replicas:
                    expected = self.truth[placed.begin : placed.end]
                    if store.objects[path] == expected:
                        raise Violation(f"{path} is deleted from {store.name}, which is one of its replicas")

    def recorded(self, placed: Placed, replicas: Sequence[str]) -> None:
        """The keeper has found that these stores have the fragment."""
        for name in replicas:
            expected = self.truth[placed.begin : placed.end]
            if name not in placed.fragment.replicas and not self._has(name, placed.fragment.path, expected):
                raise Violation(f"{name} becomes a replica of {placed.fragment.path}, and has other bytes")

    def suspected(self, reason: str) -> None:
        raise Violation(f"the journal is suspect without a reason: {reason}")

    def pruned(self, gone: Sequence[Placed]) -> None:
        self.jumps_until = max(self.jumps_until, *(placed.end for placed in gone))
        self.removed.update(dict.fromkeys(placed.append for placed in gone))

    def read(self, offset: int, given: bytes) -> None:
        if self.truth[offset : offset + len(given)] != given:
            raise Violation(f"a reader got other bytes at {offset} than were committed")

    def jumped(self, to: int) -> None:
        if to > self.jumps_until:
            raise Violation(
                f"a reader has left out bytes before {to}, and nothing was removed after {self.jumps_until}"
            )

    # ---- at the end

    def final(self) -> None:
        database = self.world.database
        for name, rows in database.rows.items():
            state = database.journals[name]
            chain, offset = genesis(name), 0
            if rows and rows[0].placed.begin:
                offset, chain = rows[0].placed.end, rows[0].placed.chain
                rows = rows[1:]
            for row in rows:
                placed = row.placed
                if placed.begin != offset:
                    raise Violation(f"a fragment begins at {placed.begin}, and the one before ends at {offset}")
                chain, offset = chained(chain, placed.begin, placed.end, placed.fragment.sha256), placed.end
                if chain != placed.chain:
                    raise Violation(f"the chained hash at {placed.end} is wrong")
            if (database.rows[name] and offset != state.head) or state.head != len(self.truth):
                raise Violation(f"the head is {state.head}, and the last fragment ends at {offset}")
        committed = database.appends() | set(self.removed)
        if set(database.business.values()) != committed:
            raise Violation(f"bytes without their row, or a row without its bytes: {database.business} {committed}")
        if len(set(database.business.values())) != len(database.business):
            raise Violation("an append counts for two rows")
        for store in self.world.stores.values():
            self._no_orphan(store)
        self._replicas()

    def _no_orphan(self, store: Any) -> None:
        placed = [row.placed for rows in self.world.database.rows.values() for row in rows]
        wanted = {one.fragment.path for one in placed if store.name in one.fragment.replicas}
        found = {path for path in (*store.objects, *store.unfinished) if append_of(path) is not None}
        if found - wanted:
            raise Violation(f"{store.name} has objects that nobody needs: {sorted(found - wanted)[:3]}")
        indexed = {path for path in store.objects if index_begin(path) is not None}
        if extra := indexed - {index_path(self.world.journal, one.begin) for one in placed}:
            raise Violation(f"{store.name} has index objects of nothing: {sorted(extra)[:3]}")
        needed = [one.begin for one in placed if store.name in one.fragment.replicas]
        if lacking := {index_path(self.world.journal, begin) for begin in needed} - indexed:
            raise Violation(f"{store.name} lacks index objects: {sorted(lacking)[:3]}")

    def _replicas(self) -> None:
        for rows in self.world.database.rows.values():
            for row in rows:
                fragment, expected = row.placed.fragment, self.truth[row.placed.begin : row.placed.end]
                good = [
                    name for name in fragment.replicas if self.world.stores[name].objects.get(fragment.path) == expected
                ]
                if not suffices(Replication(self.world.replicas, self.world.zones), good):
                    raise Violation(f"{fragment.path} has {good} at the end, and {fragment.replicas} are believed")
