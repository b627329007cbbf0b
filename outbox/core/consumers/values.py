"""The values that pass between a consumer's threads and its servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Partition(NamedTuple):
    topic: str
    number: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where a partition is read next."""

    next: int
    topic_id: str = ""
    """Kafka's id of the topic; another id is another topic of the same name."""
    leader_epoch: int = -1
    """Of the last message before `next`; -1: unknown. A later message with a lower epoch means a truncated log."""


Headers = tuple[tuple[str, bytes | None], ...]


class HasHeaders(Protocol):
    def headers(self) -> Sequence[tuple[str, bytes | None]] | None: ...


class Fetched(NamedTuple):
    """One message as the client returns it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    header_source: Headers | HasHeaders
    """The headers, or the client's message: to read them takes as long as to fetch the message, and few need them."""
    timestamp_ms: int

    @property
    def headers(self) -> Headers:
        source = self.header_source
        return source if isinstance(source, tuple) else tuple(source.headers() or ())


class ClientError(NamedTuple):
    """What the client of Kafka reports instead of a message."""

    partition: Partition | None
    """None: the error is not of one partition."""
    name: str
    """As the client names the error: `OFFSET_OUT_OF_RANGE`, `_LOG_TRUNCATION`, `_ALL_BROKERS_DOWN` …"""
    text: str


class Polled(NamedTuple):
    """What one poll of the group has brought."""

    messages: Sequence[Fetched] = ()
    errors: Sequence[ClientError] = ()
    ends: Mapping[Partition, int] = {}
    """Partitions of which the client has read the end, and the offset there. That offset lies behind marks of
    transactions, which are no messages."""


EARLIEST, LATEST = "earliest", "latest"
HOLD, STOP, DEAD_LETTER = "hold", "stop", "dead-letter"
"""What becomes of a message that has failed as often as it may. A fourth choice is a topic for errors."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What the threads must know of a consumer; its function is not among that."""

    name: str
    start: str | int = EARLIEST
    """`EARLIEST`, `LATEST`, or milliseconds since 1970."""
    batch: int = 100
    """Messages of one transaction at most."""
    many: bool = False
    """The function takes a list."""
    timeout_s: float = 60.0
    """Of one call of the function."""
    call_timeout_s: float = 16.0
    """Of one call of PostgreSQL by the consumer itself."""
    attempts: int = 5
    backoff_s: float = 1.0
    on_error: str = HOLD
    """`HOLD`, `STOP`, `DEAD_LETTER`, or empty: the message goes to `error_topic`."""
    error_topic: str = ""
    remedy: str = ""
    """What an operator does about a partition that has stopped, in place of setting the position."""
    transaction_max_s: float = 0.25
    """No function is called later than this after the locks: whoever needs the rows that it has locked waits for
    COMMIT."""


class CommitInDoubt(Exception):
    """The connection was lost while the COMMIT was under way: only the positions tell whether it took effect."""

    def __init__(self, hooks: Sequence[Callable[[], None]] = ()) -> None:
        super().__init__("the connection was lost during COMMIT")
        self.hooks = hooks
        """Those of on_commit, taken off the connection."""
