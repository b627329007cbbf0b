"""Members of one group on a real Kafka, and what each of them was told."""

import threading
import time
import uuid

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from outbox.conf import parse
from outbox.core.election import neli
from outbox.election.clients import Clients
from outbox.election.member import Member
from outbox.election.topic import LeaderTopic


def wait_until(condition, timeout_s=60.0, what="the condition"):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} was not met within {timeout_s:g} s"
        time.sleep(0.01)


class Recorder:
    """A member with a listener that notes every effect and gives lanes back, at once unless told to keep them."""

    def __init__(self, conf, partitions, name, journal, keep_s=0.0, database=None):
        self.effects, self.errors, self.keep_s, self.journal = [], [], keep_s, journal
        self.member = Member(
            conf,
            self.hear,
            self.errors.append,
            clients=Clients(conf),
            partitions=partitions,
            name=name,
            database=database,
        )
        self.member.start()

    def hear(self, effect):
        self.effects.append((time.monotonic(), effect))
        self.journal(self, effect)
        if isinstance(effect, neli.FinishBatch):
            timer = threading.Timer(self.keep_s, self.member.release, [effect.lane])
            timer.daemon = True
            timer.start()

    def of(self, kind, lane=None):
        return [e for _, e in self.effects if isinstance(e, kind) and lane in (None, e.lane)]

    def at(self, kind):
        return [at for at, e in self.effects if isinstance(e, kind)]

    @property
    def lanes(self):
        return sorted(lane for lane in self.member.owned if self.member.may_start(lane))

    def leads(self, *lanes):
        wait_until(lambda: self.lanes == list(lanes), what=f"leading {lanes}, not {self.lanes}")
        return self

    def leave(self, timeout_s=10.0):
        self.member.stop()
        assert self.member.join(timeout_s)


class Group:
    def __init__(self, servers, **settings):
        name = f"g{uuid.uuid4().hex[:12]}"
        self.conf = parse({"NAME": name, "BOOTSTRAP_SERVERS": servers, **settings})
        self.partitions = LeaderTopic(Clients(self.conf), self.conf, threading.Event()).prepare()
        self.members, self.journal, self.leaders = [], [], {}
        self._lock = threading.Lock()

    def join(self, **arguments):
        name = f"m{len(self.members)}"
        self.members.append(Recorder(self.conf, self.partitions, name, self._note, **arguments))
        return self.members[-1]

    def _note(self, who, effect):
        """Who leads which lane, as the members were told: the moment of every change is kept."""
        with self._lock:
            of_lane = self.leaders.setdefault(effect.lane, set())
            if isinstance(effect, neli.LeaderAcquired):
                of_lane.add(who)
            elif isinstance(effect, (neli.LeaderFenced, neli.LeaderRevoked)):
                of_lane.discard(who)
            self.journal.append((type(effect).__name__, effect.lane, len(of_lane)))

    def leader(self, lane=0):
        wait_until(lambda: [m for m in self.members if lane in m.lanes], what=f"a leader of lane {lane}")
        return next(m for m in self.members if lane in m.lanes)

    def wait_members(self, count):
        """Until the coordinator has dealt out the partitions to so many members."""
        admin = AdminClient({"bootstrap.servers": self.conf.kafka.bootstrap_servers})

        def complete():
            found = admin.describe_consumer_groups([self.conf.name])[self.conf.name].result(10)
            return found.state == ConsumerGroupState.STABLE and len(found.members) == count

        wait_until(complete, what=f"a group of {count}")

    def end(self):
        for one in self.members:
            one.member.abandon()
        for one in self.members:
            one.member.join(10)


@pytest.fixture
def group(bootstrap_servers):
    made = []

    def make(servers=bootstrap_servers, **settings):
        made.append(Group(servers, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()
