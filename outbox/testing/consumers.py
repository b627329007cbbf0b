"""The consumers of one test: a message goes to the function as `manage.py consume` hands it over.

The message, its decoder, the call and the texts of refusals are the product's own. The transaction is a savepoint of
the test's own one, and the kit writes no positions.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from outbox.consumers.message import ConsumedMessage
from outbox.consumers.work.worker import ConsumerStopped
from outbox.core.consumers import blame
from outbox.core.consumers.batch import ConsumerBatch
from outbox.core.consumers.partition import AssignedPartition
from outbox.core.consumers.values import Fetched, Partition, Position
from outbox.exceptions import OutboxError
from outbox.messages.context import stash_is_off
from outbox.testing.broker import Delivered, MemoryBroker
from outbox.testing.messages import StashedMessage, as_pairs, serialized
from outbox.testing.table import StashedTable

if TYPE_CHECKING:
    from outbox.consumers.handle import Handling
    from outbox.consumers.registry import Consumer
    from outbox.edges.postgres.consumers.savepoints import SavepointTransaction

logger = logging.getLogger("outbox.consumers")

Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]

_EPOCH = 0


class TransactionRefused(OutboxError):
    """The function has returned, and a consumer would not commit its transaction. The message would have failed."""


class EndlessChain(OutboxError):
    """Messages are left after the last round of a chain."""


@dataclass(frozen=True, slots=True)
class Handled:
    """What one call of a consumer's function has done. It is committed as far as a test commits."""

    consumer: str
    messages: tuple[ConsumedMessage, ...]
    """One, unless the consumer takes lists."""
    stashed: tuple[StashedMessage, ...]
    """In the database of the consumer, also by functions of `on_commit`."""
    hook_errors: tuple[Exception, ...] = ()
    """What functions of `on_commit` have raised. A consumer logs it as `hook_failed` and continues."""

    @property
    def message(self) -> ConsumedMessage:
        return self.messages[-1]

    @property
    def offset(self) -> int:
        return self.message.offset

    @property
    def position(self) -> int:
        """The offset that the consumer reads next in the partition of the message."""
        return self.message.offset + 1


@dataclass(frozen=True, slots=True)
class Given:
    """A message as a test describes it."""

    topic: str
    partition: int
    offset: int | None
    key: str | bytes | None
    value: Any
    headers: Headers
    time: datetime

    def fetched(self, topic: str) -> Fetched:
        """Return it as the client of Kafka does."""
        headers = tuple((name, _bytes(f"header {name!r}", value)) for name, value in as_pairs(self.headers))
        key, value = _bytes("key", self.key), _value(self.value)
        return Fetched(topic, self.partition, self.offset or 0, _EPOCH, key, value, headers, _milliseconds(self.time))


class KitConsumer:
    """One consumer."""

    def __init__(self, consumer: Consumer) -> None:
        """Raises what the command says when there is no such database."""
        from outbox import conf
        from outbox.consumers.handle import Handling
        from outbox.consumers.servers import ServersOf

        self.consumer = consumer
        self._servers = ServersOf(conf.current(), consumer)
        self._servers.require_postgres()
        self._handling = Handling(consumer, self._servers.alias)
        self._replaying = Handling(consumer, self._servers.alias, is_replay=True, stashes=False)
        self._table = StashedTable(self._servers.alias)

    def replay(self, messages: Sequence[Fetched], attempt: int, call: str) -> Handled:
        """As `handle`."""
        token = stash_is_off.set(True)
        try:
            return self._handle(self._replaying, messages, attempt, call)
        finally:
            stash_is_off.reset(token)

    def handle(self, messages: Sequence[Fetched], attempt: int, call: str) -> Handled:
        """`call` is what the test calls."""
        return self._handle(self._handling, messages, attempt, call)

    def _handle(self, handling: Handling, messages: Sequence[Fetched], attempt: int, call: str) -> Handled:
        from outbox.edges.postgres.consumers.savepoints import SavepointTransaction

        self._table.require_committed(call, "consumer")
        last_id = self._table.last_id()
        transaction = SavepointTransaction(self._servers.alias, consumer=self.consumer.name)
        hooks = self._commit(handling, transaction, _batch(messages), attempt)
        errors = self._run(transaction, hooks)
        return Handled(
            self.consumer.name,
            tuple(handling.message(message, attempt) for message in messages),
            tuple(self._table.messages(after=last_id)),
            tuple(errors),
        )

    def _commit(
        self, handling: Handling, transaction: SavepointTransaction, batch: ConsumerBatch, attempt: int
    ) -> Sequence[Callable[[], None]]:
        """The hooks of on_commit."""
        from outbox.edges.postgres.consumers.savepoints import TransactionEnded

        transaction.begin()
        try:
            expected = {one.partition: one.position for one in batch.everything if one.position is not None}
            batch.locked(expected, transaction.xid())
            for counts, messages in batch.calls(many=self.consumer.options.many):
                handling(messages, attempt)
                batch.handled(counts)
            if problem := transaction.problem():
                raise TransactionRefused(problem)
            if objection := batch.objection(len(batch.reached), transaction.xid()):
                raise TransactionEnded(objection)
            return transaction.commit()
        except BaseException as error:
            refusal = self._refusal(transaction, batch, error)
            transaction.rollback()
            if refusal is None:
                raise
            raise refusal from error

    def _refusal(
        self, transaction: SavepointTransaction, batch: ConsumerBatch, error: BaseException
    ) -> OutboxError | None:
        """How a consumer would stop for it. None: the message would fail, and the test gets the error as it is."""
        from outbox.edges.postgres.consumers.savepoints import TransactionEnded

        if transaction.ended:
            failure: blame.Failure = blame.Replaced(batch.replaced(f"then ran {transaction.ended}"))
        elif isinstance(error, TransactionEnded):
            failure = blame.Replaced(str(error))
        else:
            failure = transaction.failure(error, is_of_function=True)
        action = blame.blame(blame.BatchAttempt(1), failure)
        if not isinstance(action, blame.StopConsumer):
            return None
        return ConsumerStopped(f"Consumer {self.consumer.name!r}: {action.reason}. {action.remedy}.")

    def _run(self, transaction: SavepointTransaction, hooks: Sequence[Callable[[], None]]) -> list[Exception]:
        errors = []
        while hooks:
            try:
                hooks[0]()
            except Exception as error:
                logger.exception("hook_failed consumer=%s", self.consumer.name)
                errors.append(error)
            hooks = [*transaction.new_hooks(), *hooks[1:]]
        return errors


class KitConsumers:
    """Those that are registered."""

    def __init__(self, broker: MemoryBroker, harvest: Callable[[str], bool]) -> None:
        """`harvest` moves the records of an alias to the broker; False: this test may not use that alias."""
        self._broker, self._harvest = broker, harvest
        self._consumers: dict[str, KitConsumer] = {}
        self._handled: dict[str, set[Delivered]] = defaultdict(set)

    def deliver(
        self, wanted: str | Callable[..., Any], given: Given, attempt: int, *, is_replay: bool = False
    ) -> Handled:
        consumer = _found(wanted)
        topic = given.topic or _topic_of(consumer)
        if not consumer.matches(topic):
            raise ValueError(
                f"The consumer {consumer.name!r} does not handle the topic {topic!r}. Pass one of its topics: "
                f"{_topics_of(consumer)}."
            )
        one, message = self._consumer(consumer), given.fetched(topic)
        offset = self._broker.take_offset(topic, given.partition, given.offset)
        call = one.replay if is_replay else one.handle
        return call([message._replace(offset=offset)], attempt, "deliver()")

    def run_chain(self, alias: str, rounds: int) -> dict[str, list[Handled]]:
        from outbox.consumers.registry import registered

        consumers = registered()
        found: dict[str, list[Handled]] = {name: [] for name in consumers}
        aliases = [alias, *_aliases(consumers.values(), alias)]
        for turn in range(rounds + 1):
            aliases = [one for one in aliases if self._harvest(one)]
            waiting = {name: left for name, one in consumers.items() if (left := self._waiting(one))}
            if not waiting:
                break
            if turn == rounds:
                raise EndlessChain(_endless(rounds, waiting))
            for name, messages in waiting.items():
                found[name] += self._handle(self._consumer(consumers[name]), messages)
        return found

    def _waiting(self, consumer: Consumer) -> list[Delivered]:
        handled = self._handled[consumer.name]
        return [one for one in self._broker.messages() if consumer.matches(one.topic) and one not in handled]

    def _handle(self, one: KitConsumer, messages: Sequence[Delivered]) -> list[Handled]:
        options = one.consumer.options
        size = options.batch if options.many else 1
        found = []
        for start in range(0, len(messages), size):
            part = messages[start : start + size]
            found.append(one.handle([_fetched(message) for message in part], 1, "run_chain()"))
            self._handled[options.name].update(part)
        return found

    def _consumer(self, consumer: Consumer) -> KitConsumer:
        found = self._consumers.get(consumer.name)
        if found is None or found.consumer is not consumer:
            found = self._consumers[consumer.name] = KitConsumer(consumer)
        return found


def _batch(messages: Sequence[Fetched]) -> ConsumerBatch:
    found: dict[Partition, list[Fetched]] = defaultdict(list)
    for message in messages:
        found[Partition(message.topic, message.partition)].append(message)
    return ConsumerBatch({AssignedPartition(partition, Position(of[0].offset)): of for partition, of in found.items()})


def _fetched(message: Delivered) -> Fetched:
    time_ms = _milliseconds(message.timestamp)
    return Fetched(
        message.topic,
        message.partition,
        message.offset,
        _EPOCH,
        message.key,
        message.value,
        message.headers,
        time_ms,
    )


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _bytes(field: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"{field}: {given!r:.100} is {type(given).__name__}. Pass text, bytes or None.")


def _value(given: object) -> bytes | None:
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    return _bytes("value", given if given is None or isinstance(given, str | bytes) else serialized(given))


def _found(wanted: str | Callable[..., Any]) -> Consumer:
    from outbox.consumers.registry import registered

    consumers = registered()
    if isinstance(wanted, str):
        found = [consumers[wanted]] if wanted in consumers else []
    else:
        found = [one for one in consumers.values() if one.function is wanted]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{wanted!r} is the function of several consumers. Pass the name of one: {_names(found)}.")
    raise ValueError(f"{wanted!r} is no consumer. Pass the name or the function of one: {_names(consumers.values())}.")


def _names(consumers: Iterable[Consumer]) -> str:
    return ", ".join(one.name for one in consumers) or "no app declares any"


def _topic_of(consumer: Consumer) -> str:
    if not consumer.names:
        raise ValueError(f"The consumer {consumer.name!r} names patterns alone: {_topics_of(consumer)}. Pass topic=.")
    return consumer.names[0]


def _topics_of(consumer: Consumer) -> str:
    return ", ".join([*consumer.names, *(f"re.compile({pattern.pattern!r})" for pattern in consumer.patterns)])


def _aliases(consumers: Iterable[Consumer], own: str) -> list[str]:
    """Other databases in which consumers may stash."""
    from django.db import connections

    from outbox import conf
    from outbox.consumers.servers import ServersOf

    found = {ServersOf(conf.current(), consumer).alias for consumer in consumers} - {own}
    return sorted(alias for alias in found if alias in connections and connections[alias].vendor == "postgresql")


def _endless(rounds: int, waiting: Mapping[str, Sequence[Delivered]]) -> str:
    left = "; ".join(
        f"{name}: {len(messages)} of {', '.join(sorted({one.topic for one in messages}))}"
        for name, messages in waiting.items()
    )
    return (
        f"Messages are left after {rounds} rounds of run_chain(): {left}. Check whether these consumers stash messages "
        "for each other without an end. If the chain is only long, pass a larger rounds=."
    )
