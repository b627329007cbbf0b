"""The log of a command that runs until it is stopped."""

from __future__ import annotations

import logging


def show_log(verbosity: int) -> None:
    """Transitions appear on stderr where the project has not said where they should go."""
    logger = logging.getLogger("outbox")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel([logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG][verbosity])
