"""The engine in a test: its driver on the session that all tests share, or `manage.py harvest` as processes."""

import os
import signal
import threading
import time
from pathlib import Path

from outbox.spark.engine.driver import Driver, QueryRefused
from outbox.spark.engine.job import Job
from outbox.spark.verify import run
from outbox.spark.verify.findings import VerificationRequest
from tests.harvest.processes import Harvest
from tests.support.topics import read_topic

PATIENCE_S = 240
POLL_S = 0.2  # reading all processes takes milliseconds


class Channel:
    """The events of a driver, kept."""

    def __init__(self):
        self.said, self.changed = [], threading.Condition()
        self.going, self.finishing = threading.Event(), threading.Event()
        self.going.set()

    def say(self, event, **given):
        with self.changed:
            self.said.append((event, given))
            self.changed.notify_all()

    def of(self, event):
        return [given for name, given in self.said if name == event]


class Running:
    """A driver in a thread of this process. It ends with `finish`, or with the error of its refusal."""

    def __init__(self, spark, outbox, servers, place, **given):
        self.channel, self.refused, self.outbox = Channel(), None, outbox
        given = {"slices": 2, "max_records": 300, "id_header": "outbox-id", **given}
        job = Job(
            url=outbox.url, table=outbox.table, checkpoint=str(place), properties={"bootstrap.servers": servers},
            owner=f"test {time.monotonic_ns()}", **{"name": outbox.table, **given},
        )  # fmt: skip
        self._driver = Driver(job, self.channel, lambda job: spark)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            self._driver.run()
        except Exception as error:
            self.refused = error

    def until(self, condition):
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._thread.is_alive(), self.refused or self.channel.said
            assert time.monotonic() < give_up_at, self.channel.said
            time.sleep(0.1)

    def drain(self):
        self.until(lambda: self.outbox.count() == 0)
        return self

    def finish(self):
        self.channel.finishing.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.refused is None, self.refused
        return self

    def refusal(self):
        self._thread.join(PATIENCE_S)
        assert isinstance(self.refused, QueryRefused), (self.refused, self.channel.said)
        return str(self.refused)

    def discard(self):
        self.channel.finishing.set()
        self._thread.join(PATIENCE_S)


CONFIG = (
    "spark.ui.enabled=false",
    "spark.driver.memory=512m",
    "spark.driver.maxResultSize=1m",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)


class Engines:
    """Processes of `manage.py harvest --engine spark` on one table, with one checkpoint."""

    def __init__(
        self, outbox, servers, folder, *, master="local[2,4]", transform="", config=(), max_records=300, **environment
    ):
        self.outbox, self.servers, self.folder, self.running = outbox, servers, folder, []
        self.checkpoint = folder / "checkpoint"
        self._arguments = ["--engine", "spark", "--master", master, "--max-records", str(max_records)]
        self._arguments += ["--slices", "2"]
        for pair in (*CONFIG, *config):
            self._arguments += ["--spark-conf", pair]
        if transform:
            self._arguments += ["--transform", transform]
        self._environment = {"OUTBOX_NAME": outbox.table, "OUTBOX_TABLE": outbox.table, **environment}

    def start(self, *arguments, **environment):
        place = ["--checkpoint", str(self.checkpoint)] if "--checkpoint" not in arguments else []
        given = {"OUTBOX_BOOTSTRAP_SERVERS": self.servers, **self._environment, **environment}
        made = Harvest(self.folder, self.outbox.url, *self._arguments, *place, *arguments, **given)
        self.running.append(made)
        return made

    def wait_for(self, condition, patience_s=PATIENCE_S):
        give_up_at = time.monotonic() + patience_s
        while not condition():
            assert any(found.process.poll() is None for found in self.running), self.logs()
            assert time.monotonic() < give_up_at, self.logs()
            time.sleep(POLL_S)

    def drain(self, patience_s=PATIENCE_S):
        self.wait_for(lambda: self.outbox.count() == 0, patience_s)

    def signal(self, found, number, *, with_children):
        for pid in (found.process.pid, *(children(found.process.pid) if with_children else ())):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def state(self):
        """(batch, whether all marked records are purged)"""
        found = self.outbox.run("SELECT batch, purged AND prior_leader_id IS NULL FROM {spark}")
        return found[0] if found else (0, True)

    def logs(self):
        return "\n".join(found.log for found in self.running)

    def kill(self, found):
        """The harvester, its driver, the JVM and every Python worker, at one moment."""
        kill(found.process.pid, *children(found.process.pid))
        found.process.wait(60)

    def wait_gone(self, pids, patience_s=PATIENCE_S):
        """Wait until none of these processes is left."""
        give_up_at = time.monotonic() + patience_s
        while left := [pid for pid in pids if _state(pid) not in ("", "Z")]:
            if time.monotonic() > give_up_at:
                kill(*pids)
                raise AssertionError(left)
            time.sleep(POLL_S)

    def discard(self):
        for found in self.running:
            self.kill(found)


def kill(*pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def stopped(pid):
    """Descendants that a failpoint has stopped."""
    found = processes()
    return [child for child in below(found, pid) if found[child][1] == "T"]


def is_stopped(pid):
    return _state(pid) == "T"


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def children(pid):
    """Command lines of all descendants of a process."""
    lines = {child: command_line(child) for child in below(processes(), pid)}
    return {child: line for child, line in lines.items() if line is not None}


def processes():
    """Parent and state of every process. Tests ask several times a second, so one question reads all processes once."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b") ")[2].split(maxsplit=2)[:2]
        except OSError:
            continue
        found[int(name)] = int(parent), state.decode()
    return found


def below(found, pid):
    """All descendants of a process."""
    offspring = {}
    for child, (parent, _) in found.items():
        offspring.setdefault(parent, []).append(child)
    queue = [pid]
    for parent in queue:  # which grows meanwhile
        queue += offspring.get(parent, ())
    return queue[1:]


def command_line(pid):
    """None: the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return None


def javas(pid):
    return [line for line in children(pid).values() if "/java " in line or line.startswith("java ")]


def verified(spark, outbox, servers, topics):
    """The verification finds no fault in the records that went through the ledger of this table's sink."""
    request = VerificationRequest({"conninfo": outbox.url}, outbox.table, {"bootstrap.servers": servers},
                      (f"outbox-spark-{outbox.table}",), tuple(topics))  # fmt: skip
    result = run.verify(spark, request)
    assert result.faults == (), result.lines()
    return result


def judge(servers, topics, expected):
    """Exactly the ids of `expected`, once each, and every key in order of ids."""
    received = [message for topic in topics for message in read_topic(servers, topic)]
    ids = [int(dict(message.headers)["outbox-id"]) for message in received]
    assert len(ids) == len(set(ids)), "doubled"
    assert set(ids) == set(expected), (set(expected) - set(ids), set(ids) - set(expected))
    by_key = {}
    for message, id_ in zip(received, ids, strict=True):
        by_key.setdefault((message.topic, message.key), []).append(id_)
    assert all(own == sorted(own) for own in by_key.values()), "reordered"
    return received
