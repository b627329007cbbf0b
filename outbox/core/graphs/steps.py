"""One step: the messages that one call of a function consumes, and their identity. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from outbox.core.consumers.values import Fetched
from outbox.core.steps import step

STEP_HEADER = "outbox-step"

Step = tuple[Fetched, ...]
"""One message of each input of a join, in the order of the inputs; else one message."""


def step_hash(owner: str, consumed: Sequence[Fetched]) -> str:
    """32 hexadecimal digits: the same for every attempt on every host, whatever the messages hold. `owner` names graph
    and processor."""
    digests = [step(owner, one.topic, one.partition, one.offset) for one in consumed]
    if len(digests) == 1:
        return digests[0]
    return blake2b("".join(sorted(digests)).encode(), digest_size=16).hexdigest()
