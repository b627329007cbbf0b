"""The forms without the guards. A test puts one in the place of a guard by `monkeypatch`: then the fault must do the
harm that the guard prevents. Otherwise the test of the guard proves nothing."""

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import psycopg

from outbox.core.exactly_once import decisions, ledger
from outbox.edges.kafka.exactly_once import transactional
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerTopic
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.companions import Companions
from outbox.edges.postgres.exactly_once.reader import Reader
from outbox.harvest.exactly_once import kafka
from outbox.harvest.exactly_once.rounds import rounds
from outbox.harvest.exactly_once.rounds.database import PurgeSession


class Gate:
    """A gate where purges wait. `reached`: one has come. It continues when the gate opens, and fails once it is
    barred."""

    def __init__(self):
        self.reached = threading.Event()
        self._decided = threading.Event()
        self._barred = False

    def open(self):
        self._decided.set()

    def bar(self):
        self._barred = True
        self._decided.set()

    def pass_through(self):
        self.reached.set()
        if not self._decided.wait(60) or self._barred:
            raise psycopg.OperationalError("no purge may pass, as the test has it")


def gate_purges(monkeypatch, first_batch=1):
    """Purges from this batch on wait before their statement."""
    gate, purge = Gate(), PurgeSession._purge

    def wait_and_purge(self, ticket, attempt, connection):
        if any(p.entry.batch >= first_batch for p in ticket.purges):
            gate.pass_through()
        return purge(self, ticket, attempt, connection)

    monkeypatch.setattr(PurgeSession, "_purge", wait_and_purge)
    return gate


@contextmanager
def never_purging(monkeypatch):
    """The purge of each batch that is committed inside the block is left to a successor."""
    with monkeypatch.context() as patch:

        def refuse(self, ticket, attempt, connection):
            raise psycopg.OperationalError("not purged, as the test has it")

        patch.setattr(PurgeSession, "_purge", refuse)
        yield patch


def purge_by_id_alone(monkeypatch):
    """Takes any rows under the ids of a batch for the rows that were sent."""

    def purge(self, connection, lane, batch, ids, filenode, *, compared=False):
        with connection.transaction():
            connection.execute("UPDATE outbox_purged SET batch = %s WHERE lane = %s", [batch, lane])
            return connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", [list(ids)]).rowcount

    for name in ("purge", "purge_plain"):
        monkeypatch.setattr(Companions, name, purge)


def purge_by_range(monkeypatch):
    """Takes all rows between the lowest and the highest id of a batch for rows that were sent with it."""

    def purge(self, connection, lane, batch, ids, filenode, *, compared=False):
        with connection.transaction():
            connection.execute("UPDATE outbox_purged SET batch = %s WHERE lane = %s", [batch, lane])
            return connection.execute("DELETE FROM outbox WHERE id BETWEEN %s AND %s", [min(ids), max(ids)]).rowcount

    for name in ("purge", "purge_plain"):
        monkeypatch.setattr(Companions, name, purge)


def compare_nothing(monkeypatch):
    """A takeover deletes the rows of the last entry without reading them."""
    monkeypatch.setitem(decisions._SETTLED, decisions.Rows.DIFFERENT, decisions.PurgeEntry)


def never_flush(monkeypatch):
    """Sends records that other sessions have committed without waiting for the disk."""
    monkeypatch.setattr(Companions, "flush", lambda self, connection: None)


def purge_without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setitem(companions._OPTIONS, "synchronous_commit", "off")
    never_flush(monkeypatch)


def keep_the_producer(monkeypatch):
    """Continues after a lost connection as if no request were in flight."""
    monkeypatch.setattr(transactional, "is_trouble", lambda facility, text, was_connected: False)


def trust_the_state_of_connections(monkeypatch):
    """Treats a connection that fails in a state before UP as one that never was."""

    def is_trouble(facility, text, was_connected):
        not_up = transactional._NOT_CONNECTED.search(text) or transactional._NOT_YET_UP.search(text)
        return facility == "REQTMOUT" or (facility == "FAIL" and not not_up)

    monkeypatch.setattr(transactional, "is_trouble", is_trouble)


def fence_nobody(monkeypatch):
    """Every owner has a transactional id of its own."""
    of_lane = kafka.properties_of

    def of_owner(given, transactional_id, **times):
        return of_lane(given, f"{transactional_id}-{uuid4()}", **times)

    monkeypatch.setattr(kafka, "properties_of", of_owner)


def take_every_failure_for_trouble(monkeypatch):
    """Also the loss of a connection that never was."""
    monkeypatch.setattr(
        transactional, "is_trouble", lambda facility, text, was_connected: facility in ("FAIL", "REQTMOUT")
    )


def entry_first(monkeypatch):
    """Sends the ledger's entry before the records that it lists."""
    producer = transactional.TransactionalProducer
    send, send_entry, later = producer.send, producer.send_entry, {}

    def keep(self, rows, give_up_at, report=None):
        later.setdefault(self, []).append((rows, give_up_at, report))

    def entry_then_rows(self, *entry):
        send_entry(self, *entry)
        self.client.flush(2)
        for piece in later.pop(self):
            send(self, *piece)
        self.client.flush(2)

    monkeypatch.setattr(producer, "send", keep)
    monkeypatch.setattr(producer, "announce", lambda *_: None)  # the first message is the entry itself
    monkeypatch.setattr(producer, "send_entry", entry_then_rows)


def swallow_errors_of_produce(monkeypatch):
    def send(self, rows, give_up_at, report=None):
        for row in rows:
            try:
                self.client.produce(row[1], row[3], row[2])
            except Exception:
                continue

    monkeypatch.setattr(transactional.TransactionalProducer, "send", send)


def exclude(monkeypatch, *, after_the_read):
    """Leaves out the records in flight here instead of in the statement: by those before it, or those after it."""
    of_rounds, read = [], Reader.read
    init = rounds.Rounds.__init__

    def remember(self, *arguments):
        of_rounds.append(self)
        init(self, *arguments)

    def filtered(self, connection, look, lanes, excluded, limit, *rest):
        page = read(self, connection, look, lanes, (), 100_000, *rest)
        if after_the_read:
            time.sleep(0.03)  # a purge that is running finishes
            excluded = {id_ for batch in list(of_rounds[-1]._lanes.flights._batches) for id_ in batch.ids}
        left = set(excluded)
        rows = sorted(row for row in page.rows if row[0] not in left)
        cut = rows[:limit]
        return replace(page, rows=cut, last_id=cut[-1][0] if cut else None, is_full=len(rows) > limit)

    monkeypatch.setattr(rounds.Rounds, "__init__", remember)
    monkeypatch.setattr(Reader, "read", filtered)


def one_partition_for_all_lanes(monkeypatch):
    """Puts every lane's entries on partition 0, and takes the last stable one for the last."""
    high, between, send = (
        LedgerTopic._high_watermark,
        LedgerTopic._last_between,
        (transactional.TransactionalProducer.send_entry),
    )

    def last_stable(self, lane, high_):
        from confluent_kafka import TopicPartition

        low, self.stable = self._consumer().get_watermark_offsets(TopicPartition(self.name, 0), 5)
        return low

    monkeypatch.setattr(LedgerTopic, "_high_watermark", lambda self, lane: high(self, 0))
    monkeypatch.setattr(LedgerTopic, "_stable_from", last_stable)
    monkeypatch.setattr(
        LedgerTopic,
        "_last_between",
        lambda self, lane, start, _, until: between(self, 0, min(start, self.stable), self.stable, until),
    )
    monkeypatch.setattr(
        transactional.TransactionalProducer,
        "send_entry",
        lambda self, topic, partition, *entry: send(self, topic, 0, *entry),
    )


@contextmanager
def stalled_neighbour(bench):
    """Lane 1's owner, paused with its transaction open and its entry on the ledger, on lane 0's partition if lanes
    share one."""
    topic = LedgerTopic({"bootstrap.servers": bench.servers}, f"{bench.name}.ledger")
    topic.prepare(2, 3600)
    topic.close()
    properties = transactional.properties_of(
        {"bootstrap.servers": bench.servers}, f"{bench.name}-1", transaction_timeout_s=60
    )
    producer = transactional.TransactionalProducer(properties)
    producer.initialise(20)
    producer.begin()
    producer.send_entry(topic.name, 1, ledger.entry_key(1), b"never committed")
    producer.wait_reports(lambda: False)
    yield
    producer.drop_and_wait()
