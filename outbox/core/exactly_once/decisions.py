"""The decisions of an owner: total functions from what it has read to what it may do. Pure; the edges read and act.

*m* is the lane's last purged batch (a row of the database), *n* its last committed batch (an entry of the ledger). An
owner commits batch n + 1 only after PostgreSQL has confirmed the purge of batch n, so normally n is m or m + 1.
Anything else means that one side went back in time or was replaced. Then sending may repeat records and deleting may
lose them, so the lane stops until an operator decides.

``takeover`` is correct only because its facts are gathered in this order. The owner initialises its producer, after
which older owners can no longer commit. It *then* reads the state row and m, *then* the end of the ledger and its last
entry, *then*, for any lane but 0, the last entry of lane 0, and finally m once more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from outbox.core.exactly_once.ledger import Entry


class Rows(Enum):
    """What the table holds of the ids that an entry lists."""

    ALL = "all there and unchanged"
    NONE = "none there"
    SOME = "only some there"
    DIFFERENT = "all there, but not the ones that were sent"


class Why(Enum):
    FOREIGN_DATABASE = "foreign database"
    OTHER_LANE = "entry of another lane"
    DATABASE_WENT_BACK = "database went back"
    LEDGER_WENT_BACK = "ledger went back"
    ROWS_INCOMPLETE = "rows incomplete"
    ROWS_DIFFERENT = "rows different"
    ROWS_KEPT = "rows kept"


@dataclass(frozen=True, slots=True)
class StateRow:
    """The state row, as far as a lane is concerned."""

    lane_count: int
    resize_to: int | None = None
    """Set while the lanes are closed for a change of their count."""
    wanted: int | None = None
    """Another count that an operator asks for; nothing has begun yet."""
    resize_no: int = 0
    """The number of the latest change of the count: it differs for each change, whatever the counts are."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a takeover has read, in this order (``rows`` only when the decision asked for them)."""

    lane: int
    database: UUID
    state: StateRow
    purged: int
    entry: Entry | None
    purged_again: int
    rows: Rows | None = None
    settling: bool = False
    """Lane 0's owner settles a lane during a resize: the closed state is its own work."""
    newest_change: int = 0
    """Of the lane count, as the last entries of this lane and of lane 0 have it."""


@dataclass(frozen=True, slots=True)
class AskElection:
    """Somebody else is at work on this lane: take over again if the election still names this process, else stand
    by."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The lane count is being changed, or the database forgot a change and lane 0's owner must settle every lane first:
    wait and take over again."""

    resize_to: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The lane lies at or above the lane count: own it and do nothing."""

    lane_count: int


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """Ledger and table agree: go on with the batch after this one."""

    batch: int


@dataclass(frozen=True, slots=True)
class LookUpRows:
    """Compare the entry's rows with the table in one statement (``found_rows``), then ask again."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class PurgeEntry:
    """The entry's rows are in Kafka and still in the table: delete them, guarded, and go on after its batch."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class MoveOnly:
    """The entry's rows are gone already: only move the purged number, guarded, and go on after its batch."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Stop:
    """Neither sending nor deleting can be right: an operator decides. ``text`` has both sides and the remedy."""

    why: Why
    text: str


@dataclass(frozen=True, slots=True)
class Purged:
    """This owner or a successor has purged this batch."""

    batch: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """The lane's share of the page may be sent."""


Decision = AskElection | Closed | Idle | NothingToDo | LookUpRows | PurgeEntry | MoveOnly | Stop


def found_rows(entry: Entry, count: int, digest: int, newest: int | None) -> Rows:
    """Classify what one statement found of the entry's ids: how many, their digest and their newest ``create_time``,
    see `times`."""
    if count == 0:
        return Rows.NONE
    if count != entry.count:
        return Rows.SOME
    return Rows.ALL if digest == entry.digest and entry.has_newest(newest) else Rows.DIFFERENT


def waits_for(lane: int, state: StateRow) -> Closed | Idle | None:
    """Why no process may take the lane over, if the state row says so."""
    if state.resize_to is not None:
        return Closed(state.resize_to)
    return Idle(state.lane_count) if lane >= state.lane_count else None


def takeover(facts: Facts) -> Decision:
    """The decision of a takeover. Total: every combination of facts has exactly one answer."""
    state, entry = facts.state, facts.entry
    if not facts.settling and (waiting := waits_for(facts.lane, state)) is not None:
        return waiting
    if not facts.settling and forgets_change(state, facts.newest_change):
        return Closed(state.lane_count)
    if facts.purged != facts.purged_again:
        return AskElection()
    if entry is None:
        return NothingToDo(0) if facts.purged == 0 else _ledger_went_back(facts.lane, facts.purged, 0)
    if entry.database != facts.database:
        return _foreign(facts.lane, facts.database, entry)
    if entry.lane != facts.lane:
        return _other_lane(facts.lane, entry)
    if entry.batch < facts.purged:
        return _ledger_went_back(facts.lane, facts.purged, entry.batch)
    if entry.batch == facts.purged:
        return NothingToDo(entry.batch)
    if entry.batch > facts.purged + 1:
        return _database_went_back(facts.lane, facts.purged, entry.batch)
    return settle(entry, facts.rows)


def change_of(entry: Entry | None, database: UUID) -> int:
    """Under which change of the lane count an entry was written. Another database's numbers mean nothing here."""
    return entry.change if entry is not None and entry.database == database else 0


def forgets_change(state: StateRow, newest_change: int) -> bool:
    """The database went back to before a change of the lane count. Each lane may agree with its ledger, and would still
    send records that another lane has sent: the change had moved them to another lane."""
    return newest_change > state.resize_no


def settle(entry: Entry, rows: Rows | None) -> LookUpRows | PurgeEntry | MoveOnly | Stop:
    """The entry is one ahead of the purged number: its batch is in Kafka and its purge unknown."""
    if rows is None:
        return LookUpRows(entry)
    return _SETTLED[rows](entry)


def idle_lane(lane: int, lane_count: int, database: UUID, purged: int, entry: Entry | None) -> Stop | None:
    """Judge a lane at or above the count: it was settled when the count was lowered, so both sides agree. If they do
    not, the database was restored from before a change of the count, and other lanes would send its records again."""
    if entry is None:
        return None
    if entry.database != database:
        return _foreign(lane, database, entry)
    if entry.lane != lane:
        return _other_lane(lane, entry)
    if entry.batch <= purged:
        return None
    return _stop(
        Why.DATABASE_WENT_BACK,
        lane,
        f"The lane count is {lane_count}, so this lane is not in use and its last batch was purged when the count was "
        f"lowered. But the table says batch {purged} was the last one purged, and the ledger has batch "
        f"{entry.batch}: the database went back in time, to before a change of the count (restore, failover to a "
        "lagging copy)",
        _BOTH,
    )


def after_purge(entry: Entry, purged: int) -> Purged | LookUpRows | Stop:
    """After a guarded purge of an entry's batch that did not move the number: ``purged`` is m, read since.

    A number that stands just below the batch although the purge did not move it means that the table's file has
    changed (TRUNCATE, VACUUM FULL): the ids may have been drawn a second time. Compare the rows, `settle`, and purge
    with the new file's number.
    """
    if purged >= entry.batch:
        return Purged(entry.batch)
    if purged < entry.batch - 1:
        return _database_went_back(entry.lane, purged, entry.batch)
    return LookUpRows(entry)


def rows_kept(entry: Entry, reason: str) -> Stop:
    """Rows survived the purge of their batch, which was rolled back: the next attempt finds everything as before."""
    return Stop(
        Why.ROWS_KEPT,
        f"Lane {entry.lane} is stopped at batch {entry.batch}. {reason} The lane then resumes by itself.",
    )


def round_check(lane: int, purged: int, acknowledged: int, in_flight: int | None) -> GoOn | AskElection | Stop:
    """Judge m in the first row of a page by the last purge acknowledged and the last batch committed, whose purge may
    be under way (``in_flight``)."""
    if purged < acknowledged:
        return _stop(
            Why.DATABASE_WENT_BACK,
            lane,
            f"The table says batch {purged} was the last one purged, but the database had acknowledged the "
            f"purge of batch {acknowledged} to this process: the database went back in time (failover to a "
            f"lagging copy, restore)",
            _BOTH,
        )
    if purged > max(acknowledged, in_flight or 0):
        return AskElection()
    return GoOn()


_PURGE_SENT = (
    "--delete-sent (delete the rows that the newer ledger entries list and that still match: they are in Kafka)"
)
_RESEND = "--resend (keep every row: the harvester sends again what Kafka already has)"
_BOTH = f"either {_PURGE_SENT} or {_RESEND}"
_ONLY_RESEND = f"{_RESEND}; --delete-sent does not apply, because no entry lists what was sent"
_ADOPT = f"--adopt-ledger, which takes this ledger over for this database, together with {_BOTH}"


def _stop(why: Why, lane: int, what: str, options: str) -> Stop:
    return Stop(
        why,
        f"Lane {lane} is stopped, and the harvester sends and deletes nothing there. {what}. Find out which side is "
        f"right. Then run manage.py outbox_resolve --lane {lane} with {options}.",
    )


def _foreign(lane: int, database: UUID, entry: Entry) -> Stop:
    return _stop(
        Why.FOREIGN_DATABASE,
        lane,
        f"This database is {database}, but batch {entry.batch} in the ledger was written for database {entry.database}",
        _ADOPT,
    )


def _other_lane(lane: int, entry: Entry) -> Stop:
    return _stop(
        Why.OTHER_LANE,
        lane,
        f"The ledger partition of lane {lane} ends with batch {entry.batch} of lane {entry.lane}",
        _ONLY_RESEND,
    )


def _ledger_went_back(lane: int, purged: int, committed: int) -> Stop:
    last = f"ends with batch {committed}" if committed else "has no entry of this lane"
    return _stop(
        Why.LEDGER_WENT_BACK,
        lane,
        f"The table says batch {purged} was purged, but the ledger {last}: the ledger went back in time "
        "(topic deleted or restored, another cluster)",
        _ONLY_RESEND,
    )


def _database_went_back(lane: int, purged: int, committed: int) -> Stop:
    return _stop(
        Why.DATABASE_WENT_BACK,
        lane,
        f"The table says batch {purged} was the last one purged, but the ledger has batch {committed}: the "
        "database went back in time (restore, failover to a lagging copy) or its companion tables were emptied",
        _BOTH,
    )


def _incomplete(entry: Entry) -> Stop:
    return _stop(
        Why.ROWS_INCOMPLETE,
        entry.lane,
        f"The ledger lists {entry.count} rows of batch {entry.batch}, but the table holds only some of them. A purge "
        "deletes all or none, so something else deleted rows",
        _BOTH,
    )


def _different(entry: Entry) -> Stop:
    return _stop(
        Why.ROWS_DIFFERENT,
        entry.lane,
        f"The table has rows under all {entry.count} ids of batch {entry.batch} in the ledger (read at "
        f"{entry.read_at}), but their digest is not {entry.digest}, or their newest create_time differs: ids were "
        "drawn a second time (RESTART IDENTITY), or rows were changed",
        _BOTH,
    )


_SETTLED: dict[Rows, Callable[[Entry], PurgeEntry | MoveOnly | Stop]] = {
    Rows.ALL: PurgeEntry,
    Rows.NONE: MoveOnly,
    Rows.SOME: _incomplete,
    Rows.DIFFERENT: _different,
}
