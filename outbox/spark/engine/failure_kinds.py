"""What became of a query that ended, read from the text that Spark makes of an error. Pure.

Errors arise in executors, in the process beside the driver that Spark asks about offsets, and in the driver; Spark
hands on all of them as text with the traceback in it. What counts is the class that is named there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    REFUSED = "refused"
    """Going on would lose or double records, or cannot work: an operator must look."""
    FENCED = "fenced"
    """Another driver has taken over."""
    OUTAGE = "outage"
    """A server or a machine is away: worth another attempt, however often."""
    UNKNOWN = "unknown"
    """Worth a few attempts."""


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
    """The worst that the text names; its own words without Spark's frame."""
    for kind in (FailureKind.REFUSED, FailureKind.FENCED, FailureKind.OUTAGE):
        if found := _PATTERNS[kind].findall(text):
            return Trouble(kind, max(found, key=len).strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for word in _OUTAGES:
        if found := [line for line in lines if word in line]:
            return Trouble(FailureKind.OUTAGE, found[0])
    return Trouble(FailureKind.UNKNOWN, _last_words(lines))


def _last_words(lines: list[str]) -> str:
    """Of a Python traceback its last line, else the first line."""
    raised = [line for line in lines if re.match(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*: ", line)]
    return (raised or lines or ["no reason was given"])[0][:500]
