"""The lines that a Kafka client writes go to the log, at level DEBUG, because the client repeats itself while a broker
is unavailable. The code that uses the client logs each transition once."""

from __future__ import annotations

import logging
from typing import Any

NEVER = logging.CRITICAL + 1


class ClientLog:
    """What a client takes for a logger."""

    def __init__(self, name: str = "outbox.kafka", *, shown_from: int = NEVER) -> None:
        """Lines below the level `shown_from` are for debugging alone."""
        self._logger = logging.getLogger(name)
        self._shown_from = shown_from

    def log(self, level: int, text: str, *arguments: Any) -> None:
        self._logger.log(level if level >= self._shown_from else logging.DEBUG, text, *arguments)
