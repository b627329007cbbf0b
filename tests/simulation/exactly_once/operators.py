"""The actions of operators on holds and dead letters, as `outbox.operations` does them: each in one transaction, which
waits for any owner of a lock on the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.simulation.exactly_once.checkers import Written
from tests.simulation.exactly_once.holds import EDITING, OF_RECORDS, PAUSED, WANTED, Hold

_LOOK_S, _LOCK_POLL_S = 0.05, 0.005
_PATIENCE_S = 3.0


def pause_of(topic: str = "", key: str | None = None, lane: int | None = None) -> Hold:
    return Hold(0, topic, key, lane, None, None, PAUSED)


class Operators:
    """`written`: makes the record that an edit, or a dead letter that is put back, leads to."""

    def __init__(self, world: Any, rewritten: Callable[..., Written | None]) -> None:
        self._world, self._rewritten = world, rewritten
        self.edits = self.put_back_letters = self.pauses = 0

    @property
    def _server(self) -> Any:
        return self._world.postgres.primary

    @property
    def _holds(self) -> dict[int, Hold]:
        return self._server.now.holds  # type: ignore[no-any-return]

    def _when_free(self, ids: Sequence[int], hold_ids: Sequence[int], action: Callable[[], None]) -> None:
        if self._server.may_change(ids, hold_ids):
            action()
        else:
            self._world.after(_LOCK_POLL_S, lambda: self._when_free(ids, hold_ids, action))

    # ---- what they do

    def pause(self, hold: Hold) -> None:
        self.pauses += bool(self._server.holds.place(hold))

    def resume(self, id_: int) -> None:
        def resume() -> None:
            if id_ in self._holds:
                self._server.holds.delete([id_])

        self._when_free((), [id_], resume)

    def resume_all(self) -> None:
        for hold in list(self._holds.values()):
            if hold.reason in WANTED:
                self.resume(hold.id)

    def want(self, id_: int, wanted: str) -> None:
        """A rejected record is to be tried again, skipped or discarded."""
        record_id = self._holds[id_].record_id

        def want() -> None:
            hold = self._holds.get(id_)
            if hold is not None and hold.record_id == record_id and (hold.key is not None or wanted == "retry"):
                self._server.holds.want(id_, wanted)

        assert record_id is not None
        self._when_free([record_id], [id_], want)

    def edit(self, id_: int) -> None:
        """First the operator holds the record, which its lane confirms; then it changes and continues."""
        stored = self._server.now.rows[id_]
        topic, key = stored.row[1:3]
        placed = self._server.holds.place(Hold(0, topic, key, None, id_, stored.create_time, EDITING))
        if placed:
            self._await_confirmation(placed, id_, self._world.now + _PATIENCE_S)

    def _await_confirmation(self, placed: int, id_: int, give_up_at: float) -> None:
        server, hold, now = self._server, self._holds.get(placed), self._world.now
        if hold is None:
            return
        hashed = self._world.lane_of(hold.key) if hold.key else id_
        if hashed % server.now.state.lane_count in hold.confirmed_by:
            self._when_free([id_], [placed], lambda: self._change(hold, id_))
        elif now < give_up_at:
            self._world.after(_LOOK_S, lambda: self._await_confirmation(placed, id_, give_up_at))
        else:
            self.resume(placed)

    def _change(self, hold: Hold, id_: int) -> None:
        server = self._server
        if self._holds.get(hold.id) is None:
            return
        stored = server.now.rows.get(id_)
        if stored is not None and stored.create_time == hold.stashed_at:
            record = self._rewritten(stored.uid)
            assert record is not None
            server.change(record)
            self.edits += 1
            for refused in server.holds.of_record([id_], OF_RECORDS):
                if refused.wanted not in ("skip", "discard") and refused.stashed_at == stored.create_time:
                    server.holds.want(refused.id, "retry")
        server.holds.delete([hold.id])

    def requeue(self, id_: int) -> None:
        """A dead letter becomes a new record, behind the records that its key has sent since."""
        server = self._server
        xid = server.begin()
        record = self._rewritten(server.now.dead[id_].stored.uid, id_=server.draw_id())
        if record is not None:
            del server.now.dead[id_]
            self.put_back_letters += 1
        server.end(xid, [] if record is None else [replace(record)])
