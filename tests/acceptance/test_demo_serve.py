"""`make demo SERVE=1`'s program: site, admin, harvester and consumer stay up, and end together."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

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


@pytest.mark.parametrize(
    "end",
    [lambda process: os.killpg(process.pid, signal.SIGINT), lambda process: process.terminate()],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_site_and_admin_stay_up_and_everything_ends_together(bootstrap_servers, tmp_path, end):
    port = reserve()  # until this process ends; runserver does not ask for the lock
    site = f"http://127.0.0.1:{port}"
    with fresh_database(os.environ["DATABASE_URL"]) as url, (tmp_path / "log").open("w+") as log:
        command = [sys.executable, "example_project/demo.py", "--heroes", "20", "--serve", "--port", str(port)]
        name = url.rpartition("/")[2]
        environment = {**os.environ, "DATABASE_URL": url, "OUTBOX_NAME": name}
        environment = {key: value for key, value in environment.items() if key not in ("DJANGO_SETTINGS_MODULE", "CI")}
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            until(lambda: get(f"{site}/heroes/"), process)
            for page, kind in PAGES.items():
                assert get(site + page)[:2] == (200, kind)
            hero = {"name": f"Served {name}", "power": "stays up"}
            assert get(f"{site}/heroes/", data=json.dumps(hero).encode())[0] == 201
            until(lambda: hero["name"] in get(f"{site}/received/")[2], process)
            end(process)
            assert process.wait(30) == 0
            log.seek(0)
            assert not re.search(r"outbox\.[EW]\d|Traceback", text := log.read()), text
        finally:
            left = processes_of(process.pid)
            if process.poll() is None or left:
                for line in left:
                    os.kill(int(line.split()[0]), signal.SIGKILL)
        assert left == []
