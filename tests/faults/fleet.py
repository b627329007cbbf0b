"""Harvesters as users run them: `manage.py harvest` in processes of their own, which get real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.databases import ROOT


class Harvester:
    """One process. Its log is kept in a file and shown when the test fails."""

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        url: str,
        servers: str,
        failpoints: str = "",
        program: str = "django",
        **settings: Any,
    ) -> None:
        self.log = folder / f"harvester-{number}.log"
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": url,
            "OUTBOX_BOOTSTRAP_SERVERS": servers,
            "OUTBOX_FAILPOINTS": failpoints,
            "PYTHONFAULTHANDLER": "1",  # see `where`
            "OUTBOX_DELIVERY": "at-least-once",
            **{f"OUTBOX_{name}": str(value) for name, value in settings.items()},
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, "harvest"], cwd=ROOT, env=environment, stdout=log, stderr=log
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Wait until SIGSTOP has stopped it; a failpoint may send that."""
        try:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state == "T"

    def says(self, text: str) -> int:
        """How many lines of its log have the text."""
        return sum(text in line for line in self.log.read_text().splitlines())

    def send(self, number: int) -> None:
        if self.is_running:
            self.process.send_signal(number)

    def wait(self, timeout_s: float = 60) -> int:
        return self.process.wait(timeout_s)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM, and its exit code. Before it has started, a signal has no records to drain."""
        wait_until(lambda: "harvester_started" in self.log.read_text() or not self.is_running, timeout_s, "it starts")
        self.send(signal.SIGTERM)
        return self.wait(timeout_s)

    def where(self) -> None:
        """End it, and let the log show where each of its threads was."""
        self.send(signal.SIGABRT)
        self.process.wait(10)

    def kill(self) -> None:
        self.send(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)


class Fleet:
    """Harvesters of one table, all of them ended at the end."""

    def __init__(self, folder: Path, *, url: str, servers: str, name: str, **settings: Any) -> None:
        self._folder = folder
        self._given: dict[str, Any] = {"url": url, "servers": servers, "NAME": name, **settings}
        self.members: list[Harvester] = []

    def start(self, **changes: Any) -> Harvester:
        member = Harvester(self._folder, len(self.members), **{**self._given, **changes})
        self.members.append(member)
        return member

    @property
    def running(self) -> list[Harvester]:
        return [member for member in self.members if member.is_running]

    def logs(self) -> str:
        return "\n".join(f"--- {member.log.name}\n{member.log.read_text()}" for member in self.members)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for member in self.members:
            if member.is_running:
                member.kill()
        print(self.logs())  # pytest shows it when the test has failed


def wait_until(condition: Any, timeout_s: float, what: str | Callable[[], str]) -> Any:
    give_up_at = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"not within {timeout_s} s: {what() if callable(what) else what}"
        time.sleep(0.05)
    return found
