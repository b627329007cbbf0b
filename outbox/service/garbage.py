"""Python's garbage collector in a process that does nothing but harvest. An embedded harvester leaves it alone."""

import gc
import threading
import time

_YOUNG_MAX = 500_000  # more than the records in memory at a time: only a flood of cycles gets there
_EVERY_S = 10.0
_SHARE = 200  # times what a collection takes: so much lies between two


def relax() -> None:
    """Records are tuples without cycles: reference counts free them, and looking them through costs a tenth of the
    time. What the process consists of (Django, settings, models) is not looked through again either: that would be a
    pause of tens of milliseconds in the middle of a transaction.

    What errors leave behind in cycles is collected by the clock, in at most a two-hundredth of the time. That is done
    in a thread of its own, because the process ends when a Kafka client is destroyed in one of the clients' threads."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, 20, 20)
    threading.Thread(target=_collect_for_ever, name="outbox-collector", daemon=True).start()


def _collect_for_ever() -> None:
    took_s = 0.0
    while True:
        time.sleep(max(_EVERY_S, _SHARE * took_s))
        begun = time.monotonic()
        gc.collect()
        took_s = time.monotonic() - begun
