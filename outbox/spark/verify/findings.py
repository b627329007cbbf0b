"""The request of a verification, its findings, and the place of its last result. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outbox.edges.postgres.spark import verify
from outbox.exceptions import OutboxError

KINDS = {
    "unreadable": "a ledger entry cannot be read",
    "missing batch": "Kafka has no record of a batch",
    "lost": "Kafka lacks a record that the ledger lists",
    "twice": "Kafka has a record twice",
    "altered": "records differ from those that were sent",
    "order": "a newer record stands before an older one of its key",
    "unlisted": "Kafka has a record that no ledger lists",
    "not deleted": "the table still has a record that was delivered",
}
"""Each kind of fault, the gravest first, as a sentence."""


class VerificationImpossible(OutboxError):
    """The verification has nothing to compare with, or cannot read it."""


class NotNow(VerificationImpossible):
    """A server is unavailable or too busy: try again later."""


@dataclass(frozen=True)
class VerificationRequest:
    """What to verify. Pickles: executors get it."""

    parameters: Mapping[str, Any]
    """Parameters of the database connection."""
    table: str
    properties: Mapping[str, Any]
    """Of Kafka clients, as librdkafka names them."""
    ledgers: Sequence[str]
    """Topics; those that do not exist are left out."""
    topics: Sequence[str] = ()
    """Empty: every topic but Kafka's own, the ledgers and `without`."""
    id_header: str = "outbox-id"
    patience_s: float = 120.0
    """How long to wait for transactions that are open at the start."""
    finds_sinks: bool = False
    """Compare with the ledgers of Spark sinks too, if their entries name this database."""
    without: Sequence[str] = ()
    """Topics that hold no records: leader topics."""


@dataclass(frozen=True)
class Fault:
    kind: str
    count: int
    """The number of batches for `missing batch`, `lost`, `twice` and `altered`; else of records."""
    first: str
    """The first counterexample, in words."""


@dataclass(frozen=True)
class Result:
    at: str
    seconds: float
    faults: Sequence[Fault] = ()
    batches: int = 0
    """Batches that were checked."""
    records: int = 0
    """Records in these batches."""
    read: int = 0
    """Records that were read from the topics."""
    foreign: int = 0
    """Records among them without an id: other programs have sent these."""
    earlier: int = 0
    """Records among them from before the ledgers' window."""
    out_of_reach: int = 0
    """Batches that were not checked: a topic has deleted records of that time."""
    waiting: int = 0
    """Rows of the table."""
    dead: int = 0
    """Dead letters."""
    absent: int = 0
    """Ids of the window in neither ledger, table nor dead letters: rolled back, filtered out or removed by hand."""
    absent_first: Sequence[int] = ()
    unordered: Sequence[str] = ()
    """Ledgers of sinks that order by other columns than the id: the order of their records was not checked."""
    topics: Sequence[str] = field(default_factory=tuple)

    @property
    def is_clean(self) -> bool:
        return not self.faults

    def as_dict(self) -> dict[str, Any]:
        return {"clean": self.is_clean, **asdict(self)}

    def lines(self) -> list[str]:
        """For people; the result last."""
        rate = f", {self.read / self.seconds:,.0f}/s" if self.seconds else ""
        found = [
            f"read        {self.read:,} records of {len(self.topics)} topics in {self.seconds:.1f} s{rate}",
            f"checked     {self.batches:,} batches with {self.records:,} records",
            f"besides     {self.waiting:,} records in the table, {self.dead:,} dead letters",
            f"            {self.foreign:,} records in Kafka without an id, {self.earlier:,} from before the window",
        ]
        if self.out_of_reach:
            found.append(f"not checked {self.out_of_reach:,} batches: their topics have deleted records of that time")
        found += [
            f"not checked the order of the records in {name}: its sink does not order by id" for name in self.unordered
        ]
        if self.absent:
            shown = ", ".join(map(str, self.absent_first))
            found.append(
                f"absent      {self.absent:,} ids are in neither ledger nor table: rolled back, filtered out or "
                f"removed by hand; the first: {shown}"
            )
        found += [f"FAULT       {KINDS[fault.kind]}: {fault.count:,}; {fault.first}" for fault in self.faults]
        said = "nothing lost, nothing twice, order kept" if self.is_clean else f"{len(self.faults)} kinds of fault"
        return [*found, f"result: {said}"]


def store(request: VerificationRequest, result: Result) -> bool:
    """False if no harvester has made a place for it yet."""
    return verify.store(request.parameters, request.table, result.as_dict())
