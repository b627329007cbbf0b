"""What becomes of a message that has failed, and which messages wait behind it. Pure.

A message that failed is *held*: a row keeps it, and the position moves on behind it. Later messages of its key are held
too, so the order of the key is kept. A held message is tried again, after longer and longer pauses. When it has failed
as often as it may, the consumer's `on_error` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from outbox.core import patience
from outbox.core.consumers.blame import MessageFailed
from outbox.core.consumers.crashes import mark_of
from outbox.core.consumers.values import DEAD_LETTER, STOP, ConsumerOptions, Fetched, Partition

FAILED, NOT_YET, POISON, WAITING = "failed", "not-yet", "poison", "waiting"
"""Why a message is held, as the table spells it. WAITING: an earlier one of its key is."""
RETRY, SKIP, DISCARD = "retry", "skip", "discard"
"""What operators ask for, as the table spells it."""
BACKOFF_MAX_S = 60.0
HISTORY_MAX = 20
TEXT_MAX = 2_000
CAREFUL_MAX = 50
"""Messages of a careful transaction. PostgreSQL becomes slow with more than 64 savepoints that have written."""
BYTES_MAX = 4 * 2**20
"""Of held messages in one statement, unless one is larger. The client copies each value several times."""
ROWS_MAX = 500
"""So too."""

T = TypeVar("T")


class Tries(NamedTuple):
    """Of one message, before this one."""

    attempts: int = 0
    delays: int = 0
    """How often the function has postponed it."""
    age_s: float = 0.0
    """Since it was tried first."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Of a message that has failed."""

    reason: str
    attempts: int
    delays: int
    error: str
    pause_s: float | None
    """Before the next try; None: it is not tried again by itself."""


class Kept(NamedTuple):
    """A message that leaves the partition unhandled."""

    message: Fetched
    topic_id: str
    fate: Fate | None
    """None: it waits behind an earlier one of its key."""


class StoredMessage(NamedTuple):
    """As the table has it."""

    id: int
    message: Fetched
    tries: Tries

    @property
    def mark(self) -> int:
        """Names it where others are named by their offsets: a topic that was created again has its offset too."""
        return mark_of(self.id)


@dataclass(slots=True)
class Changes:
    """What a transaction has made of held messages."""

    gone: list[int] = field(default_factory=list)
    """Handled."""
    failed: dict[int, Fate] = field(default_factory=dict)
    heads: dict[bytes, None] = field(default_factory=dict)
    """Keys whose first message is gone: the next one is to be tried."""


def in_parts(found: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Parts of at most `BYTES_MAX` and `ROWS_MAX`; each has one at least."""
    part: list[T] = []
    bytes_ = 0
    for one in found:
        more = size(one)
        if part and (bytes_ + more > BYTES_MAX or len(part) >= ROWS_MAX):
            yield part
            part, bytes_ = [], 0
        part.append(one)
        bytes_ += more
    if part:
        yield part


def fate(options: ConsumerOptions, tries: Tries, failed: MessageFailed, draw: float) -> Fate:
    """`draw` is a random number from 0 to 1: many messages that failed together are not tried together."""
    if is_postponed(tries, failed):
        retry_s = failed.retry_s if failed.retry_s is not None else pause(options.backoff_s, tries.delays, draw)
        return Fate(NOT_YET, tries.attempts, tries.delays + 1, failed.reason, retry_s)
    attempts = tries.attempts + 1
    if failed.is_poison:
        return Fate(POISON, attempts, tries.delays, failed.reason, None)
    pause_s = pause(options.backoff_s, tries.attempts, draw) if attempts < options.attempts else None
    return Fate(FAILED, attempts, tries.delays, failed.reason, pause_s)


def is_postponed(tries: Tries, failed: MessageFailed) -> bool:
    return tries.age_s < failed.until_s


def pause(first_s: float, before: int, draw: float) -> float:
    """Before the next try, when there were so many before this one."""
    return patience.pause(first_s, BACKOFF_MAX_S, before, draw)


def is_dead(options: ConsumerOptions, found: Fate) -> bool:
    """Whether its key continues without it: it becomes a dead letter, or goes to the topic for errors. That one it
    becomes too if the topic cannot take it."""
    return _is_over(found) and (options.on_error == DEAD_LETTER or bool(options.error_topic))


def is_published(options: ConsumerOptions, found: Fate) -> bool:
    """Whether it goes to the topic for errors."""
    return _is_over(found) and bool(options.error_topic)


def _is_over(found: Fate) -> bool:
    """It is not tried again by itself, and the choice is the consumer's. About poison an operator decides."""
    return found.pause_s is None and found.reason != POISON


def holds(options: ConsumerOptions) -> bool:
    """Whether a message that fails leaves the partition; else the partition waits for it."""
    return options.on_error != STOP


class Release:
    """Of one partition: held messages that are tried again, in one transaction."""

    def __init__(self) -> None:
        self.rows: Sequence[StoredMessage] = ()
        self.is_full = False
        """There may be more."""
        self.to_record: int | None = None
        """The mark of a message that is to be recorded before it is tried."""
        self.changes = Changes()
        self._failed: set[bytes] = set()

    def taken(self, rows: Sequence[StoredMessage], *, is_full: bool) -> None:
        self.rows, self.is_full = rows, is_full

    def taken_once_recorded(self, rows: Sequence[StoredMessage], recorded: int | None) -> None:
        """It may end the process, so the first one is tried alone."""
        self.is_full = bool(rows)
        if rows and rows[0].mark != recorded:
            self.to_record = rows[0].mark
        else:
            self.rows = rows[:1]

    def is_blocked(self, row: StoredMessage) -> bool:
        """An earlier message of its key has failed in this transaction."""
        return row.message.key is not None and row.message.key in self._failed

    def handled(self, row: StoredMessage) -> None:
        self.changes.gone.append(row.id)
        self._next(row)

    def failed(self, row: StoredMessage, found: Fate, *, leaves: bool) -> None:
        """`leaves`: its key goes on without it."""
        self.changes.failed[row.id] = found
        if leaves:
            self._next(row)
        elif row.message.key is not None:
            self._failed.add(row.message.key)

    def _next(self, row: StoredMessage) -> None:
        if row.message.key is not None:
            self.changes.heads[row.message.key] = None


def is_full(rows: Sequence[StoredMessage], limit: int) -> bool:
    """Whether there may be more of what was taken."""
    return len(rows) >= max(1, limit // 2) or sum(len(row.message.value or b"") for row in rows) >= BYTES_MAX // 2


Blocked = Mapping[Partition, frozenset[bytes]]
"""Keys of which a message is held."""
