"""Every exception that this package raises on purpose, except the settings errors of ``outbox.conf``."""

from typing import NoReturn

from outbox.documents import install


class OutboxError(Exception):
    """Base of the package's errors."""


class NotAvailable(OutboxError):
    """A server or another resource is unavailable now; the caller may try again."""


class InvalidMessage(OutboxError, ValueError):
    """Kafka or the table would reject this message. The text names the field, the value seen and the limit."""


class InvalidConsumer(OutboxError, ValueError):
    """A consumer that could not work as it is declared; names everything that is wrong with it."""


_NOT_YET_MAX_S = 366 * 86_400


class NotYet(OutboxError):
    """Raised by the function of a consumer: it cannot handle the message yet.

    The message is held and tried again. That costs it no attempt, until `until_s` seconds have passed since the first
    time; then it is a failure like others. `retry_s` is the pause before the next try; without it the pauses grow.
    """

    def __init__(self, reason: str = "", *, until_s: float = 3600.0, retry_s: float | None = None) -> None:
        for name, seconds in (("until_s", until_s), ("retry_s", 0.0 if retry_s is None else retry_s)):
            if not isinstance(seconds, int | float) or not 0 <= seconds <= _NOT_YET_MAX_S:
                raise ValueError(
                    f"NotYet({name}={seconds!r:.50}) is no number of seconds from 0 to {_NOT_YET_MAX_S:,}."
                )
        super().__init__(reason or "the message cannot be handled yet")
        self.until_s, self.retry_s = until_s, retry_s


class StashOutsideTransaction(OutboxError):
    """The caller used ``stash()`` in autocommit mode: the record could outlive a rolled-back change."""


class MissingExtra(OutboxError, ImportError):
    """An optional dependency is not installed. The text names the extra that brings it."""


def missing_extra(extra: str, cause: ImportError) -> NoReturn:
    """Turn an ImportError of an optional dependency into one line with its remedy."""
    raise MissingExtra(
        f"{cause.name or 'a package'} is not installed. Install the extra that brings it: {install(extra)}"
    ) from cause
