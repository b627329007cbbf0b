"""What the threads of a processor ask of Kafka and of its function. Production has `servers`; the simulation of the
tests has its own. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from outbox.consumers.ports import GroupListener
from outbox.core.consumers.values import Partition, Polled
from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.outputs import Produced
from outbox.core.graphs.positions import InputState, LaneEntry
from outbox.core.graphs.steps import Step
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer


class LaneGroupPort(Protocol):
    """This process as a member of the group of a processor. One thread calls it, but for `metadata`."""

    def join(self, listener: GroupListener) -> None: ...

    def poll(self, timeout_s: float, count: int) -> Polled: ...

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        """Assigned partitions, also if they are read already. Who calls it resumes them: some may be paused still."""

    def pause(self, partitions: Sequence[Partition]) -> None: ...

    def resume(self, partitions: Sequence[Partition]) -> None: ...

    @property
    def metadata(self) -> Any:
        """What the member says of itself in transactions, since the last assignment. Any thread may ask."""

    def close(self) -> None: ...


class PlainPort(Protocol):
    """Sends outputs outside of a transaction."""

    def send(
        self, outputs: Sequence[Produced], give_up_at: float, report_of: Callable[[int], Callable[[Any, Any], None]]
    ) -> None: ...

    def wait_reports(self, is_over: Callable[[], bool]) -> None:
        """Until each is acknowledged or has failed."""

    def close(self) -> None: ...


class LaneKafkaPort(Protocol):
    """The brokers, as the lanes of one processor use them."""

    positions_topic: str
    attempts_topic: str

    def transactional_id(self, partition: int) -> str: ...

    def producer(self, partition: int, request_bytes: int | None) -> TransactionalProducer:
        """Not initialised."""

    def plain(self) -> PlainPort: ...

    def prepare(self) -> str:
        """Why this processor cannot work with its topics; empty: it can. Makes the graph's own topics."""

    def entry(self, partition: int, give_up_at: float) -> LaneEntry | None: ...

    def begun(self, partition: int, give_up_at: float) -> Begun | None: ...

    def inputs(self, partition: int) -> Mapping[str, InputState]:
        """Of each topic."""

    def topic_ids(self) -> Mapping[str, str]:
        """Of the inputs that exist. Raises `NotAvailable`."""

    def offsets(self, partition: int, positions: Mapping[str, int]) -> Sequence[Any]:
        """As the client takes them."""

    def size_limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """How many bytes these take at a time, as far as that is known."""

    def close(self) -> None: ...

    def missing(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Those that the brokers do not have, with what they say."""


class StepsPort(Protocol):
    """The user's functions."""

    def mismatch(self, step: Step) -> bool:
        """Whether the messages of a join do not belong together."""

    def call(self, step: Step, step_hash: str, attempt: int) -> Any:
        """What the function returns; None also for a step that it does not want."""
