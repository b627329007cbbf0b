"""`up`, `down` and `status`: a background process keeps a stack until `down` stops it.

The folder (`.devstack/` by default) holds `lock`, which the keeper holds as long as it lives; `state.json`, written
when the stack is ready; and `keeper.log`. The lock shows whether a stack runs. A process id would not: it may belong to
another process by now.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outbox.devstack.processes import wait_until
from outbox.devstack.stack import Stack, StackOptions
from outbox.downloads.errors import DevstackError, tail

_START_TIMEOUT_S = 600.0  # the first start downloads
_STOP_TIMEOUT_S = 30.0


class Place:
    """The folder of one kept stack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.state_file = self.folder / "state.json"
        self.log = self.folder / "keeper.log"

    @property
    def state(self) -> dict[str, Any] | None:
        """The state that the keeper wrote. None when no keeper runs or it is not ready. Removes leftovers of a killed
        keeper."""
        if not self.is_kept():
            self.clean()
            return None
        try:
            state: dict[str, Any] = json.loads(self.state_file.read_text())
        except (OSError, ValueError):
            return None
        return state

    def is_kept(self) -> bool:
        """Whether a keeper lives."""
        try:
            with open(self.folder / "lock", "a") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def clean(self) -> None:
        self.state_file.unlink(missing_ok=True)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        with open(self.folder / "lock", "a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DevstackError(f"A devstack already runs in {self.folder}. Stop it with `down`.") from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            try:
                yield
            finally:
                self.clean()

    @property
    def keeper_pid(self) -> int:
        return int((self.folder / "lock").read_text())


def up(place: Place, arguments: list[str]) -> dict[str, Any]:
    """Start the keeper unless one lives, and wait until the stack is ready."""
    if not place.is_kept():
        place.folder.mkdir(parents=True, exist_ok=True)
        (place.folder / ".gitignore").write_text("*\n")
        place.clean()
        with open(place.log, "w") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "outbox.devstack", "keep", f"--dir={place.folder}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with _shown(place.log):
            wait_until(lambda: place.state_file.exists() or keeper.poll() is not None, _START_TIMEOUT_S)
    wait_until(lambda: place.state is not None or not place.is_kept(), _START_TIMEOUT_S)
    state = place.state
    if state is None:
        raise DevstackError(f"The devstack did not start. The log is kept: {place.log}\n{tail(place.log)}")
    return state


@contextmanager
def _shown(log: Path) -> Iterator[None]:
    """Copy the keeper's progress to the standard error of this process."""
    done = threading.Event()

    def follow() -> None:
        with open(log) as lines:
            while True:
                last = done.is_set()
                sys.stderr.write(lines.read())
                sys.stderr.flush()
                if last:
                    return
                done.wait(0.1)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def down(place: Place) -> bool:
    """Whether a stack was running."""
    if not place.is_kept():
        place.clean()
        return False
    pid = place.keeper_pid
    os.kill(pid, signal.SIGTERM)
    if not wait_until(lambda: not place.is_kept(), _STOP_TIMEOUT_S):
        os.kill(pid, signal.SIGKILL)  # its watchdog ends the servers
    return True


def keep(place: Place, options: StackOptions) -> None:
    """The background process."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    place.folder.mkdir(parents=True, exist_ok=True)
    with place.keeping(), Stack(options) as stack:
        state = {
            "pid": os.getpid(),
            "pids": stack.pids,
            "environment": stack.environment,
            "origin": stack.origin,
            "logs": [str(log) for log in stack.logs],
        }
        _write(place.state_file, state)
        stop.wait()


def _write(path: Path, state: dict[str, Any]) -> None:
    """Written in one step, and readable by this user only: the address holds the password."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        json.dump(state, handle, indent=1)
    os.replace(draft, path)
