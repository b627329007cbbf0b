"""What a lane tells of a committed batch, for metrics and traces. Nothing here may fail a batch or cost much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from outbox.core.contract import BatchDelivered, Traced
from outbox.core.exactly_once.ledger import Entry
from outbox.core.times import time_of
from outbox.harvest.exactly_once.values import Batch
from outbox.messages.context import STASHED_AT, TRACE_PARENT, TRACE_STATE
from outbox.runtime import Runtime

TRACED_MAX = 100


class Stopwatch:
    """Of one transaction: when it began by the wall clock, and how long its commit took."""

    def __init__(self, runtime: Runtime) -> None:
        self.began_ns, self.commit_s = runtime.time_ns(), 0.0

    def committed(self, commit_s: float) -> None:
        self.commit_s = commit_s


def delivered(batch: Batch, entry: Entry, stopwatch: Stopwatch, *, tracing: bool, runtime: Runtime) -> BatchDelivered:
    """`tracing`: look for records that carry a trace context."""
    now = time_of(batch.read_at + timedelta(seconds=runtime.monotonic() - batch.returned_at))  # by the database's clock
    return BatchDelivered(
        lane=entry.lane,
        leader_id=entry.owner,
        batch=entry.batch,
        count=entry.count,
        commit_s=stopwatch.commit_s,
        began_ns=stopwatch.began_ns,
        committed_ns=runtime.time_ns(),
        delays_s=_delays(batch.created, batch.ids, now),
        traced=tuple(islice(_traced(batch.rows), TRACED_MAX)) if tracing else (),
    )


def _delays(created: Mapping[int, int], ids: Sequence[int], now: int) -> tuple[float, ...]:
    """A page's samples may belong to other lanes, or to records under a hold."""
    if not created:
        return ()
    mine = created.keys() & set(ids)
    return tuple(max(0.0, (now - created[id_]) / 1_000_000) for id_ in mine)


def _traced(rows: Sequence[tuple[Any, ...]]) -> Any:
    for row in rows:
        names = row[4]
        if names and TRACE_PARENT in names:
            headers = dict(zip(names, row[5], strict=True))
            yield Traced(
                row[0], row[1], headers[TRACE_PARENT], headers.get(TRACE_STATE, ""), headers.get(STASHED_AT, "")
            )
