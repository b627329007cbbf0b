"""SIGTERM and SIGINT, sent to a process of its own and, for the handlers that come back, to this one."""

import os
import signal
import subprocess
import sys

import pytest

from outbox.service.process_signals import FORCED, ProcessSignals

HANGING = """
import signal
from outbox.service.process_signals import ProcessSignals

with ProcessSignals(lambda force: print(force, flush=True)):
    print("ready", flush=True)
    while True:
        signal.pause()
"""


def test_the_third_signal_ends_a_process_that_hangs():
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        for number, said in ((signal.SIGTERM, "False\n"), (signal.SIGINT, "True\n"), (signal.SIGTERM, "")):
            process.send_signal(number)
            assert process.stdout.readline() == said
    assert process.returncode == FORCED


@pytest.mark.parametrize(
    ("numbers", "asked", "is_forced"), [([], [], False), ([15], [False], False), ([2, 15], [False, True], True)]
)
def test_the_first_stops_the_second_forces_and_the_handlers_come_back(numbers, asked, is_forced):
    before, found = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], []
    with ProcessSignals(found.append) as signals:
        for number in numbers:
            os.kill(os.getpid(), number)
    assert (found, signals.is_forced) == (asked, is_forced)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
