"""The simulated table of holds, and the statements on it as one process reaches them: a `HoldStatements`.

The statements are those of `outbox.edges.postgres.holds`, with what they guard. A hold is never changed in place:
copies of a server share them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outbox.core.holds.crashes import Care, Watch
from outbox.core.holds.values import HISTORY_MAX, HoldActions, HoldRow
from tests.simulation.checkers import Violation

REJECTED, POISON, PAUSED, EDITING = "rejected", "poison", "paused", "editing"
OF_RECORDS, WANTED = (REJECTED, POISON), (PAUSED, EDITING)


@dataclass(frozen=True, slots=True)
class Hold:
    """A row of the table."""

    id: int
    topic: str
    key: str | None
    lane: int | None
    record_id: int | None
    stashed_at: int | None
    reason: str
    attempts: int = 0
    code: str = ""
    error: str = ""
    wanted: str = ""
    next_try: float | None = None
    confirmed_by: tuple[int, ...] = ()
    history: tuple[dict[str, Any], ...] = ()

    @property
    def unit(self) -> tuple[Any, ...]:
        return self.reason, self.topic, self.key, self.lane, self.record_id if self.key == "" else None

    def means(self, record: Any, lane: int) -> bool:
        if self.lane is not None:
            return self.lane == lane
        if self.topic != record.topic or self.key is None:
            return self.topic == record.topic
        return self.key == record.key and (bool(self.key) or self.record_id == record.id)


class HoldTable:
    """Of one server. What is written lasts."""

    def __init__(self, server: Any) -> None:
        self._server, self._world = server, server.world

    @property
    def _all(self) -> dict[int, Hold]:
        return self._server.now.holds  # type: ignore[no-any-return]

    def insert(self, hold: Hold) -> None:
        """Over another one of the same unit, which keeps its number."""
        now = self._server.now
        before = next((other for other in self._all.values() if other.unit == hold.unit), None)
        if before is None:
            now.hold_id += 1
        self._all[now.hold_id if before is None else before.id] = replace(
            hold, id=now.hold_id if before is None else before.id
        )
        self._server.flush()

    def delete(self, ids: Collection[int]) -> None:
        for id_ in ids:
            del self._all[id_]
        if ids:
            self._server.flush()

    def of_record(self, ids: Collection[int], reasons: Collection[str] = OF_RECORDS) -> list[Hold]:
        return [hold for hold in self._all.values() if hold.record_id in ids and hold.reason in reasons]

    def is_there(self, hold: Hold) -> bool:
        """Its record; there is none, or it is the one that was stashed then."""
        if hold.record_id is None:
            return True
        stored = self._server.now.rows.get(hold.record_id)
        return stored is not None and stored.create_time == hold.stashed_at

    def is_of_another(self, id_: int) -> bool:
        """Whether a hold was placed for another record with this id."""
        stored = self._server.now.rows[id_]
        return any(hold.stashed_at not in (None, stored.create_time) for hold in self.of_record([id_]))

    def is_discarded(self, id_: int) -> bool:
        stored, holds = self._server.now.rows[id_], self._all.values()
        return any(
            hold.record_id == id_ and hold.wanted == "discard" and hold.stashed_at in (None, stored.create_time)
            for hold in holds
        )

    def confirm(self, id_: int, lane: int) -> None:
        hold = self._all.get(id_)
        if hold is not None and lane not in hold.confirmed_by:
            self._all[id_] = replace(hold, confirmed_by=(*hold.confirmed_by, lane))
            self._server.flush()

    def require_sendable(self, record: Any) -> None:
        """What a lane has confirmed, nobody sends before the pause is over."""
        if not self._all:
            return
        lanes = self._server.now.state.lane_count
        lane = (self._world.lane_of(record.key) if record.key else record.id) % lanes
        for hold in self._all.values():
            if hold.reason in WANTED and lane in hold.confirmed_by and hold.means(record, lane):
                raise Violation(f"{record} is sent, and lane {lane} has confirmed {hold}")

    # ---- what operators do

    def place(self, hold: Hold) -> int:
        """Its number, 0: there is such a hold already."""
        if any(other.unit == hold.unit for other in self._all.values()):
            return 0
        self.insert(hold)
        return self._server.now.hold_id  # type: ignore[no-any-return]

    def want(self, id_: int, wanted: str) -> None:
        self._all[id_] = replace(self._all[id_], wanted=wanted)
        self._server.flush()

    # ---- what harvesters do

    def load(self, lanes: int) -> list[HoldRow]:
        return [self._shown(hold, lanes) for _, hold in sorted(self._all.items())]

    def _shown(self, hold: Hold, lanes: int) -> HoldRow:
        of_lane = head_lane = None
        if hold.lane is not None:
            of_lane = hold.lane
        elif hold.key is not None:
            of_lane = (self._world.lane_of(hold.key) if hold.key else int(hold.record_id or 0)) % lanes
        elif (stored := self._server.now.rows.get(hold.record_id)) is not None:
            head_lane = stored.lane_hash % lanes
        due_s = None if hold.next_try is None else hold.next_try - self._world.now
        return HoldRow(
            hold.id, hold.topic, hold.key, hold.lane, of_lane, hold.record_id, hold.reason, hold.attempts, hold.code,
            hold.error, hold.wanted, due_s, hold.confirmed_by, hold.history, self.is_there(hold), head_lane,
        )  # fmt: skip

    def hold(self, placed: Sequence[HoldRow]) -> None:
        """Of records that are there."""
        units = set()
        for hold in sorted(placed, key=lambda hold: hold.head):
            stored = self._server.now.rows.get(hold.head)
            if stored is None:
                continue
            hold = Hold(
                0, hold.topic, None if hold.key is None else stored.row[2], None, hold.head, stored.create_time,
                REJECTED, hold.attempts, hold.code, hold.error, "",
                None if hold.due_s is None else self._world.now + hold.due_s, (),
                ({"at": self._world.now, "code": hold.code, "error": hold.error},),
            )  # fmt: skip
            if hold.unit in units:
                raise Violation(f"one statement placed {hold.unit} twice, which PostgreSQL refuses")
            units.add(hold.unit)
            self.insert(self._continued(hold))

    def _continued(self, hold: Hold) -> Hold:
        """What the hold before it has that is about the same record."""
        before = next((other for other in self._all.values() if other.unit == hold.unit), None)
        if before is None or (before.record_id, before.stashed_at) != (hold.record_id, hold.stashed_at):
            return hold
        wanted = "" if before.wanted == "retry" else before.wanted
        return replace(hold, wanted=wanted, history=(before.history + hold.history)[-HISTORY_MAX:])

    def end_retried(self, record_ids: Collection[int]) -> None:
        self.delete([hold.id for hold in self.of_record(record_ids, [POISON]) if hold.wanted == "retry"])

    def poison(self, id_: int, crashes: int) -> None:
        self.delete([hold.id for hold in self.of_record([id_], [REJECTED])])
        stored = self._server.now.rows.get(id_)
        if stored is None:
            return
        if self._world.poison is not None and stored.uid not in self._world.poison:
            raise Violation(f"{stored} is held for crashes, and has crashed nobody")
        hold = Hold(
            0, stored.row[1], stored.row[2], None, id_, stored.create_time, POISON, crashes, "CRASHED",
            f"{crashes} harvesters ended without warning while they sent this record alone",
        )  # fmt: skip
        before = next((other for other in self._all.values() if other.unit == hold.unit), None)
        if before is not None:
            hold = replace(
                hold,
                code=before.code,
                history=before.history,
                next_try=before.next_try,
                confirmed_by=before.confirmed_by,
            )
        self.insert(hold)

    def lift(self, record_ids: Collection[int]) -> None:
        self.delete([hold.id for hold in self.of_record(record_ids)])


class Holds:
    def load(self, connection: Any, lanes: int) -> list[HoldRow]:
        found: list[HoldRow] = connection.ask(lambda server: server.holds.load(lanes))
        return found

    def write(self, connection: Any, placed: Sequence[HoldRow], lifted: Sequence[int]) -> None:
        if placed:
            connection.perhaps_lost("placed_lost")
            connection.ask(lambda server: server.holds.hold(placed))
            connection.ask(lambda server: server.holds.end_retried([hold.head for hold in placed]))
        if lifted:
            connection.ask(lambda server: server.holds.lift(lifted))

    def run_soon(self, connection: Any, lane: int, hold_actions: HoldActions, wait_ms: int) -> None:
        """Nobody who is simulated locks a hold or a row for longer than a statement takes."""
        connection.run(lane, hold_actions)

    def watch(self, connection: Any, lane: int) -> Watch | None:
        found: Watch | None = _asked(connection, lambda server: server.watched(lane))
        return found

    def own(self, connection: Any, lane: int, owner: str, care: Care) -> None:
        _asked(connection, lambda server: server.own(lane, owner, care))

    def start(self, connection: Any, lane: int, owner: str, ids: Sequence[int]) -> None:
        _asked(connection, lambda server: server.note(lane, owner, started=tuple(ids)))

    def calm(self, connection: Any, lane: int, owner: str) -> None:
        _asked(connection, lambda server: server.note(lane, owner, started=(), suspected=(), crashes=0))

    def leave(self, connection: Any, lane: int, owner: str) -> None:
        _asked(connection, lambda server: server.note(lane, owner, is_clean=True))


def _asked(connection: Any, statement: Callable[[Any], Any]) -> Any:
    """Where processes crash of themselves the table of crashes is empty: every owner would be careful."""
    return connection.ask(statement if connection.watches else lambda server: None)
