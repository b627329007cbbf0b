"""Simulated stores: objects that are torn, wrong, late or gone, as the scenario has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outbox.core.journal.values import ObjectMissing, StoreFailed
from tests.simulation.runtime import Answer

LONG_S = (3.0, 8.0, 25.0)


class Store:
    """What is there, whoever asks."""

    def __init__(self, world: Any, name: str, zone: str) -> None:
        self.world, self.name, self.zone = world, name, zone
        self.objects: dict[str, bytes] = {}
        self.unfinished: dict[str, int] = {}
        """Paths of uploads that have not ended, and how many there are of each."""
        self.is_lying = False
        self.away_until = self.full_until = 0.0

    def spoil(self, source: Any) -> None:
        """A disk loses what it had."""
        paths = sorted(path for path in self.objects if "/.index/" not in path)
        if paths:
            path = source.choice(paths)
            content = bytearray(self.objects[path])
            kind = source.randrange(3)
            if kind == 0 or not content:
                del self.objects[path]
                return
            if kind == 1:
                del content[source.randrange(len(content)) :]
            else:
                content[source.randrange(len(content))] ^= 1
            self.objects[path] = bytes(content)

    def delete(self, path: str) -> None:
        self.world.checker.deleting(self, path)
        self.objects.pop(path, None)
        self.unfinished.pop(path, None)


class StoreClient:
    """Of one process."""

    def __init__(self, process: Any, store: Store) -> None:
        self.process, self.store, self.world = process, store, process.world

    def ask(self, act: Callable[[], Any]) -> Any:
        """`act` happens when the request arrives, also if its sender stands still or has died meanwhile."""
        world, faults, store = self.world, self.world.faults, self.store
        answer = Answer(self.process.runtime, store.name)
        arrives_s = world.latency() / 4
        if world.chance(faults.hang):
            arrives_s += world.random.choice(LONG_S)
        is_lost, is_late = world.chance(faults.fail), world.chance(0.5)

        def arrive() -> None:
            if world.now < store.away_until:
                answer.settle(error=StoreFailed("connection refused"))
                return
            try:
                value, error = (None if is_lost and not is_late else act()), None
            except StoreFailed as failure:
                value, error = None, failure
            if is_lost:
                value, error = None, StoreFailed("connection reset")
            world.after(world.latency() / 4, lambda: answer.settle(value, error))

        world.after(arrives_s, arrive)
        answer.wait(None)
        if answer.error is not None:
            raise answer.error
        return answer.value

    # ---- the port

    def create(self, path: str) -> Writer:
        def act() -> None:
            if self.world.now < self.store.full_until:
                raise StoreFailed("no space left")
            self.store.unfinished[path] = self.store.unfinished.get(path, 0) + 1

        self.ask(act)
        return Writer(self, path)

    def read(self, path: str, start: int, length: int) -> bytes:
        def act() -> bytes:
            if path not in self.store.objects:
                raise ObjectMissing(f"{path} is not there")
            found = self.store.objects[path][start : start + length]
            if self.store.is_lying and len(found) > 1 and self.world.chance(self.world.faults.lie):
                return self.world.random.choice((found[:-1], found[:-1] + bytes([found[-1] ^ 1])))
            return found

        return bytes(self.ask(act))

    def put(self, path: str, data: bytes) -> bool:
        def act() -> bool:
            return self.store.objects.setdefault(path, data) is data

        return bool(self.ask(act))

    def get(self, path: str) -> bytes:
        def act() -> bytes:
            if path not in self.store.objects:
                raise ObjectMissing(f"{path} is not there")
            return self.store.objects[path]

        return bytes(self.ask(act))

    def list(self, prefix: str) -> list[str]:
        found = lambda: sorted({*self.store.objects, *self.store.unfinished})  # noqa: E731
        return [path for path in self.ask(found) if path.startswith(prefix)]

    def delete(self, path: str) -> None:
        self.ask(lambda: self.store.delete(path))


class Writer:
    def __init__(self, client: StoreClient, path: str) -> None:
        self._client, self._path = client, path
        self._content = b""
        self._is_open = True

    def write(self, block: bytes) -> None:
        store, world = self._client.store, self._client.world

        def act() -> None:
            if world.now < store.full_until:
                raise StoreFailed("no space left")
            kept = block
            if store.is_lying and world.chance(world.faults.lie):
                kept = world.random.choice((b"", block[:-1], block + b"x", bytes([block[0] ^ 1]) + block[1:]))
            self._content += kept

        self._client.ask(act)

    def finish(self) -> None:
        self._client.ask(lambda: None)

    def read(self, start: int, length: int) -> bytes:
        return bytes(self._client.ask(lambda: self._content[start : start + length]))

    def seal(self) -> None:
        def act() -> None:
            store = self._client.store
            if self._path in store.objects:
                raise StoreFailed(f"{self._path} is there already")
            store.objects[self._path] = self._content
            self._forget()

        self._client.ask(act)

    def abort(self) -> None:
        self._client.ask(self._forget)

    def _forget(self) -> None:
        self._client.store.unfinished.pop(self._path, None)
