"""What executors must know to write slices of one epoch, the columns they get, and the errors of a slice. Pickles."""

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
    """The slice was not delivered, and consumers see none of it. Another attempt may succeed."""


class RejectedByKafka(SliceFailed):
    """No attempt succeeds until somebody changes the record, its topic or a privilege."""


class RecordUnfit(SliceFailed):
    """Kafka cannot take the record, and every attempt makes the same one: the query must change."""


class Superseded(SliceFailed):
    """Another driver writes this slice."""


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
    """Slice → (count, digest) of the slices that were delivered before the driver started."""
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
            f"{delivered[1]}). The query must give the same result for the same input: remove rand(), now(), uuid() "
            "and every unordered limit, and keep the data in the source. The sink sent no record of the epoch again."
        )
