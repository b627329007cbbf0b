"""Runs PostgreSQL, which refuses root, when the owner is root.

The server then runs as the unprivileged account `nobody`, which every system has. The system gets no new account, and
no folder of root's is opened to others. Files that the account cannot reach are copied to a place where it can.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from outbox.downloads.errors import DevstackError

ACCOUNT = "nobody"


def server_account() -> tuple[int, int] | None:
    """User and group for PostgreSQL; None when it can run as the owner."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError:
        raise DevstackError(
            f'PostgreSQL refuses to run as root, and this system has no account "{ACCOUNT}" for it. Add that account, '
            "or run as an ordinary user."
        ) from None
    return entry.pw_uid, entry.pw_gid


def hand_over(path: Path, account: tuple[int, int] | None) -> None:
    if account is not None:
        os.chown(path, *account)


def reachable(path: Path) -> bool:
    """Whether every account may pass through the folders above `path`."""
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)


def public_copy(root: Path, parts: Sequence[str]) -> Path:
    """A copy of parts of a folder that the server's account can read. It is made once per place and time of the
    original."""
    changed = max(_newest_change(root / part) for part in parts)
    mark = hashlib.sha256(f"{root.resolve()} {sorted(parts)} {changed}".encode()).hexdigest()[:16]
    target = _shelf() / mark
    if not target.exists():
        private = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            for part in parts:
                shutil.copytree(root / part, private / "tree" / part, symlinks=True)
            os.rename(private / "tree", target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
        finally:
            shutil.rmtree(private, ignore_errors=True)
    return target


def _shelf() -> Path:
    shelf = Path(tempfile.gettempdir()) / f"outbox-devstack-{os.getuid()}-public"
    shelf.mkdir(mode=0o755, exist_ok=True)
    found = shelf.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise DevstackError(f"Other users can write to {shelf}, or it is not a folder. Remove it and start again.")
    return shelf


def _newest_change(tree: Path) -> float:
    return max(Path(folder).stat().st_mtime for folder, _, _ in os.walk(tree))
