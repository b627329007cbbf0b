"""Python's garbage collector in a process that does nothing but harvest. An embedded harvester leaves it alone."""

import gc

_YOUNG_MAX = 500_000  # more than the records in memory at a time: only a leak of cycles gets there


def relax() -> None:
    """Records are tuples without cycles: reference counts free them, and looking them through costs a tenth of the
    time. What the process consists of (Django, settings, models) is not looked through again either: that would be a
    pause of tens of milliseconds in the middle of a transaction."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_MAX, 20, 20)
