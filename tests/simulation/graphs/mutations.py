"""Planted bugs of graphs: each is the product without one of its rules. The suite catches all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from outbox.core.graphs import attempts, batch
from outbox.core.graphs.attempts import Begun, Repeat
from outbox.core.graphs.batch import BatchAct, StepBatch
from outbox.core.graphs.inputs import LaneInputs
from outbox.core.graphs.lane import GraphLane
from outbox.core.graphs.steps import Step
from outbox.core.graphs.values import Strategy
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer
from outbox.graphs.assignment import GraphAssignment, GraphOrders
from outbox.graphs.lane_worker import GraphLaneWorker
from outbox.graphs.transactions import LaneTransactions
from tests.simulation.graphs.scenario import ALTS, JOIN, OTHERS, THEMES, Outcome, run
from tests.simulation.planted import PlantedBug, around

A = BatchAct


@dataclass(frozen=True)
class Planted(PlantedBug):
    def run(self, seed: int) -> Outcome:
        return run(seed, self.applied)


def _forget_choice(begun: Any, lane: GraphLane, one: StepBatch) -> Begun | None:
    found: Begun | None = begun(lane, one)
    return None if found is None else replace(found, choice=())


def _give_one_half_back(give_back: Any, inputs: LaneInputs, steps: Sequence[Step], positions: Any) -> None:
    give_back(inputs, [step[:1] for step in steps], positions)


def _ordered(strategy: Strategy, *acts: BatchAct) -> tuple[tuple[Any, str, Any], ...]:
    """The strategy has this order."""
    order = {**batch.ORDER, strategy: acts}
    with patch.object(batch, "ORDER", order):
        table = batch._table(strategy, "planted")
    return (batch, "ORDER", order), (batch, "STAGES", {**batch.STAGES, strategy: table})


def _record_unfenced(lane: LaneTransactions, begun: Begun) -> None:
    """By a producer that nobody fences."""
    kafka: Any = lane._kafka
    kafka._process.runtime.stand_still(kafka._world.random.choice((0.002,) * 20 + (2.0, 4.0)))
    value = begun.encode(lane._name)
    kafka._world.kafka.append_plainly(kafka.attempts_topic, lane._partition, [(b"", value)], kafka._process)


def _offsets_outside(send_offsets: Any, producer: Any, offsets: Any, group: Any, timeout_s: float) -> None:
    """At once, whatever becomes of the transaction."""
    broker = producer.client._broker
    ((number, found),) = offsets
    broker.append_plainly("offsets", number, [(None, found)], producer.client._process)


def _entry_outside(send_entry: Any, producer: Any, topic: str, partition: int, key: bytes, payload: bytes) -> None:
    client = producer.client
    client._broker.append_plainly(topic, partition, [(key, payload)], client._process)


def _ask_before_fencing(place: Any, worker: GraphLaneWorker) -> Any:
    """The answers are those from before the fence."""
    kafka: Any = worker._kafka
    give_up_at = worker._runtime.monotonic() + 5.0
    kafka_type = type(kafka)
    answers = {
        "entry": kafka.entry(worker.partition, give_up_at),
        "begun": kafka.begun(worker.partition, give_up_at),
        "inputs": kafka.inputs(worker.partition),
    }
    for name, answer in answers.items():
        setattr(kafka, name, lambda *given, answer=answer: answer)
    try:
        return place(worker)
    finally:
        for name in answers:
            setattr(kafka, name, getattr(kafka_type, name).__get__(kafka))


def _trust_the_client(orders: Any, assignment: GraphAssignment) -> GraphOrders:
    """As if it ended a pause when it takes partitions once more."""
    found: GraphOrders = orders(assignment)
    return replace(found, resume=()) if found.start else found


_NO_RENEWAL = (LaneTransactions, "_trouble_of", staticmethod(lambda producer: (producer.poll(), "")[1]))

MUTATIONS: Mapping[str, Planted] = {
    "choice not remembered": Planted((around(GraphLane, "begun", _forget_choice),), theme=(ALTS, THEMES)),
    "one half of a join given back": Planted(
        (around(LaneInputs, "give_back", _give_one_half_back),), theme=(JOIN, THEMES)
    ),
    "positions before acknowledgements": Planted(
        (
            *_ordered(Strategy.EXACTLY_ONCE, A.RUN, A.BEGIN, A.POSITION, A.SEND, A.AWAIT, A.COMMIT),
            _NO_RENEWAL,
        )
    ),
    "unfenced attempts": Planted(((LaneTransactions, "record", _record_unfenced),), theme=(ALTS, THEMES)),
    "offsets outside of the transaction": Planted(
        (
            around(TransactionalProducer, "send_offsets", _offsets_outside),
            around(TransactionalProducer, "send_entry", _entry_outside),
        )
    ),
    "positions asked for before the fence": Planted((around(GraphLaneWorker, "_place", _ask_before_fencing),)),
    "both sides are read once": Planted(((GraphLaneWorker, "_has_moved", lambda worker, entry, give_up_at: False),)),
    "partitions stay paused when they are begun again": Planted(
        (around(GraphAssignment, "orders", _trust_the_client),)
    ),
    "no renewal after trouble": Planted((_NO_RENEWAL,)),
    "a step that ends its process is run for ever": Planted(((attempts, "after", lambda found, positions: Repeat()),)),
    "at-most-once runs a step before its positions are committed": Planted(
        _ordered(Strategy.AT_MOST_ONCE, A.RUN, A.SEND, A.AWAIT, A.BEGIN, A.POSITION, A.COMMIT), theme=(OTHERS, THEMES)
    ),
    "at-least-once commits the positions first": Planted(
        _ordered(Strategy.AT_LEAST_ONCE, A.BEGIN, A.POSITION, A.COMMIT, A.RUN, A.SEND, A.AWAIT), theme=(OTHERS, THEMES)
    ),
}

FOUND_BY: Mapping[str, int] = {
    "choice not remembered": 7,
    "one half of a join given back": 1,
    "positions before acknowledgements": 7,
    "unfenced attempts": 7,
    "offsets outside of the transaction": 0,
    "positions asked for before the fence": 7,
    "both sides are read once": 111,
    "partitions stay paused when they are begun again": 1,
    "no renewal after trouble": 67,
    "a step that ends its process is run for ever": 0,
    "at-most-once runs a step before its positions are committed": 4,
    "at-least-once commits the positions first": 14,
}
