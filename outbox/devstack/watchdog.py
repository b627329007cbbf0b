"""The process that starts the servers and outlives its owner just long enough to end them.

It runs as a plain script (standard library only, no site-packages) and exchanges JSON lines over a socket; only the
owner holds the other end. When the owner ends, for any reason, the socket closes and the watchdog kills every server.
Two guards back it up: a changed parent (a forked child of the owner may hold a copy of the socket) and, on Linux, the
parent-death signal (somebody may kill the watchdog too). The parent-death signal would not suffice: it fires when the
*thread* that started a server ends, and a server whose owner was killed during the start would never be known.

The servers are children of the watchdog, not of the owner, so that it knows every server.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

_TICK_S = 0.25
_QUIT_S = 6.0  # PostgreSQL kills its children itself five seconds after SIGQUIT
_PR_SET_PDEATHSIG = 1
LOCK = ".in-use"


def parents() -> dict[int, int]:
    """The parent of every process that this user may see, by process id."""
    proc = pathlib.Path("/proc/self/stat")
    if not proc.exists():
        listing = subprocess.run(["/bin/ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(pid): int(parent) for pid, parent in (line.split() for line in listing.splitlines())}
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The command's name may hold spaces and parentheses: count from the last closing one.
                found[int(entry)] = int(pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
    return found


def descendants(pid: int) -> list[int]:
    parent_of = parents()
    found = [pid]
    for known in found:
        found.extend(child for child, parent in parent_of.items() if parent == known and child not in found)
    return found[1:]


def kill_quietly(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Watchdog:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.owner = os.getppid()
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.quit_signals: dict[int, int] = {}
        self.adopted: set[int] = set()
        self.folders: dict[str, int] = {}  # with the descriptor of the lock that shows that the folder is in use

    # Requests: one method per "op", its result is the answer.

    def op_spawn(
        self, argv: list[str], env: dict[str, str], cwd: str, log: str, user: int | None, group: int | None, quit: int
    ) -> int:
        with open(log, "ab") as output:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # only the owner may get a Ctrl-C of the terminal
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                preexec_fn=_die_with_parent(quit),
            )
        self.children[child.pid] = child
        self.quit_signals[child.pid] = quit
        return child.pid

    def op_poll(self, pid: int) -> int | None:
        return self.children[pid].poll()

    def op_signal(self, pid: int, number: int, tree: bool) -> None:
        if self.children[pid].poll() is None:
            for target in [pid, *(descendants(pid) if tree else [])]:
                kill_quietly(target, number)

    def op_adopt(self, pid: int) -> None:
        self.adopted.add(pid)

    def op_release(self, pid: int) -> None:
        self.adopted.discard(pid)

    def op_own_folder(self, path: str) -> None:
        self.folders[path] = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.folders[path], fcntl.LOCK_EX)

    def op_disown_folder(self, path: str) -> None:
        if path in self.folders:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, LOCK))
            os.close(self.folders.pop(path))

    # The loop.

    def serve(self) -> None:
        pending = b""
        self.channel.settimeout(_TICK_S)
        while os.getppid() == self.owner:
            try:
                received = self.channel.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            reply: dict[str, Any] = {"result": getattr(self, "op_" + request.pop("op"))(**request)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(reply).encode() + b"\n")

    def end(self) -> None:
        running = {pid for pid, child in self.children.items() if child.poll() is None}
        doomed = {*running, *self.adopted}
        for pid in tuple(doomed):
            doomed.update(descendants(pid))
        for pid in doomed:
            # A paused server acts on its signal only when continued.
            kill_quietly(pid, self.quit_signals.get(pid, 0))
            kill_quietly(pid, signal.SIGCONT)
        deadline = time.monotonic() + _QUIT_S
        while any(self.children[pid].poll() is None for pid in running) and time.monotonic() < deadline:
            time.sleep(0.02)
        alive = parents()
        for pid in doomed:
            if pid in alive and (pid not in self.children or self.children[pid].poll() is None):
                kill_quietly(pid, signal.SIGKILL)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def _die_with_parent(number: int) -> Any:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the owner's end ends it. Not SIG_IGN: servers would inherit that, and Java then ignores SIGTERM too.
        signal.signal(number, lambda *_: None)
    watchdog = Watchdog(socket.socket(fileno=int(sys.argv[1])))
    if watchdog.owner != int(sys.argv[2]):
        return  # the owner had ended before the first line
    try:
        watchdog.serve()
    finally:
        watchdog.end()


if __name__ == "__main__":
    main()
