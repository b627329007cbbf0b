"""Up to which id a table is settled for marks: what is there is marked or held, and nothing more will appear.

Where operators hold a large backlog every mark would walk it again. A mark may begin above an id once all transactions
that could still have shown rows below it had ended when that id was walked over. Unlike the `frontier` it waits for
every old transaction, which costs walking and no order: a mark that has marked rows cannot be thrown away and begun
lower.

Rests on the same as the frontier: a writer has its transaction id before it draws an id, and ids rise. Pure.
"""

from __future__ import annotations

from outbox.core.frontier import Snapshot


class Settled:
    """Told of every mark, in their order, with what its own statement saw."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """The next mark begins at 0: something else is held, or another takeover."""
        self.look = 0
        """Above which id the next mark begins."""
        self._sequence: int | None = None
        self._candidate: tuple[int, int] | None = None
        """(xid, id): every transaction from this xid on draws ids above this id."""

    def note(self, snapshot: Snapshot, sequence: int, last_id: int | None) -> None:
        """A mark above `look`. `last_id`: of its last row if there may be more behind it; None: it saw all there is."""
        if self._sequence is not None and sequence < self._sequence:  # ids are drawn a second time
            self.reset()
        elif self._candidate is not None:
            xid, settled = self._candidate
            if min([snapshot.xmax, *snapshot.running]) >= xid:
                self.look = max(self.look, settled if last_id is None else min(settled, last_id))
                self._candidate = None
        if self._candidate is None and self._sequence is not None:
            # The value that an earlier statement saw: drawn before this next xid was read.
            self._candidate = (snapshot.next_xid, self._sequence)
        self._sequence = sequence
