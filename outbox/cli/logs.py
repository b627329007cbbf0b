"""Sends the program's log to standard error, in one form, from one level on."""

import logging
import sys
import time

TRACE = 5
# Names as the goharvest-compatible reaper writes them. Upper and lower case matter.
LEVELS = {
    "All": logging.NOTSET + 1,
    "Trace": TRACE,
    "Debug": logging.DEBUG,
    "Info": logging.INFO,
    "Warn": logging.WARNING,
    "Error": logging.ERROR,
    "Off": logging.CRITICAL + 1,
}
DEFAULT_LEVEL = "Debug"


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z info outbox.harvest acquired lane=0``"""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")


def configure(level: str) -> None:
    """Send all records of the `outbox` loggers at `level` or above to standard error."""
    for name, number in LEVELS.items():
        if name not in ("All", "Off"):
            logging.addLevelName(number, name.lower())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))  # libraries: warnings and errors only
    logging.getLogger("outbox").setLevel(LEVELS[level])
