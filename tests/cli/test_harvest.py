"""`outbox-harvest` as its users run it: a process, a YAML file, a goharvest-compatible table, real servers."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from outbox.cli import harvest
from tests.cli import goharvest
from tests.support.databases import ROOT, fresh_database
from tests.support.pooler import Pooler
from tests.support.tables import create_companions
from tests.support.topics import read_topic

PROGRAM = str(Path(sys.executable).with_name("outbox-harvest"))
WAIT_S = 60


class Process:
    """A program whose lines are read as they come."""

    def __init__(self, *command, cwd=ROOT, environment=None):
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "DJANGO_", "DATABASE"))
        }
        self.lines = []
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**kept, **(environment or {})},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip())

    def wait_for(self, text, count=1):
        until(lambda: sum(text in line for line in self.lines) >= count, f"{text!r} x{count}", self)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_S)
        finally:
            self._reader.join(5)

    def __str__(self):
        return "\n".join(self.lines[-40:])


def until(condition, what, *shown):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {WAIT_S} s\n" + "\n---\n".join(map(str, shown)))
        time.sleep(0.02)


class Site:
    """A database with a goharvest-compatible table, and names of its own on the broker."""

    def __init__(self, url, bootstrap, folder):
        self.url, self.bootstrap, self.folder = url, bootstrap, folder
        self.group = self.topic = f"goharvest-{uuid.uuid4().hex[:10]}"
        parts = urlsplit(url)
        self.dsn = (
            f"host={parts.hostname} port={parts.port} user={parts.username or 'postgres'} "
            f"password={unquote(parts.password or '')} dbname={parts.path[1:]} sslmode=disable"
        )
        self.processes = []
        self.create_topics(NewTopic(self.topic, 3, 1))

    def create_topics(self, *topics):
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # lives until its futures are done
        for future in admin.create_topics(list(topics)).values():
            future.result(30)

    def execute(self, statement):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def stash(self, first, last, keys=10, leader="NULL", table="outbox"):
        names = {"table": table, "topic": self.topic, "keys": keys, "leader": leader, "first": first, "last": last}
        self.execute(goharvest.STASH.format(**names))

    def left(self, table="outbox"):
        return self.execute(f"SELECT count(*) FROM {table}")[0][0]

    def configuration(self, extra="", limits="", table="outbox"):
        path = self.folder / f"{uuid.uuid4().hex}.yaml"
        path.write_text(
            f"harvest:\n"
            f"  baseKafkaConfig:\n"
            f"    bootstrap.servers: {self.bootstrap}\n"
            f"  leaderGroupID: {self.group}\n"
            f"  dataSource: {self.dsn}\n"
            f"  outboxTable: {table}\n"
            f"  limits:\n"
            f"    queueTimeout: 30s\n{limits}{extra}"
        )
        return str(path)

    def harvester(self, *flags, **configuration):
        return self._start(PROGRAM, "-f", self.configuration(**configuration), *flags)

    def goharvest(self, name):
        return self._start(sys.executable, "-m", "tests.cli.goharvest", self.bootstrap, self.dsn, self.group, name)

    def _start(self, *command):
        self.processes.append(Process(*command))
        return self.processes[-1]

    def received(self, count):
        """All messages of the topic, `count` different ones at least, in each key in the order of arrival."""
        found = {}

        def arrived():
            found.clear()
            for message in read_topic(self.bootstrap, self.topic):
                entry = (int(dict(message.headers)["Seq"]), message.partition)
                found.setdefault(message.key.decode(), []).append(entry)
            return sum(len(set(messages)) for messages in found.values()) >= count

        until(arrived, f"{count} messages")
        return found


@pytest.fixture
def site(postgres, kafka, tmp_path):
    with fresh_database(os.environ["DATABASE_URL"]) as url:
        made = Site(url, os.environ["OUTBOX_BOOTSTRAP_SERVERS"], tmp_path)
        made.execute(goharvest.DDL.format(table="outbox"))
        try:
            yield made
        finally:
            for process in made.processes:
                if process.process.poll() is None:
                    process.process.kill()
                    process.process.wait()


def test_a_sequence_that_gives_ids_in_advance_is_a_warning_and_a_plain_default_none(site):
    site.execute("ALTER SEQUENCE outbox_id_seq CACHE 50")
    site.stash(0, 9)
    ours = site.harvester()
    until(lambda: site.left() == 0, "an empty table", ours)
    assert ours.stop() == 0
    (warning,) = (line for line in ours.lines if "table_warning" in line)
    assert "ALTER SEQUENCE outbox_id_seq CACHE 1 INCREMENT 1 NO CYCLE" in warning
    assert "pg_current_xact_id" not in warning


def test_a_pooler_of_transactions_ends_it_with_the_remedy(site):
    with Pooler(site.url) as pooler:
        site.dsn = site.dsn.replace(f"port={urlsplit(site.url).port}", f"port={urlsplit(pooler.url).port}")
        ours = site.harvester()
        assert ours.process.wait(WAIT_S) == 1
        ours.stop()
    assert "Connect to the server directly, or through a pooler in session mode" in ours.lines[-1]


def orders(found):
    return {key: [sequence for sequence, _ in messages] for key, messages in found.items()}


def without_adjacent_repeats(sequences):
    """The numbers without their repeats. A step back that is no repeat of an earlier number stays in the list."""
    result = []
    for sequence in sequences:
        if not result or sequence > result[-1]:
            result.append(sequence)
    return result


def test_a_table_that_is_delivered_exactly_once_is_left_alone_while_that_goes_on(site):
    """Companion tables may be created at any time: the next heartbeat finds them."""
    site.stash(0, 9)
    ours = site.harvester()
    until(lambda: site.left() == 0, "an empty table", ours)
    create_companions(site)
    until(lambda: site.execute("SELECT 1 FROM outbox_state WHERE lease_mode = 'at-least-once'"), "a lease", ours)
    assert ours.stop() == 0
    assert site.execute("SELECT lease_time < now() - interval '1 day' FROM outbox_state") == [(True,)]

    site.execute("UPDATE outbox_state SET lease_mode = 'exactly-once', lease_owner = 'web1', lease_time = 'infinity'")
    site.stash(10, 19)
    hasty, patient = site.harvester("--fail-fast"), site.harvester()
    assert hasty.process.wait(WAIT_S) == 1
    hasty.stop()  # reads the rest of its lines
    assert "with DELIVERY='exactly-once'" in hasty.lines[-1]
    patient.wait_for("waiting reason=")
    assert site.left() == 10
    site.execute("UPDATE outbox_state SET lease_time = '-infinity'")
    until(lambda: site.left() == 0, "an empty table", patient)
    assert patient.stop() == 0


@pytest.mark.part
def test_a_goharvest_table_filled_by_sql_is_harvested_in_order(site):
    site.stash(0, 999)
    ours = site.harvester()
    until(lambda: site.left() == 0, "an empty table", ours)
    found = site.received(1000)
    assert orders(found) == {f"key-{n}": list(range(100)) for n in range(10)}
    assert all(len({partition for _, partition in messages}) == 1 for messages in found.values())
    assert ours.stop() == 0
    assert any("leader_revoked" in line for line in ours.lines), ours
    assert "info outbox.cli starting version=" in ours.lines[0]


def test_rows_marked_by_another_harvester_are_taken_over(site):
    site.stash(0, 99, leader=f"'{uuid.uuid4()}'")
    ours = site.harvester()
    until(lambda: site.left() == 0, "an empty table", ours)
    assert orders(site.received(100)) == {f"key-{n}": list(range(10)) for n in range(10)}
    assert ours.stop() == 0


def test_a_key_stays_in_the_partition_where_goharvest_harvesters_put_it(site):
    keys = [f"key-{n}" for n in range(10)]
    site.create_topics(NewTopic(f"{site.topic}-reference", 3, 1))
    partitions = {}
    producer = Producer({"bootstrap.servers": site.bootstrap, "enable.idempotence": True})
    for key in keys:
        producer.produce(
            f"{site.topic}-reference", "x", key,
            on_delivery=lambda error, message: partitions.update({message.key().decode(): message.partition()}),
        )  # fmt: skip
    producer.flush(30)
    site.stash(0, 9)
    ours = site.harvester()
    found = site.received(10)
    assert {key: messages[0][1] for key, messages in found.items()} == partitions
    assert ours.stop() == 0


def test_a_table_in_a_schema_with_names_that_need_quotes(site):
    site.execute('CREATE SCHEMA "My Schema"')
    table = '"My Schema"."order"'
    site.execute(goharvest.DDL.format(table=table))
    site.stash(0, 99, table=table)
    ours = site.harvester(table=f"'{table}'")
    until(lambda: site.left(table) == 0, "an empty table", ours)
    assert ours.stop() == 0


@pytest.mark.slow
def test_both_kinds_stand_in_one_group_and_take_over_from_each_other(site):
    """Goharvest and our program lead in turn, twice each, while records come in. No record is lost or reordered."""
    site.create_topics(NewTopic(f"{site.group}.neli", 1, 1))  # the goharvest-compatible one does not create it
    site.stash(0, 499)
    first = site.goharvest("first")
    first.wait_for("acquired")
    ours = site.harvester()
    ours.wait_for("harvester_started")
    until(lambda: site.left() < 500, "a first record", first)
    first.stop(signal.SIGKILL)
    site.stash(500, 999)
    ours.wait_for("leader_acquired")
    until(lambda: site.left() == 0, "an empty table", ours)

    second = site.goharvest("second")
    second.wait_for("started")
    site.stash(1000, 1499)
    assert ours.stop() == 0
    second.wait_for("acquired")
    until(lambda: site.left() == 0, "an empty table", second)

    again = site.harvester()
    again.wait_for("harvester_started")
    site.stash(1500, 1999)
    second.stop(signal.SIGKILL)
    until(lambda: site.left() == 0, "an empty table", again, second)
    assert again.stop() == 0
    found = orders(site.received(2000))
    assert {key: without_adjacent_repeats(seen) for key, seen in found.items()} == {
        f"key-{n}": list(range(200)) for n in range(10)
    }


def test_a_goharvest_heartbeat_on_our_partition_fences_us_until_the_brokers_confirm_us(site):
    ours = site.harvester(limits="    heartbeatTimeout: 2s\n")
    ours.wait_for("leader_acquired")
    site.stash(0, 9)
    until(lambda: site.left() == 0, "an empty table", ours)
    producer = Producer({"bootstrap.servers": site.bootstrap, "linger.ms": 0})
    producer.produce(f"{site.group}.neli", f"{time.time_ns()}%intruder", partition=0)
    producer.flush(30)
    ours.wait_for("leader_fenced")
    assert any("leader_fenced" in line and "newer-owner" in line for line in ours.lines)
    ours.wait_for("leader_acquired", count=2)
    site.stash(10, 19)
    until(lambda: site.left() == 0, "an empty table", ours)
    assert ours.stop() == 0


def test_an_unreachable_broker_and_database_do_not_keep_it_from_stopping(site, tmp_path):
    path = tmp_path / "away.yaml"
    path.write_text(
        "harvest:\n  baseKafkaConfig: {bootstrap.servers: '127.0.0.1:1'}\n"
        "  dataSource: host=127.0.0.1 port=1 user=u dbname=d sslmode=disable\n"
    )
    process = Process(PROGRAM, "-f", str(path))
    site.processes.append(process)
    process.wait_for("127.0.0.1")
    assert process.stop() == 0


def test_fail_fast_exits_when_a_server_is_unavailable(tmp_path):
    path = tmp_path / "away.yaml"
    path.write_text("harvest: {dataSource: 'host=127.0.0.1 port=1 user=u dbname=d sslmode=disable'}\n")
    with running("-f", str(path), "--fail-fast") as process:
        assert process.process.returncode == 1
        assert process.lines[-1].startswith("Error: "), process


def test_the_first_signal_waits_for_records_in_flight_and_the_second_does_not(site):
    site.stash(0, 9)
    with psycopg.connect(site.url) as other:
        other.execute("SELECT FROM outbox FOR KEY SHARE")  # lets marks through and holds up purges
        ours = site.harvester()
        site.received(10)
        ours.process.send_signal(signal.SIGTERM)
        ours.wait_for("harvester_stopping")
        assert ours.process.poll() is None
        assert ours.stop() == 5
        assert site.left() == 10


def test_a_wrong_table_ends_it_with_one_error_line(site):
    process = site.harvester(table="nowhere")
    assert process.process.wait(WAIT_S) == 1
    process._reader.join(5)
    assert any(line.startswith("Error: ") and "nowhere" in line for line in process.lines), process


def test_level_off_says_nothing(site):
    process = site.harvester(extra="logging: {level: Off}\n")
    site.stash(0, 9)
    until(lambda: site.left() == 0, "an empty table", process)
    assert process.stop() == 0
    assert process.lines == []


@contextmanager
def running(*arguments, **environment):
    process = Process(PROGRAM, *arguments, environment=environment)
    try:
        process.process.wait(WAIT_S)
        process._reader.join(5)
        yield process
    finally:
        process.process.kill()


def test_a_missing_file_flag_is_an_error():
    with running() as process:
        assert process.process.returncode == 2
        assert process.lines[0].startswith("Error: The flag -f is not set.")


@pytest.mark.parametrize("flag", ["-f", "-file", "--file", "--f"])
def test_the_file_flag_in_its_forms(flag, tmp_path, capsys):
    path = tmp_path / "reaper.yaml"
    path.write_text("harvest: {leaderGroupID: shop}\n")
    for arguments in ([flag, str(path)], [f"{flag}={path}"]):
        assert harvest.main([*arguments, "--check"], environment={}) == 0
        assert "NAME=shop" in capsys.readouterr().out.splitlines()


def test_configuration_errors_exit_with_2_all_at_once(tmp_path):
    path = tmp_path / "reaper.yaml"
    path.write_text("harvest:\n  leadrTopic: x\n  limits: {sendConcurrency: 0}\n")
    with running("-f", str(path)) as process:
        assert process.process.returncode == 2
        assert [line.split(": ")[0] for line in process.lines] == ["Error", "Error"]


@pytest.mark.parametrize("arguments", [("-f", "absent.yaml"), ("--nonsense",), ("-f", ".")])
def test_unusable_arguments_exit_with_2_and_one_line_of_reason(arguments):
    with running(*arguments) as process:
        assert process.process.returncode == 2
        assert process.lines[0].startswith("Error: ")


def test_check_shows_no_secret(tmp_path):
    path = tmp_path / "reaper.yaml"
    path.write_text(
        "harvest:\n  baseKafkaConfig: {sasl.password: hidden-1}\n"
        "  dataSource: user=u password=hidden-2 dbname=d sslmode=disable\n"
    )
    with running("-f", str(path), "--check") as process:
        assert process.process.returncode == 0
        assert "hidden" not in str(process)
        assert "KAFKA has bootstrap.servers, sasl.password" in process.lines
