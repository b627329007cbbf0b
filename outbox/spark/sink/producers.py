"""Transactional producers and the ledger of slices. They live as long as the process: a Python worker of an executor,
or the driver. This module decides nothing about records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outbox.edges.kafka.common.clients import require_bootstrap
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic
from outbox.spark.sink import slice_ledger
from outbox.spark.sink.plan import SlicePlan

if TYPE_CHECKING:
    from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer

_ENTRY_BYTES_MAX = 16_000_000


class SliceLedger(LedgerTopic):
    """The ledger topic of a sink: one partition per slice."""

    decode = staticmethod(lambda value, _: slice_ledger.decode(value))
    topic_config: Mapping[str, str] = {"max.message.bytes": str(_ENTRY_BYTES_MAX)}

    def prepare_slices(self, slices: int, ledger_retention_s: float) -> int:
        """Create the topic if it is absent, and add partitions if it has too few. Returns the number of partitions."""
        self.grow(self.name, slices)
        self.prepare(slices, ledger_retention_s)
        return self.partitions()


def ledger_of(properties: Mapping[str, Any], name: str) -> SliceLedger:
    """One per process: its clients are kept."""
    require_bootstrap(properties)
    key = (repr(sorted(properties.items())), name)
    if key not in _ledgers:
        _ledgers[key] = SliceLedger(properties, name)
    return _ledgers[key]


def initialise(plan: SlicePlan, slice_: int, give_up_at: float) -> TransactionalProducer:
    """A producer that has fenced every older one of the slice."""
    from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, initialised, properties_of

    name = plan.transactional_id(slice_)
    properties = {
        "message.max.bytes": _ENTRY_BYTES_MAX,  # a limit of the client; the topic decides how large a record may be
        **properties_of(plan.properties, name, transaction_timeout_s=plan.transaction_timeout_s),
    }
    found = initialised(lambda: TransactionalProducer(properties), name, give_up_at, lambda: True)
    assert found is not None
    return found


@dataclass
class HeldProducer:
    """A producer that has delivered a slice and is kept for the next epoch."""

    producer: TransactionalProducer
    plan: SlicePlan
    topics: set[str] = field(default_factory=set)
    """Topics that are known to exist."""

    def fits(self, plan: SlicePlan) -> bool:
        """Whether it has committed the epoch before this one, of this query, with no doubt about the outcome."""
        before = self.plan
        self.producer.poll()
        return (
            (before.query, before.epoch, before.ledger, before.properties, before.transaction_timeout_s)
            == (plan.query, plan.epoch - 1, plan.ledger, plan.properties, plan.transaction_timeout_s)
        ) and not (self.producer.trouble or self.producer.repeated)


held: dict[str, HeldProducer] = {}
"""By transactional id."""
_ledgers: dict[tuple[str, str], SliceLedger] = {}


def take(plan: SlicePlan, slice_: int) -> HeldProducer | None:
    """The kept producer, if it may be used again."""
    found = held.pop(plan.transactional_id(slice_), None)
    if found is None or found.fits(plan):
        return found
    found.producer.drop_and_wait()
    return None


def keep(plan: SlicePlan, slice_: int, used: HeldProducer) -> None:
    """Keep it for the next epoch, unless one of its requests may still be in flight."""
    used.producer.poll()
    if used.producer.trouble or used.producer.repeated:
        used.producer.drop_and_wait()
    else:
        held[plan.transactional_id(slice_)] = HeldProducer(used.producer, plan, used.topics)
