"""Folders of running servers. They are removed with their process, but keep their logs after a failure."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path

from outbox.devstack.processes import guardian
from outbox.devstack.watchdog import LOCK
from outbox.downloads.errors import DevstackError

_PREFIX = "outbox-devstack-server-"
_LOGS_KEPT_S = 24 * 3600.0


def new_folder(name: str) -> Path:
    """A folder that is removed when this process ends. Every account may pass through it, none may list it."""
    sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
    folder.chmod(0o711)
    guardian().ask("own_folder", path=str(folder))
    return folder


@cache
def sweep(parent: Path) -> None:
    """Remove the folders of processes that were killed together with their watchdog, and logs that are a day old."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_stale(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path) -> bool:
    try:
        with open(folder / LOCK) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        # Either a log that is kept on purpose, or a folder whose owner is about to lock it.
        return time.time() - folder.stat().st_mtime > _LOGS_KEPT_S


def dispose(folder: Path, keep: list[Path]) -> None:
    """Remove the folder, but not the files to keep."""
    with contextlib.suppress(DevstackError):
        guardian().ask("disown_folder", path=str(folder))
    if not any(path.exists() for path in keep):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry not in keep:
            entry.unlink(missing_ok=True)
