"""Where Prometheus' own checker of rules is, and whether a run can get it where it is not."""

import os
import shutil


def installed() -> str | None:
    return shutil.which("promtool")


def can_be_fetched() -> bool:
    """From the package of the distribution."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None
