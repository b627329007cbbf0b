from types import SimpleNamespace

import pytest

from outbox.service import probes
from outbox.service.lifecycle import State


@pytest.mark.parametrize(
    ("state", "status"), [(State.CREATED, 503), (State.RUNNING, 200), (State.STOPPING, 200), (State.STOPPED, 503)]
)
def test_it_lives_from_start_to_end(state, status):
    assert probes.answer("/livez", SimpleNamespace(state=state)) == (status, f"{state}\n")


def test_it_is_ready_when_it_says_so():
    assert probes.answer("/readyz", SimpleNamespace(is_ready=True)) == (200, "ready\n")
    assert probes.answer("/readyz", SimpleNamespace(is_ready=False)) == (503, "not ready\n")
    assert probes.answer("/metrics", SimpleNamespace()) is None
