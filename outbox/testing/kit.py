"""The kit of one test: reads the table through Django's connection, and harvests it into a broker in memory.

A test's transaction is never committed, so no other connection could see its records. The kit therefore harvests by
itself. It follows the rules of the real harvester: it sends records in the order of ids. A rejected record holds back
its key (or a missing topic all of its records) or becomes a dead letter. Paused records wait. An outage costs no
attempt. Records of an open ``atomic()`` block are not visible yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outbox.core import faults
from outbox.core.patience import Backoff
from outbox.testing.broker import Delivered, MemoryBroker, Refused, Unavailable
from outbox.testing.clock import Clock
from outbox.testing.consumers import Given, Handled, Headers, KitConsumers
from outbox.testing.messages import ANYTHING, Expected, StashedMessage, as_pairs, listing, serialized
from outbox.testing.table import StashedTable, message_of

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 60.0

Name = tuple[str, str] | int | str
"""The scope of a hold: a (topic, key), a record without a key, or a topic."""


@dataclass(frozen=True, slots=True)
class _Lane:
    number: int


@dataclass(slots=True)
class HeldMessage:
    """A rejected record, which holds back the later records of its scope."""

    record_id: int
    error: str
    attempts: int
    retry_at_s: float
    backoff: Backoff


class OutboxKit:
    """`using` is the alias of the database; without it, the kit uses that of the settings."""

    def __init__(self, *, using: str | None = None, broker: MemoryBroker | None = None) -> None:
        self._table = StashedTable(using)
        self.broker = broker or MemoryBroker()
        self.clock = Clock()
        self.held: dict[Name, HeldMessage] = {}
        self._harvested: dict[int, StashedMessage] = {}
        self._consumers = KitConsumers(self.broker, self._harvest_alias)
        self._others: dict[str, OutboxKit] = {}

    # ---- what was stashed

    @property
    def stashed(self) -> list[StashedMessage]:
        """Return the messages that this test has stashed and not rolled back, in the order of ids, harvested or not."""
        found = {message.id: message for message in self._table.messages()}
        return [message for _, message in sorted({**self._harvested, **found}.items())]

    @property
    def pending(self) -> list[StashedMessage]:
        """Return the messages that wait in the table."""
        return self._table.messages()

    def assert_stashed(
        self,
        topic: str,
        *,
        key: Any = ANYTHING,
        value: Any = ANYTHING,
        headers: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
        times: int | None = None,
    ) -> StashedMessage:
        """Assert that at least one such message was stashed, or exactly `times` of them. Return the first.

        The kit compares objects as the JSON that the settings' serializer makes of them. The message must have
        `headers` and may have others. ANYTHING (or mock.ANY) matches every value.
        """
        expected = Expected(topic, key, value, as_pairs(headers), serialized)
        messages = self.stashed
        found = [message for message in messages if not expected.differences(message)]
        if not found or (times is not None and len(found) != times):
            raise AssertionError(_failure(expected, messages, len(found), times))
        return found[0]

    def assert_nothing_stashed(self, topic: str | None = None) -> None:
        """Assert that no message was stashed, at all or for the topic."""
        messages = [message for message in self.stashed if topic in (None, message.topic)]
        if messages:
            where = "" if topic is None else f" for the topic {topic!r}"
            raise AssertionError(f"Nothing should be stashed{where}. {listing(messages)}")

    # ---- harvesting

    def harvest_all(self) -> list[Delivered]:
        """Move the records to the broker that a harvester would send now. Return the delivered messages, in order.

        Held records stay in the table until `advance` reaches the time of their next attempt.
        """
        return self._harvest("harvest_all()")

    def _harvest(self, call: str) -> list[Delivered]:
        self._table.require_committed(call, "harvester")
        delivered: list[Delivered] = []
        blocked: set[Name] = {name for name, held in self.held.items() if held.retry_at_s > self.clock.elapsed_s}
        operators = self._operators_holds()
        blocked |= {hold for hold in operators if not isinstance(hold, _Lane)}
        lanes = {hold.number for hold in operators if isinstance(hold, _Lane)}
        gone: list[int] = []
        for record in self._table.records():
            message = message_of(record)
            names = (self._name(message), message.topic)
            if any(name in blocked for name in names) or (lanes and self._lane_of(message) in lanes):
                continue
            try:
                delivered.append(self._send(message))
            except Unavailable:
                break
            except Refused as error:
                name = self._hold(message, error)
                if not self._is_to_die(message, name):
                    blocked.add(name)
                    continue
                self._move_to_dead_letters(record, error, self.held[name].attempts)
            gone.append(message.id)
            self._harvested[message.id] = message
            for name in names:
                self.held.pop(name, None)
        self._table.queryset.filter(pk__in=gone).delete()
        return delivered

    # ---- consuming

    def deliver(
        self,
        consumer: str | Callable[[Any], Any],
        value: Any = None,
        *,
        topic: str = "",
        key: str | bytes | None = None,
        headers: Headers = (),
        partition: int = 0,
        offset: int | None = None,
        time: datetime | None = None,
        attempt: int = 1,
        is_replay: bool = False,
    ) -> Handled:
        """Deliver one message to a consumer, which is a name or the function itself. Return what it has done.

        The function runs as in a consumer's process, in a savepoint of the test's transaction. The kit converts `value`
        as `stash` does: text and bytes stay, None is a tombstone, and the serializer of the settings converts any other
        object. The topic is the first one that the consumer names, the offset the next one of the partition, and the
        time that of the kit, unless they are given. With `is_replay` the message is one of a replay, in which `stash`
        does nothing.

        An exception of the function reaches the test, and the effects of the message are rolled back. Raises
        `TransactionRefused` if the consumer could not commit although the function returned, and `ConsumerStopped` if
        the consumer would stop.
        """
        given = Given(topic, partition, offset, key, value, headers, time or self.clock.now)
        return self._consumers.deliver(consumer, given, attempt, is_replay=is_replay)

    def run_chain(self, *, rounds: int = 50) -> dict[str, list[Handled]]:
        """Harvest, deliver to every consumer, and repeat until nothing is left. Return what each consumer has handled.

        A round harvests what waits, and delivers what the broker has received to each registered consumer of its topic
        that has not handled it yet. Raises `EndlessChain` if something is left after so many rounds.
        """
        return self._consumers.run_chain(self._table.alias, rounds)

    def _harvest_alias(self, alias: str) -> bool:
        """Harvest a database for a chain. Return False if this test may not use it."""
        from django.test.testcases import DatabaseOperationForbidden  # type: ignore[attr-defined]

        if alias == self._table.alias:
            self._harvest("run_chain()")
            return True
        if alias not in self._others:
            self._others[alias] = OutboxKit(using=alias, broker=self.broker)
            self._others[alias].clock = self.clock
        try:
            self._others[alias]._harvest("run_chain()")
        except DatabaseOperationForbidden:
            return False
        return True

    # ---- time

    def advance(self, seconds: float) -> None:
        """Let time pass: attempts become due, and the records in the table grow older."""
        from django.db.models import F

        self.clock.advance(seconds)
        self._table.queryset.update(create_time=F("create_time") - timedelta(seconds=seconds))

    def _send(self, message: StashedMessage) -> Delivered:
        from outbox import conf

        settings = conf.current()
        headers = [(name, value.encode()) for name, value in message.headers]
        if settings.exactly_once.id_header and settings.delivery == conf.EXACTLY_ONCE:
            headers.append((settings.exactly_once.id_header, str(message.id).encode()))
        key = message.key.encode() if message.key or settings.harvest.keep_empty_key else None
        value = message.value.encode() if isinstance(message.value, str) else message.value
        return self.broker.produce(message.topic, key, value, headers, record_id=message.id, timestamp=self.clock.now)

    def _hold(self, message: StashedMessage, error: Refused) -> Name:
        is_topics = faults.kind_of(error.name) is faults.Kind.TOPIC
        name = message.topic if is_topics else self._name(message)
        before = self.held.get(name)
        backoff = before.backoff if before else Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S, lambda: 1.0)
        retry_at_s = self.clock.elapsed_s + backoff.failed()
        self.held[name] = HeldMessage(message.id, str(error), backoff.failures, retry_at_s, backoff)
        return name

    def _is_to_die(self, message: StashedMessage, name: Name) -> bool:
        """Return whether the policy of its topic makes it a dead letter. A rejected topic makes none."""
        from outbox import conf

        settings = conf.current()
        is_own = name != message.topic
        return (
            is_own
            and settings.rejections.skips(message.topic)
            and self.held[name].attempts >= settings.rejections.rejection_attempts
        )

    def _move_to_dead_letters(self, record: Any, error: Refused, attempts: int) -> None:
        from outbox.models import DeadLetter

        DeadLetter.objects.using(self._table.alias).create(
            record_id=record.pk,
            topic=record.kafka_topic,
            key=record.kafka_key,
            value=record.kafka_value,
            value_binary=record.kafka_value_binary,
            header_keys=record.kafka_header_keys or [],
            header_values=record.kafka_header_values or [],
            stashed_at=record.create_time,
            reason=DeadLetter.Reason.REJECTED,
            error_code=error.name,
            last_error=str(error),
            attempts=attempts,
            history=[{"at": self.clock.now.isoformat(), "code": error.name, "error": str(error)}],
        )

    def _operators_holds(self) -> set[Name | _Lane]:
        """Return the scopes that operators hold by rows of the table, without those that the kit itself holds."""
        from outbox.models import Hold

        reasons = (Hold.Reason.PAUSED, Hold.Reason.EDITING, Hold.Reason.POISON)
        found = Hold.objects.using(self._table.alias).filter(reason__in=reasons).exclude(wanted=Hold.Wanted.RETRY)
        names: set[Name | _Lane] = set()
        for hold in found:
            if hold.lane is not None:
                names.add(_Lane(hold.lane))
            elif hold.key is None:
                names.add(hold.topic)
            else:
                names.add(self._named(hold.topic, hold.key, hold.record_id or 0))
        return names

    def _lane_of(self, message: StashedMessage) -> int:
        from outbox.operations.editing import lane_of

        return lane_of(message.key, message.id, self._table.alias)

    def _name(self, message: StashedMessage) -> Name:
        return self._named(message.topic, message.key, message.id)

    @staticmethod
    def _named(topic: str, key: str, record_id: int) -> Name:
        from outbox import conf

        return (topic, key) if key or conf.current().harvest.keep_empty_key else record_id


def _failure(expected: Expected, messages: list[StashedMessage], found: int, times: int | None) -> str:
    if not found:
        head = "No message was stashed with"
    else:
        head = f"{found} messages instead of {times} were stashed with"
    notes = {}
    for message in messages:
        differences = expected.differences(message)
        if not differences:
            notes[message.id] = "this one"
        elif "topic" not in differences:
            notes[message.id] = f"other {', '.join(differences)}"
    return f"{head}\n{expected}\n{listing(messages, notes)}"
