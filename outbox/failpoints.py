"""Named points at which a test may kill, stop, delay or break the process.

A failpoint does nothing unless ``OUTBOX_FAILPOINTS`` names it when the process starts, for instance
``OUTBOX_FAILPOINTS="after-ack=kill"``. Several are separated by commas; ``@N`` fires at the N-th passage only.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

# The one list: a name that is not here cannot be used, and each one is exercised by a test.
FAILPOINTS = {
    "after-take": "older owners of the lane can mark no more, nothing is marked yet",
    "after-mark": "rows are marked and the mark committed, none of them sent",
    "before-send": "a batch has been read and nothing of it was sent",
    "after-send": "a batch was handed to the client, which may have sent some of it",
    "after-ack": "records are acknowledged, none of them deleted",
    "before-purge": "the deletion of acknowledged records is about to begin",
    "after-purge": "the batch is deleted and the deletion committed",
    "before-reset": "a lane that ends is about to give back what it has marked and not sent",
    "after-init": "older producers of the lane are fenced, the ledger was not read",
    "before-settle": "the ledger is one batch ahead of the table, and nothing was done about it",
    "careful": "after a crash: the records of a batch were written down, nothing of it was sent",
    "before-commit": "records and ledger entry were produced, the transaction is open",
    "after-commit": "the transaction is committed, its records are in the table",
    "epoch-begun": "Spark: a micro-batch goes to the sink, nothing of it was sent",
    "epoch-delivered": "Spark: a micro-batch is in Kafka, the checkpoint does not know of it",
    "before-copy": "an operator's decision is carried out in the table, a foreign ledger is not adopted yet",
    "lanes-grown": "partitions for another lane count were added, the lanes are open",
    "lanes-closed": "the lanes are closed for another count, no old lane is settled",
    "lane-settled": "one old lane is fenced and settled, the lanes are closed",
    "change-marked": "the ledger has the number of the change, the lanes are still closed",
    "lanes-opened": "the lanes are open with another count, nobody works with it yet",
    "assigned": "partitions were assigned, the member does not lead yet",
    "acquired": "a lane was acquired, its worker was not started",
    "revoking": "partitions are being revoked, the batch in flight is not finished",
    "before-leave": "every lane is given back, the group is not left yet",
}

ACTIONS = ("kill", "exit", "stop", "raise", "sleep")


class FailpointReached(Exception):
    """Raised by the action ``raise``."""


def _parse(text: str) -> dict[str, tuple[str, int]]:
    armed: dict[str, tuple[str, int]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition("=")
        action, _, nth = rest.partition("@")
        if name not in FAILPOINTS or action.partition(":")[0] not in ACTIONS:
            raise ValueError(
                f"OUTBOX_FAILPOINTS: cannot understand {item!r}. Names: {', '.join(FAILPOINTS)}; "
                f"actions: {', '.join(ACTIONS)} (sleep:SECONDS)."
            )
        armed[name] = (action, int(nth or 0))
    return armed


_armed = _parse(os.environ.get("OUTBOX_FAILPOINTS", ""))
_passages: dict[str, int] = {}
on_passage: Callable[[str], None] | None = None
"""Called at each passage, with the name: for tests that run in this process."""


def failpoint(name: str) -> None:
    """Mark a point of the protocol; acts only when the environment asked for it at start."""
    if _armed:
        _reach(name)
    if on_passage is not None:
        on_passage(name)


def _reach(name: str) -> None:
    assert name in FAILPOINTS, name
    if name not in _armed:
        return
    action, nth = _armed[name]
    _passages[name] = _passages.get(name, 0) + 1
    if nth and _passages[name] != nth:
        return
    kind, _, argument = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "exit":
        sys.stderr.flush()
        os._exit(70)
    elif kind == "sleep":
        time.sleep(float(argument))
    else:
        raise FailpointReached(name)
