"""Why a query ended, read from the text that Spark makes of an error. Pure.

Errors arise in executors, in the driver, and in the process beside the driver that Spark asks about offsets. Spark
passes on all of them as text with the traceback in it. The class that the text names decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    REFUSED = "refused"
    """Continuing would lose or duplicate records, or cannot work: an operator must act."""
    FENCED = "fenced"
    """Another driver has taken over."""
    OUTAGE = "outage"
    """A server or a machine is unavailable: try again without limit."""
    UNKNOWN = "unknown"
    """Try again a few times."""


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: FailureKind
    text: str


_NAMES = {
    FailureKind.REFUSED: (
        "SinkRefused", "OtherQuery", "LedgerLost", "CheckpointBehind", "SlicesChanged", "ReplayDiffers",
        "CheckpointLost", "RecordsMissing", "WrongOptions", "WrongTable", "NoPrivileges", "LedgerMissing",
        "LedgerRefused", "TransactionsRefused", "ForeignEntry", "DamagedEntry", "UnknownEntryVersion", "MissingExtra",
        "OutboxError", "RecordUnfit", "WrongColumns", "OtherDatabase", "OptionsIgnored", "RoleIgnored", "SessionShared",
        "RowsKept", "UnorderedIds",
    ),
    FailureKind.FENCED: ("Fenced", "Superseded"),
    FailureKind.OUTAGE: (
        "SliceFailed", "RejectedByKafka", "OtherMode", "LedgerUnreachable", "ReportsMissing", "KafkaUnreachable",
        "DatabaseUnreachable", "KafkaException", "KafkaError", "OperationalError", "InterfaceError",
        "StatementOverdue", "AdminShutdown", "NoProducer", "QueryCanceled", "LockNotAvailable",
        "ReadOnlySqlTransaction", "CannotConnectNow",
    ),
}  # fmt: skip
_OUTAGES = ("failed to connect back", "ExecutorLostFailure", "Executor heartbeat timed out", "TaskKilled")
_PATTERNS = {
    kind: re.compile(rf"(?<![\w/])(?:[a-z]\w*\.)*(?:{'|'.join(names)}): ?(.+)") for kind, names in _NAMES.items()
}


def judge(text: str) -> Trouble:
    """The gravest failure that the text names, in its own words without Spark's frame."""
    for kind in (FailureKind.REFUSED, FailureKind.FENCED, FailureKind.OUTAGE):
        if found := _PATTERNS[kind].findall(text):
            return Trouble(kind, max(found, key=len).strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for word in _OUTAGES:
        if found := [line for line in lines if word in line]:
            return Trouble(FailureKind.OUTAGE, found[0])
    return Trouble(FailureKind.UNKNOWN, _last_words(lines))


def _last_words(lines: list[str]) -> str:
    """The last line of a Python traceback, else the first line."""
    raised = [line for line in lines if re.match(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*: ", line)]
    return (raised or lines or ["Spark gave no reason"])[0][:500]
