"""Processes that drive Spark, started and commanded as by a harvester, but without an election between two deaths."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

from outbox.spark.engine.job import Job
from tests.spark.engines import CONFIG, PATIENCE_S, POLL_S, children, is_stopped, kill, stopped
from tests.support.databases import ROOT


class Process:
    def __init__(self, job, path, **environment):
        self.path, self.said = path, []
        with path.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outbox.spark.engine.driver"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self.tell(job.encode())
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        for line in self._process.stdout:
            try:
                self.said.append(json.loads(line))
            except ValueError:  # a line that was cut by a kill
                continue

    def tell(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def of(self, event):
        return [found for found in list(self.said) if found["event"] == event]

    def until(self, condition, patience_s=PATIENCE_S):
        give_up_at = time.monotonic() + patience_s
        while not condition():
            assert self._process.poll() is None or condition(), self.log()
            assert time.monotonic() < give_up_at, self.log()
            time.sleep(POLL_S)
        return self

    def log(self):
        return self.path.read_text()[-5000:] + "\n".join(map(str, self.said[-30:]))

    def go(self):
        self.until(lambda: self.of("ready"))
        self.tell("go")
        return self

    def is_stopped(self):
        """Wait until it stands at a failpoint, itself or one of its processes."""
        return is_stopped(self.pid) or bool(stopped(self.pid))

    def finish(self):
        self.tell("finish")
        assert self._process.wait(PATIENCE_S) == 0, self.log()
        self._close()
        return self

    def signal(self, number):
        for pid in (self.pid, *children(self.pid)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self):
        """Kill it with its JVM and every Python worker, at one moment."""
        self.signal(signal.SIGSTOP)  # no process may start meanwhile
        kill(self.pid, *children(self.pid))
        self._process.wait(60)
        self._close()

    def _close(self):
        self._process.stdin.close()
        self._listener.join(60)
        self._process.stdout.close()


class Drivers:
    """On one table, with one checkpoint and one ledger."""

    def __init__(self, outbox, servers, folder, **given):
        self.outbox, self.servers, self.folder, self.made = outbox, servers, folder, []
        self._job = {
            "url": outbox.url, "table": outbox.table, "name": outbox.table, "checkpoint": str(folder / "checkpoint"),
            "properties": {"bootstrap.servers": servers}, "master": "local[2,4]", "slices": 2, "max_records": 100,
            "id_header": "outbox-id", "config": dict(pair.split("=", 1) for pair in CONFIG), **given,
        }  # fmt: skip

    def start(self, failpoints="", **given):
        """Its JVM; it begins with `go`."""
        job = Job(**{**self._job, "owner": f"test {uuid.uuid4().hex[:12]}", **given})
        path = self.folder / f"driver-{len(self.made)}.log"
        self.made.append(Process(job, path, OUTBOX_FAILPOINTS=failpoints))
        return self.made[-1]

    def discard(self):
        for found in self.made:
            if found._process.returncode is None:
                found.kill()
