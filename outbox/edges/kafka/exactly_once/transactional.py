"""The transactional producer of a lane, which knows when it must be renewed. Nothing here decides about records.

The client repeats a lost EndTxn by itself, on another connection, and reports success; the first copy, arriving late,
would commit whatever is open then. Neither an exception nor a callback tells: only the client's log does, by a line
about a connection that failed, or about a request that timed out. `is_trouble` says which lines mean that an EndTxn
may be under way. `trouble` holds the first of them; after it no transaction may begin with this producer. One that has
raised anything but `RecordRejected` must not be used again either.

EndTxn goes to the transaction coordinator, over a connection of its own, which counts as soon as it is made. While it
authenticates itself anew, the log names the state of a connection that is not up yet, and requests are under way. And
the client writes no line that equals the last one of that broker within 30 s, but for the state: a connection that
fails before it is up hides the failure of the next one. If that happens before the first transaction, it counts as
trouble when that one has begun: the producer serves for one, so that brokers which close every first connection do not
stop the lane.

The second witness are the client's statistics: more EndTxn sent than transactions ended. They come on a timer, too late
to prevent harm, so `repeated` means that the log has failed as a witness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from outbox.core.faults import Kind, kind_of
from outbox.edges.kafka.common.client_log import ClientLog
from outbox.edges.kafka.common.clients import PRODUCER_DEFAULTS, make, require_bootstrap
from outbox.edges.kafka.common.disposal import dispose
from outbox.edges.kafka.common.wall_clock import nudged
from outbox.edges.postgres.common.texts import check_names, not_utf8
from outbox.exceptions import OutboxError, missing_extra
from outbox.runtime import Runtime, Thread
from outbox.runtime.threads import THREADS

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer, TopicPartition

    from outbox.core.graphs.outputs import Produced

_PATIENCE_FIRST_S, _PATIENCE_MAX_S = 0.5, 4.0
_INIT_SLICE_S = 0.02  # over a settled owner init takes 13 ms
_BUSY_PAUSE_S = 0.01
_ROOM_S = 0.05
_ABORT_S = 0.5
_SLICE_S = 0.25  # of a wait: how soon the end of a lane is noticed
_STATISTICS_S = 5.0
_COORDINATOR = "[thrd:TxnCoordinator]"
# There was no connection.
_NOT_CONNECTED = re.compile(r"in state (?:INIT|DOWN|TRY_CONNECT|CONNECT)\b")
# A connection that failed in one of these states carried no request yet, unless it was authenticating itself anew.
_NOT_YET_UP = re.compile(r"in state (?:SSL_HANDSHAKE|AUTH_LEGACY|AUTH_HANDSHAKE|AUTH_REQ|APIVERSION_QUERY)\b")
_DOWN = re.compile(r"in state DOWN\b")
_ENDED = re.compile(r'"EndTxn": ?(\d+)')
_FULL = "The Kafka client's queue stayed full: the brokers accept no records."
_REFUSED_FOR_GOOD = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Allow the user WRITE and DESCRIBE on the transactional id {id!r}.",
    "CLUSTER_AUTHORIZATION_FAILED": "Allow the user IDEMPOTENT_WRITE on the cluster.",
    "_UNSUPPORTED_FEATURE": "The brokers do not support transactions: use Kafka 3.0 or newer.",
    "UNSUPPORTED_VERSION": "The brokers do not support transactions: use Kafka 3.0 or newer.",
    "INVALID_TRANSACTION_TIMEOUT": "Lower TRANSACTION_TIMEOUT, or raise transaction.max.timeout.ms of the brokers.",
    "SASL_AUTHENTICATION_FAILED": "Correct the credentials in KAFKA.",
    "_AUTHENTICATION": "Correct the credentials in KAFKA.",
}


class TransactionsRefused(OutboxError):
    """The brokers will not let this user or this configuration have transactions."""


class NoProducer(OutboxError):
    """No producer could be initialised in time: the brokers do not answer."""


class RecordRejected(OutboxError):
    """The client refused one record before anything of it was sent."""

    def __init__(self, index: int, text: str) -> None:
        self.index = index
        super().__init__(text)


class ReportsMissing(OutboxError):
    """Not every record was acknowledged, or none of the client's room became free, in time."""


def is_trouble(facility: str, text: str, was_connected: bool) -> bool:
    """Whether a line of the client's log means that an EndTxn may still be under way on a connection given up.

    `was_connected` says that an earlier line was about a connection that had been made: DOWN may follow it."""
    if facility != "FAIL":
        return facility == "REQTMOUT"
    if _NOT_CONNECTED.search(text):
        return was_connected and _COORDINATOR in text and _DOWN.search(text) is not None
    return _COORDINATOR in text or not _NOT_YET_UP.search(text)


class Witness(ClientLog):
    """The client's log, which remembers what tells that this producer must be renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble = ""
        self.hides = ""
        """A line before the first transaction, whose equal would not be written."""
        self.is_in_use = False
        self.is_told_to_wait = False
        self._was_connected = False

    def log(self, level: int, text: str, *arguments: Any) -> None:
        if len(arguments) == 3:
            facility, line = str(arguments[0]), str(arguments[2])
            if is_trouble(facility, line, self._was_connected):
                self._note(f"{facility} {line}")
            if facility == "FAIL" and not _NOT_CONNECTED.search(line):
                self._was_connected = True
            if facility == "GETPID":
                self.is_told_to_wait = True
        super().log(level, text, *arguments)

    def use(self) -> None:
        """A transaction begins."""
        self.is_in_use = True

    def fail(self, trouble: str) -> None:
        """Only the first one is kept."""
        self.trouble = self.trouble or trouble

    def _note(self, line: str) -> None:
        if self.is_in_use or not (_NOT_YET_UP.search(line) or _DOWN.search(line)):
            self.fail(line)
        else:
            self.hides = self.hides or line


def properties_of(
    given: Mapping[str, Any], transactional_id: str, *, transaction_timeout_s: float, linger_s: float = 0.005
) -> dict[str, Any]:
    """The client's properties; those on which the protocol rests are not the user's to set."""
    require_bootstrap(given)
    timeout_ms = int(transaction_timeout_s * 1000)
    return {
        **PRODUCER_DEFAULTS,
        "linger.ms": int(linger_s * 1000),
        "socket.nagle.disable": True,
        "reconnect.backoff.ms": 5,
        "reconnect.backoff.max.ms": 1000,
        "queue.buffering.max.messages": 200_000,
        "batch.num.messages": 10_000,
        **given,
        "enable.idempotence": True,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        # Reported before the transaction ends by itself; a report that came in time was thus no local timeout.
        "message.timeout.ms": timeout_ms,
        # As long as the client allows: each hidden retry is a request that may arrive late.
        "socket.timeout.ms": timeout_ms,
        # The client takes the interpreter's lock for every report, also where nobody listens. What is left unreported
        # is still waited for, and a failure is reported.
        "delivery.report.only.error": True,
        # The floor of a transaction's latency while the broker still writes the markers of the one before.
        "retry.backoff.ms": 2,
        "retry.backoff.max.ms": 10,
        # A topic that is not there is found out before a transaction begins; this is for one that vanishes.
        "topic.metadata.propagation.max.ms": 3_000,
        # The client's log and statistics are what tells of a lost EndTxn. It says nothing of connections that it has
        # closed itself for being idle, also if an answer is awaited there.
        "connections.max.idle.ms": 0,
        "log_level": 6,
        "log.connection.close": True,
        "log.thread.name": True,
        "statistics.interval.ms": int(given.get("statistics.interval.ms") or 0) or int(_STATISTICS_S * 1000),
    }


class TransactionalProducer:
    """One client in its only life: from init until the first trouble. Used by one thread. `kind` makes the client, in
    place of confluent-kafka."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        *,
        id_header: str = "",
        keep_empty_key: bool = False,
        kind: Callable[..., Producer] | None = None,
        runtime: Runtime = THREADS,
    ) -> None:
        self._runtime = runtime
        self._log = Witness()
        self._ends = self._ends_sent = 0
        self._given_statistics = properties.get("stats_cb")
        given = {**properties, "stats_cb": self._statistics}
        self._client: Producer | None = make(kind or _producer(), given, logger=self._log)
        self._id_header, self._keep_empty_key = id_header, keep_empty_key
        self._may_register = False  # partitions with an open transaction, in the background
        nudged(self)

    def clients(self) -> list[Producer]:
        client = self._client
        return [] if client is None else [client]

    @property
    def client(self) -> Producer:
        assert self._client is not None, "this producer was dropped"
        return self._client

    @property
    def trouble(self) -> str:
        """The log line after which this producer must be renewed; empty: none. Up to date after `poll`."""
        return self._log.trouble or (self._log.hides if self._log.is_in_use else "")

    @property
    def repeated(self) -> str:
        """How the statistics contradict a log without trouble; empty: they do not."""
        if self.trouble or self._ends_sent <= self._ends:
            return ""
        return f"{self._ends_sent} EndTxn requests for {self._ends} transactions"

    def _statistics(self, text: str) -> None:
        self._ends_sent = sum(map(int, _ENDED.findall(text)))
        if self._given_statistics is not None:
            self._given_statistics(text)

    @property
    def is_told_to_wait(self) -> bool:
        """The broker was asked to initialise this producer and is not ready; the client repeats it much later."""
        return self._log.is_told_to_wait

    def poll(self) -> None:
        """Take in what the client has to tell."""
        try:
            self.client.poll(0)
        except Exception as error:
            self._log.fail(f"FATAL {kafka_error(error) or error}")

    def initialise(self, timeout_s: float) -> None:
        """Fence every older producer of the transactional id and end what it has left open."""
        self.client.init_transactions(timeout_s)

    def begin(self) -> None:
        self._log.use()
        self.client.begin_transaction()
        self._may_register = True

    def send(
        self,
        rows: Sequence[tuple[Any, ...]],
        give_up_at: float,
        report_of: Callable[[int], Callable[[Any, Any], None]] | None = None,
    ) -> None:
        """Hand over every row, in order, or raise. `report_of` gives the function that is told of the row at an index;
        without it none is told apart, and a failed delivery surfaces in `send_entry` or `commit`."""
        sent = 0
        while (sent := self._send_from(sent, rows, report_of)) < len(rows):
            if self._runtime.monotonic() > give_up_at:
                raise ReportsMissing(_FULL)
            self.client.poll(_ROOM_S)

    def _send_from(
        self, index: int, rows: Sequence[tuple[Any, ...]], report_of: Callable[[int], Callable[[Any, Any], None]] | None
    ) -> int:
        """The index of the first row for which the client has no room."""
        produce, header, report = self.client.produce, self._id_header, None
        no_key = "" if self._keep_empty_key else None
        try:
            # By index: a row may be longer, and to cut it costs as much as to send it.
            for row in rows[index:] if index else rows:
                headers: list[tuple[str, Any]] | None = [(header, b"%d" % row[0])] if header else None
                if row[4]:
                    headers = _paired(row[4], row[5]) + (headers or [])
                if report_of is not None:
                    report = report_of(index)
                value = row[3] if row[6] is None else row[6]
                produce(row[1], value, row[2] or no_key, -1, report, None, 0, headers)
                index += 1
        except BufferError:
            pass
        except Exception as error:
            if (text := _refusal_in(error, rows[index])) is not None:
                raise RecordRejected(index, text) from error
            raise
        finally:
            del produce  # the frame may outlive the client, in a traceback
        return index

    def send_outputs(
        self,
        outputs: Sequence[Produced],
        give_up_at: float,
        report_of: Callable[[int], Callable[[Any, Any], None]] | None = None,
    ) -> None:
        """As `send`, for what a processor of a graph writes."""
        sent = 0
        while sent < len(outputs):
            topic, key, value, headers = outputs[sent]
            report = report_of(sent) if report_of is not None else None
            with suppress(BufferError):
                self.client.produce(topic, value, key, -1, report, None, 0, list(headers))
                sent += 1
                continue
            if self._runtime.monotonic() > give_up_at:
                raise ReportsMissing(_FULL)
            self.client.poll(_ROOM_S)

    def send_offsets(self, offsets: Sequence[TopicPartition], group: Any, timeout_s: float) -> None:
        """Positions of a consumer group become part of the transaction. `group`: what its member has said of itself;
        Kafka refuses one that is a member no more."""
        self.client.send_offsets_to_transaction(list(offsets), group, timeout_s)

    def wait_reports(self, is_over: Callable[[], bool]) -> None:
        """Until every record handed over is acknowledged or has failed."""
        while left := self.client.flush(_SLICE_S):
            if is_over():
                raise ReportsMissing(f"The brokers did not acknowledge {left} records in time.")

    def announce(self, topic: str, partition: int, key: bytes, value: bytes) -> None:
        """Let the brokers take the entry's partition into the transaction together with those of the records, which
        are sent already. An entry that is not announced only takes longer."""
        with suppress(BufferError):
            self.client.produce(topic, value, key, partition)

    def send_entry(self, topic: str, partition: int, key: bytes, value: bytes, headers: Any = None) -> None:
        """The ledger's entry, as the last record of the transaction. Raises if a record before it has failed."""
        self.client.produce(topic, value, key, partition, headers=headers or None)

    def commit(self, timeout_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Any exception leaves the outcome unknown: only the ledger tells."""
        from confluent_kafka import KafkaException

        self._may_register = False
        self._ends += 1
        give_up_at = self._runtime.monotonic() + timeout_s
        while True:
            left_s = give_up_at - self._runtime.monotonic()
            try:
                self.client.commit_transaction(max(0.0, min(_SLICE_S, left_s)))
            except KafkaException as error:
                # The same commit goes on where it was when it is called again.
                if error.args[0].name() != "_TIMED_OUT" or not error.args[0].retriable():
                    raise
                if left_s <= _SLICE_S or is_over():
                    raise
            else:
                return

    def cause(self) -> KafkaError | None:
        """Why the open transaction can only be aborted: what follows such an error is refused with `_STATE` alone. Not
        to be asked while an exception is handled (see `edges.kafka.common.clients`).

        To begin another one is refused too, by the error that came first; and it does nothing else."""
        self.poll()
        try:
            self.client.begin_transaction()
        except Exception as error:
            found = kafka_error(error)
            return found if found is not None and found.name() != "_STATE" else None
        return None

    def unknown_topics(self, topics: Iterable[str], timeout_s: float) -> dict[str, str]:
        """Those of `topics` that the brokers do not have or do not show, with what they say. An unknown topic inside
        a transaction would stall it."""
        missing = {}
        for topic in topics:
            if not_utf8(topic, ""):
                continue  # the record is at fault, which is refused when it is sent
            found = self.client.list_topics(topic, timeout_s).topics.get(topic)
            error = found.error if found is not None else None
            if found is None or (error is not None and error.name() in _NO_TOPIC):
                missing[topic] = f"{error.name()}: {error.str()}" if error is not None else "unknown topic"
        return missing

    def drop(self) -> None:
        """Throw the client away, with all it holds. Does not block; safe to call twice."""
        self._drop()

    def drop_and_wait(self) -> None:
        """Throw the client away and wait until it can send nothing more: a few milliseconds."""
        if thread := self._drop():
            thread.join()

    def _drop(self) -> Thread | None:
        held = self.clients()
        self._client = None
        return dispose(held, partial(_silence, may_register=self._may_register), self._runtime) if held else None


def _producer() -> Callable[..., Producer]:
    try:
        from confluent_kafka import Producer
    except ImportError as error:
        missing_extra("harvest", error)
    return Producer


_OF_THE_RECORD = frozenset({Kind.RECORD, Kind.BATCH})
_NO_TOPIC = frozenset({
    "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED",
})  # fmt: skip


def _refusal_in(error: Exception, row: Sequence[Any]) -> str | None:
    """What is wrong with the record that `produce` has not taken; None: it does not say that it is the record.

    The client compares a record's size with its own limit before it makes anything of it: nothing was queued, no
    number was drawn, and the transaction knows nothing of it. So the rest of the batch may go on."""
    if isinstance(error, UnicodeError):
        return not_utf8(*row[1:6]) or str(error)
    found = kafka_error(error)
    if found is None:
        return str(error) if isinstance(error, TypeError | ValueError) else None
    return f"{found.name()}: {found.str()}" if kind_of(found.name()) in _OF_THE_RECORD else None


def _paired(names: Sequence[Any], texts: Sequence[Any] | None) -> list[tuple[str, Any]]:
    pairs = list(zip(names, texts or (), strict=True))
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in pairs):
        raise ValueError("a header key or value is NULL")
    check_names(names)
    return pairs


def _silence(client: Producer, may_register: bool) -> None:
    """What must be done before a client is destroyed."""
    if may_register:
        _stop_registering(client)
    client.purge(blocking=False)
    client.poll(0)  # what is left unserved would be written to stderr


def _stop_registering(client: Producer) -> None:
    """A client destroyed while it registers the first partitions of a transaction ends the whole process, by an
    assertion: the request is answered in one thread before it is counted in another. Once an abort has begun it
    registers none.

    A transaction that has failed registers none either, and is left to the successor: after some errors the client
    ends its abort by asking for a new epoch, and that would fence the successor."""
    from confluent_kafka import KafkaException

    try:
        client.begin_transaction()  # refused, and the error tells the state
    except KafkaException as error:
        if error.args[0].name() != "_STATE":
            return
    with suppress(KafkaException):  # that it takes longer, or cannot be sent
        client.abort_transaction(_ABORT_S)


def kafka_error(error: BaseException | None) -> KafkaError | None:
    """What the client has raised. A fatal error is raised in the middle of `flush`, `poll` or `commit`; when a line of
    the log is served right after it, Python turns it into the cause of a SystemError."""
    from confluent_kafka import KafkaException

    if isinstance(error, SystemError):
        error = error.__cause__ or error.__context__
    found: KafkaError | None = error.args[0] if isinstance(error, KafkaException) else None
    return found


def initialised(
    make: Callable[[], TransactionalProducer],
    transactional_id: str,
    give_up_at: float,
    may_go_on: Callable[[], bool],
    runtime: Runtime = THREADS,
) -> TransactionalProducer | None:
    """A producer that has fenced every older one; None when it may not go on.

    While the broker still ends the transaction of an older one, the client waits in steps of half a second that no
    setting shortens; a new client asks at once. So one that was told to wait is dropped; one that has no answer at all
    is given time, more with every attempt.
    """
    from confluent_kafka import KafkaException

    patience_s, last = _PATIENCE_FIRST_S, "there was no time for an attempt"
    while may_go_on():
        if runtime.monotonic() > give_up_at:
            raise NoProducer(f"Kafka did not initialise the transactional id {transactional_id!r} in time: {last}")
        producer = make()
        try:
            if _initialise(producer, min(give_up_at, runtime.monotonic() + patience_s), may_go_on, runtime):
                return producer
            last = (
                "the broker is busy with the transaction of an older owner, does not answer, or cannot replicate its "
                "transaction log (transaction.state.log.replication.factor, transaction.state.log.min.isr)"
            )
        except (KafkaException, SystemError) as error:
            found = kafka_error(error)
            last = found.str() if found is not None else str(error)
            if found is not None:
                _raise_if_refused(found, transactional_id)
        if not producer.is_told_to_wait:
            patience_s = min(2 * patience_s, _PATIENCE_MAX_S)
        producer.drop_and_wait()  # a late init of its would fence the next one
        runtime.sleep(_BUSY_PAUSE_S)
    return None


def _initialise(
    producer: TransactionalProducer, give_up_at: float, may_go_on: Callable[[], bool], runtime: Runtime
) -> bool:
    from confluent_kafka import KafkaException

    while True:
        try:
            producer.initialise(_INIT_SLICE_S)
        except KafkaException as error:
            if error.args[0].name() != "_TIMED_OUT" or not error.args[0].retriable():
                raise
        else:
            return True
        producer.poll()
        if producer.is_told_to_wait or runtime.monotonic() > give_up_at or not may_go_on():
            return False


def _raise_if_refused(error: KafkaError, transactional_id: str) -> None:
    remedy = _REFUSED_FOR_GOOD.get(error.name())
    if remedy is not None:
        raise TransactionsRefused(
            f"Kafka rejects the transactions of {transactional_id!r}: {error.name()}: {error.str()}. "
            + remedy.format(id=transactional_id)
        )
