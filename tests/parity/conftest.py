"""Signals that are recorded, harvesters that are ended, and a table with its topic."""

from collections import defaultdict

import pytest

from outbox import signals
from outbox.conf import EVENTS
from tests.harvest.conftest import bench  # noqa: F401
from tests.parity.loopback import Loopback, Worker, harvester, wait_until


@pytest.fixture
def heard():
    """(signal, arguments) in the order in which receivers were called."""
    found, connected = [], []
    for name in EVENTS:

        def note(sender, signal, name=name, **arguments):
            found.append((name, arguments))

        getattr(signals, name).connect(note, weak=False)
        connected.append((name, note))
    yield found
    for name, note in connected:
        getattr(signals, name).disconnect(note)


@pytest.fixture
def started():
    """Starts harvesters on loopback clients, as members of the group; `started.worker(n)` is the n-th worker made."""
    Worker.made = []
    made = []

    def start(clients=None, **arguments):
        clients = clients or Loopback()
        one = harvester(clients, **arguments)
        one.clients = clients
        made.append(one)
        one.start()
        return one

    def standing(clients=None, **arguments):
        one = start(clients, **arguments)
        wait_until(lambda: one.clients.standing and one.clients.standing.subscribed)
        return one

    start.standing = standing
    yield start
    for one in made:
        one.stop(force=True)
        assert one._stopped.wait(20)


@pytest.fixture
def counted():
    return defaultdict(int)
