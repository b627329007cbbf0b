"""Whom a failed transaction of a consumer blames, and what is to be done about it. Pure; the worker's thread acts.

The edge turns whatever was raised into one of the failures below. `blame` has an answer for every failure of every
attempt. Only a failure of a message costs that message an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---- what has happened


@dataclass(frozen=True, slots=True)
class FunctionRaised:
    """The function has raised this, and PostgreSQL has no part in it."""

    text: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """The function cannot handle the message yet: it has raised `NotYet`."""

    text: str
    until_s: float
    """After so long it is a failure like others."""
    retry_s: float | None = None
    """When to try again; None: as after a failure."""


@dataclass(frozen=True, slots=True)
class StatementRefused:
    """PostgreSQL has refused a statement, or ended it."""

    sqlstate: str
    text: str
    is_elsewhere: bool = False
    """It did not end this transaction, so it may be an error of another session."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost, or there is none."""

    text: str


@dataclass(frozen=True, slots=True)
class Untrusted:
    """Nothing was raised, and yet the transaction cannot be committed: see `TransactionPort.problem`."""

    text: str


@dataclass(frozen=True, slots=True)
class Alike:
    """Every message would fail in this way: `durable=True` inside of a transaction, an alias that does not exist, a
    module that cannot be imported."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Ending:
    """SystemExit, KeyboardInterrupt, MemoryError."""

    text: str


@dataclass(frozen=True, slots=True)
class KafkaUnavailable:
    """Kafka does not answer what was asked of it."""

    text: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """The transaction at the end is not the one at the beginning: the function has ended that one itself."""

    text: str


Failure = (
    FunctionRaised
    | Postponed
    | StatementRefused
    | Disconnected
    | Untrusted
    | Alike
    | Ending
    | KafkaUnavailable
    | Replaced
)


@dataclass(frozen=True, slots=True)
class BatchAttempt:
    """The transaction that failed."""

    messages: int
    """How many it was to handle. 0: it only asked for positions."""
    is_locking: bool = False
    """Only the rows of the positions were being locked."""
    is_cancelled: bool = False
    """Its statement was cancelled by this process."""


# ---- what is to be done


@dataclass(frozen=True, slots=True)
class Smaller:
    """Again with half as many messages, after a short pause. No message has failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unblock:
    """Another session of this consumer holds the rows and does not end: end it, and try again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A server is unavailable: again after a pause, on another connection. No message has failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class FindMessage:
    """A message has failed, and others were in the same transaction: it is to be found."""

    reason: str


@dataclass(frozen=True, slots=True)
class MessageFailed:
    """The one message of the transaction; `fate` says what becomes of it."""

    reason: str
    until_s: float = 0.0
    """It is only postponed, unless it has waited for so long."""
    retry_s: float | None = None
    is_poison: bool = False
    """It has ended its process, as often as it may."""


@dataclass(frozen=True, slots=True)
class StopConsumer:
    """No message is to blame. An operator or the author of the function has to do something."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class EndProcess:
    reason: str


Action = Smaller | Unblock | Wait | FindMessage | MessageFailed | StopConsumer | EndProcess

_LOCKED = "55P03"
_CANCELLED = "57014"
_SMALLER = frozenset({"40P01", "40001", _LOCKED})
# 25P03: our own limit for a transaction in which nothing is asked; 25006: a server that became a copy.
_OUTAGES = frozenset({"25P03", "25P04", "25006"})
_OUTAGE_CLASSES = ("08", "28", "3D", "53", "57P", "58")
REPLACED_REMEDY = (
    "Take COMMIT and ROLLBACK, and what closes the connection, out of the function. Then compare the effects of the "
    "messages from the position on, because a raw COMMIT has kept some of them"
)


def blame(attempt: BatchAttempt, failure: Failure) -> Action:
    if isinstance(failure, Ending):
        return EndProcess(failure.text)
    if isinstance(failure, Disconnected | KafkaUnavailable):
        return Wait(failure.text)
    if isinstance(failure, Replaced):
        return StopConsumer(failure.text, REPLACED_REMEDY)
    if isinstance(failure, Alike):
        return StopConsumer(failure.text, failure.remedy)
    if isinstance(failure, StatementRefused):
        return _of_statement(attempt, failure)
    if isinstance(failure, Postponed):
        return _of_message(attempt, MessageFailed(failure.text, failure.until_s, failure.retry_s))
    return _of_message(attempt, MessageFailed(failure.text))


def _of_statement(attempt: BatchAttempt, error: StatementRefused) -> Action:
    reason = f"{error.sqlstate}: {error.text}"
    if error.sqlstate == _LOCKED and attempt.is_locking:
        return Unblock(reason)
    if error.sqlstate in _SMALLER:
        return Smaller(reason)
    is_ours = error.sqlstate == _CANCELLED and attempt.is_cancelled
    is_outage = error.sqlstate in _OUTAGES or error.sqlstate.startswith(_OUTAGE_CLASSES)
    if is_ours or (is_outage and not error.is_elsewhere):
        return Wait(reason)
    if attempt.is_locking or not attempt.messages:
        return Wait(reason)  # a table or a privilege is missing: an operator may add it meanwhile
    return _of_message(attempt, MessageFailed(reason))


def _of_message(attempt: BatchAttempt, failed: MessageFailed) -> Action:
    if attempt.is_locking or not attempt.messages:
        return StopConsumer(failed.reason, "Report this error with its stack: no function was running")
    return FindMessage(failed.reason) if attempt.messages > 1 else failed
