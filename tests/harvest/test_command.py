"""`manage.py harvest` as processes of its own, on real servers."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import psycopg
import pytest
from django.core.management import get_commands, load_command_class

from outbox import conf
from outbox.management.commands.harvest import EXIT_CODES
from tests.harvest.processes import Harvest
from tests.support.databases import ROOT, django, fresh_database
from tests.support.tables import create_companions, create_table, insert
from tests.support.topics import create_topic, read_topic

SLACK = 3  # how much more than promised a busy machine may take
SESSION_S = 6.0  # kept by the brokers, however busy the machine is
CRASH_EXTRA_S = 3.0


class Shop:
    def __init__(self, url, servers, folder):
        self.url, self.servers, self.folder = url, servers, folder
        self.topic = create_topic(servers, 2)
        self.db = psycopg.connect(url, autocommit=True)
        create_table(self.db)
        self.processes = []

    def harvest(self, *arguments, **environment):
        given = {"OUTBOX_DELIVERY": conf.AT_LEAST_ONCE, **environment}
        self.processes.append(Harvest(self.folder, self.url, *arguments, **given))
        return self.processes[-1]

    def insert(self, count, keys=5):
        return insert(self.db, self.topic, [f"k{n % keys}" for n in range(count)])

    @property
    def count(self):
        return self.db.execute("SELECT count(*) FROM outbox").fetchone()[0]

    def wait_count(self, count, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while self.count != count:
            assert time.monotonic() < deadline, [p.log for p in self.processes]
            time.sleep(0.02)

    def values(self):
        return [int(message.value) for message in read_topic(self.servers, self.topic)]


@pytest.fixture
def new_shop(postgres, bootstrap_servers, tmp_path):
    """Makes shops, each with a table, a topic and a group of harvesters of its own."""
    with ExitStack() as stack:

        def make():
            url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
            made = Shop(url, bootstrap_servers, tmp_path)
            stack.callback(lambda: ([process.discard() for process in made.processes], made.db.close()))
            return made

        yield make


@pytest.fixture
def shop(new_shop):
    return new_shop()


def test_it_harvests_until_sigterm_and_exits_0(shop):
    process = shop.harvest().leads()
    shop.insert(100)
    shop.wait_count(0)
    process.ends(0)
    assert sorted(shop.values()) == list(range(1, 101))
    for line in ("harvester_started", "leader_acquired", "harvester_stopping", "leader_revoked", "harvester_stopped"):
        assert len(re.findall(f" {line}( |$)", process.log, re.MULTILINE)) == 1, process.log


def test_a_terminated_process_hands_over_without_waiting_for_the_session_and_nothing_is_sent_twice(shop):
    # Who leaves without a word is missed after 20 s.
    session = {"OUTBOX_SESSION_TIMEOUT": "20"}
    first = shop.harvest(**session).leads()
    second = shop.harvest(**session).stands_by()
    shop.insert(20)
    shop.wait_count(0)
    first.process.send_signal(signal.SIGTERM)
    shop.insert(1)
    shop.wait_count(0)
    took_s = (second.at("leader_acquired lane=0") - first.at("harvester_stopping")).total_seconds()
    print(f"handed over in {took_s:.2f} s")
    first.ends(0, send=None)
    assert took_s < 12
    assert len(shop.values()) == 21


@pytest.mark.slow
def test_a_killed_process_is_replaced_within_its_session_and_three_seconds(shop):
    first = shop.harvest().leads()
    second = shop.harvest().stands_by()
    began = time.monotonic()
    first.ends(-signal.SIGKILL, send=signal.SIGKILL)
    shop.insert(1)
    shop.wait_count(0, 60)
    assert time.monotonic() - began < SESSION_S + SLACK * CRASH_EXTRA_S
    second.ends(0)


@pytest.mark.slow
def test_rolling_restarts_without_faults_send_nothing_twice(shop):
    ends = threading.Event()
    written = []

    def write():
        with psycopg.connect(shop.url, autocommit=True) as connection:
            while not ends.is_set():
                number = len(written) + 1
                connection.execute(
                    "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, %s)",
                    [shop.topic, f"k{number % 5}", str(number)],
                )
                written.append(number)
                time.sleep(0.002)

    running = [shop.harvest().leads(), shop.harvest().stands_by()]
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(2):
            old = running.pop(0)
            running.append(shop.harvest())
            running[-1].says("partitions_assigned")
            old.ends(0)
    finally:
        ends.set()
        writer.join()
    shop.wait_count(0)
    for process in running:
        process.ends(0)
    received = shop.values()
    assert sorted(received) == written
    assert not any("fenced" in process.log for process in shop.processes)


def test_the_second_signal_forces(shop):
    process = shop.harvest(OUTBOX_FAILPOINTS="before-leave=sleep:1").leads()
    process.process.send_signal(signal.SIGTERM)
    process.says("harvester_stopping")
    process.ends(5)


def test_once_moves_what_is_visible_and_says_how_much(shop):
    shop.insert(50)
    process = shop.harvest("--once").ends(0, send=None)
    assert re.search("^delivered=50 left=0$", process.log, re.MULTILINE)
    assert shop.count == 0


def test_once_beside_a_daemon_gives_up_after_wait(shop):
    shop.harvest().leads()
    process = shop.harvest("--once", "--wait", "2").ends(3, send=None)
    assert "This harvester got no lane within 2 s" in process.log


def test_once_ends_where_kafka_refuses_records_and_where_an_operator_holds_them_back(new_shop):
    refused, paused = new_shop(), new_shop()
    insert(refused.db, "not/a/topic", ["bad"])
    create_companions(paused.db)
    paused.db.execute("INSERT INTO outbox_state (lanes) VALUES (1)")
    paused.db.execute("INSERT INTO outbox_hold (topic, key, reason) VALUES (%s, 'k1', 'paused')", [paused.topic])
    for shop in (refused, paused):  # each waits a while for something to move
        shop.insert(5)
        shop.harvest("--once")
    for shop in (refused, paused):
        shop.processes[0].ends(4, send=None)
        assert shop.count == 1
    assert "records or topics are held" in refused.processes[0].log
    told = "1 records stay in the table, because 1 keys, records or topics are held"
    assert told in paused.processes[0].log


def test_once_that_is_stopped_before_it_has_a_lane_says_that_nothing_is_known(shop):
    shop.harvest().leads()
    process = shop.harvest("--once")
    process.stands_by()
    process.ends(4)
    assert re.search("^delivered=0 left=unknown$", process.log, re.MULTILINE)


NOWHERE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x", "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def test_a_server_that_is_away_is_one_clear_line_and_is_waited_for(shop):
    processes = [shop.harvest("--name", "x", **{away: nowhere}) for away, nowhere in NOWHERE.items()]
    for process in processes:
        process.says("waiting reason=.*127.0.0.1.*refused")
    time.sleep(1.5)  # several attempts
    for process in processes:
        process.ends(0, timeout_s=10)
        assert len(re.findall("refused", process.log)) == 1, process.log


def test_fail_fast_exits_with_the_reason(shop):
    processes = [shop.harvest("--fail-fast", "--name", "x", **{away: nowhere}) for away, nowhere in NOWHERE.items()]
    for process in processes:
        process.ends(1, send=None)
        assert re.search("^CommandError: .*127.0.0.1.*refused", process.log, re.MULTILINE), process.log


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER TABLE outbox DROP leader_id, DROP kafka_value", "lacks the columns kafka_value, leader_id"),
        ("DROP TABLE outbox", "does not exist on the alias 'default'"),
    ],
)
def test_a_wrong_table_is_named_with_what_is_missing(shop, change, told):
    shop.db.execute(change)
    process = shop.harvest("--skip-checks").ends(1, send=None)
    assert told in process.log


def test_messages_of_others_on_the_leader_topic_are_ignored_with_a_warning(shop):
    process = shop.harvest("--name", "own", OUTBOX_LEADER_TOPIC=shop.topic).leads()
    shop.insert(1)  # a message of the application
    process.says(r"WARNING .*heartbeat_unknown .*LEADER_TOPIC")
    process.ends(0)


def test_all_wrong_settings_are_told_at_once(shop):
    process = shop.harvest("--skip-checks", "--name", "a b", "--metrics-interval", "-1").ends(1, send=None)
    assert 'OUTBOX["NAME"]' in process.log
    assert 'OUTBOX["METRICS_INTERVAL"]' in process.log


@pytest.mark.part
def test_the_flag_chooses_the_delivery(shop):
    process = shop.harvest("--delivery", conf.EXACTLY_ONCE).ends(1, send=None)
    assert "companion tables of" in process.log
    assert "migrate outbox" in process.log


def test_killed_at_every_point_of_the_election_nothing_is_lost(new_shop):
    shops = {name: new_shop() for name in ("assigned", "acquired", "revoking", "before-leave")}
    for name, shop in shops.items():
        shop.insert(30)
        shop.harvest(OUTBOX_FAILPOINTS=f"{name}=kill")
    for name, shop in shops.items():
        [process] = shop.processes
        if name in ("revoking", "before-leave"):
            process.leads().process.send_signal(signal.SIGTERM)
    for shop in shops.values():  # each waits for the end of its dead member's session, all at the same time
        shop.processes[0].ends(-signal.SIGKILL, send=None)
        shop.harvest("--once")
    for name, shop in shops.items():
        shop.processes[1].ends(0, send=None)
        assert set(shop.values()) == set(range(1, 31)), name
        assert shop.count == 0, name


def test_standbys_hold_no_connection(shop):
    shop.harvest().leads()
    count = (  # a sample is taken at every full minute, for a moment
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND application_name <> 'outbox sample'"
    )
    shop.insert(1)
    shop.wait_count(0)
    leading = shop.db.execute(count).fetchone()[0]
    assert leading > 0
    shop.harvest().stands_by()
    assert shop.db.execute(count).fetchone()[0] == leading


def test_a_terminal_shows_a_status_line(shop):
    ours, theirs = pty.openpty()
    given = {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": shop.url,
        "OUTBOX_DELIVERY": conf.AT_LEAST_ONCE,
    }
    environment = {**os.environ, **given}
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "harvest"], cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.DEVNULL
    )
    try:
        seen, deadline = "", time.monotonic() + 60
        while not re.search(r"running, lanes 0, delivered [\d,]+, \d+/s, in flight \d+, backlog 0", seen):
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 4096).decode()
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_every_flag_and_every_exit_code_has_a_meaning():
    command = load_command_class(get_commands()["harvest"], "harvest")
    parser = command.create_parser("manage.py", "harvest")
    for action in parser._actions:
        assert action.help, action.option_strings
    for code, text in EXIT_CODES.items():
        assert f"{code}: {text}" in " ".join(parser.epilog.split())
    told = (ROOT / "docs" / "operations.md").read_text()
    for code in EXIT_CODES:
        assert f"| {code} |" in told
    for action in command.create_parser("manage.py", "harvest")._actions:
        if action.option_strings[-1] in ("--once", "--wait", "--name", "--database", "--delivery", "--fail-fast"):
            assert f"`{action.option_strings[-1]}" in told


def test_help_is_printed():
    done = django("harvest", "--help", url="postgresql://nobody@127.0.0.1:1/x")
    assert done.returncode == 0
    assert "Exit codes" in done.stdout


def test_two_processes_share_two_lanes(shop):
    two = {"OUTBOX_LANES": "2"}
    first = shop.harvest(**two).leads()
    first.says("leader_acquired lane=1")
    second = shop.harvest(**two)
    second.says("leader_acquired lane=[01]")
    shop.insert(200, keys=20)
    shop.wait_count(0)
    first.ends(0)
    shop.insert(200, keys=20)
    shop.wait_count(0)
    second.ends(0)
    assert sorted(shop.values()) == sorted([*range(1, 201)] * 2)
    assert "fenced" not in first.log + second.log


@pytest.mark.slow
def test_a_process_paused_beyond_its_session_comes_back_as_a_standby(shop):
    first = shop.harvest().leads()
    second = shop.harvest().stands_by()
    first.process.send_signal(signal.SIGSTOP)
    second.says("leader_acquired lane=0")
    shop.insert(10)
    shop.wait_count(0)
    first.process.send_signal(signal.SIGCONT)
    first.says("leader_fenced lane=0")
    shop.insert(10)
    shop.wait_count(0)
    assert sorted(shop.values()) == sorted([*range(1, 11)] * 2)
    second.ends(0)
    first.says("(?s)leader_fenced.*leader_acquired")
    first.ends(0)
