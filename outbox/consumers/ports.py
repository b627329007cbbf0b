"""What a consumer asks of its servers: one statement or one call of the client each, where that can be.

Production has `edges.postgres.consumers` and `edges.kafka.consumers` below these; the simulation of the tests has
servers of its own. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from outbox.core.consumers.blame import Failure
from outbox.core.consumers.crashes import PartitionOwner, Suspicion
from outbox.core.consumers.holding import Kept, Release, StoredMessage
from outbox.core.consumers.values import CommitInDoubt as CommitInDoubt
from outbox.core.consumers.values import ConsumerOptions, Fetched, Partition, Polled, Position


class Handle(Protocol):
    """The user's function, behind what makes its arguments."""

    def __call__(self, messages: Sequence[Fetched], attempt: int) -> None:
        """One message, unless the consumer is one of lists. Raises what the function raises."""
        ...


class LeavesOut(Protocol):
    """Messages that are not handled, and over which the position moves."""

    def __call__(self, connection: Any, messages: Sequence[Fetched]) -> Sequence[Fetched]:
        """Those of these. In the transaction that handles the others."""
        ...


class PositionsPort(Protocol):
    """Rows of `<TABLE>_position`, on the Django connection of a worker."""

    def load(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, Position]:
        """Outside of a transaction."""
        ...

    def create(self, connection: Any, consumer: str, positions: Mapping[Partition, Position]) -> None:
        """Commits rows for partitions that have none; leaves the others."""
        ...

    def lock(
        self, connection: Any, consumer: str, partitions: Sequence[Partition]
    ) -> tuple[dict[Partition, Position], int]:
        """The first statement of a batch's transaction: locks the rows in one order. Their positions, and the
        transaction's id, 0 without any row. A partition whose row was moved meanwhile is left out."""
        ...

    def write(self, connection: Any, consumer: str, moved: Mapping[Partition, tuple[int, Position]]) -> tuple[int, int]:
        """The last statement: `next` as it was locked, and the position that was reached. How many rows moved, and the
        transaction's id."""
        ...

    def settle(
        self, connection: Any, consumer: str, partitions: Sequence[Partition]
    ) -> dict[Partition, tuple[Position, int]]:
        """After a COMMIT in doubt, on a new connection: waits for a COMMIT that is still on its way. Each position, and
        the id of the transaction that has written its row, as `xmin` has it: the low 32 bits."""
        ...

    def unblock(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> int:
        """Ends the sessions of this consumer that hold these rows; how many. `lock` and `settle` raise 55P03 when they
        have waited for SESSION_TIMEOUT."""
        ...


class HeldPort(Protocol):
    """Rows of `<TABLE>_held`, on the Django connection of a worker. Only the owner of a partition, while it has locked
    the position, adds, changes and deletes them; operators write what they want done into a column."""

    def look(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, bool]:
        """Outside of a transaction. Of partitions with held messages or requests: whether there is something to do."""
        ...

    def keys(
        self, connection: Any, consumer: str, asked: Mapping[Partition, Sequence[bytes]]
    ) -> dict[Partition, frozenset[bytes]]:
        """Those of which a message is held."""
        ...

    def keep(self, connection: Any, options: ConsumerOptions, kept: Sequence[Kept]) -> list[int]:
        """Writes rows, in this order; messages for the topic of errors are stashed. The ids of the rows. A message that
        has a row already keeps it."""
        ...

    def take(self, connection: Any, consumer: str, partition: Partition, limit: int) -> list[StoredMessage]:
        """Carries out what operators want. Then locks and returns messages that are to be tried, those of one key in
        their order; a message that an operator has edited as it is now."""
        ...

    def change(self, connection: Any, options: ConsumerOptions, partition: Partition, release: Release) -> None:
        """After they were tried."""
        ...

    def give_back(self, connection: Any, ids: Sequence[int]) -> None:
        """The last attempt of these does not count."""
        ...


class SeenPort(Protocol):
    """Rows of `<TABLE>_seen`, on the Django connection of a worker."""

    def add(self, connection: Any, consumer: str, topic: str, ids: Sequence[str]) -> Sequence[str]:
        """In the transaction that handles the messages. The new ones; waits for another transaction that adds the
        same."""
        ...

    def remove(self, connection: Any, consumer: str, topic: str, ids: Sequence[str]) -> None:
        """So too."""
        ...

    def tidy(self, connection: Any, consumer: str) -> bool:
        """Outside of a transaction: deletes some that are older than the window. Whether there may be more."""
        ...


class OwnersPort(Protocol):
    """Rows of `<TABLE>_owner`, on the Django connection of a worker."""

    owner: str
    """This process."""

    def load(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> dict[Partition, PartitionOwner]:
        """Outside of a transaction."""
        ...

    def own(self, connection: Any, consumer: str, owned: Mapping[Partition, tuple[int, Suspicion]]) -> None:
        """Writes this process as the owner, with positions. From now on they count as left uncleanly."""
        ...

    def begin(self, connection: Any, consumer: str, partition: Partition, offset: int) -> None:
        """Outside of a transaction: the message is about to be handled by itself."""
        ...

    def given_up(self, connection: Any, consumer: str, partition: Partition) -> None:
        """Outside of a transaction: the message is not being handled any more, and others are begun before it."""
        ...

    def passed(self, connection: Any, consumer: str, partition: Partition, *, is_last: bool) -> None:
        """In the transaction that has handled it. `is_last`: nothing is suspected any more."""
        ...

    def leave(self, connection: Any, consumer: str, partitions: Sequence[Partition]) -> None:
        """Outside of a transaction: this process ends cleanly with those that it still owns."""
        ...


class TransactionPort(Protocol):
    """The transaction around the handlers, on the Django connection of a worker."""

    def connection(self) -> Any:
        """Outside of a transaction. Opens one if there is none that can be used."""
        ...

    def begin(self, timeout_s: float) -> Any:
        """Opens the transaction with its time limits, and returns the connection."""
        ...

    def problem(self) -> str:
        """Why the transaction cannot be trusted: a swallowed database error, set_rollback, a closed connection, a raw
        COMMIT. Empty: it can be committed."""
        ...

    def commit(self) -> list[Callable[[], None]]:
        """Takes the on_commit hooks off the connection, commits, and returns them. Raises `CommitInDoubt`."""
        ...

    def mark(self) -> None:
        """Sets a savepoint, before the function is called with one message."""
        ...

    def keep(self) -> str:
        """After the call: checks deferred constraints and removes the savepoint. Why what the function did cannot be
        trusted, as `problem`; empty: it is kept. Raises what a constraint says."""
        ...

    def undo(self) -> bool:
        """Takes back what was done since `mark`, the hooks of on_commit too. False: the whole transaction is lost."""
        ...

    def is_committed(self, xid: int) -> bool | None:
        """Outside of a transaction: whether this one has taken effect; None: it is still under way. Raises what the
        connection says when the server does not answer."""
        ...

    def is_replaced(self, xid: int) -> bool:
        """After a failure, in the place of `rollback`: whether the function has ended the transaction of this id.
        Raises what the connection says when the server does not answer."""
        ...

    def rollback(self) -> None: ...

    def close(self) -> None:
        """The next `begin` opens another connection."""
        ...

    def cancel(self) -> None:
        """Ends the statement that is being run. Any thread may call it; raises nothing."""
        ...

    def failure(self, error: BaseException, *, is_of_function: bool = False) -> Failure:
        """What was raised by the function or by a call of a port, as a value. Asked before the rollback: while the
        session lives, another server's outage is a failure of the function."""
        ...


class GroupListener(Protocol):
    """Called within `GroupPort.poll`. Neither does I/O."""

    def assigned(self, partitions: Sequence[Partition]) -> None: ...

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Given back, or lost."""
        ...


class GroupPort(Protocol):
    """The member of the consumer group `<NAME>.<consumer>`. One thread calls it."""

    def join(self, listener: GroupListener) -> None:
        """Asks for the partitions of the consumer's topics. Once, before the first poll."""
        ...

    def subscribe(self, topics: Sequence[str]) -> None:
        """Asks for the partitions of these, in the place of those before."""
        ...

    def poll(self, timeout_s: float, count: int) -> Polled:
        """Returns as soon as something is there. Runs the rebalance callbacks. Raises nothing: what the client reports
        is among what is returned. No message of a partition that was stopped or revoked, or from before its last
        `start`, is returned."""
        ...

    def start(self, positions: Mapping[Partition, Position]) -> None:
        """Begins to read assigned partitions at these positions. One that was paused stays paused until `resume`:
        the client keeps that when a partition is stopped or revoked."""
        ...

    def stop(self, partitions: Sequence[Partition]) -> None:
        """Reads them no longer, and keeps them assigned."""
        ...

    def pause(self, partitions: Sequence[Partition]) -> None: ...

    def resume(self, partitions: Sequence[Partition]) -> None: ...

    def commit_copy(self, positions: Mapping[Partition, int]) -> None:
        """Kafka's own offsets, for lag monitors alone. Does not wait."""
        ...

    def close(self) -> None: ...


class TopicsPort(Protocol):
    """What a metadata client knows. Any thread may call it. Raises `NotAvailable` while Kafka does not answer."""

    def names(self) -> set[str]:
        """Every topic that the user may see, without those that are internal."""
        ...

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Without those that do not exist."""
        ...

    def partitions(self, topic: str) -> int:
        """How many it has."""
        ...

    def copies(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The group's own offsets, of those that have one."""
        ...

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """The first offset and the last stable one: what comes from there on is not committed yet."""
        ...

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The last stable offsets, of those whose broker answers."""
        ...

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int:
        """Of the first message that is not older; the last stable offset if there is none."""
        ...
