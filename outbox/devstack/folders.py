"""Folders of running servers: removed with their process, kept with their logs after a failure."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

from outbox.devstack.errors import DevstackError
from outbox.devstack.processes import guardian


def new_folder(name: str) -> Path:
    """A folder that goes when this process goes; every account may pass through it, none may list it."""
    folder = Path(tempfile.mkdtemp(prefix=f"outbox-{name}-"))
    folder.chmod(0o711)
    guardian().ask("own_folder", path=str(folder))
    return folder


def orphan(folder: Path) -> None:
    """Let the folder outlive this process."""
    with contextlib.suppress(DevstackError):
        guardian().ask("disown_folder", path=str(folder))


def dispose(folder: Path, keep: list[Path]) -> None:
    """Remove the folder, but not the files to keep."""
    orphan(folder)
    if not any(path.exists() for path in keep):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry not in keep:
            entry.unlink(missing_ok=True)
