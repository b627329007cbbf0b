"""The time in which a group without members gets a leader, over many starts."""

import time

import pytest

from tests.election.conftest import Group


@pytest.mark.torture
@pytest.mark.timeout(400)
def test_fifty_cold_starts(bootstrap_servers):
    group, times = Group(bootstrap_servers), []
    try:
        for _ in range(50):
            began = time.monotonic()
            one = group.join().leads(0)
            times.append(time.monotonic() - began)
            one.leave()
            assert not one.errors
    finally:
        group.end()
    times.sort()
    print(f"median {times[25]:.2f} s, p98 {times[48]:.2f} s, longest {times[-1]:.2f} s")
    assert times[-1] < group.conf.election.session_timeout_s, "it waited for a former self"
