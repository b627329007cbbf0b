"""PostgreSQL's side of exactly-once delivery: crashes that lose commits, ids drawn again, transactions seen late.

For each guard, a second run of the same events uses the form without the guard, which does the harm."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager, suppress
from statistics import median

import psycopg
import pytest

from outbox.core import lease
from outbox.core.frontier import Frontier
from outbox.edges.postgres.exactly_once import companions
from outbox.edges.postgres.exactly_once.reader import Reader
from tests.faults.exactly_once import without_guards
from tests.faults.exactly_once.acts import settle
from tests.harvest.exactly_once.bench import stopped, wait_until
from tests.harvest.exactly_once.test_resolve import PURGE_SENT, resolve

# The waits of one test may together take longer than a test may otherwise.
pytestmark = pytest.mark.timeout(420)

NO_SWEEP = {"SWEEP_INTERVAL": 3600}


def repeats(bench):
    values = [record.value for record in bench.read()]
    return len(values) - len(set(values))


# ---- crashes that lose commits


@pytest.fixture(scope="module")
def forgetful():
    """A PostgreSQL that writes commits to its disk only when a session waits for them."""
    from outbox.devstack import Postgres

    settings = {"wal_writer_delay": "10s", "autovacuum": "off", "max_prepared_transactions": "4"}
    with Postgres(settings=settings) as server:
        yield server


def pause_writing_of_wal(connection):
    """Otherwise the server's own processes flush records that no session has asked to flush."""
    for (pid,) in connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walwriter', 'background writer')"
    ).fetchall():
        os.kill(pid, signal.SIGSTOP)


@contextmanager
def crash(server, bench, gate):
    """Commits for which no session has waited are lost after the block, in which no server runs."""
    server.kill()
    bench.close()
    gate.bar()
    yield
    start_again(server, bench)


def start_again(server, bench):
    bench.db.close()
    server.start()
    bench.db = psycopg.connect(bench.url, autocommit=True)


@pytest.mark.parametrize("flushed", [True, False])
def test_a_crash_forgets_nothing_that_was_sent(forgetful, bench_on, monkeypatch, flushed):
    """Writers do not wait for the disk. Without the flush before the commit, consumers get records that the database
    has lost."""
    with bench_on(url=forgetful.url) as bench, ExitStack() as down:
        bench.db.execute("CREATE TABLE business (value text)")
        if not flushed:
            without_guards.never_flush(monkeypatch)
        gate = without_guards.gate_purges(monkeypatch)
        monkeypatch.setattr(lease, "BEAT_S", 600)  # each commits, and that flushes the records before it
        with bench.working(SESSION_TIMEOUT=60) as host:
            wait_until(lambda: host.worker._rounds and host.worker._rounds.reads, 60)
            wait_until(lambda: bench.db.execute("SELECT 1 FROM outbox_lane").fetchone())  # the first heartbeat
            pause_writing_of_wal(bench.db)
            with closing(psycopg.connect(bench.url)) as writer:
                writer.execute("SET synchronous_commit = off")
                writer.execute("INSERT INTO business VALUES ('1'), ('2')")
                bench.stash(["a", "b"], connection=writer)
                writer.commit()
            sent = {record.value.decode() for record in wait_until(bench.read)}
            down.enter_context(crash(forgetful, bench, gate))
        down.close()
        known = {row[0] for row in bench.db.execute("SELECT value FROM business")}
        assert sent == {"1", "2"}
        assert known == (sent if flushed else set())


class ForgottenWriters:
    """Each writes a table of its application and the outbox in one transaction, and does not wait for its commit."""

    def __init__(self, bench, count):
        self._bench, self._stop, self.committed = bench, threading.Event(), 0
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def _write(self, writer):
        number = 0
        while not self._stop.wait(0.02):
            with suppress(psycopg.Error), closing(psycopg.connect(self._bench.url)) as connection:
                connection.execute("SET synchronous_commit = off")
                while not self._stop.wait(0.001):
                    number += 1
                    given = [f"w{writer}-{number % 3}", f"{writer}:{number}"]
                    connection.execute(
                        "INSERT INTO business (key, value, number) VALUES (%s, %s, %s)", [*given, number]
                    )
                    connection.execute(
                        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                        [self._bench.topic, *given],
                    )
                    connection.commit()
                    self.committed += 1


def crashing(forgetful, bench_on, crashes):
    with bench_on(url=forgetful.url) as bench:
        bench.db.execute("CREATE TABLE business (key text, value text, number int)")
        with bench.working() as host, ForgottenWriters(bench, 3) as writers:
            for _ in range(crashes):
                before = host.worker.statistics().delivered
                wait_until(lambda before=before: host.worker.statistics().delivered > before + 50, 60)
                forgetful.kill()
                start_again(forgetful, bench)
        with bench.working():
            bench.wait_empty()
        known = defaultdict(list)
        for key, value in bench.db.execute("SELECT key, value FROM business ORDER BY number"):
            known[key].append(value)
        print(f"{writers.committed} committed, {sum(map(len, known.values()))} known after {crashes} crashes")
        assert bench.by_key() == known


@pytest.mark.slow
def test_crashes_while_writers_do_not_wait_for_the_disk(forgetful, bench_on):
    """Kafka has the records that the application still knows, once and in order, and no others."""
    crashing(forgetful, bench_on, 3)


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_crashes_again_and_again_while_writers_do_not_wait_for_the_disk(forgetful, bench_on):
    crashing(forgetful, bench_on, 40)


@pytest.mark.slow
def test_files_from_before_take_over_under_a_living_owner(bench_on):
    """As with a standby that was behind: table, transaction ids and sequence go back, and connections break."""
    from outbox.devstack import Postgres

    with Postgres() as server, bench_on(url=server.url) as bench:
        with bench.working():
            bench.stash(["key-0"] * 10)
            bench.wait_empty()
        bench.stash([f"key-{n % 5}" for n in range(50)])
        older = server.folder / "older"
        server.stop()
        subprocess.run(["cp", "-a", server.data, older], check=True)
        start_again(server, bench)
        with bench.working(BATCH_MAX=20) as living:
            forgotten = bench.stash(["key-1"] * 20)
            bench.wait_empty()
            server.kill()
            shutil.rmtree(server.data)
            older.rename(server.data)
            start_again(server, bench)
            assert "outbox_resolve --lane 0 with either --delete-sent" in stopped(living)
            assert set(bench.stash(["key-1", "new"])) < set(forgotten), "ids are drawn a second time"
            assert resolve(bench, PURGE_SENT).deleted == 50
            bench.wait_empty()
        bench.check()


@pytest.mark.parametrize("flushed", [True, False])
def test_a_crash_forgets_no_purge_on_which_the_next_commit_relies(forgetful, bench_on, monkeypatch, flushed):
    """Batch 2 is in Kafka and PostgreSQL crashes. If it had lost the purge of batch 1, the lane would stop: the two
    numbers show that the database went back in time."""
    with bench_on(url=forgetful.url) as bench, ExitStack() as down, monkeypatch.context() as patch:
        pause_writing_of_wal(bench.db)
        if not flushed:
            without_guards.purge_without_waiting_for_the_disk(patch)
        gate = without_guards.gate_purges(patch, first_batch=2)
        with bench.working() as host:
            wait_until(lambda: host.worker.statistics().takeovers)
            bench.stash([f"key-{n % 7}" for n in range(200)])
            assert gate.reached.wait(60)
            down.enter_context(crash(forgetful, bench, gate))
        down.close()
        patch.undo()
        with bench.working() as host:
            if flushed:
                bench.wait_empty()
                bench.check()
            else:
                assert "the database went back in time" in stopped(host)
                assert bench.count == 200


# ---- ids that are drawn a second time


@pytest.mark.parametrize("guarded", [True, False])
def test_new_rows_under_old_ids_outlive_a_running_purge(bench, monkeypatch, guarded):
    gate = without_guards.gate_purges(monkeypatch)
    if not guarded:
        without_guards.purge_by_id_alone(monkeypatch)
    bench.stash(["k"] * 50)
    with bench.working() as host:
        assert gate.reached.wait(60)
        bench.db.execute("TRUNCATE outbox RESTART IDENTITY")
        bench.stash(["k"] * 50)
        gate.open()
        if guarded:
            assert "ids were drawn a second time" in stopped(host)
            assert bench.count == 50
        else:
            bench.wait_empty()
            assert len(bench.read()) == 50, "the new rows were deleted and never sent"


@pytest.mark.parametrize("guarded", [True, False])
def test_new_rows_under_old_ids_outlive_a_takeover(bench, monkeypatch, guarded):
    bench.stash(["k"] * 50)
    with without_guards.never_purging(monkeypatch), bench.working():
        wait_until(bench.read)
    bench.db.execute("TRUNCATE outbox RESTART IDENTITY")
    bench.stash(["k"] * 50)
    if not guarded:
        without_guards.compare_nothing(monkeypatch)
    with bench.working() as host:
        if guarded:
            assert "ids were drawn a second time" in stopped(host)
            assert bench.count == 50
        else:
            bench.wait_empty()
            assert len(bench.read()) == 50


@pytest.mark.parametrize("by_id", [True, False])
def test_a_late_purge_deletes_what_was_sent_and_nothing_between(bench, monkeypatch, by_id):
    """A transaction has drawn an id between those of a batch, and commits between the batch's read and its purge. The
    next read comes later."""
    gate, read, turn = without_guards.gate_purges(monkeypatch), Reader.read, threading.Lock()

    def read_in_turn(self, *given):
        with turn:
            return read(self, *given)

    monkeypatch.setattr(Reader, "read", read_in_turn)
    if not by_id:
        without_guards.purge_by_range(monkeypatch)
    with psycopg.connect(bench.url) as late:
        ids = bench.stash(["k"] * 10)
        (between,) = bench.stash(["late"], connection=late)
        ids += bench.stash(["k"] * 10)
        assert ids[0] < between < ids[-1]
        with bench.working():
            assert gate.reached.wait(60)
            with turn:
                late.commit()
                gate.open()
                wait_until(lambda: bench.count == int(by_id))
            bench.wait_empty()
    if by_id:
        bench.check()
    else:
        assert len(bench.read()) == 20, "the late one was deleted and never sent"


@pytest.mark.parametrize("after_the_read", [False, True])
def test_records_in_flight_are_known_before_the_read(bench, monkeypatch, after_the_read):
    """A purge may end between the snapshot of a read and the use of its rows. While an older transaction is open, reads
    begin below the records in flight."""
    without_guards.exclude(monkeypatch, after_the_read=after_the_read)
    with psycopg.connect(bench.url) as late:
        bench.stash(["late"], connection=late)
        bench.stash([f"key-{n % 7}" for n in range(2000)])
        with bench.working():
            wait_until(lambda: repeats(bench) if after_the_read else bench.count == 0, 60)
            late.commit()
            bench.wait_empty()
    if not after_the_read:
        bench.check()


# ---- transactions that are seen late


DRAWN = "SELECT last_value FROM outbox_id_seq"


@contextmanager
def slow_trigger(bench):
    """An insert that waits between the drawing of its id and the rest."""
    bench.db.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.kafka_key = 'slow' THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN NEW; END $$"
    )
    bench.db.execute("CREATE TRIGGER hold BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION hold()")
    drawn = bench.db.execute(DRAWN).fetchone()
    with psycopg.connect(bench.url, autocommit=True) as writer:
        bench.db.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=bench.stash, args=(["slow"],), kwargs={"connection": writer})
        thread.start()
        wait_until(lambda: bench.db.execute(DRAWN).fetchone() != drawn)
        yield
        bench.db.execute("SELECT pg_advisory_unlock(7)")
        thread.join()


@contextmanager
def slow_copy(bench):
    """Rows that the server has read and not yet written into the table; it writes them by the thousand."""
    drawn = bench.db.execute(DRAWN).fetchone()
    # More bytes than the client buffers, but fewer rows than would also take a transaction id.
    values = [f"c{number}".ljust(2000, "x") for number in range(20)]
    statement = "COPY outbox (kafka_topic, kafka_key, kafka_value) FROM STDIN"
    with psycopg.connect(bench.url) as writer, writer.cursor() as cursor, cursor.copy(statement) as copy:
        for value in values:
            copy.write_row((bench.topic, "slow", value))
        wait_until(lambda: bench.db.execute(DRAWN).fetchone() != drawn)
        yield
    bench.stashed.by_key["slow"] += values


@pytest.mark.parametrize("slow", [slow_trigger, slow_copy])
@pytest.mark.parametrize("guarded", [True, False])
def test_a_transaction_is_known_from_the_moment_it_draws_an_id(undisturbed, slow, guarded):
    """The default takes a transaction id before the row's id. Without it nothing shows that a session holds a low id
    while higher ones are read, and only the sweep finds the row."""
    bench = undisturbed
    if not guarded:
        bench.db.execute("ALTER TABLE outbox ALTER id SET DEFAULT nextval('outbox_id_seq')")
    with bench.working(**NO_SWEEP):
        bench.stash(["first"])  # the first id of a sequence also takes a transaction id
        bench.wait_empty()
        with slow(bench):
            for _ in range(3):
                bench.stash(["k"])
                bench.wait_empty()
        if guarded:
            bench.wait_empty()
        else:
            for _ in range(5):
                bench.stash(["k"])
                wait_until(lambda: not {"k"} & set(waiting(bench)))
            assert "slow" in waiting(bench)
    with bench.working(SWEEP_INTERVAL=0.1):
        bench.wait_empty()
    if guarded:
        bench.check()
    else:
        assert len(bench.read()) == bench.stashed.count, "late, and perhaps out of order"


def waiting(bench):
    return [row[0] for row in bench.db.execute("SELECT kafka_key FROM outbox")]


def test_late_bulks_and_savepoints_are_read_page_by_page(bench):
    """The first ids of the sequence commit last; parts of their transaction are rolled back."""
    with psycopg.connect(bench.url) as late, bench.working(BATCH_MAX=7, **NO_SWEEP):
        bench.stash(["late"] * 25, connection=late)
        with late.transaction():
            bench.stash(["late"] * 25, connection=late)
        with late.transaction(force_rollback=True):
            late.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) SELECT %s, 'undone', n "
                "FROM generate_series(1, 30) AS n",
                [bench.topic],
            )
        bench.stash([f"key-{n % 5}" for n in range(60)])
        bench.wait_empty()
        late.commit()
        bench.wait_empty()
    bench.check()


def test_a_prepared_transaction_is_read_when_it_is_committed(forgetful, bench_on):
    with bench_on(url=forgetful.url) as bench, bench.working(**NO_SWEEP):
        with psycopg.connect(bench.url) as writer:
            bench.stash(["late"] * 5, connection=writer)
            writer.execute("PREPARE TRANSACTION 'later'")
        for _ in range(3):
            bench.stash(["early"] * 5)
            bench.wait_empty()
        assert "late" not in bench.by_key()
        bench.db.execute("COMMIT PREPARED 'later'")
        bench.wait_empty()
        bench.check()


def fill(bench, rows):
    bench.db.execute("INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, %s)", [rows])


@contextmanager
def reading_beside_the_dead(bench, rows):
    """A reader of this many rows, all of them deleted now, and pinned by a transaction of another database that was
    open before: connection, reader, frontier."""
    with (
        psycopg.connect(bench.url, dbname="postgres") as elsewhere,
        companions.connect({"conninfo": bench.url}, statement_timeout_s=120, application_name="test") as connection,
    ):
        elsewhere.execute("SELECT pg_current_xact_id()")
        fill(bench, rows)
        reader, frontier = Reader("outbox", "outbox_id_seq"), Frontier()
        page = reader.read(connection, max(0, rows - 50_000), (0,), (), 100_000)
        frontier.accept(page.rows[-1][0], False, page.snapshot, page.sequence)
        bench.db.execute("DELETE FROM outbox")
        yield connection, reader, frontier


def poll(connection, reader, frontier):
    page = reader.read(connection, frontier.start(), (0,), (), 1000)
    assert frontier.missed_from(frontier.start(), page.snapshot, page.sequence) is None
    assert page.rows == []


def test_a_poll_walks_no_dead_rows_whatever_pins_them(undisturbed):
    """The test counts blocks instead of milliseconds."""
    with reading_beside_the_dead(undisturbed, 50_000) as (connection, reader, frontier):
        poll(connection, reader, frontier)
        assert blocks(connection, reader, frontier.start()) < 20
        assert blocks(connection, reader, 0) > 400, "a mark that stands still for strangers would walk them all"


def blocks(connection, reader, look):
    """Those of the table and its index that one read touches."""
    example = reader.examples()[0]
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + example.text
    (plan,) = connection.execute(explain, {**example.given, "look": look}).fetchone()[0]
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rows", [1_000_000, 5_000_000])
def test_a_poll_beside_millions_of_dead_rows(bench, rows):
    with reading_beside_the_dead(bench, rows) as (connection, reader, frontier):
        times = []
        for _ in range(1000):
            begun = time.monotonic()
            poll(connection, reader, frontier)
            times.append(time.monotonic() - begun)
        assert blocks(connection, reader, frontier.start()) < 20
    print(f"{rows:,} dead rows: a poll takes {1000 * median(times):.2f} ms (median)")


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_a_takeover_that_walks_millions_of_dead_rows_is_not_fenced(exact):
    """Its first read begins at 0. The election has threads of its own, and the read does not delay it."""
    with psycopg.connect(exact.url) as writer:
        writer.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key) SELECT 't', 'k' FROM generate_series(1, 5000000) AS n"
        )
    with psycopg.connect(exact.url, dbname="postgres") as elsewhere, psycopg.connect(exact.url) as writer:
        elsewhere.execute("SELECT pg_current_xact_id()")
        writer.execute("DELETE FROM outbox")
        writer.commit()
        exact.write(rate=100)
        member = exact.fleet.start()
        exact.wait_delivered(300, timeout_s=120)
        settle(exact)
        writer.execute("SET enable_seqscan = off")
        explain = "EXPLAIN (ANALYZE, FORMAT JSON) SELECT id FROM outbox WHERE id > 0 ORDER BY id LIMIT 1"
        print(f"one walk over the dead: {writer.execute(explain).fetchone()[0][0]['Execution Time']:.0f} ms")
    for event in ("leader_fenced", "partitions_lost", "election_failed"):
        assert not member.says(event), member.log.read_text()[-3000:]
    assert member.says("leader_acquired") == 1
