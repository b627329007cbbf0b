"""What a verification is asked, what it finds, and where its last finding is kept. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outbox.edges.postgres.spark import verify
from outbox.exceptions import OutboxError

KINDS = {
    "unreadable": "a ledger entry cannot be read",
    "missing batch": "no record of a batch is in Kafka",
    "lost": "a record that the ledger lists is not in Kafka",
    "twice": "a record is in Kafka twice",
    "altered": "records differ from those that were sent",
    "order": "a record stands before an older one of its key",
    "unlisted": "a record is in Kafka that no ledger lists",
    "not deleted": "a record was delivered, and is still in the table",
}
"""Each kind of fault, the gravest first, as a sentence."""


class VerificationImpossible(OutboxError):
    """There is nothing to judge by, or it cannot be read."""


class NotNow(VerificationImpossible):
    """A server is away, or busy for too long: worth another attempt."""


@dataclass(frozen=True)
class VerificationRequest:
    """What to verification. Pickles: executors get it."""

    parameters: Mapping[str, Any]
    """Of the database connection."""
    table: str
    properties: Mapping[str, Any]
    """Of Kafka clients, as librdkafka names them."""
    ledgers: Sequence[str]
    """Topics; those that do not exist are left out."""
    topics: Sequence[str] = ()
    """Empty: every topic but Kafka's own, the ledgers and `without`."""
    id_header: str = "outbox-id"
    patience_s: float = 120.0
    """For transactions that are open when it begins."""
    finds_sinks: bool = False
    """Judge by every ledger of a Spark sink, too, whose entries name this database."""
    without: Sequence[str] = ()
    """Topics that hold no records: leader topics."""


@dataclass(frozen=True)
class Fault:
    kind: str
    count: int
    """Batches for `missing batch`, `lost`, `twice` and `altered`; else records."""
    first: str
    """The first counterexample, in words."""


@dataclass(frozen=True)
class Result:
    at: str
    seconds: float
    faults: Sequence[Fault] = ()
    batches: int = 0
    """Judged."""
    records: int = 0
    """Of those batches."""
    read: int = 0
    """Records read from the topics."""
    foreign: int = 0
    """Of these, without an id: somebody else's."""
    earlier: int = 0
    """Of these, from before the ledgers' window."""
    out_of_reach: int = 0
    """Batches not judged, because a topic no longer holds everything from their time."""
    waiting: int = 0
    """Rows of the table."""
    dead: int = 0
    """Dead letters."""
    absent: int = 0
    """Ids of the window in neither ledger, table nor dead letters: rolled back, filtered out or removed by hand."""
    absent_first: Sequence[int] = ()
    unordered: Sequence[str] = ()
    """Ledgers of sinks that order by other columns than the id: the order of their records was not judged."""
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
            f"read      {self.read:,} records of {len(self.topics)} topics in {self.seconds:.1f} s{rate}",
            f"judged    {self.batches:,} batches with {self.records:,} records",
            f"beside    {self.waiting:,} in the table, {self.dead:,} dead letters",
            f"          in Kafka {self.foreign:,} without an id, {self.earlier:,} from before the ledger's window",
        ]
        if self.out_of_reach:
            found.append(f"not judged {self.out_of_reach:,} batches: their topics have deleted records of that time")
        found += [f"not judged the order of what {name} lists: its sink orders by no id" for name in self.unordered]
        if self.absent:
            shown = ", ".join(map(str, self.absent_first))
            found.append(
                f"absent    {self.absent:,} ids in neither ledger nor table: rolled back, filtered out or removed by "
                f"hand; the first: {shown}"
            )
        found += [f"FAULT     {KINDS[fault.kind]}: {fault.count:,}; {fault.first}" for fault in self.faults]
        said = "nothing lost, nothing twice, order kept" if self.is_clean else f"{len(self.faults)} kinds of fault"
        return [*found, f"result: {said}"]


def store(request: VerificationRequest, result: Result) -> bool:
    """False where no harvester has made a place for it yet."""
    return verify.store(request.parameters, request.table, result.as_dict())
