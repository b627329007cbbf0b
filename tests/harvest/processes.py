"""`manage.py harvest` as processes that get real signals, and what they say."""

import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime

from tests.support.databases import ROOT


class Harvest:
    """One process; `log` is everything it has written so far."""

    def __init__(self, folder, url, *arguments, **environment):
        self.path = folder / f"harvest-{time.monotonic_ns()}.log"
        given = {"DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": url, "PYTHONUNBUFFERED": "1"}
        with self.path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "harvest", *arguments],
                cwd=ROOT,
                env={**os.environ, **given, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self):
        return self.path.read_text()

    def says(self, pattern, timeout_s=60):
        """Wait until a line matches; the match."""
        deadline = time.monotonic() + timeout_s
        while True:
            if found := re.search(pattern, self.log, re.MULTILINE):
                return found
            assert time.monotonic() < deadline, f"{pattern!r} was not said:\n{self.log}"
            assert self.process.poll() is None or re.search(pattern, self.log, re.MULTILINE), self.log
            time.sleep(0.02)

    def at(self, event):
        """When it said so, by its own log."""
        stamp = self.says(rf"^(\S+ \S+) \S+ \S+ {event}")[1]
        return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f")

    def leads(self):
        self.says("leader_acquired lane=0")
        return self

    def stands_by(self):
        self.says("partitions_assigned .*partitions=\\[\\]")
        return self

    def ends(self, code=0, timeout_s=60, send=signal.SIGTERM):
        if send:
            self.process.send_signal(send)
        assert self.process.wait(timeout_s) == code, self.log
        return self

    def discard(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
