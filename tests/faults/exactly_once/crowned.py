"""`manage.py harvest` without an election: every process believes from its start that it owns every lane, for ever.

    python -m tests.faults.exactly_once.crowned harvest

Then only the brokers' fencing and the two numbers, m and n, keep records single.
"""

import sys
import threading
import time
from types import SimpleNamespace
from uuid import uuid4

from django.core.management import execute_from_command_line

from outbox.core.election.neli import FinishBatch, LeaderAcquired, LeaderRevoked
from outbox.harvest import harvester


class Crown:
    """Takes the place of the member of the group, and asks nobody."""

    denied_s, is_cut_off = 0.0, False

    def __init__(self, conf, listener, on_fatal, **_):
        self._conf, self._listener = conf, listener
        self._leader_ids = {lane: uuid4() for lane in range(conf.election.lanes)}
        self._left = threading.Event()
        self._is_ending = False

    @property
    def owned(self):
        return {lane: SimpleNamespace(leader_id=found) for lane, found in self._leader_ids.items()}

    def start(self):
        for lane, leader_id in self._leader_ids.items():
            self._listener(LeaderAcquired(lane, leader_id, 1))

    def stop(self):
        if not self._is_ending:
            self._is_ending = True
            for lane, leader_id in dict(self._leader_ids).items():
                self._listener(FinishBatch(lane, leader_id, time.monotonic() + self._conf.election.revoke_timeout_s))

    def abandon(self):
        self._is_ending = True
        for lane in list(self._leader_ids):
            self.release(lane)

    def join(self, timeout_s):
        return self._left.wait(timeout_s)

    def may_start(self, lane):
        return not self._is_ending

    def may_send(self, lane):
        return True

    def release(self, lane):
        leader_id = self._leader_ids.pop(lane, None)
        if leader_id is not None:
            self._listener(LeaderRevoked(lane, leader_id))
        if not self._leader_ids:
            self._left.set()

    def doubt(self, lane):
        """Continues whatever it sees of others."""

    refresh = step_down = doubt


if __name__ == "__main__":
    harvester.Member = Crown
    execute_from_command_line(["manage.py", *sys.argv[1:]])
