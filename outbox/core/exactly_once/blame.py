"""Who is to blame for a transaction that failed, and what is to be done about it. Pure; the lane's thread acts.

The edge turns whatever was raised into one of the failures below, and asks the client for the cause first where what it
has raised may say less. `blame` has an answer for every failure of every attempt: the actions, in their order. The last
one says how the lane goes on: it is taken over again, at once or after a pause.

A normal transaction has no report for each record. When it fails, nobody may know which record was refused. So the next
transaction *probes*: each record has a report, and the ledger's entry is sent only when all are acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outbox.core import faults
from outbox.core.exactly_once.transaction import Probing
from outbox.core.faults import TOO_LARGE, Kind

# With this one the brokers name every record that is at fault, and the client reports the others with another.
_TOLD_APART = frozenset({"INVALID_RECORD"})
_OVERDUE = frozenset({"_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE"})
_LEDGER_REMEDIES = {
    "INVALID_TIMESTAMP": "Set this host's clock, or raise message.timestamp.after.max.ms of the topic",
}

Report = tuple[int, str, str]
"""Of a record that was not delivered: its place in the batch, the client's name of the error, its text."""


# ---- what has happened


@dataclass(frozen=True, slots=True)
class Dropped:
    """The batch must not be committed, through no fault of Kafka's."""

    text: str


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """Not everything was acknowledged in time, and nothing was refused."""

    text: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The client has refused to go on, for this reason."""

    name: str
    text: str

    @property
    def reason(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Some records of a probing attempt have failed, by their reports; `cause` is what the client gives as the reason
    why the transaction has."""

    cause: Raised | None = None


Failure = Dropped | Unacknowledged | Raised | Undelivered


@dataclass(frozen=True, slots=True)
class Weighed:
    """What became known of suspects that were refused for their size."""

    exceeding: tuple[int, ...]
    """The places of those that are larger than their topic takes, as far as one can tell."""
    limit: int | None
    """The least number of bytes that one of their topics takes at a time; None: of none it is known."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The transaction that failed."""

    rows: Sequence[Sequence[Any]]
    probing: Probing = Probing.WHOLE
    reports: Sequence[Report] = field(default=())
    """Of the records that have failed, in the order in which they came."""
    is_ending: bool = False
    """The lane is to end: what was not acknowledged in the time that was left says nothing about its size."""
    ledger: str = ""
    request_bytes: int | None = None
    """No more bytes are sent in one request already."""
    weighed: Weighed | None = None


# ---- what is to be done


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """It was refused, alone or by its name."""

    at: int
    reason: str
    is_too_large: bool = False
    is_named: bool = False
    """The brokers would have named it beside others too."""


@dataclass(frozen=True, slots=True)
class HoldTopic:
    """The topic of the record at this place takes none of its records."""

    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class HoldLikely:
    """The first of each key among these is to blame as far as one can tell: all are held at once, as a search for each
    would take the lane's time. No attempt is counted."""

    at: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Search:
    """One of these at least was refused, and nothing tells which: less and less is sent, see `bisection`."""

    at: tuple[int, ...]
    code: str


@dataclass(frozen=True, slots=True)
class SendLess:
    """Each is small enough for its topic, and together they are too large: no more bytes in one request."""

    limit: int


@dataclass(frozen=True, slots=True)
class Weigh:
    """Find out which of these are too large, and ask again: it is the only action then."""

    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProbeNext:
    """The next attempt asks for a report of each record, and looks up the topics again."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Take the lane over again at once, with another producer."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Nobody is to blame: pause, and take the lane over again."""

    reason: str
    is_too_slow: bool = False
    """It was too much for its time: smaller pages."""


@dataclass(frozen=True, slots=True)
class LedgerDenied:
    """No record is to blame, and no attempt is spent: an operator has to change something. Until then as an outage."""

    reason: str


@dataclass(frozen=True, slots=True)
class LostToOther:
    """By somebody else, or because the broker ended an own transaction that took too long: the election knows."""

    reason: str


Last = Weigh | Renew | Outage | LedgerDenied | LostToOther
"""One of these ends every list."""
Action = HoldRecord | HoldTopic | HoldLikely | Search | SendLess | ProbeNext | Last


def blame(attempt: Attempt, failure: Failure) -> list[Action]:
    if isinstance(failure, Dropped):
        return [Outage(failure.text)]
    if isinstance(failure, Unacknowledged):
        return [Outage(failure.text, is_too_slow=not attempt.is_ending)]
    if isinstance(failure, Undelivered):
        return _of_reports(attempt, failure.cause)
    return _of_error(attempt, failure)


def _of_reports(attempt: Attempt, cause: Raised | None) -> list[Action]:
    refused = sorted(report for report in attempt.reports if faults.is_rejection(report[1]))
    if not refused:
        if cause is not None and faults.is_rejection(cause.name):
            return _of_refusal(attempt, cause)
        _, name, text = attempt.reports[0]
        reason = f"Kafka did not accept {len(attempt.reports)} records, e.g. {name}: {text}"
        return [Outage(reason, is_too_slow=any(name in _OVERDUE for _, name, _ in attempt.reports))]
    if denied := {attempt.rows[at][1]: (at, name, text) for at, name, text in reversed(refused) if _is_of_topic(name)}:
        held = [_hold_topic(attempt, at, f"{name}: {text}") for at, name, text in denied.values()]
        return [ProbeNext(), *held, Renew()]
    _, name, text = refused[0]
    error = Raised(name, text)
    if name in _TOLD_APART and len(refused) > 1 and cause is not None:
        error = cause  # what each of them is reported with says less
    return _of_suspects(attempt, tuple(at for at, _, _ in refused), error)


def _of_error(attempt: Attempt, error: Raised) -> list[Action]:
    if faults.is_rejection(error.name):
        return _of_refusal(attempt, error)
    if faults.kind_of(error.name) is Kind.FENCE:
        return [LostToOther(error.reason)]
    outage = Outage(error.reason, is_too_slow=error.name in _OVERDUE and not attempt.is_ending)
    if faults.may_hide_a_rejection(error.name):
        return [ProbeNext(), outage]  # perhaps for a record's sake: the next attempt tells which
    return [outage]


def _of_refusal(attempt: Attempt, error: Raised) -> list[Action]:
    """The transaction failed for the sake of a record or of a topic; the reports that came, if any, say more."""
    if _is_of_topic(error.name):
        if attempt.probing is Probing.ALL_ACKNOWLEDGED or not attempt.rows:
            return [_ledger_denied(attempt, error)]
        if attempt.probing is Probing.WHOLE:
            # The ledger's entry shares the transaction: the next attempt tells whose topic it is.
            return [ProbeNext(), Renew()]
        if len({row[1] for row in attempt.rows}) == 1:
            return [ProbeNext(), _hold_topic(attempt, 0, error.reason), Renew()]
    elif error.name in _TOLD_APART and attempt.probing is Probing.WHOLE and len(attempt.rows) > 1:
        return [ProbeNext(), Renew()]  # the next attempt has reports
    suspects = tuple(at for at, name, _ in attempt.reports if faults.is_rejection(name))
    return _of_suspects(attempt, suspects or tuple(range(len(attempt.rows))), error)


def _of_suspects(attempt: Attempt, suspects: tuple[int, ...], error: Raised) -> list[Action]:
    """One of these records at least was refused."""
    is_too_large = error.name in TOO_LARGE
    if len(suspects) == 1:
        return [ProbeNext(), HoldRecord(suspects[0], error.reason, is_too_large, error.name in _TOLD_APART), Renew()]
    if is_too_large and attempt.weighed is None:
        return [Weigh(suspects)]
    if is_too_large and attempt.weighed is not None:
        return [ProbeNext(), _too_large(attempt, attempt.weighed, suspects, error), Renew()]
    if error.name in _TOLD_APART and attempt.reports:
        return [ProbeNext(), HoldLikely(suspects, error.reason), Renew()]
    return [ProbeNext(), Search(suspects, error.name), Renew()]


def _too_large(attempt: Attempt, weighed: Weighed, suspects: tuple[int, ...], error: Raised) -> Action:
    if weighed.exceeding:
        return HoldLikely(weighed.exceeding, error.reason)
    limit, known = weighed.limit, attempt.request_bytes
    if limit is not None and (known is None or limit < known):
        return SendLess(limit)
    return Search(suspects, error.name)


def _is_of_topic(name: str) -> bool:
    return faults.kind_of(name) is Kind.TOPIC


def _hold_topic(attempt: Attempt, at: int, reason: str) -> HoldTopic:
    return HoldTopic(at, f"topic {attempt.rows[at][1]!r}: {reason}")


def _ledger_denied(attempt: Attempt, error: Raised) -> LedgerDenied:
    remedy = _LEDGER_REMEDIES.get(error.name, "Allow the user WRITE and DESCRIBE on it")
    return LedgerDenied(f"Kafka rejected the entry for the ledger topic {attempt.ledger!r}: {error.reason}. {remedy}.")
