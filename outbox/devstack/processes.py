"""The owner's side of the watchdog: starts, signals and awaits server processes."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outbox.devstack import watchdog
from outbox.downloads.errors import DevstackError

POLL_S = 0.02
FORBIDDEN = "OUTBOX_DEVSTACK_FORBIDDEN"  # in the environment of tests that need no server


class Guardian:
    """The connection to this process' watchdog."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", watchdog.__file__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.owner = os.getpid()
        self._channel = ours
        self._lines = ours.makefile("rb")
        self._lock = threading.Lock()

    def ask(self, op: str, **arguments: Any) -> Any:
        with self._lock:
            try:
                self._channel.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
                line = self._lines.readline()
            except OSError:
                line = b""
        if not line:
            raise DevstackError(
                f"The devstack's watchdog (pid {self._child.pid}) has ended, and the servers with it. Start them again."
            )
        reply = json.loads(line)
        if "error" in reply:
            raise DevstackError(f"The devstack's watchdog could not {op}: {reply['error']}")
        return reply["result"]

    def close(self) -> None:
        """End the watchdog, which ends every server that still runs."""
        if self.owner == os.getpid():
            self._lines.close()
            self._channel.close()
            self._child.wait()


_guardian: Guardian | None = None
_guardian_lock = threading.Lock()


def guardian() -> Guardian:
    global _guardian
    with _guardian_lock:
        # A forked child shares the socket but must not use it: it gets its own watchdog.
        if _guardian is None or _guardian.owner != os.getpid():
            _guardian = Guardian()
            atexit.register(_guardian.close)
        return _guardian


class ServerProcess:
    """A server run by the watchdog."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        log: Path,
        env: Mapping[str, str],
        account: tuple[int, int] | None = None,
        quit_signal: int = signal.SIGKILL,
    ) -> None:
        if os.environ.get(FORBIDDEN):
            raise DevstackError(
                f"You passed --no-servers, so the devstack did not start {Path(argv[0]).name}. Let a test that starts "
                "a server use one of the fixtures postgres, kafka and own_servers."
            )
        user, group = account or (None, None)
        self._guardian = guardian()
        self.pid: int = self._guardian.ask(
            "spawn",
            argv=[str(part) for part in argv],
            env=dict(env),
            cwd=str(cwd),
            log=str(log),
            user=user,
            group=group,
            quit=int(quit_signal),
        )

    def poll(self) -> int | None:
        code: int | None = self._guardian.ask("poll", pid=self.pid)
        return code

    @property
    def is_running(self) -> bool:
        return self.poll() is None

    def signal(self, number: int, *, tree: bool = False) -> None:
        self._guardian.ask("signal", pid=self.pid, number=int(number), tree=tree)

    def pause(self, *, tree: bool = False) -> None:
        """SIGSTOP, and wait until no thread runs any more: a busy server would answer for some more milliseconds."""
        self.signal(signal.SIGSTOP, tree=tree)
        paused = self.tree() if tree else [self.pid]
        wait_until(lambda: all(is_paused(pid) for pid in paused), 10)

    def tree(self) -> list[int]:
        return [self.pid, *watchdog.descendants(self.pid)] if self.is_running else []

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ended in time."""
        return wait_until(lambda: not self.is_running, timeout_s)

    def kill(self) -> None:
        """SIGKILL to the process and all its children, and wait until all of them have ended."""
        doomed = self.tree()
        self.signal(signal.SIGKILL, tree=True)
        self.wait(10)
        wait_until(lambda: not any(exists(pid) for pid in doomed), 10)


def exists(pid: int) -> bool:
    """Whether the process exists, and is not only an entry that waits for its parent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return _state(Path(f"/proc/{pid}/stat")) != "Z"
    except OSError:
        return not Path("/proc/self").exists()


def _state(stat: Path) -> str:
    """The letter that the kernel gives; the name before it may have blanks and brackets."""
    return stat.read_text().rpartition(")")[2].split()[0]


def is_paused(pid: int) -> bool:
    """Whether all threads of the process are stopped. True also if it has ended, or the system does not report
    states."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            if _state(thread) not in "TtZX":
                return False
        except OSError:  # it has ended meanwhile
            continue
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
