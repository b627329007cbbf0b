"""The claim of a process's at-least-once lanes on the table, repeated by whichever of them comes by.

A claim that was not repeated in time may have gone to another way of delivery: nothing is marked then.
"""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID

from outbox.conf import Conf
from outbox.edges.ways import Claim, settled_after

_BEAT_S = 2.0
_TRUST = 0.75  # of the time after which others may claim; the rest is for what runs late


def claim_of(conf: Conf, owner: str) -> Claim:
    """On the conf's table for its delivery, by the time-outs that it sets."""
    return Claim(
        conf.table,
        conf.delivery,
        owner,
        conf.session_timeout_s,
        keep_empty_key=conf.keep_empty_key,
        settled_s=settled_after(conf.transaction_timeout_s),
        name=conf.name,
    )


class WayKeeper:
    """Shared by the lanes of one process; `take`, `beat` and `release` run in the threads of their sessions."""

    def __init__(self, conf: Conf, owner: str) -> None:
        self._claim = claim_of(conf, owner)
        self._patience_s, self._lanes_max = conf.session_timeout_s, conf.lanes
        self._mutex = threading.Lock()
        self._leader_ids: dict[int, UUID] = {}
        self._beat_at = float("inf")
        self._trusted_until = float("inf")

    def enter(self, lane: int, leader_id: UUID) -> None:
        with self._mutex:
            self._leader_ids[lane] = leader_id

    def leave(self, lane: int, leader_id: UUID) -> bool:
        """Whether it was the last one: the claim may be released. A lane that was acquired again has entered anew."""
        with self._mutex:
            if self._leader_ids.get(lane) == leader_id:
                del self._leader_ids[lane]
            return not self._leader_ids

    def is_trusted(self, now: float) -> bool:
        return now < self._trusted_until

    def is_due(self, now: float) -> bool:
        """Whether the caller is to beat; nobody else is told so for a while."""
        with self._mutex:
            if now < self._beat_at:
                return False
            self._beat_at = now + min(_BEAT_S, self._patience_s / 3)
            return True

    def take(self, connection: Any) -> None:
        """Raises `OtherWay` when the table is harvested in another way."""
        begun = time.monotonic()
        with self._mutex:
            owned = dict(self._leader_ids)
        exists = self._claim.take(connection, lanes=self._lanes_max, owned=owned)
        with self._mutex:
            # Where there is nothing to claim yet, there may be soon.
            self._trusted_until = begun + _TRUST * self._patience_s if exists else float("inf")
            self._beat_at = min(self._beat_at, begun + min(_BEAT_S, self._patience_s / 3))

    def release(self, connection: Any) -> None:
        self._claim.release(connection)
