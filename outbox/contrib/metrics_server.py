"""``/metrics``, ``/livez`` and ``/readyz`` of a harvest process, on a port of their own.

A process is ready when both servers have answered and it takes part in the election, as owner or standby.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outbox.contrib.exposition import page_of
from outbox.contrib.prometheus import Sampler, registry_of
from outbox.service.http import listening


@contextmanager
def serving(harvester: Any, spec: str) -> Iterator[tuple[str, int]]:
    """Serve while the block runs. Yield the address with the real port, also where the caller asked for port 0."""
    sampler = Sampler(harvester)
    with listening(harvester, spec, page_of(registry_of(harvester, sampler))) as address:
        sampler.start()
        try:
            yield address
        finally:
            sampler.stop()
