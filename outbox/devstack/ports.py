"""Loopback ports that stay reserved between two starts of a server.

Ports come from below the kernel's range for outgoing connections. Otherwise a client that keeps connecting to a killed
server could get the server's own port, connect to itself and keep the server from starting again.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

from outbox.downloads.errors import DevstackError

HOST = "127.0.0.1"
_FIRST, _LAST = 18000, 32000
_ATTEMPTS_MAX = 500


class Port(int):
    """A port number, reserved among the devstacks of this user until `release()` or the end of the process."""

    _fd: int

    @classmethod
    def held_by(cls, fd: int, number: int) -> Port:
        port = cls(number)
        port._fd = fd
        return port

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def reserve() -> Port:
    # A generator of its own: test runners seed the global one, and two runs with one seed would choose the same ports.
    draw = random.SystemRandom()
    for _ in range(_ATTEMPTS_MAX):
        number = draw.randrange(_FIRST, _LAST)
        fd = _lock(number)
        if fd is None:
            continue
        if _is_free(number):
            return Port.held_by(fd, number)
        os.close(fd)
    raise DevstackError(
        f"The devstack found no free port on {HOST} after {_ATTEMPTS_MAX} attempts between {_FIRST} and {_LAST}. Stop "
        "a program that listens there."
    )


def _lock(number: int) -> int | None:
    folder = Path(tempfile.gettempdir()) / f"outbox-devstack-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder / str(number), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _is_free(number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, number))
        except OSError:
            return False
    return True
