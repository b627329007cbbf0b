"""What executors must know to write slices of one epoch, the columns they get, and how a slice fails. Pickles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outbox.exceptions import OutboxError
from outbox.spark.sink.slice_ledger import ReplayDiffers

PART, CHECKSUM = "_part", "_checksum"
"""Columns that the sink adds: 2 × slice, plus 1 on the slice's sentinel; the record's checksum."""
RESULT = "slice int, count bigint, digest bigint, skipped boolean, renewed boolean, ended double"


class SliceFailed(OutboxError):
    """The slice was not delivered; nothing of it is visible. Another attempt may succeed."""


class RejectedByKafka(SliceFailed):
    """Not before something changes: the record, its topic, or rights."""


class RecordUnfit(SliceFailed):
    """It cannot be sent as it is, and will be the same at every attempt: the query must change."""


class Superseded(SliceFailed):
    """Somebody else is at work on this slice."""


@dataclass(frozen=True)
class SlicePlan:
    name: str
    query: str
    epoch: int
    slices: int
    slices_before: int
    ledger: str
    properties: Mapping[str, Any]
    last: Mapping[int, int]
    """Slice → the epoch that its last entry must have; absent: it must have none."""
    done: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Slice → (count, digest): delivered before the driver started."""
    transaction_timeout_s: float = 60.0
    id_header: str = ""
    keep_empty_key: bool = False
    has_ids: bool = False
    origin: str = ""
    order: str = ""

    def transactional_id(self, slice_: int) -> str:
        return f"outbox-spark-{self.name}-{slice_}"


def compare(plan: SlicePlan, slice_: int, delivered: tuple[int, int], now: tuple[int, int]) -> None:
    if delivered != now:
        raise ReplayDiffers(
            f"Epoch {plan.epoch} of the Spark sink {plan.name!r} was computed again, and slice {slice_} has other "
            f"records than those delivered: {now[0]} (digest {now[1]}) instead of {delivered[0]} (digest "
            f"{delivered[1]}). The query must give the same result for the same input: no rand(), now(), uuid() or "
            "unordered limit, and the source must still hold its data. Nothing of it was sent again."
        )
