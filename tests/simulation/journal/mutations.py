"""Planted bugs of journals: each is the product, or the simulated server, without one of its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outbox.core.journal import fragments, reading
from outbox.core.journal.append import Append, AppendStage
from outbox.core.journal.reading import ReadCursor
from outbox.core.journal.values import Report
from outbox.journal import commit, staging
from outbox.journal.keeper import Keeper
from outbox.journal.upload import StoreThread, Upload
from tests.simulation.journal.database import PRESENT, Rules
from tests.simulation.journal.scenario import EVERYTHING, PLAIN, PROCESSES, STORES, THEMES, Outcome, run
from tests.simulation.planted import PlantedBug, around


@dataclass(frozen=True)
class Planted(PlantedBug):
    rules: Rules = PRESENT

    def run(self, seed: int) -> Outcome:
        return run(seed, self.rules, self.applied)


def _believe(sealed: Any, one: Append, store: str, report: Report) -> Any:
    return sealed(one, store, one._content.report)


def _compare_lengths(sealed: Any, one: Append, store: str, report: Report) -> Any:
    same = report.length == one._content.length
    return sealed(one, store, one._content.report if same else report)


def _stage_what_came(chunks: Any, size: int) -> Iterator[bytes]:
    """An error of the content is taken for its end."""
    blocks = CUT(chunks, size)
    while True:
        try:
            yield next(blocks)
        except Exception:
            return


CUT = fragments.cut


def _place_again(transaction: Any, staged: Any, conditions: Any) -> None:
    """A stage row that is gone is not noticed."""
    if transaction.place(staged, conditions) is None:
        transaction.ask(lambda: transaction.placed.append((staged, conditions)))


def _skip_bad(given: Any, cursor: ReadCursor, store: str, block: bytes) -> Any:
    """A block that no store has as it was sent is passed over."""
    found = given(cursor, store, block)
    if found is None and not cursor.replicas:
        cursor.offset = cursor.placed.end if cursor.placed else cursor.offset
        cursor._placed = None
    return found


def _heads_first(compare: Any, one: Keeper) -> None:
    """The heads are read before the stores."""
    heads = {state.name: state.head for state in one._table.journals()}
    for state in one._table.journals():
        for name in state.stores:
            found = one._last(state.name, name)
            if found is not None and found[0] >= heads[state.name]:
                one._table.suspect(state.name, f"{name} has {found} and the head is {heads[state.name]}")


def _rows_first(remove: Any, one: Keeper, state: Any, name: str) -> None:
    """The rows are asked for before the store is listed."""
    appends_ = [row.placed.append for row in one._table.server.rows[state.name]]  # type: ignore[attr-defined]
    staged = list(one._table.server.stages)  # type: ignore[attr-defined]
    known: Mapping[str, Any] = one._table.known(state.name, [*appends_, *staged])
    table = one._table
    one._table = Frozen(table, known)  # type: ignore[assignment]
    try:
        remove(one, state, name)
    finally:
        one._table = table


class Frozen:
    def __init__(self, table: Any, known: Any) -> None:
        self._table, self._known = table, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def known(self, journal: str, asked: Any) -> Any:
        return self._known


def _drop_late(look: Any, upload: Upload, store: StoreThread, now: float) -> Any:
    """A store that has failed still counts."""
    if store.error and upload._append.stage.state is AppendStage.SEAL:
        return upload._append.sealed(store.name, upload._append._content.report)
    return look(upload, store, now)


def _copy_blindly(has_copy: Any, one: Keeper, placed: Any, source: str, target: str) -> bool:
    has_copy(one, placed, source, target)
    return True


MUTATIONS: dict[str, Planted] = {
    "a stage in use is swept": Planted(rules=Rules(does_skip_locked=False), theme=(PROCESSES, THEMES)),
    "registers are not checked at commit": Planted(rules=Rules(does_check=False), theme=(PLAIN, THEMES)),
    "what a store has is not compared": Planted((around(Append, "sealed", _believe),), theme=(STORES, THEMES)),
    "only the length is compared": Planted((around(Append, "sealed", _compare_lengths),), theme=(STORES, THEMES)),
    "a store that failed still counts": Planted((around(Upload, "_look", _drop_late),), theme=(STORES, THEMES)),
    "content that raised is staged": Planted(((staging, "cut", _stage_what_came),)),
    "an append whose stage is gone is committed": Planted(
        ((commit, "place", _place_again),), theme=(EVERYTHING, THEMES)
    ),
    "a block is given out unchecked": Planted(((reading, "is_intact", lambda *given: True),), theme=(STORES, THEMES)),
    "what no store has is left out": Planted((around(ReadCursor, "given", _skip_bad),), theme=(STORES, THEMES)),
    "heads are read before the stores": Planted((around(Keeper, "_compare", _heads_first),), theme=(PLAIN, THEMES)),
    "rows are read before the objects": Planted(
        (around(Keeper, "_remove_strangers_of", _rows_first),), theme=(STORES, THEMES)
    ),
    "strangers are left": Planted(((Keeper, "_remove_strangers", lambda one: None),), theme=(STORES, THEMES)),
    "stages are left": Planted(((Keeper, "_sweep", lambda one: None),), theme=(PLAIN, THEMES)),
    "bad replicas still count": Planted(((Keeper, "_record", lambda *given: None),), theme=(STORES, THEMES)),
    "replicas are not copied": Planted(((Keeper, "_repair", lambda one: None),), theme=(STORES, THEMES)),
    "a copy is not read again": Planted((around(Keeper, "_has_copy", _copy_blindly),), theme=(STORES, THEMES)),
    "index objects are left to the appender": Planted(
        ((Keeper, "_index", lambda one: None),), theme=(PROCESSES, THEMES)
    ),
}
FOUND_BY = {
    "a stage in use is swept": 6,
    "registers are not checked at commit": 0,
    "what a store has is not compared": 9,
    "only the length is compared": 5,
    "a store that failed still counts": 1,
    "content that raised is staged": 0,
    "an append whose stage is gone is committed": 19,
    "a block is given out unchecked": 13,
    "what no store has is left out": 25,
    "heads are read before the stores": 100,
    "rows are read before the objects": 201,
    "strangers are left": 5,
    "stages are left": 0,
    "bad replicas still count": 13,
    "replicas are not copied": 13,
    "a copy is not read again": 213,
    "index objects are left to the appender": 2,
}
