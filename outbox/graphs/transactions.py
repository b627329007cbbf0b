"""The transactions of one lane: its producer, outputs, positions, and the record of a batch that is begun.

All of it belongs to the lane's thread. Whatever is raised here, the producer is thrown away afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from outbox.core.exactly_once import blame
from outbox.core.exactly_once.transaction import PROBING, Probe, Probing, judge
from outbox.core.exactly_once.transaction import Producer as Judged
from outbox.core.graphs.attempts import Begun
from outbox.core.graphs.batch import BatchAct, StepBatch
from outbox.core.graphs.positions import LaneEntry
from outbox.core.graphs.values import Processor, Strategy
from outbox.core.region import Region
from outbox.edges.kafka.exactly_once.failures import BatchDropped, NotDelivered, failure_of, reporter
from outbox.edges.kafka.exactly_once.transactional import TransactionalProducer, initialised
from outbox.exceptions import NotAvailable, OutboxError
from outbox.failpoints import failpoint
from outbox.graphs.ports import LaneKafkaPort, PlainPort
from outbox.runtime import Runtime


class OutputsDenied(OutboxError):
    """A topic takes no records: no step is to blame."""


class LaneTransactions:
    def __init__(
        self,
        processor: Processor,
        partition: int,
        kafka: LaneKafkaPort,
        *,
        commit_timeout_s: float,
        must_hurry: Callable[[], bool],
        runtime: Runtime,
    ) -> None:
        """`must_hurry`: nothing is to be waited for any more."""
        self._partition, self._kafka, self._commit_timeout_s = partition, kafka, commit_timeout_s
        self._name, self._must_hurry, self._runtime = processor.name, must_hurry, runtime
        self._is_transactional = processor.strategy is Strategy.EXACTLY_ONCE
        """Whether the outputs are part of the transaction."""
        self._producer: TransactionalProducer | None = None
        self._plain: PlainPort | None = None
        self._probing = Region(PROBING)
        self._reports: list[blame.Report] = []
        self._request_bytes: int | None = None
        self._known_topics: set[str] = set()
        self._topic_ids: Mapping[str, str] = {}

    # ---- the producer

    def fence(self, give_up_at: float, may_go_on: Callable[[], bool]) -> bool:
        """A new producer, so that no older owner can commit anything. False: it may not go on."""
        self.drop()
        self._producer = initialised(
            lambda: self._kafka.producer(self._partition, self._request_bytes),
            self._kafka.transactional_id(self._partition),
            give_up_at,
            may_go_on,
            self._runtime,
        )
        return self._producer is not None

    def drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()

    def close(self) -> None:
        self.drop()
        plain, self._plain = self._plain, None
        if plain is not None:
            plain.close()

    @property
    def trouble(self) -> str:
        """Why no transaction may begin with the producer: a request may still be under way that would end it."""
        if self._producer is None:
            return "it was dropped"
        return self._trouble_of(self._producer)

    @staticmethod
    def _trouble_of(producer: TransactionalProducer) -> str:
        producer.poll()
        if judge(producer.trouble, producer.repeated) is Judged.GOOD:
            return ""
        return producer.trouble or producer.repeated

    def _used(self) -> TransactionalProducer:
        assert self._producer is not None
        return self._producer

    # ---- what they write beside outputs

    def knows(self, topic_ids: Mapping[str, str]) -> None:
        """Those of the inputs, which entries name."""
        self._topic_ids = topic_ids

    def is_of_other_topics(self) -> bool:
        """An input was deleted, and perhaps created again: the client does not notice that."""
        try:
            found = self._kafka.topic_ids()
        except NotAvailable:
            return False
        return dict(found) != dict(self._topic_ids)

    def place(self, positions: Mapping[str, int], group: Any) -> None:
        """The first ones of a lane, before anything is read."""
        self._used().begin()
        self._position(positions, group)
        self._used().commit(self._commit_timeout_s, self._must_hurry)

    def record(self, begun: Begun) -> None:
        """In a transaction of its own, which no older owner can commit."""
        producer = self._used()
        producer.begin()
        producer.send_entry(self._kafka.attempts_topic, self._partition, self._key, begun.encode(self._name))
        producer.commit(self._commit_timeout_s, self._must_hurry)
        failpoint("batch-recorded")
        if text := self._trouble_of(producer):
            raise BatchDropped(f"The lane must replace its producer: {text}")

    def _position(self, positions: Mapping[str, int], group: Any) -> None:
        """The last of a transaction: if Kafka ends it too early, outputs are repeated and none is lost."""
        offsets = self._kafka.offsets(self._partition, positions)
        self._used().send_offsets(offsets, group, self._commit_timeout_s)
        entry = LaneEntry(positions, self._topic_ids).encode(self._name)
        self._used().send_entry(self._kafka.positions_topic, self._partition, self._key, entry)

    @property
    def _key(self) -> bytes:
        return f"{self._name}/{self._partition}".encode()

    # ---- a batch

    def require_topics(self, batch: StepBatch) -> None:
        """An unknown topic inside of a transaction would stall it."""
        new = {output.topic for output in batch.outputs} - self._known_topics
        if not new:
            return
        try:
            missing = self._kafka.missing(new)
        except NotAvailable as error:
            raise OutputsDenied(str(error)) from None
        self._known_topics |= new - missing.keys()
        if missing:
            topic, text = next(iter(sorted(missing.items())))
            raise OutputsDenied(f"The topic {topic!r} takes no records: {text}. Create it, or allow the user WRITE.")

    def begins(self) -> None:
        self._reports = []

    def act(self, act: BatchAct, batch: StepBatch, group: Any, give_up_at: float) -> None:
        """All but running the steps."""
        producer = self._used()
        if act is BatchAct.BEGIN:
            self._probing.on(Probe.BEGUN)
            producer.begin()
        elif act is BatchAct.SEND:
            self._send(producer, batch, give_up_at)
            failpoint("outputs-sent")
        elif act is BatchAct.AWAIT:
            self._await(producer, give_up_at)
            failpoint("outputs-acknowledged")
        elif act is BatchAct.POSITION:
            self._position(batch.reached, group)
            failpoint("positions-sent")
        else:
            batch.commits()
            producer.commit(self._commit_timeout_s, partial(self._is_over, give_up_at))
            failpoint("batch-decided")

    def _send(self, producer: TransactionalProducer, batch: StepBatch, give_up_at: float) -> None:
        report_of = reporter(self._reports)
        if self._is_transactional:
            is_probing = self._probing.state is not Probing.WHOLE
            producer.send_outputs(batch.outputs, give_up_at, report_of if is_probing else None)
            return
        self._plain = self._plain or self._kafka.plain()
        self._plain.send(batch.outputs, give_up_at, report_of)

    def _await(self, producer: TransactionalProducer, give_up_at: float) -> None:
        (self._plain or producer).wait_reports(partial(self._is_over, give_up_at))
        if self._reports:
            raise NotDelivered
        if self._is_transactional:
            self._probing.on(Probe.ACKNOWLEDGED)

    def _is_over(self, give_up_at: float) -> bool:
        return self._runtime.monotonic() > give_up_at or self._must_hurry()

    def delivered(self, *, is_searching: bool) -> None:
        """The batch that was committed last. `is_searching`: a step at fault is still looked for."""
        if self._is_transactional:
            self._probing.on(Probe.FOUND_NOTHING_YET if is_searching else Probe.DELIVERED)

    # ---- when it failed

    def blamed(self, batch: StepBatch, error: BaseException, *, is_ending: bool) -> list[blame.Action]:
        """What is to be done. No exception may be handled meanwhile."""
        failure = failure_of(error, self._producer)
        attempt = blame.Attempt(
            [(at, output.topic) for at, output in enumerate(batch.outputs)],
            self._probing.state if self._is_transactional else Probing.PROBING,
            self._reports,
            is_ending=is_ending,
            ledger=self._kafka.positions_topic,
            request_bytes=self._request_bytes,
        )
        actions = blame.blame(attempt, failure)
        if isinstance(weigh := actions[0], blame.Weigh):
            actions = blame.blame(replace(attempt, weighed=self._weighed(batch, weigh.at)), failure)
        for action in actions:
            if isinstance(action, blame.ProbeNext):
                self._probing.on(Probe.WANTED)
                self._known_topics.clear()
            elif isinstance(action, blame.SendLess):
                self._request_bytes = action.limit
        return actions

    def _weighed(self, batch: StepBatch, suspects: Sequence[int]) -> blame.Weighed:
        outputs = batch.outputs
        limits = self._kafka.size_limits({outputs[at].topic for at in suspects})
        exceeding = tuple(at for at in suspects if outputs[at].size > limits.get(outputs[at].topic, outputs[at].size))
        return blame.Weighed(exceeding, min(limits.values(), default=None))
