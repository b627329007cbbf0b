"""What an operator may decide about a stopped lane: which rows were sent, and which options apply. Pure.

The ledger's entries after m list the ids of every batch that is in Kafka and, by the table, not purged. An entry has
one digest and one newest create_time for its whole batch. Where all rows of an entry are there, these decide for all
of them. Else a single row is recognised by its id and by being no younger than the batch's newest. The ids of another
database's ledger say nothing about single rows here: there only whole batches match.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from uuid import UUID

from outbox.core.exactly_once.decisions import AskElection, Decision, StateRow, Stop, Why, change_of
from outbox.core.exactly_once.ledger import Entry, LedgerEntryError

UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry after m beside the table: of its rows `found` are there and `sent` are those that were sent."""

    entry: Entry
    found: int
    sent: int
    is_whole: bool = False
    """All its rows were compared together, and not each by its time."""
    filenode: int = 0
    """The table's file when the rows were read. With another file, other rows may have these ids."""


@dataclass(frozen=True, slots=True)
class Case:
    """Both sides of one lane."""

    lane: int
    database: UUID
    purged: int
    """m"""
    last: Entry | None
    """The last proper entry of the lane: of this database, or of the one whose ledger it is."""
    reason: Why | str | None
    """None: the sides agree, or the next owner settles them by itself."""
    text: str
    listed: tuple[Listed, ...] = ()
    """Of the entries m+1…n, newest first."""

    @property
    def committed(self) -> int:
        """n"""
        return self.last.batch if self.last else 0

    @property
    def is_foreign(self) -> bool:
        return self.reason is Why.FOREIGN_DATABASE

    @property
    def needs_copy(self) -> bool:
        """The ledger's last record is not a proper entry of this lane and database: a proper one is put behind it."""
        return self.reason in (Why.FOREIGN_DATABASE, Why.OTHER_LANE, UNREADABLE)

    @property
    def missing(self) -> int:
        """Batches after m without an entry: compacted away, or of another database."""
        return max(0, self.committed - (0 if self.is_foreign else self.purged) - len(self.listed))

    @property
    def sent(self) -> int:
        return sum(listed.sent for listed in self.listed)

    @property
    def found(self) -> int:
        return sum(listed.found for listed in self.listed)

    @property
    def records(self) -> int:
        return sum(listed.entry.count for listed in self.listed)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the operator says."""

    delete_sent: bool = False
    resend: bool = False
    adopt: bool = False

    @property
    def acts(self) -> bool:
        return self.delete_sent or self.resend


_AGREE = "Table and ledger agree, or differ by the one batch that the next owner settles by itself: nothing to decide."
_AT_WORK = "An owner is working on the lane at this moment: nothing to decide."


def last_proper(
    newest_first: Iterable[Entry | LedgerEntryError], lane: int, database: UUID
) -> tuple[Entry | None, str | None]:
    """The last entry of a partition, if any. If its last record is no entry: what is wrong with it, and the last entry
    before it that is this lane's and database's."""
    problem: str | None = None
    for found in newest_first:
        if isinstance(found, LedgerEntryError):
            problem = problem or str(found)
        elif problem is None or (found.lane == lane and found.database == database):
            return found, problem
    return None, problem


def is_in_use(lane: int, state: StateRow) -> bool:
    """Whether the lane is judged like one that a harvester takes over. In a repair every lane is settled."""
    return lane < state.lane_count or state.resize_to is not None


def case_of(lane: int, database: UUID, purged: int, last: Entry | None, found: Decision | None) -> Case:
    """`found`: what a takeover would decide; None: a lane that is not in use is in order."""
    if isinstance(found, Stop):
        return Case(lane, database, purged, last, found.why, found.text)
    return Case(lane, database, purged, last, None, _AT_WORK if isinstance(found, AskElection) else _AGREE)


def copied(case: Case, owner: UUID, change: int) -> Entry:
    """The last batch once more, in this database's name. `change`: the number of the latest change of the lane count,
    as the state row has it. An entry without ids needs a number; one that the row does not know makes lane 0's owner
    settle every lane."""
    assert case.last is not None
    change = max(change_of(case.last, case.database), change, 0 if case.last.ids else 1)
    return replace(case.last, database=case.database, owner=owner, change=change)


def is_sent_as_a_whole(entry: Entry, count: int, digest: int, newest: int | None) -> bool | None:
    """Whether the rows under the entry's ids are its batch; None: each row is judged by itself."""
    if count != entry.count or newest is None or newest > entry.up_to:
        return None
    return digest == entry.digest and entry.has_newest(newest)


def entries_after(purged: int, lane: int, database: UUID, newest_first: Iterable[Entry]) -> Iterable[Entry]:
    """The entries of this lane and database with numbers above `purged`, each number once."""
    below = None
    for entry in newest_first:
        if entry.lane != lane or entry.database != database:
            continue
        if entry.batch <= purged:
            return
        if below is None or entry.batch < below:
            below = entry.batch
            yield entry


def objection(case: Case, decision: Resolution) -> str:
    """Why this decision does not fit this case; empty when it does."""
    lane = case.lane
    if case.is_foreign and not decision.adopt:
        return (
            f"the ledger was written for database {case.last.database if case.last else '?'}, but this database is "
            f"{case.database}. If the ledger is nevertheless that of this application, add --adopt-ledger. If another "
            "application writes there, give one of the two a NAME of its own"
        )
    if decision.adopt and not case.is_foreign:
        return "--adopt-ledger is for the ledger of another database, but this ledger was written for this database"
    if decision.delete_sent and case.committed <= case.purged and not case.is_foreign:
        return (
            f"--delete-sent does not apply: the ledger ends with batch {case.committed} and the table is at batch "
            f"{case.purged}, so no entry lists what was sent. Use --resend"
        )
    if case.needs_copy and case.last is None:
        return (
            f"partition {lane} of the ledger has no entry of this lane that could be copied to its end. Delete the "
            "ledger topic while no harvester runs. Then run outbox_resolve with --resend for every lane"
        )
    return ""


@dataclass(frozen=True, slots=True)
class ResolutionOutcome:
    case: Case
    decision: Resolution
    deleted: int = 0
    kept: int = field(default=0)
