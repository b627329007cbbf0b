"""Every record of a lane's ledger partition, newest first: what an operator's decision rests on, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

from outbox.edges.kafka.exactly_once.ledger_topic import LedgerOpen, LedgerTopic, Record

_STABLE_POLL_S = 0.05
_WINDOW = 256  # offsets read at once: entries of large batches have some 15 kB


class LedgerHistory(LedgerTopic):
    def newest_first(self, lane: int, give_up_at: float) -> Iterator[Record]:
        """As they are: some may be damaged or a stranger's."""
        from confluent_kafka import KafkaException

        try:
            high = self._high_watermark(lane)
            low = self._wait_stable(lane, high, give_up_at)
            while high > low:
                start = max(low, high - _WINDOW)
                yield from reversed(list(self._between(lane, start, high, give_up_at)))
                high = start
        except KafkaException as error:
            raise self._told_apart(error, lane) from error

    def _wait_stable(self, lane: int, high: int, give_up_at: float) -> int:
        """The first offset, when nothing below `high` belongs to an open transaction any more."""
        while True:
            try:
                return self._stable_from(lane, high)
            except LedgerOpen:
                if time.monotonic() > give_up_at:
                    raise
            time.sleep(_STABLE_POLL_S)
