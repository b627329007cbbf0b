"""One append, from the choice of its stores until its bytes are staged. Pure.

Each fragment goes to all stores of the journal that answer. A store that fails, stalls, or does not have what was sent
leaves the append, as long as enough others remain; else the append fails. What is staged becomes part of the journal
when the caller's transaction commits, not before: see `schema/journals.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from outbox.core.journal import registers
from outbox.core.journal.fragments import PARTS_MAX, Content, path_of
from outbox.core.journal.replication import suffices, zones_of
from outbox.core.journal.values import (
    AppendRefusal,
    Cause,
    Conditions,
    Fragment,
    JournalState,
    Replication,
    Report,
    Staged,
)
from outbox.core.region import Region, Transitions


class AppendStage(Enum):
    RESOLVE = "resolve"
    CHECK = "check"
    OPEN = "open"
    STREAM = "stream"
    SEAL = "seal"
    STAGED = "staged"
    FAILED = "failed"


class AppendStep(Enum):
    RESOLVED = "enough stores answer"
    CHECKED = "the journal would take the append as it is now"
    OPENED = "the stage row is committed: what is written from now on will be found"
    SEALS = "the fragment is complete, or the content is"
    NEXT = "enough stores have the fragment, and content is left"
    STAGED = "enough stores have every fragment, and the stage row is still there"
    FAILED = "refused, given up, or the content raised"


APPEND = Transitions(
    "append",
    AppendStage.RESOLVE,
    {
        (AppendStage.RESOLVE, AppendStep.RESOLVED): AppendStage.CHECK,
        (AppendStage.CHECK, AppendStep.CHECKED): AppendStage.OPEN,
        (AppendStage.OPEN, AppendStep.OPENED): AppendStage.STREAM,
        (AppendStage.STREAM, AppendStep.SEALS): AppendStage.SEAL,
        (AppendStage.SEAL, AppendStep.NEXT): AppendStage.STREAM,
        (AppendStage.SEAL, AppendStep.STAGED): AppendStage.STAGED,
        **{
            (stage, AppendStep.FAILED): AppendStage.FAILED
            for stage in AppendStage
            if stage not in (AppendStage.STAGED, AppendStage.FAILED)
        },
    },
)


class Append:
    def __init__(self, append: str, state: JournalState, zones: Mapping[str, str], conditions: Conditions) -> None:
        """`zones` has the stores of the journal."""
        self.stage = Region(APPEND)
        self._append, self._state, self._conditions = append, state, conditions
        self._wanted = Replication(state.replicas, zones)
        self._day = ""
        self._writing: dict[str, None] = {}
        """Stores that take part."""
        self._good: dict[str, None] = {}
        """Stores that have the fragment which is being sealed."""
        self._dropped: dict[str, str] = {}
        self._content = Content()
        self._fragments: list[Fragment] = []

    # ---- before the first byte

    def resolved(self, answering: Collection[str], errors: Mapping[str, str]) -> AppendRefusal | None:
        """`errors` of the stores that do not answer."""
        self._writing = {store: None for store in self._wanted.zones if store in answering}
        self._dropped = {store: error for store, error in errors.items() if store not in self._writing}
        return self._refused(self._shortage(self._writing), AppendStep.RESOLVED)

    def checked(self) -> AppendRefusal | None:
        """A hopeless append ends before anything is sent. The trigger checks once more when it counts."""
        return self._refused(registers.refusal(self._state, self._conditions), AppendStep.CHECKED)

    def opened(self, day: str) -> None:
        """`day` (YYYY/MM/DD) is the database's."""
        self._day = day
        self.stage.on(AppendStep.OPENED)

    # ---- the stream

    @property
    def writing(self) -> tuple[str, ...]:
        return tuple(self._writing)

    @property
    def dropped(self) -> Mapping[str, str]:
        """Stores that have left, and why."""
        return self._dropped

    @property
    def path(self) -> str:
        """Of the fragment that is being written."""
        return path_of(self._state.name, self._day, self._append, len(self._fragments))

    def add(self, block: bytes) -> None:
        assert self.stage.state is AppendStage.STREAM
        self._content.add(block)

    @property
    def is_full(self) -> bool:
        """The fragment takes no more."""
        return self._content.length >= self._state.fragment_bytes

    def drop(self, store: str, error: str) -> AppendRefusal | None:
        """The store has failed or stalled."""
        if store not in self._writing:
            return None
        del self._writing[store]
        self._good.pop(store, None)
        self._dropped[store] = error
        shortage = self._shortage(self._writing)
        if shortage is not None:
            self.fail()
        return shortage

    def empty(self) -> AppendRefusal:
        """There is no content."""
        self.fail()
        return registers.without_content(self._state.name)

    # ---- the seal

    def seals(self) -> None:
        self.stage.on(AppendStep.SEALS)
        self._good = {}

    def sealed(self, store: str, report: Report) -> AppendRefusal | None:
        """What the store has, as it reads it: a store counts only with exactly what was sent."""
        if store not in self._writing:
            return None
        if report != self._content.report:
            return self.drop(
                store,
                f"it has {report.length} bytes instead of {self._content.length}"
                if report.length != self._content.length
                else "it has other bytes than were sent",
            )
        self._good[store] = None
        return None

    @property
    def awaited(self) -> tuple[str, ...]:
        """Stores that have not reported yet."""
        return tuple(store for store in self._writing if store not in self._good)

    def kept(self, *, is_last: bool) -> AppendRefusal | None:
        """All stores have reported or left."""
        assert not self.awaited
        shortage = self._shortage(self._good)
        if shortage is None and not is_last and len(self._fragments) >= PARTS_MAX:
            shortage = AppendRefusal(
                Cause.TOO_FEW_STORES,
                f"The append to {self._state.name!r} has more than {PARTS_MAX} fragments. Set a larger fragment_bytes.",
            )
        if shortage is not None:
            self.fail()
            return shortage
        content, self._content = self._content, Content()
        replicas = tuple(store for store in self._writing if store in self._good)
        self._fragments.append(
            Fragment(
                len(self._fragments),
                path_of(self._state.name, self._day, self._append, len(self._fragments)),
                content.length,
                content.sha256,
                content.report.blocks,
                replicas,
                zones_of(replicas, self._wanted.zones),
            )
        )
        if not is_last:
            self.stage.on(AppendStep.NEXT)
        return None

    def staged(self, *, is_open: bool) -> Staged | AppendRefusal:
        """`is_open`: the stage row was there after the last seal, so no sweep has begun."""
        if not is_open:
            self.fail()
            return expired(self._state.name)
        self.stage.on(AppendStep.STAGED)
        return Staged(self._append, self._state.name, tuple(self._fragments))

    def fail(self) -> None:
        if self.stage.expects(AppendStep.FAILED):
            self.stage.on(AppendStep.FAILED)

    # ----

    def _shortage(self, stores: Collection[str]) -> AppendRefusal | None:
        if suffices(self._wanted, stores):
            return None
        errors = "".join(f" {store}: {error}." for store, error in sorted(self._dropped.items()))
        return AppendRefusal(
            Cause.TOO_FEW_STORES,
            f"The journal {self._state.name!r} needs {self._wanted.replicas} replicas in "
            f"{min(2, self._wanted.replicas)} zones, and only {sorted(stores)} of {sorted(self._wanted.zones)} "
            f"take the append.{errors} Repair the stores, then append again.",
        )

    def _refused(self, refusal: AppendRefusal | None, otherwise: AppendStep) -> AppendRefusal | None:
        self.stage.on(otherwise if refusal is None else AppendStep.FAILED)
        return refusal


def expired(journal: str) -> AppendRefusal:
    return AppendRefusal(
        Cause.EXPIRED,
        f"The stage of this append to the journal {journal!r} is gone: the keeper removed it because it was too old. "
        "Stage the content again.",
    )
