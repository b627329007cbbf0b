"""The folder of downloads, and the package's lock file that lists its files.

Every file is verified on every use, so a partial download or a damaged disk is repaired by another download. A file
lock lets several processes share the folder, and a finished file appears by rename only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox.downloads import maven
from outbox.downloads.errors import DevstackError
from outbox.downloads.progress import step

LOCK_FILE = Path(__file__).with_name("jars.lock.json")
_DOWNLOADS_AT_ONCE = 8


@dataclass(frozen=True)
class Jar:
    coordinate: str  # group:artifact:version
    sha256: str

    @property
    def path(self) -> Path:
        """The place in a Maven repository, which is also its place in the cache."""
        group, artifact, version = self.coordinate.split(":")
        return Path(*group.split("."), artifact, version, f"{artifact}-{version}.jar")


def locked() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(LOCK_FILE.read_text())
    return content


def folder() -> Path:
    chosen = os.environ.get("OUTBOX_DEVSTACK_CACHE")
    if chosen:
        path = Path(chosen)
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outbox-devstack"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DevstackError(
            f"The cache cannot be in {path}: {error.strerror}. Set OUTBOX_DEVSTACK_CACHE to another folder."
        ) from error
    return path.resolve()


@contextmanager
def exclusively() -> Iterator[Path]:
    """The cache's folder, locked against changes of other processes."""
    path = folder()
    with open(path / ".lock", "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path


@contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A private folder beside the final place, so that only a rename is left to do."""
    path = Path(tempfile.mkdtemp(prefix=".staging-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def is_intact(root: Path, jar: Jar) -> bool:
    path = root / jar.path
    return path.is_file() and sha256(path) == jar.sha256


def jars(name: str, wanted: list[Jar]) -> list[Path]:
    """The verified files. Those that are missing or damaged are downloaded."""
    root = folder() / "maven"
    if not all(is_intact(root, jar) for jar in wanted):
        with exclusively() as cache:
            _fetch(name, root, [jar for jar in wanted if not is_intact(root, jar)], cache)
    return [root / jar.path for jar in wanted]


def _fetch(name: str, root: Path, missing: list[Jar], cache: Path) -> None:
    if not missing:  # another process was faster
        return
    with (
        step(f"downloading {name} ({len(missing)} jar{'s' * (len(missing) > 1)}) into {cache}"),
        staging(cache) as private,
        ThreadPoolExecutor(_DOWNLOADS_AT_ONCE) as pool,
    ):
        list(pool.map(lambda jar: _fetch_one(root, jar, private), missing))


def _fetch_one(root: Path, jar: Jar, private: Path) -> None:
    downloaded = maven.download(jar.coordinate, private)
    found = sha256(downloaded)
    if found != jar.sha256:
        raise DevstackError(
            f"{jar.coordinate} has the SHA-256 {found}, but the lock file says {jar.sha256}: the repository serves "
            "another file than the one for this version of outbox. Check the mirror and the network's proxy."
        )
    target = root / jar.path
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(downloaded, target)
