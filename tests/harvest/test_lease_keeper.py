"""The lease of a process, taken without PostgreSQL."""

import pytest

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE, parse
from outbox.harvest.lease_keeper import LeaseKeeper
from outbox.runtime.threads import Threads


class Clock(Threads):
    now = 0.0

    def monotonic(self):
        return self.now


class NoTables:
    def take(self, connection, *, lanes, owned):
        return False


@pytest.mark.parametrize(("delivery", "is_trusted"), [(AT_LEAST_ONCE, True), (EXACTLY_ONCE, False)])
def test_without_companion_tables_only_the_trust_of_at_least_once_delivery_has_no_end(delivery, is_trusted):
    conf = parse({"BOOTSTRAP_SERVERS": "localhost:9092", "DELIVERY": delivery})
    clock = Clock()
    lease = LeaseKeeper(conf, NoTables(), clock)
    lease.take(None)
    assert lease.is_trusted()
    clock.now = conf.election.session_timeout_s
    assert lease.is_trusted() is is_trusted
