"""The kit of one test: reads the table through Django's connection, and harvests it into a broker in memory.

A test's transaction is never committed, so no other connection could see its records. The kit therefore harvests by
itself. It follows the rules of the real harvester: it sends records in the order of ids. A rejected record holds back
its key (or a missing topic all of its records) or becomes a dead letter. Paused records wait. An outage costs no
attempt. Records of an open ``atomic()`` block are not visible yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outbox.core import faults
from outbox.core.patience import Backoff
from outbox.exceptions import OutboxError
from outbox.testing.broker import Delivered, MemoryBroker, Refused, Unavailable
from outbox.testing.clock import Clock
from outbox.testing.messages import ANYTHING, Expected, StashedMessage, as_pairs, listing

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 60.0

Name = tuple[str, str] | int | str
"""The scope of a hold: a (topic, key), a record without a key, or a topic."""


class NotCommitted(OutboxError):
    """The test harvests inside its own transaction, which could still roll the records back."""


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
        self._using = using
        self.broker = broker or MemoryBroker()
        self.clock = Clock()
        self.held: dict[Name, HeldMessage] = {}
        self._harvested: dict[int, StashedMessage] = {}

    # ---- what was stashed

    @property
    def stashed(self) -> list[StashedMessage]:
        """Return the messages that this test has stashed and not rolled back, in the order of ids, harvested or not."""
        found = {message.id: message for message in map(_message, self._records())}
        return [message for _, message in sorted({**self._harvested, **found}.items())]

    @property
    def pending(self) -> list[StashedMessage]:
        """Return the messages that wait in the table."""
        return [_message(record) for record in self._records()]

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
        expected = Expected(topic, key, value, as_pairs(headers), self._serialize)
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
        self._require_committed()
        delivered: list[Delivered] = []
        blocked: set[Name] = {name for name, held in self.held.items() if held.retry_at_s > self.clock.elapsed_s}
        operators = self._operators_holds()
        blocked |= {hold for hold in operators if not isinstance(hold, _Lane)}
        lanes = {hold.number for hold in operators if isinstance(hold, _Lane)}
        gone: list[int] = []
        for record in self._records():
            message = _message(record)
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
        self._queryset().filter(pk__in=gone).delete()
        return delivered

    def advance(self, seconds: float) -> None:
        """Let time pass: attempts become due, and the records in the table grow older."""
        from django.db.models import F

        self.clock.advance(seconds)
        self._queryset().update(create_time=F("create_time") - timedelta(seconds=seconds))

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

        DeadLetter.objects.using(self._alias).create(
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
        found = Hold.objects.using(self._alias).filter(reason__in=reasons).exclude(wanted=Hold.Wanted.RETRY)
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

        return lane_of(message.key, message.id, self._alias)

    def _name(self, message: StashedMessage) -> Name:
        return self._named(message.topic, message.key, message.id)

    @staticmethod
    def _named(topic: str, key: str, record_id: int) -> Name:
        from outbox import conf

        return (topic, key) if key or conf.current().harvest.keep_empty_key else record_id

    def _require_committed(self) -> None:
        from django.db import connections

        blocks = getattr(connections[self._alias], "atomic_blocks", [])
        if any(not getattr(block, "_from_testcase", False) for block in blocks):
            raise NotCommitted(
                "harvest_all() was called inside transaction.atomic(). Its records can still be rolled back, so no "
                "harvester would see them. Call harvest_all() after the block."
            )

    # ---- the table

    @property
    def _alias(self) -> str:
        from outbox import conf

        return self._using or conf.current().database

    def _queryset(self) -> Any:
        from outbox.models import OutboxRecord

        return OutboxRecord.objects.using(self._alias)

    def _records(self) -> Any:
        return self._queryset().order_by("id")

    @staticmethod
    def _serialize(value: Any) -> str | bytes:
        from outbox import conf
        from outbox.serializers import resolve

        return resolve(conf.current().stash.serializer)(value)


def _message(record: Any) -> StashedMessage:
    binary = record.kafka_value_binary
    headers = zip(record.kafka_header_keys or (), record.kafka_header_values or (), strict=True)
    return StashedMessage(
        record.pk,
        record.kafka_topic,
        record.kafka_key,
        record.kafka_value if binary is None else bytes(binary),
        tuple(headers),
        record.create_time,
    )


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
