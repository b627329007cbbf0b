"""Named points at which a test may kill, stop, delay or break the process.

A failpoint does nothing unless ``OUTBOX_FAILPOINTS`` names it when the process starts, for instance
``OUTBOX_FAILPOINTS="after-ack=kill"``. Separate several with commas. ``@N`` fires only at the N-th passage.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

# The only list: no other name can be used, and a test exercises each of them.
FAILPOINTS = {
    "after-take": "older owners of the lane can mark nothing any more, and the new owner has marked nothing yet",
    "after-mark": "the harvester has marked rows and committed the mark, and has sent none of them",
    "before-send": "the harvester has read a batch and has sent none of it",
    "after-send": "the harvester has handed a batch to the client, which may have sent some of it",
    "after-ack": "Kafka has acknowledged records, and the harvester has deleted none of them",
    "before-purge": "the harvester is about to delete acknowledged records",
    "after-purge": "the harvester has deleted the batch and committed the deletion",
    "before-reset": "a lane that ends is about to give back the records that it has marked and not sent",
    "after-init": "Kafka has fenced older producers of the lane, and the owner has not read the ledger yet",
    "before-settle": "the ledger is one batch ahead of the table, and the owner has not settled that yet",
    "careful": "after a crash, the owner has written down the records of a batch and has sent none of them",
    "before-commit": "the harvester has sent records and ledger entry, and the transaction is open",
    "after-commit": "Kafka has committed the transaction, and its records are still in the table",
    "epoch-begun": "Spark: the sink has received a micro-batch and has sent none of it",
    "epoch-delivered": "Spark: Kafka has a micro-batch, and the checkpoint does not include it yet",
    "before-copy": "the table follows an operator's decision, and the foreign ledger is not adopted yet",
    "lanes-grown": "the harvester has added partitions for another lane count, and the lanes are open",
    "lanes-closed": "the harvester has closed the lanes for another count, and has settled no old lane yet",
    "lane-settled": "one old lane is fenced and settled, and the lanes are closed",
    "change-marked": "the ledger has the number of the change, and the lanes are still closed",
    "lanes-opened": "the lanes are open with another count, and no process uses it yet",
    "assigned": "Kafka has assigned partitions, and the member does not lead yet",
    "acquired": "the member has acquired a lane, and has not started its worker yet",
    "revoking": "Kafka revokes partitions, and the batch in flight is not finished",
    "batch-taken": "consumers: a batch is chosen, and its positions are not locked yet",
    "batch-locked": "consumers: the positions are locked and compared, and no function was called yet",
    "batch-begun": "consumers: the function has returned for the first time in the transaction",
    "batch-releasing": "consumers: held messages are locked to be tried again, and no function was called yet",
    "batch-holding": "consumers: rows of held messages are written or changed, and no position is written yet",
    "batch-handled": "consumers: the function has handled the whole batch, and no position is written yet",
    "batch-written": "consumers: the positions are written, and COMMIT is about to start",
    "batch-committed": "consumers: PostgreSQL has committed the transaction, and this process has not counted it yet",
    "append-opened": "journals: the stage row of an append is committed, and no byte is sent to a store",
    "append-sealing": "journals: a fragment is sent to the stores, and none of them has sealed it",
    "append-sealed": "journals: enough stores have the fragment, and the append is not staged",
    "stage-expired": "journals: a stage can no longer be committed, and its objects are still there",
    "stage-emptied": "journals: the keeper has removed the objects of a stage, and its row is still there",
    "replica-copied": "journals: the keeper has copied a fragment, and the row does not name the copy yet",
    "lane-fenced": "graphs: older owners of the lane can commit nothing any more, and its positions are not read yet",
    "batch-recorded": "graphs: Kafka has the record of the batch, and no function was called yet",
    "steps-run": "graphs: the functions of a batch have returned, and none of its outputs is sent yet",
    "outputs-sent": "graphs: the outputs are handed to the client, which may have sent some of them",
    "outputs-acknowledged": "graphs: Kafka has acknowledged the outputs, and no position is sent yet",
    "positions-sent": "graphs: the positions are part of the transaction, and its commit is about to begin",
    "batch-decided": "graphs: Kafka has committed the transaction, and the lane has not counted the batch yet",
    "before-leave": "the member has given every lane back, and has not left the group yet",
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
                f"OUTBOX_FAILPOINTS has {item!r}, which is not NAME=ACTION. Names: {', '.join(FAILPOINTS)}; "
                f"actions: {', '.join(ACTIONS)} (sleep:SECONDS)."
            )
        armed[name] = (action, int(nth or 0))
    return armed


_armed = _parse(os.environ.get("OUTBOX_FAILPOINTS", ""))
_passages: dict[str, int] = {}
on_passage: Callable[[str], None] | None = None
"""Called at each passage, with the name: for tests that run in this process."""


def failpoint(name: str) -> None:
    """Mark a point of the protocol. It acts only if the environment named it when the process started."""
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
