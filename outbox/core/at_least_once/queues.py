"""The queues of all keys of a lane: which record is ready, which waits here, and of which only the id is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from zlib import crc32

from outbox.core.at_least_once.keys import ASLEEP, BUSY, FETCHING_BEHIND, FETCHING_NEXT, IDLE, Key
from outbox.core.at_least_once.rejections import Rejections
from outbox.core.at_least_once.values import KeyName, Limits, Record
from outbox.core.names import held_key


class LargeRecords:
    """Bytes of the large records that are here."""

    __slots__ = ("_sizes", "total")

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.total = 0

    def add(self, sizes: Mapping[int, int]) -> None:
        self.drop(sizes)
        self.total += sum(sizes.values())
        self._sizes.update(sizes)

    def drop(self, ids: Iterable[int]) -> None:
        if self._sizes:
            self.total -= sum(self._sizes.pop(id_, 0) for id_ in ids)

    def keep(self, ids: Collection[int]) -> None:
        self.drop([id_ for id_ in self._sizes if id_ not in ids])


class Queues:
    def __init__(self, limits: Limits, rejections: Rejections, *, keep_empty_key: bool) -> None:
        self._limits = limits
        self._rejections = rejections
        self._keep_empty_key = keep_empty_key
        self._keys: dict[KeyName, Key] = {}
        self._where: dict[int, Key] = {}  # every record that is known here
        self._ready: deque[Record] = deque()
        self._buffered = [0] * limits.shards  # those that wait or are fetched to wait, of each shard
        self._deferred = 0
        self._wanting: dict[KeyName, Key] = {}  # whose next rows are to be fetched
        self._fetching: list[tuple[Key, list[int]]] = []
        self._timers: list[tuple[float, int, KeyName]] = []
        self._timer_numbers = count()  # break ties between equal times
        self.large = LargeRecords()

    # ---- what others may ask

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def buffered(self) -> int:
        return sum(self._buffered)

    @property
    def deferred(self) -> int:
        return self._deferred

    @property
    def known(self) -> int:
        return len(self._where)

    @property
    def names(self) -> Collection[KeyName]:
        return self._keys.keys()

    @property
    def are_laden(self) -> bool:
        """What is here must be delivered, or set back, before there is memory for more: it waits for nothing else."""
        return self.large.total >= self._limits.bytes_max

    @property
    def want_rows(self) -> bool:
        return bool(self._wanting)

    @property
    def wakes_at(self) -> float:
        return self._timers[0][0] if self._timers else float("inf")

    def knows(self, id_: int) -> bool:
        return id_ in self._where

    def name_of(self, id_: int) -> KeyName:
        return self._where[id_].name

    def is_asleep(self, id_: int) -> bool:
        """Whether the record is the first one of a key that sleeps."""
        key = self._where.get(id_)
        return bool(key is not None and key.state is ASLEEP and key.deferred and key.deferred[0] == id_)

    def names_that_defer(self) -> Iterator[KeyName]:
        return (key.name for key in self._keys.values() if key.deferred)

    # ---- marked rows

    def take(self, row: Record, now: float) -> bool:
        """A row just marked: ready, waiting for its key, or deferred, and then not kept here. Whether it is kept."""
        id_ = row.id
        if id_ in self._where:
            return False  # taken by another meanwhile, and back: it is still undecided here
        key = self._where[id_] = self._key_of(row)
        if key.state is IDLE and not key.deferred:
            key.take()
            self._ready.append(row)
        elif self._may_wait(key):
            key.wait(row, now)
            self._buffered[key.shard] += 1
        else:
            key.defer(id_)
            self._deferred += 1
            self._note(key)
            return False
        return True

    def adopt(self, row: Record) -> bool:
        """A row just marked that is in Kafka already: it is only to be purged. Whether it was not known here.

        Its successors wait for this purge all the same: were one of them sent first, the next leader could still find
        this row and send it behind them."""
        if row.id in self._where:
            return False
        key = self._key_of(row)
        if key.state is not IDLE or key.deferred:
            key = Key(row.id, 0)
        key.take()
        self._where[row.id] = key
        return True

    def _key_of(self, row: Record) -> Key:
        name: KeyName = row.id
        if row.kafka_key or self._keep_empty_key:
            name = row.kafka_topic, held_key(row.kafka_topic, row.kafka_key)
        key = self._keys.get(name)
        if key is None:
            shard = crc32(f"{name}".encode()) % self._limits.shards if self._limits.shards > 1 else 0
            key = self._keys[name] = Key(name, shard)
            if self._rejections and (rejection := self._rejections.of(name)):
                self._sleep(key, rejection.until)
        return key

    def _may_wait(self, key: Key) -> bool:
        if key.deferred or key.state is not BUSY:
            return False
        full = key.waiting is not None and len(key.waiting) >= self._limits.key_buffer_max
        return not full and self._buffered[key.shard] < self._limits.shard_buffer_max

    # ---- sending and purging

    def next_ready(self, count: int) -> list[Record]:
        next_ready = self._ready.popleft
        return [next_ready() for _ in range(count)]

    def by_shard(self, records: Sequence[Record]) -> list[Sequence[Record]]:
        if self._limits.shards == 1:
            return [records]
        found: list[list[Record]] = [[] for _ in range(self._limits.shards)]
        where = self._where
        for record in records:
            found[where[record.id].shard].append(record)
        return [*found]

    def release(self, ids: Collection[int], now: float) -> None:
        """These records are purged, and the next ones of their keys are ready."""
        pop, ready, buffered = self._where.pop, self._ready.append, self._buffered
        rejections = self._rejections if self._rejections else None
        for id_ in ids:
            key = pop(id_)
            if rejections is not None:
                rejections.delivered(key.name, id_)
            row = key.purged(now)
            if row is not None:
                ready(row)
                buffered[key.shard] -= 1
                if key.deferred:
                    self._note(key)
            elif key.state is FETCHING_NEXT:
                buffered[key.shard] -= 1  # its first row will take a slot of the window
            else:
                self._rest(key)
        self.large.drop(ids)

    def _rest(self, key: Key) -> None:
        """It is idle."""
        if key.deferred:
            self._note(key)
        else:
            self._keys.pop(key.name, None)

    def overdue(self, now: float) -> Iterator[Key]:
        """Keys whose next record has waited too long, and for which that was not reported."""
        for key in self._keys.values():
            if key.waiting and not key.is_reported and now - key.waits_since >= self._limits.queue_timeout_s:
                key.reported()
                yield key

    # ---- failures

    def undelivered(self, id_: int) -> int:
        return self._where[id_].undelivered()

    def set_back(self, id_: int, until: float) -> None:
        """The first of its key failed: it and all behind it are deferred in order, and the key sleeps."""
        key = self._where[id_]
        ids = [id_]
        if key.waiting:
            waiting = key.empty_waiting()
            self._buffered[key.shard] -= len(waiting)
            ids += waiting
        self.large.drop(ids)
        if key.state is FETCHING_BEHIND:
            ids += self._cancel_fetch(key)
        key.defer_first(ids)
        self._deferred += len(ids)
        self._sleep(key, until)

    def _cancel_fetch(self, key: Key) -> list[int]:
        [index] = [index for index, (other, _) in enumerate(self._fetching) if other is key]
        _, ids = self._fetching.pop(index)
        self._buffered[key.shard] -= len(ids)
        return ids

    def drop(self, id_: int) -> None:
        """What comes after it is no longer here."""
        self.large.drop([id_])
        del self._where[id_]

    # ---- sleeping

    def _sleep(self, key: Key, until: float) -> None:
        key.sleep(until)
        self._wanting.pop(key.name, None)
        heappush(self._timers, (until, next(self._timer_numbers), key.name))

    def wake(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, name = heappop(self._timers)
            key = self._keys.get(name)
            if key is not None and key.state is ASLEEP and key.until <= now:
                key.wake()
                self._rest(key)

    def sleep_until(self, id_: int, at: float) -> None:
        """A record that sleeps already."""
        self._sleep(self._where[id_], at)

    def gone(self, ids: Iterable[int], now: float) -> None:
        """These rejected records were deleted on purpose: their keys go on, also where a remark has come between and
        only successors sleep on their account."""
        deleted = dict.fromkeys(ids)
        for name in self._rejections.gone(deleted):
            key = self._keys.get(name)
            if key is not None and key.state is ASLEEP:
                self._sleep(key, now)
        for id_ in deleted:
            if not self.is_asleep(id_):
                continue
            key = self._where.pop(id_)
            assert key.deferred is not None
            key.deferred.popleft()
            self._deferred -= 1
            self._sleep(key, now)

    # ---- fetching what was deferred

    def _note(self, key: Key) -> None:
        if key.wants_rows:
            self._wanting[key.name] = key

    def fetch(self, slots: int) -> tuple[int, ...]:
        """Rows of keys whose turn has come, as many as there is room for. `slots` of the window are free."""
        ids: list[int] = []
        limits = self._limits
        for name, key in list(self._wanting.items()):
            if len(ids) >= limits.mark_max:
                break
            taken = self._fetch_of(key, min(limits.mark_max - len(ids), limits.key_buffer_max), slots)
            if taken:
                slots -= key.state is FETCHING_NEXT
                self._fetching.append((key, taken))
                ids += taken
                del self._wanting[name]
        return tuple(ids)

    def _fetch_of(self, key: Key, count: int, slots: int) -> list[int]:
        """The first of an idle key takes a slot of the window, all others places in the buffer of the shard."""
        is_next = key.state is IDLE
        if is_next and slots <= 0:
            return []
        assert key.deferred is not None
        places = self._limits.shard_buffer_max - self._buffered[key.shard] + is_next
        count = min(count, places, len(key.deferred))
        if count <= 0:
            return []
        taken = key.fetch(count)
        self._deferred -= count
        self._buffered[key.shard] += count - is_next
        return taken

    def fetched(self, found: Mapping[int, Record], left: Collection[int], large: Mapping[int, int], now: float) -> bool:
        """Rows have come back, others were left unread. Whether some are missing. What was set back meanwhile is not
        kept."""
        batch, self._fetching = self._fetching, []
        missing = False
        for key, ids in batch:
            self.large.add({id_: large[id_] for id_ in ids if id_ in large})
            read = [id_ for id_ in ids if id_ not in left]
            unread = [id_ for id_ in ids if id_ in left]
            if not read:
                self._not_fetched(key, ids)
                continue
            if unread:
                self._defer_again(key, unread)
                self._buffered[key.shard] -= len(unread)
            missing |= self._serve(key, read, found, now)
        return missing

    def fetch_failed(self) -> None:
        batch, self._fetching = self._fetching, []
        for key, ids in batch:
            self._not_fetched(key, ids)

    def _not_fetched(self, key: Key, ids: list[int]) -> None:
        self._buffered[key.shard] -= len(ids) - (key.state is FETCHING_NEXT)
        key.not_fetched()
        self._defer_again(key, ids)
        self._note(key)

    def _defer_again(self, key: Key, ids: list[int]) -> None:
        key.defer_first(ids)
        self._deferred += len(ids)

    def _serve(self, key: Key, ids: list[int], found: Mapping[int, Record], now: float) -> bool:
        """Rows of one key have come back. Whether some are missing: deleted by hand, or taken by another leader."""
        is_next = key.state is FETCHING_NEXT
        self._buffered[key.shard] -= len(ids) - is_next
        present = [found[id_] for id_ in ids if id_ in found]
        for id_ in ids:
            if id_ not in found:
                del self._where[id_]
        if present:
            key.fetched()
        else:
            key.not_fetched()
        behind = present
        if is_next and present:
            first, *behind = present
            self._ready.append(first)
        for row in behind:
            key.wait(row, now)
        self._buffered[key.shard] += len(behind)
        if key.state is IDLE:
            self._rest(key)
        else:
            self._note(key)
        return len(present) < len(ids)

    # ---- remark

    def forget_unsent(self, undecided: Iterable[int]) -> list[int]:
        """Drop everything else from memory; the ids of it, in order."""
        where = {id_: self._where[id_] for id_ in undecided}
        unsent = sorted(id_ for id_ in self._where if id_ not in where)
        self._where = where
        self.large.keep(where)
        self._keys = {key.name: key for key in where.values()}
        for key in self._keys.values():
            key.forget()
        self._ready.clear()
        self._wanting.clear()
        self._timers.clear()
        self._fetching = []
        self._buffered = [0] * self._limits.shards
        self._deferred = 0
        return unsent

    def forget(self) -> None:
        self._where.clear()
        self._keys.clear()
        self.large.keep(())
