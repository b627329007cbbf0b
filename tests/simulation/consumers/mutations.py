"""Planted bugs of consumers: each is the product without one of its rules. The suite catches all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outbox.consumers.assignment import Assignment, Orders
from outbox.consumers.work import loads
from outbox.consumers.work.calls import Calls
from outbox.consumers.work.dedupe import Dedupe
from outbox.consumers.work.loads import Loads
from outbox.consumers.work.worker import ConsumerWorker
from outbox.core.consumers import start
from outbox.core.consumers.batch import BatchStep, ConsumerBatch
from outbox.core.consumers.holding import Release, StoredMessage, Tries
from outbox.core.consumers.partition import AssignedPartition
from outbox.core.consumers.start import Places, Placing
from outbox.core.consumers.values import Fetched, Partition, Position
from tests.simulation.consumers.scenario import ENDING, LAGGING, LOGS, PLAIN, RESTLESS, THEMES, Outcome, run
from tests.simulation.planted import PlantedBug, around


@dataclass(frozen=True)
class Planted(PlantedBug):
    def run(self, seed: int) -> Outcome:
        return run(seed, self.applied)


def _handle_first(lock: Any, worker: ConsumerWorker, connection: Any, batch: ConsumerBatch) -> None:
    RUN(worker._calls, connection, batch)
    lock(worker, connection, batch)


RUN = Calls.run


def _read_plainly(worker: ConsumerWorker, batch: ConsumerBatch) -> Mapping[Partition, tuple[Position, int]]:
    positions: Any = worker._positions
    found: Mapping[Partition, tuple[Position, int]] = positions.written(
        worker._transaction.connection(), batch.partitions
    )
    return found


def _believe_the_offset(
    settled: Any, batch: ConsumerBatch, found: Mapping[Partition, tuple[Position, int]]
) -> bool | None:
    """Whoever has written the rows."""
    answer: bool | None = settled(batch, {one: (position, batch._xid) for one, (position, _) in found.items()})
    return answer


def _count_at_once(settle: Any, worker: ConsumerWorker, batch: ConsumerBatch, hooks: Any) -> None:
    worker._transaction.close()
    batch.stage.on(BatchStep.COMMITTED)
    batch.stage.state = type(batch.stage.state).IN_DOUBT
    worker._committed(batch, hooks)


def _reach_all(handled: Any, batch: ConsumerBatch, counts: Mapping[AssignedPartition, int]) -> None:
    """The positions behind all that was taken are written, however many the functions came to."""
    batch._handled.update({one: len(messages) for one, messages in batch._taken.items()})


def _expect_anything(locked: Any, batch: ConsumerBatch, found: Mapping[Partition, Position], xid: int) -> Any:
    batch._expected.update(found)
    return locked(batch, found, xid)


def _create_later(place: Any, worker: Loads, topic: str, wanted: Sequence[Partition], given: Any, loaded: Any) -> None:
    """The rows are committed beside the reading."""
    place(worker, topic, [], given, loaded)
    topic_id = worker._topics.ids([topic])[topic]
    connection = worker._transaction.connection()
    rows = worker._positions.load(connection, worker._options.name, wanted)
    missing = [partition for partition in wanted if partition not in rows]
    begun = {partition: worker._begin(partition, topic_id, worker._options.start) for partition in missing}

    def create() -> None:
        runtime.sleep(0.2)
        worker._positions.create(worker._transaction.connection(), worker._options.name, begun)

    runtime = connection.process.runtime
    if begun:
        runtime.thread(create, "late").start()
    loaded.found.update({**rows, **begun})


def _take_any_transaction(objection: Any, batch: ConsumerBatch, moved: int, xid: int) -> str:
    return str(objection(batch, moved, batch._xid))


def _see_no_epoch(received: Any, one: AssignedPartition, messages: Sequence[Fetched]) -> Fetched | None:
    found: Fetched | None = received(
        one, [message._replace(leader_epoch=max(one.epoch, message.leader_epoch)) for message in messages]
    )
    return found


def _begin_added_at_start(places: Any, placing: Placing, given: str | int) -> Places:
    found: Places = places(placing, given)
    return replace(found, create=dict.fromkeys(found.create, given))


def _start_without_resume(orders: Any, assignment: Assignment) -> Orders:
    found: Orders = orders(assignment)
    return replace(found, resume=[partition for partition in found.resume if partition not in found.start])


def _release_without_lock(lock: Any, worker: ConsumerWorker, connection: Any, batch: ConsumerBatch) -> None:
    if batch.release is None:
        lock(worker, connection, batch)
    else:
        worker._assignment.locked(batch, dict(batch._expected), connection.xid)


def _believe_that_nothing_is_held(loaded: Any, one: AssignedPartition, *given: Any) -> None:
    loaded(one, *given)
    one.has_held = False


def _forget_tries(taken: Any, release: Release, rows: Sequence[StoredMessage], *, is_full: bool) -> None:
    taken(release, [row._replace(tries=Tries()) for row in rows], is_full=is_full)


def _block_nothing(keep: Any, batch: ConsumerBatch, *given: Any, is_left_out: bool) -> None:
    keep(batch, *given, is_left_out=True)


_PLAIN_HOLDING, _ENDING_HOLDING = (PLAIN, 2 * THEMES), (ENDING, 2 * THEMES)
_RESTLESS_OTHERS = RESTLESS + THEMES, 2 * THEMES

MUTATIONS: dict[str, Planted] = {
    "effects before the lock": Planted(
        (around(ConsumerWorker, "_lock", _handle_first), (Calls, "run", lambda *given: None)),
        theme=(PLAIN, THEMES),
    ),
    "plain read of a doubtful COMMIT": Planted(((ConsumerWorker, "_rows_after_commit", _read_plainly),)),
    "who has written a position is not asked": Planted(
        (around(ConsumerBatch, "settled", _believe_the_offset),),
        theme=(LAGGING, 3 * THEMES),  # one partition
    ),
    "a doubtful COMMIT is counted": Planted((around(ConsumerWorker, "_settle", _count_at_once),)),
    "position written before the functions": Planted((around(ConsumerBatch, "handled", _reach_all),)),
    "comparison left out": Planted((around(ConsumerBatch, "locked", _expect_anything),)),
    "revoked partition still committed": Planted(((AssignedPartition, "is_held", True),), theme=_RESTLESS_OTHERS),
    "reading before start is committed": Planted((around(Loads, "_place", _create_later),)),
    "transaction id not compared": Planted(
        (around(ConsumerBatch, "objection", _take_any_transaction),), theme=(ENDING, THEMES)
    ),
    "a transaction that failed is not compared": Planted(
        ((ConsumerWorker, "_is_replaced", lambda *given: False),), theme=(ENDING, THEMES)
    ),
    "leader epoch not compared": Planted((around(AssignedPartition, "received", _see_no_epoch),), theme=(LOGS, THEMES)),
    "what was fetched is kept when the position moves": Planted(((AssignedPartition, "forget", lambda one: None),)),
    "an idle owner does not read its positions": Planted(
        ((Assignment, "looked", lambda *given: None),), theme=(LAGGING, THEMES)
    ),
    "a partition added later begins at start": Planted(
        ((loads, "places", lambda *given: _begin_added_at_start(start.places, *given)),)
    ),
    "assign without resume": Planted((around(Assignment, "orders", _start_without_resume),)),
    "a message that failed has no row": Planted(
        ((ConsumerWorker, "_write_held", lambda *given: ()),), theme=(RESTLESS, THEMES)
    ),
    "attempts in memory": Planted((around(Release, "taken", _forget_tries),), theme=(RESTLESS, THEMES)),
    "a hold forgotten at a rebalance": Planted(
        (around(AssignedPartition, "loaded", _believe_that_nothing_is_held),), theme=(RESTLESS, THEMES)
    ),
    "release out of order": Planted(((Release, "is_blocked", lambda *given: False),), theme=(RESTLESS, THEMES)),
    "later messages of a key that fails are handled": Planted(
        (around(ConsumerBatch, "keep", _block_nothing),), theme=(RESTLESS, THEMES)
    ),
    "release without the lock": Planted(
        (around(ConsumerWorker, "_lock", _release_without_lock),), theme=(RESTLESS, THEMES)
    ),
    "a message that may end the process is not recorded": Planted(
        ((ConsumerWorker, "_record_offset", lambda *given: None),), theme=(RESTLESS, THEMES)
    ),
    "ids of messages that the transaction did not come to are kept": Planted(
        ((Dedupe, "end", lambda *given: None),), theme=_PLAIN_HOLDING
    ),
    "a repeated message is handled": Planted(((ConsumerBatch, "leave_out", lambda *given: None),)),
    "what a message did before it failed is kept": Planted(
        ((Calls, "_undo", lambda *given: None),), theme=(RESTLESS, THEMES)
    ),
}
FOUND_BY = {
    "effects before the lock": 0,
    "plain read of a doubtful COMMIT": 35,
    "who has written a position is not asked": 526,
    "a doubtful COMMIT is counted": 1,
    "position written before the functions": 0,
    "comparison left out": 1,
    "revoked partition still committed": 40,
    "reading before start is committed": 0,
    "transaction id not compared": 119,
    "a transaction that failed is not compared": 19,
    "leader epoch not compared": 2,
    "what was fetched is kept when the position moves": 1,
    "an idle owner does not read its positions": 6,
    "a partition added later begins at start": 5,
    "assign without resume": 1,
    "a message that failed has no row": 3,
    "attempts in memory": 3,
    "a hold forgotten at a rebalance": 28,
    "release out of order": 3,
    "later messages of a key that fails are handled": 3,
    "release without the lock": 3,
    "a message that may end the process is not recorded": 13,
    "ids of messages that the transaction did not come to are kept": 250,
    "a repeated message is handled": 0,
    "what a message did before it failed is kept": 3,
}
