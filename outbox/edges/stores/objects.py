"""A bucket, or whatever else obstore opens by a URL. Its client has threads, so each process opens its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from outbox.core.journal.values import ObjectMissing, StoreFailed

PART_BYTES = 8 << 20
PARTS_AT_ONCE = 2
TIMEOUT = "30s"


class ObjectStore:
    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url, self._options = url, dict(options)
        self._opened: tuple[int, Any] | None = None

    def _store(self) -> Any:
        """Of this process: one that was opened before a fork hangs."""
        if self._opened is None or self._opened[0] != os.getpid():
            from obstore.store import from_url

            limits = {} if self._url.startswith(("memory:", "file:")) else {"client_options": {"timeout": TIMEOUT}}
            given: Any = {**limits, **self._options}
            self._opened = os.getpid(), from_url(self._url, **given)
        return self._opened[1]

    def create(self, path: str) -> ObjectWriter:
        with _failing(path):
            return ObjectWriter(self._store(), path)

    def read(self, path: str, start: int, length: int) -> bytes:
        with _failing(path):
            return _read(self._store(), path, start, length)

    def put(self, path: str, data: bytes) -> bool:
        import obstore

        with _failing(path):
            try:
                obstore.put(self._store(), path, data, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def get(self, path: str) -> bytes:
        import obstore

        with _failing(path):
            return bytes(obstore.get(self._store(), path).bytes())

    def list(self, prefix: str) -> Iterator[str]:
        import obstore

        with _failing(prefix):
            pages = obstore.list(self._store(), prefix.rpartition("/")[0])
            found = [str(one["path"]) for page in pages for one in page]
        return iter(sorted(path for path in found if path.startswith(prefix)))

    def delete(self, path: str) -> None:
        import obstore

        with _failing(path):
            try:
                obstore.delete(self._store(), path)
            except FileNotFoundError:
                return


class ObjectWriter:
    """A multipart upload, unless the object is small. obstore ends it when the block that writes raises."""

    def __init__(self, store: Any, path: str) -> None:
        import obstore

        self._store, self._path = store, path
        self._upload: Any = obstore.open_writer(store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    def write(self, block: bytes) -> None:
        with _failing(self._path):
            self._upload.write(block)

    def finish(self) -> None:
        with _failing(self._path):
            upload, self._upload = self._upload, None
            upload.close()

    def read(self, start: int, length: int) -> bytes:
        with _failing(self._path):
            return _read(self._store, self._path, start, length)

    def seal(self) -> None:
        """It has its name since it was finished."""

    def abort(self) -> None:
        """An object that is finished stays: the keeper removes it."""
        upload, self._upload = self._upload, None
        if upload is not None:
            error = StoreFailed("given up")
            with _failing(self._path):
                upload.__exit__(StoreFailed, error, None)


def _read(store: Any, path: str, start: int, length: int) -> bytes:
    import obstore

    try:
        return bytes(obstore.get_range(store, path, start=start, length=length))
    except obstore.exceptions.BaseError:
        if start >= int(obstore.head(store, path)["size"]):
            return b""
        raise


@contextmanager
def _failing(path: str) -> Iterator[None]:
    import obstore

    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"{path} is not there") from error
    except (obstore.exceptions.BaseError, OSError, ValueError) as error:
        raise StoreFailed(f"{str(error).splitlines()[0]}: {path}") from error
