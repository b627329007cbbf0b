"""A folder of this machine, or of a file system that it has mounted. An object that has its name is durable and whole:
it is written under another name, flushed, and then linked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from outbox.core.journal.values import ObjectMissing, StoreFailed

_UNFINISHED = ".tmp"


class LocalStore:
    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def create(self, path: str) -> LocalWriter:
        with _failing(path):
            target = self._root / path
            self._make(target.parent)
            return LocalWriter(target)

    def read(self, path: str, start: int, length: int) -> bytes:
        with _failing(path):
            descriptor = os.open(self._root / path, os.O_RDONLY)
            try:
                return _read(descriptor, start, length)
            finally:
                os.close(descriptor)

    def put(self, path: str, data: bytes) -> bool:
        writer = self.create(path)
        try:
            writer.write(data)
            with _failing(path):
                return writer.link()
        finally:
            writer.abort()

    def get(self, path: str) -> bytes:
        with _failing(path):
            return (self._root / path).read_bytes()

    def list(self, prefix: str) -> Iterator[str]:
        with _failing(prefix):
            folder = self._root / prefix.rpartition("/")[0]
            found = {
                _final(Path(parent, name)).relative_to(self._root).as_posix()
                for parent, _, names in os.walk(folder)
                for name in names
            }
        return iter(sorted(path for path in found if path.startswith(prefix)))

    def delete(self, path: str) -> None:
        target = self._root / path
        with _failing(path), suppress(FileNotFoundError):
            for name in os.listdir(target.parent):
                if name == target.name or _final(target.parent / name) == target:
                    (target.parent / name).unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """A new folder is there after a power failure too."""
        if folder.is_dir():
            return
        if folder != self._root:
            self._make(folder.parent)
        folder.mkdir(exist_ok=True, parents=folder == self._root)
        _flush(folder.parent)


class LocalWriter:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._unfinished = target.parent / f".{target.name}.{uuid4().hex}{_UNFINISHED}"
        self._descriptor = os.open(self._unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)

    def write(self, block: bytes) -> None:
        with _failing(self._target.name):
            left = memoryview(block)
            while left:
                left = left[os.write(self._descriptor, left) :]

    def finish(self) -> None:
        """The page cache has it: what is read is what will be flushed."""

    def read(self, start: int, length: int) -> bytes:
        with _failing(self._target.name):
            return _read(self._descriptor, start, length)

    def seal(self) -> None:
        with _failing(self._target.name):
            if not self.link():
                raise StoreFailed(f"{self._target.name} is there already")
        self.abort()

    def link(self) -> bool:
        """False: there is one of this name."""
        os.fsync(self._descriptor)
        try:
            os.link(self._unfinished, self._target)
        except FileExistsError:
            return False
        _flush(self._target.parent)
        return True

    def abort(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
            with suppress(OSError):
                self._unfinished.unlink()


def _final(path: Path) -> Path:
    """The name that a file gets when it is finished."""
    if path.name.startswith(".") and path.name.endswith(_UNFINISHED):
        return path.parent / path.name[1 : -len(_UNFINISHED)].rpartition(".")[0]
    return path


def _read(descriptor: int, start: int, length: int) -> bytes:
    found = os.pread(descriptor, length, start)
    while len(found) < length and (more := os.pread(descriptor, length - len(found), start + len(found))):
        found += more
    return found


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _failing(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"{path} is not there") from error
    except OSError as error:
        raise StoreFailed(f"{error.strerror or error}: {path}") from error
