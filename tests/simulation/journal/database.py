"""The simulated PostgreSQL: journals, fragments, stages and business rows; sessions that are cut; and the trigger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outbox.core.journal import registers
from outbox.core.journal.chain import chained, genesis
from outbox.core.journal.replication import suffices, zones_of
from outbox.core.journal.values import Cause, Conditions, JournalState, Placed, Replication, Staged, StageRow
from tests.simulation.runtime import Answer

DAY = "2026/01/02"


class Lost(Exception):
    """The connection."""


class Refused(Exception):
    """The trigger has raised at COMMIT."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause


@dataclass(frozen=True)
class Rules:
    """What the server does; a planted bug leaves one out."""

    does_check: bool = True
    does_skip_locked: bool = True


PRESENT = Rules()


class Row:
    def __init__(self, placed: Placed) -> None:
        self.placed = placed
        self.is_indexed = False
        self.scrubbed_at = 0.0
        self.at = 0.0


class Database:
    def __init__(self, world: Any, journal: JournalState) -> None:
        self.world = world
        self.journals = {journal.name: replace(journal, chain=genesis(journal.name))}
        self.rows: dict[str, list[Row]] = {journal.name: []}
        self.stages: dict[str, tuple[StageRow, float]] = {}
        self.expired: dict[str, None] = {}
        self.locks: dict[str, Session] = {}
        self.business: dict[int, str] = {}
        self.retention_s: float | None = None
        self.rules = Rules()

    def appends(self) -> set[str]:
        return {row.placed.append for rows in self.rows.values() for row in rows}

    def commit(self, session: Session) -> None:
        """The deferred trigger, then everything at once."""
        for staged, conditions in session.placed:
            state = self.journals[staged.journal]
            if self.rules.does_check and (refusal := registers.refusal(state, conditions)):
                raise Refused(refusal.cause, refusal.text)
            for fragment in staged.fragments:
                wanted = Replication(state.replicas, self.world.zones)
                if not suffices(wanted, fragment.replicas):
                    raise Refused(Cause.TOO_FEW_STORES, "too few replicas")
        for staged, conditions in session.placed:
            state = self.journals[staged.journal]
            head, chain = state.head, state.chain
            for fragment in staged.fragments:
                begin, head = head, head + fragment.length
                chain = chained(chain, begin, head, fragment.sha256)
                row = Row(Placed(staged.append, fragment, begin, head, chain))
                row.at = self.world.now
                self.rows[staged.journal].append(row)
            changed = registers.changed(state.registers, conditions)
            self.journals[staged.journal] = replace(state, head=head, chain=chain, registers=changed)
            self.world.checker.committed(staged)
        for uid, append in session.business.items():
            self.business[uid] = append
        for append in session.removed:
            self.stages.pop(append, None)
        session.rollback()


class Session:
    """A transaction of one process."""

    def __init__(self, process: Any) -> None:
        self.process, self.world = process, process.world
        self.server: Database = process.world.database
        self.placed: list[tuple[Staged, Conditions]] = []
        self.removed: dict[str, None] = {}
        self.business: dict[int, str] = {}
        self.is_lost = False

    def rollback(self) -> None:
        for append in [append for append, owner in self.server.locks.items() if owner is self]:
            del self.server.locks[append]
        self.placed, self.removed, self.business = [], {}, {}

    def ask(self, act: Callable[[], Any], *, is_commit: bool = False) -> Any:
        """A statement; `act` returns WAIT while another transaction has a lock that it needs."""
        world, faults = self.world, self.world.faults
        if self.is_lost:
            raise Lost
        answer = Answer(self.process.runtime, "PostgreSQL")
        is_cut = world.chance(faults.cut_commit if is_commit else faults.cut)
        arrives = not is_cut or world.chance(0.6)
        arrives_s = world.latency() + (world.random.uniform(0.0, 2.5) if is_commit and world.chance(faults.late) else 0)

        def arrive() -> None:
            try:
                value, error = act(), None
            except Refused as refused:
                value, error = None, refused
                self.rollback()
            if value is WAIT:
                world.after(0.02, arrive)
                return
            if is_cut and not is_commit:
                self.rollback()
            answer.settle(value, Lost() if is_cut else error)

        def lose() -> None:
            self.rollback()
            answer.settle(error=Lost())

        world.after(arrives_s, arrive if arrives else lose)
        self.is_lost = is_cut
        self.process.sessions.append(self)
        answer.wait(None)
        if answer.error is not None:
            raise answer.error
        return answer.value

    # ---- CommitPort

    def place(self, staged: Staged, conditions: Conditions) -> int | None:
        return self.ask(lambda: self._place(staged, conditions))  # type: ignore[no-any-return]

    def _place(self, staged: Staged, conditions: Conditions) -> Any:
        server = self.server
        if server.locks.get(staged.append, self) is not self:
            return WAIT
        is_open = staged.append in server.stages and staged.append not in server.expired
        if is_open and staged.append not in self.removed:
            server.locks[staged.append] = self
            self.removed[staged.append] = None
            self.placed.append((staged, conditions))
            return len(staged.fragments)
        return 0 if staged.append in server.appends() else None

    # ---- the caller

    def insert(self, uid: int, append: str) -> None:
        self.ask(lambda: self.business.update({uid: append}))

    def commit(self) -> None:
        self.ask(lambda: self.server.commit(self), is_commit=True)


WAIT = object()


class Table:
    """A `TablePort` and a `KeeperPort` of one process."""

    def __init__(self, process: Any) -> None:
        self.process, self.world = process, process.world

    @property
    def server(self) -> Database:
        return self.world.database  # type: ignore[no-any-return]

    def _ask(self, act: Callable[[], Any]) -> Any:
        while True:
            try:
                return Session(self.process).ask(act)
            except Lost:
                self.process.runtime.sleep(0.05)

    def state(self, journal: str) -> JournalState | None:
        return self._ask(lambda: self.server.journals.get(journal))  # type: ignore[no-any-return]

    def open(self, append: str, journal: str, stores: Sequence[str]) -> str:
        stage = StageRow(append, journal, DAY, tuple(stores))
        self._ask(lambda: self.server.stages.update({append: (stage, self.world.now)}))
        return DAY

    def extend(self, append: str) -> bool:
        def act() -> Any:
            if append in self.server.locks:
                return WAIT
            if append not in self.server.stages or append in self.server.expired:
                return False
            self.server.stages[append] = (self.server.stages[append][0], self.world.now)
            return True

        return bool(self._ask(act))

    def at(self, journal: str, offset: int) -> tuple[Placed | None, int]:
        def act() -> tuple[Placed | None, int]:
            rows = self.server.rows[journal]
            found = next((row.placed for row in rows if row.placed.end > offset), None)
            return found, self.server.journals[journal].head

        return self._ask(act)  # type: ignore[no-any-return]

    def placed(self, append: str) -> Sequence[Placed]:
        rows = [row.placed for rows in self.server.rows.values() for row in rows]
        return self._ask(lambda: [placed for placed in rows if placed.append == append])  # type: ignore[no-any-return]

    # ---- the keeper's

    def journals(self) -> Sequence[JournalState]:
        return self._ask(lambda: list(self.server.journals.values()))  # type: ignore[no-any-return]

    def expire(self, age_s: float, but: Sequence[str]) -> StageRow | None:
        def act() -> StageRow | None:
            server = self.server
            for append, (stage, at) in sorted(server.stages.items(), key=lambda item: item[1][1]):
                is_locked = append in server.locks and server.rules.does_skip_locked
                if append not in but and not is_locked and (append in server.expired or at < self.world.now - age_s):
                    server.expired[append] = None
                    return stage
            return None

        return self._ask(act)  # type: ignore[no-any-return]

    def forget(self, append: str) -> None:
        def act() -> None:
            self.server.stages.pop(append, None)
            self.server.expired.pop(append, None)

        self._ask(act)

    def unindexed(self, limit: int) -> Sequence[tuple[str, Placed]]:
        def act() -> list[tuple[str, Placed]]:
            found = [
                (name, row.placed) for name, rows in self.server.rows.items() for row in rows if not row.is_indexed
            ]
            return found[:limit]

        return self._ask(act)  # type: ignore[no-any-return]

    def _row(self, journal: str, begin: int) -> Row | None:
        return next((row for row in self.server.rows[journal] if row.placed.begin == begin), None)

    def indexed(self, journal: str, begins: Sequence[int]) -> None:
        def act() -> None:
            for begin in begins:
                if row := self._row(journal, begin):
                    row.is_indexed = True

        self._ask(act)

    def suspect(self, journal: str, reason: str) -> None:
        self.world.checker.suspected(reason)

    def lacking(self, known: Sequence[str], limit: int) -> Sequence[tuple[JournalState, Placed]]:
        def act() -> list[tuple[JournalState, Placed]]:
            found = []
            for name, rows in self.server.rows.items():
                state = self.server.journals[name]
                wanted = Replication(state.replicas, self.world.zones)
                found += [(state, row.placed) for row in rows if not suffices(wanted, row.placed.fragment.replicas)]
            return found[:limit]

        return self._ask(act)  # type: ignore[no-any-return]

    def unscrubbed(self, age_s: float, limit: int) -> Sequence[tuple[JournalState, Placed]]:
        def act() -> list[tuple[JournalState, Placed]]:
            found = [(name, row) for name, rows in self.server.rows.items() for row in rows]
            found = [one for one in found if one[1].scrubbed_at <= self.world.now - age_s]
            found.sort(key=lambda one: one[1].scrubbed_at)
            return [(self.server.journals[name], row.placed) for name, row in found[:limit]]

        return self._ask(act)  # type: ignore[no-any-return]

    def scrubbed(self, journal: str, begin: int, replicas: Sequence[str], zones: int) -> None:
        def act() -> None:
            if row := self._row(journal, begin):
                assert zones == zones_of(replicas, self.world.zones)
                self.world.checker.recorded(row.placed, replicas)
                row.placed = replace(
                    row.placed, fragment=replace(row.placed.fragment, replicas=tuple(replicas), zones=zones)
                )
                row.scrubbed_at, row.is_indexed = self.world.now, False

        self._ask(act)

    def prune(self, journal: str) -> int:
        def act() -> int:
            if self.server.retention_s is None:
                return 0
            rows, count = self.server.rows[journal], 0
            while rows and rows[0].at < self.world.now - self.server.retention_s:
                append = rows[0].placed.append
                gone = [row.placed for row in rows if row.placed.append == append]
                self.server.rows[journal] = rows = [row for row in rows if row.placed.append != append]
                begins = tuple(placed.begin for placed in gone)
                stage = StageRow(append, journal, DAY, self.server.journals[journal].stores, begins)
                self.server.stages[append] = (stage, 0.0)
                self.server.expired[append] = None
                self.world.checker.pruned(gone)
                count += 1
            return count

        return int(self._ask(act))

    def known(self, journal: str, appends: Sequence[str]) -> Mapping[str, Mapping[int, Sequence[str]] | None]:
        def act() -> dict[str, dict[int, Sequence[str]] | None]:
            found: dict[str, dict[int, Sequence[str]] | None] = {}
            for row in self.server.rows[journal]:
                if row.placed.append in appends:
                    parts = found.setdefault(row.placed.append, {})
                    assert parts is not None
                    parts[row.placed.fragment.part] = row.placed.fragment.replicas
            return found | {append: None for append in appends if append in self.server.stages}

        return self._ask(act)  # type: ignore[no-any-return]

    def vacant(self, journal: str, begins: Sequence[int]) -> Sequence[int]:
        return self._ask(lambda: [begin for begin in begins if self._row(journal, begin) is None])  # type: ignore[no-any-return]
