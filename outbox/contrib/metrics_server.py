"""``/metrics``, ``/livez`` and ``/readyz`` of a harvest process, on a port of their own.

A process is ready when both servers have answered and it takes part in the election, as owner or standby.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outbox.contrib.prometheus import Sampler, exposition, registry_of
from outbox.service.http import TEXT, Answer, listening

logger = logging.getLogger("outbox.metrics")

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def serving(harvester: Any, spec: str) -> Iterator[tuple[str, int]]:
    """Serve while the block runs. Yield the address with the real port, also where the caller asked for port 0."""
    sampler = Sampler(harvester)
    registry = registry_of(harvester, sampler)

    def metrics(path: str) -> Answer | None:
        if path != "/metrics":
            return None
        try:
            return 200, exposition(registry), _METRICS
        except Exception as error:
            logger.exception("metrics_failed")
            return 500, f"{type(error).__name__}: see the log\n".encode(), TEXT

    with listening(harvester, spec, metrics) as address:
        sampler.start()
        try:
            yield address
        finally:
            sampler.stop()
