"""The transactions of one exactly-once lane: hand a batch over, await its reports and guards, commit it with its entry.

All of it belongs to the lane's thread, from the producer to the sizes that records were refused for; other threads
settle what a batch waits for. Whatever is raised here, the producer is thrown away afterwards. `core.exactly_once` has
the states, and says what may be committed and who is to blame for a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from outbox.conf import Conf
from outbox.core import times
from outbox.core.ending import EndOfLane
from outbox.core.exactly_once import blame, ledger, transaction
from outbox.core.exactly_once.blame import Attempt, Weighed
from outbox.core.exactly_once.ledger import Entry
from outbox.core.exactly_once.purging import has_flushed
from outbox.core.exactly_once.transaction import COMMIT, PROBING, Commit, Probe, Step
from outbox.core.holds.hold import Name
from outbox.core.region import Region
from outbox.core.rows import Row, parts_of
from outbox.core.sizes import Sizes
from outbox.edges.kafka.common.clients import PRODUCER_DEFAULTS
from outbox.edges.kafka.exactly_once.failures import BatchDropped, NotDelivered, failure_of, reporter
from outbox.edges.kafka.exactly_once.transactional import RecordRejected, TransactionalProducer
from outbox.failpoints import failpoint
from outbox.harvest.exactly_once.batch_report import Stopwatch
from outbox.harvest.exactly_once.rounds.lanes import LaneState
from outbox.harvest.exactly_once.rounds.rounds import Rounds
from outbox.harvest.exactly_once.takeover import Owned
from outbox.harvest.exactly_once.values import Batch

_TOPICS_S = 5.0
_PIECE = 500  # records: few enough to be in the processor's cache still when their digest is taken
_PROBABLY_TOO_LARGE = (
    "MSG_SIZE_TOO_LARGE: the harvester has not sent this record yet, because it is probably larger than the topic "
    "allows (max.message.bytes). The harvester tries it alone."
)


class Transactions:
    """Of the lane whose state is `lane`, one after the other."""

    def __init__(
        self,
        conf: Conf,
        lane: LaneState,
        rounds: Rounds,
        ending: EndOfLane,
        leader_id: Callable[[], UUID],
        emit: Callable[[object], None],
        stages: dict[str, float],
    ) -> None:
        """`stages`: the seconds spent in each, counted on."""
        self._conf, self._lane, self._rounds, self._ending = conf, lane, rounds, ending
        self._runtime, self._ledger_name = rounds.servers.runtime, rounds.kafka.name
        self._leader_id, self._emit, self._stages = leader_id, emit, stages
        properties = {**PRODUCER_DEFAULTS, **conf.kafka.properties, **conf.kafka.producer}
        codec = properties.get("compression.codec", properties["compression.type"])
        self.sizes = Sizes(is_compressed=codec != "none")
        self.producer: TransactionalProducer | None = None
        self._identity: UUID | None = None
        self.change = 0
        """The number of the change of the lane count with which the lane was taken over."""
        self.batch = 0
        """The last one committed."""
        self._known_topics: set[str] = set()
        self._commit, self._probing = Region(COMMIT), Region(PROBING)
        self._failures: list[blame.Report] = []
        self.stopwatch = Stopwatch(self._runtime)

    # ---- the producer

    def own(self, owned: Owned) -> None:
        self.producer, self.batch = owned.producer, owned.batch
        self._identity, self.change = owned.identity, owned.state.resize_no
        self._commit.on(Step.SETTLED)

    def drop(self) -> None:
        producer, self.producer = self.producer, None
        self._commit.on(Step.DROP)
        if producer is not None:
            producer.drop()

    @property
    def is_in_doubt(self) -> bool:
        return self._commit.state is Commit.IN_DOUBT

    # ---- before one

    def missing_topics(self, batch: Batch) -> dict[str, str]:
        """What the brokers say of topics that they do not have. An unknown topic inside a transaction stalls it: asked
        before, once per topic."""
        if batch.topics <= self._known_topics:
            return {}
        new = {row[1] for row in batch.rows} - self._known_topics
        if not new:
            return {}
        assert self.producer is not None
        missing = self.producer.unknown_topics(new, _TOPICS_S)
        self._known_topics |= new - missing.keys()
        return missing

    def leave_out_large(self, batch: Batch) -> None:
        """What is probably larger than its topic takes is held, to be sent alone later."""
        if not self.sizes:
            return
        rows, large = transaction.without_large(batch.rows, self.sizes, self._lane.holds)
        if large:
            self._leave_out(batch, rows, ((row, _PROBABLY_TOO_LARGE) for row in large), is_sure=False)

    # ---- one

    def run(self, batch: Batch, must_renew: Callable[[], str]) -> Entry | None:
        """None: every record was refused before it was sent, so there is nothing to commit."""
        producer = self.producer
        assert producer is not None
        if text := must_renew():
            raise BatchDropped(f"The lane must replace its producer: {text}")
        failures = self._failures = []
        self._probing.on(Probe.BEGUN)
        stages, began, self.stopwatch = self._stages, self._runtime.monotonic(), Stopwatch(self._runtime)
        failpoint("before-send")
        if self._commit.state is not Commit.OPEN:
            producer.begin()
            self._commit.on(Step.BEGIN)
        with self._turn_to_send(batch) as turned:
            give_up_at = turned + 0.6 * self._conf.exactly_once.transaction_timeout_s
            digest, newest = self._send(producer, batch, give_up_at)
        if not (batch.rows or batch.hold_actions):
            self._rounds.not_sent(self._lane, batch)
            return None
        if transaction.is_announced(self._probing.state, has_records=bool(batch.rows)):
            producer.announce(self._ledger_name, self._lane.number, ledger.BEGINNING_KEY, ledger.BEGINNING)
        failpoint("after-send")
        sent = self._runtime.monotonic()
        stages["turn"] += turned - began
        stages["send"] += sent - turned
        # Beside the brokers' work: nothing of it is needed before the reports are in.
        payload, entry = self._entry(batch, digest, newest)
        producer.wait_reports(lambda: self._is_over(give_up_at))
        if failures:
            raise NotDelivered
        self._probing.on(Probe.ACKNOWLEDGED)
        failpoint("after-ack")
        acknowledged = self._runtime.monotonic()
        stages["reports"] += acknowledged - sent
        self._await_guards(batch, give_up_at)
        guarded = self._runtime.monotonic()
        stages["guards"] += guarded - acknowledged
        key, headers = ledger.entry_key(self._lane.number), ledger.headers(entry)
        producer.send_entry(self._ledger_name, self._lane.number, key, payload, headers)
        failpoint("before-commit")
        self._commit.on(Step.COMMIT)
        producer.commit(self._conf.exactly_once.commit_timeout_s, lambda: self._is_over(give_up_at))
        self.stopwatch.committed(self._runtime.monotonic() - guarded)
        stages["commit"] += self.stopwatch.commit_s
        return entry

    def delivered(self, batch: int) -> None:
        """The rounds know that it is committed."""
        self.batch = batch
        self._commit.on(Step.DELIVERED)
        self._probing.on(Probe.FOUND_NOTHING_YET if self._lane.holds.is_narrow else Probe.DELIVERED)

    @property
    def _is_probing(self) -> bool:
        return transaction.tells_apart(self._probing.state)

    def _send(self, producer: TransactionalProducer, batch: Batch, give_up_at: float) -> tuple[int, int | None]:
        """The digest of what was handed over, and its newest time: of each piece while the processor has it at hand.
        What the client does not take is held, and left out with what follows of its key; the transaction knows nothing
        of it."""
        holds, rows, digest = self._lane.holds, batch.rows, 0
        sent: list[Row] = []
        newest: list[int] = []
        refused: dict[Name, tuple[Row, str]] = {}
        piece, begin = rows[:0], 0
        try:
            for begin in range(0, len(rows), _PIECE):
                piece = holds.without(rows[begin : begin + _PIECE], refused)
                while piece:
                    taken, text = self._send_piece(producer, piece, give_up_at, len(sent))
                    if done := piece[:taken]:
                        digest += ledger.digest(done)
                        newest.append(times.newest(done))
                        sent += done
                    if text is not None:
                        refused[holds.name_of(piece[taken])] = piece[taken], text
                    piece = holds.without(piece[taken + 1 :], refused)
        finally:
            if refused:
                self._leave_out(batch, sent + holds.without(piece + rows[begin + _PIECE :], refused), refused.values())
        return digest, max(newest, default=None)

    def _send_piece(
        self, producer: TransactionalProducer, piece: Sequence[Row], give_up_at: float, begin: int
    ) -> tuple[int, str | None]:
        """How many of these were handed over, and why not the next one."""
        try:
            producer.send(piece, give_up_at, reporter(self._failures, begin) if self._is_probing else None)
        except RecordRejected as error:
            return error.index, str(error)
        return len(piece), None

    def _leave_out(
        self, batch: Batch, rows: list[Row], refused: Iterable[tuple[Row, str]], *, is_sure: bool = True
    ) -> None:
        for held in self._rounds.left_out(self._lane, batch, rows, refused, is_sure=is_sure):
            self._emit(held)

    @contextmanager
    def _turn_to_send(self, batch: Batch) -> Iterator[float]:
        """Since when. The lanes of a process share the interpreter: if they send at once, all of them end late; in
        turn, the first has its answers when the last has sent. A lane that gets no turn in time sends without one."""
        turn = self._rounds.sending_turn
        turn_s = transaction.turn_s(has_records=bool(batch.rows), is_ending=self._ending.is_asked_for)
        is_mine = turn.acquire(timeout=turn_s)
        try:
            yield self._runtime.monotonic()
        finally:
            if is_mine:
                turn.release()

    def _entry(self, batch: Batch, digest: int, newest: int | None) -> tuple[bytes, Entry]:
        assert self._identity is not None
        entry = Entry(
            self._lane.number,
            self.batch + 1,
            self._leader_id(),
            self._identity,
            tuple(batch.ids),
            digest,
            batch.read_at,
            self.change,
            newest,
        )
        return ledger.encode(entry), entry

    def _is_over(self, give_up_at: float) -> bool:
        """Whether to wait no longer for what this transaction needs."""
        now = self._runtime.monotonic()
        return now > give_up_at or self._ending.has_come(now)

    def _await_guards(self, batch: Batch, give_up_at: float) -> None:
        """What was read must be on PostgreSQL's disk, and the batch before this one purged."""
        for awaited in (batch.flush, batch.previous):
            while awaited is not None and not awaited.wait(0.05):
                if self._is_over(give_up_at):
                    raise BatchDropped("PostgreSQL did not confirm the flush or the purge in time for the commit.")
            if awaited is not None and awaited.error is not None:
                raise BatchDropped(f"PostgreSQL failed before the commit: {awaited.error}")
        previous = batch.previous
        flushed = previous.flushed if previous is not None else None
        text = transaction.objection(
            is_stopped=previous is not None and self._lane.number in previous.stops,
            is_flushed=batch.flush is not None or has_flushed(flushed, batch.server, batch.asked_at),
            holds_lease=self._rounds.holds_lease,
        )
        if text:
            raise BatchDropped(text)

    # ---- when it failed

    def failure(self, error: BaseException) -> blame.Failure:
        """What was raised, as a value. No exception may be handled meanwhile."""
        return failure_of(error, self.producer)

    def attempt(self, batch: Batch, request_bytes: int | None) -> Attempt:
        return Attempt(
            batch.rows,
            self._probing.state,
            self._failures,
            is_ending=self._ending.is_asked_for,
            ledger=self._ledger_name,
            request_bytes=request_bytes,
        )

    def weighed(self, rows: Sequence[Row], suspects: Iterable[int]) -> Weighed:
        sizes, topics = self.sizes, {rows[at][1] for at in suspects}
        for topic, limit in self._rounds.kafka.size_limits(topics).items():
            sizes.limited(topic, limit)
        exceeding = tuple(at for at in suspects if sizes.exceeds(rows[at][1], parts_of(rows[at])))
        return Weighed(exceeding, sizes.least_limit(topics))

    def probe_next(self) -> None:
        self._probing.on(Probe.WANTED)
        self._known_topics.clear()
