"""`make demo SERVE=1`'s program: site, admin, harvester and consumer run until the end, and end together."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack

from outbox.devstack.ports import reserve
from tests.support.databases import ROOT, fresh_database

UP_S = 60
PAGES = {
    "/heroes/": "text/html",
    "/received/": "text/html",
    "/admin/login/": "text/html",
    "/static/admin/css/base.css": "text/css",
}


def get(url, accept="text/html", data=None):
    headers = {"Accept": accept, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as response:
        return response.status, response.headers.get_content_type(), response.read().decode()


def until(condition, process):
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the demo has ended"
        try:
            if found := condition():
                return found
        except urllib.error.URLError:
            pass
        time.sleep(0.1)
    raise AssertionError("nothing within the time")


def processes_of(session):
    listed = subprocess.run(["ps", "-s", str(session), "-o", "pid=,args="], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if "defunct" not in line]


class Demo:
    """The program on a database of its own, in a session of its own."""

    def __init__(self, url, servers, log):
        self.name, self.log = url.rpartition("/")[2], log
        self.port = reserve()  # reserved until this process ends; runserver does not ask for the lock
        self.site = f"http://127.0.0.1:{self.port}"
        environment = {key: value for key, value in os.environ.items() if key not in ("DJANGO_SETTINGS_MODULE", "CI")}
        given = {"DATABASE_URL": url, "OUTBOX_NAME": self.name, "OUTBOX_BOOTSTRAP_SERVERS": servers}
        self.process = subprocess.Popen(
            [sys.executable, "example_project/demo.py", "--heroes", "20", "--serve", "--port", str(self.port)],
            cwd=ROOT,
            env={**environment, **given},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def is_up(self):
        until(lambda: get(f"{self.site}/heroes/"), self.process)
        for page, kind in PAGES.items():
            assert get(self.site + page)[:2] == (200, kind)
        hero = {"name": f"Served {self.name}", "power": "stays up"}
        assert get(f"{self.site}/heroes/", data=json.dumps(hero).encode())[0] == 201
        until(lambda: hero["name"] in get(f"{self.site}/received/")[2], self.process)

    def has_ended(self):
        assert self.process.wait(30) == 0
        self.log.seek(0)
        assert not re.search(r"outbox\.[EW]\d|Traceback", text := self.log.read()), text
        assert processes_of(self.process.pid) == []

    def discard(self):
        for line in processes_of(self.process.pid):
            os.kill(int(line.split()[0]), signal.SIGKILL)
        self.process.wait()


ENDS = {
    "Ctrl-C": lambda process: os.killpg(process.pid, signal.SIGINT),
    "SIGTERM": lambda process: process.terminate(),
}


def test_site_and_admin_stay_up_and_everything_ends_together(bootstrap_servers, tmp_path):
    """Two demos at the same time; one is ended in each manner."""
    with ExitStack() as stack:
        demos = {}
        for end in ENDS:
            url = stack.enter_context(fresh_database(os.environ["DATABASE_URL"]))
            log = stack.enter_context((tmp_path / end).open("w+"))
            demos[end] = Demo(url, bootstrap_servers, log)
            stack.callback(demos[end].discard)
        for demo in demos.values():
            demo.is_up()
        for end, demo in demos.items():
            ENDS[end](demo.process)
        for demo in demos.values():
            demo.has_ended()
