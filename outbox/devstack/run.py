"""`run`: runs a command with a stack of its own, and stops the stack when the command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import FrameType

from outbox.devstack.processes import guardian
from outbox.devstack.stack import Stack, StackOptions
from outbox.downloads.errors import DevstackError

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run(options: StackOptions, command: list[str]) -> int:
    """The command's exit status, as a shell gives it."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        with Stack(options) as stack:
            return _attend(command, {**os.environ, **stack.environment})
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> None:
    # While the stack starts: unwind, so that servers that have started are stopped.
    sys.exit(128 + number)


def _attend(command: list[str], environment: Mapping[str, str]) -> int:
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise DevstackError(f"The system cannot run {command[0]!r}: {error.strerror}.") from error
    guardian().ask("adopt", pid=child.pid)
    # The terminal sends Ctrl-C to the command as well, which decides how to react. Here it must not end the wait.
    signal.signal(signal.SIGINT, lambda *_: None)
    for number in _FORWARDED:
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    guardian().ask("release", pid=child.pid)
    return 128 - code if code < 0 else code
