"""What journals raise on purpose."""

from __future__ import annotations

from collections.abc import Mapping

from outbox.core.journal.values import AppendRefusal, Cause
from outbox.exceptions import NotAvailable, OutboxError


class JournalError(OutboxError):
    """Base of the errors of journals."""


class UnknownJournal(JournalError):
    """There is no journal of this name."""


class ReadOnlyJournal(JournalError):
    """The journal takes no appends."""


class SuspectJournal(JournalError):
    """A store has more of the journal than the database: nothing is appended until an operator has set the head."""


class WrongOffset(JournalError):
    """The append asked for another offset than the head."""


class RegisterMismatch(JournalError):
    """A register does not have the value that the append checks."""


class NoContent(JournalError):
    """An append has at least one byte."""


class TooFewStores(JournalError, NotAvailable):
    """Fewer stores have the bytes than the journal asks for."""


class StageExpired(JournalError):
    """The keeper has removed what was staged, because it was too old."""


class FragmentUnavailable(JournalError, NotAvailable):
    """No store has the bytes at this offset as they were written."""


class JournalDiverged(JournalError):
    """The journal is not the one of which the bytes before were read: the database went back in time."""


_ERRORS: Mapping[Cause, type[JournalError]] = {
    Cause.UNKNOWN: UnknownJournal,
    Cause.READ_ONLY: ReadOnlyJournal,
    Cause.SUSPECT: SuspectJournal,
    Cause.WRONG_OFFSET: WrongOffset,
    Cause.REGISTERS: RegisterMismatch,
    Cause.NO_CONTENT: NoContent,
    Cause.TOO_FEW_STORES: TooFewStores,
    Cause.EXPIRED: StageExpired,
}


def error_of(refusal: AppendRefusal) -> JournalError:
    return _ERRORS[refusal.cause](refusal.text)


def unknown(journal: str) -> JournalError:
    return UnknownJournal(f"There is no journal {journal!r}. Create it with outbox.journal.create().")
