"""What must hold in every run, whatever the scenario. Checkers see rows, appends, marks and limits, not the cores."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.simulation.checkers import Violation

HEARTBEAT_TIMEOUT_S = 2.0
OVERLAP_MAX = 6  # samples of 0.25 s in which two connected, running members may both start work in one lane


class Checkers:
    """Collects what happened and raises Violation at the first broken promise."""

    def __init__(self, *, window: int) -> None:
        self.window = window
        self.rows: dict[int, Any] = {}
        self.sequences: dict[str, int] = {}  # per key, the highest that was appended
        self.appended: dict[int, int] = {}
        self.given_up: dict[str, dict[int, None]] = {}  # per key, the sequences of dead letters
        self.appends = 0
        self.duplicates = 0
        self.regressions: dict[str, int] = {}
        self.overlaps: dict[int, int] = {}
        self.pauses: dict[str, int] = {}

    def committed(self, rows: list[Any]) -> None:
        for row in rows:
            self.rows[row.id] = row

    def dead_lettered(self, row: Any) -> None:
        self.appended.setdefault(row.id, 0)
        if row.key:
            self.given_up.setdefault(row.key, {})[row.sequence] = None

    def appended_to_topic(self, row: Any, process: str, *, handed_before_pause: bool) -> None:
        """Order per key, and no phantom. Only what a paused process had handed to its client may come out of turn."""
        if row.id not in self.rows:
            raise Violation(f"phantom: record {row.id} of key {row.key!r} was never committed")
        self.appends += 1
        self.duplicates += row.id in self.appended
        self.appended[row.id] = self.appended.get(row.id, 0) + 1
        if not row.key:
            return
        last = self.sequences.get(row.key, -1)
        passed_over = self.given_up.get(row.key, {})
        if any(number not in passed_over for number in range(last + 1, row.sequence)):
            raise Violation(f"key {row.key!r} jumped from {last} to {row.sequence} (sent by {process})")
        if row.sequence < last:
            if not handed_before_pause:
                raise Violation(f"key {row.key!r} went back from {last} to {row.sequence} (sent by {process})")
            self.regressions[process] = self.regressions.get(process, 0) + 1
            if self.regressions[process] > self.window * self.pauses.get(process, 0):
                raise Violation(f"{process} repeated more than the window holds: {self.regressions[process]}")
        self.sequences[row.key] = max(last, row.sequence)

    def marked(self, lane: int, epoch: int, newest: int) -> None:
        """`newest`: of the sessions that have taken the lane."""
        if epoch < newest:
            raise Violation(f"a mark of epoch {epoch} took effect in lane {lane}, which {newest} has taken")

    def touched(self, id_: int, marked_by: UUID | None, by: UUID) -> None:
        if marked_by != by:
            raise Violation(f"purge or reset of {by} took effect on record {id_}, which {marked_by} has marked")

    def began(self, process: str, effect: Any, *, trusted: bool) -> None:
        if not trusted:
            raise Violation(f"{process} asked for {effect} without trust")

    def handed(self, process: str, outstanding: dict[int, Any], handed: Any, *, trusted: bool, silent_s: float) -> None:
        """`outstanding`: what the client holds undecided, the new record not yet among it."""
        if not trusted:
            raise Violation(f"{process} sent record {handed.id} without trust")
        if silent_s > HEARTBEAT_TIMEOUT_S:
            raise Violation(f"{process} sent record {handed.id}, its last heartbeat arrived {silent_s:.3f} s ago")
        if len(outstanding) + 1 > self.window:
            raise Violation(f"{process} has {len(outstanding) + 1} records in flight, the window is {self.window}")
        for other in outstanding.values():
            if other.key == handed.key and handed.key:
                raise Violation(f"{process} sent {handed.id} of key {handed.key!r} beside {other.id}")

    def limits(self, process: str, statistics: Any, limits: Any) -> None:
        buffers = limits.shards * limits.shard_buffer_max
        if statistics.in_flight > self.window or statistics.buffered > buffers:
            raise Violation(f"{process} exceeds a limit: {statistics}")
        if min(statistics.in_flight, statistics.ready, statistics.buffered, statistics.deferred) < 0:
            raise Violation(f"{process} has lost count: {statistics}")
        if statistics.deferred > limits.deferred_max + buffers + self.window:
            raise Violation(f"{process} defers too much: {statistics}")

    def leaders(self, lane: int, names: list[str]) -> None:
        self.overlaps[lane] = self.overlaps.get(lane, 0) + 1 if len(names) > 1 else 0
        if self.overlaps[lane] > OVERLAP_MAX:
            raise Violation(f"lane {lane} is led by {names} for more than {OVERLAP_MAX / 4} s")

    def finished(self, left: list[int], *, faultless: bool) -> None:
        lost = [i for i in self.rows if i not in self.appended]
        gone = [i for i in lost if i not in left]
        if gone:
            raise Violation(f"lost: {gone[:10]} ({len(gone)}) are neither in the table nor on the topic")
        if left:
            raise Violation(f"the backlog did not drain: {left[:10]} ({len(left)}) are still in the table")
        if faultless and self.duplicates:
            raise Violation(f"{self.duplicates} duplicates in a run without faults")
