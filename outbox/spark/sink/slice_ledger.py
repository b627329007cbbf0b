"""The ledger entry of one slice of one epoch, its codec, and what the entries at a start mean. No I/O here.

An epoch is one micro-batch of a streaming query, a slice is one share of it by key. The ledger topic of a sink has one
partition per slice. An entry is the last record of the transaction that carries the slice's records, so both commit or
vanish together. `judge` decides from the entries how to begin. A driver calls it once, when it starts, after it has
fenced every slice's older producers. Later epochs need no second decision: nobody else can have written since.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from outbox.core.exactly_once.ledger import DamagedEntry, ForeignEntry, UnknownEntryVersion
from outbox.exceptions import OutboxError

FORMAT_VERSION = 1
_MAGIC = b"OBS"
_HEAD = struct.Struct(">3sBI")  # magic, version, length of the JSON that follows
_SEAL_BYTES = 4


class SinkRefused(OutboxError):
    """Continuing would lose records or send them twice: an operator must act."""


class OtherQuery(SinkRefused):
    """The ledger belongs to another query: the checkpoint was deleted, or two sinks have one name."""


class OtherDatabase(SinkRefused):
    """The ledger lists the records of another database."""


class LedgerLost(SinkRefused):
    """Entries are missing from the ledger."""


class CheckpointBehind(SinkRefused):
    """The ledger is ahead of the checkpoint."""


class SlicesChanged(SinkRefused):
    """The slice count was changed while an epoch was delivered in part."""


class ReplayDiffers(SinkRefused):
    """Spark computed an epoch again, with another result."""


@dataclass(frozen=True, slots=True)
class SliceEntry:
    """One slice of one epoch, delivered."""

    name: str
    """The sink's."""
    query: str
    """Spark's id of the streaming query, which the checkpoint keeps."""
    epoch: int
    slice: int
    slices: int
    slices_before: int
    """The slice count of the epoch before: 0 for the first."""
    count: int
    digest: int
    """The sum of the records' checksums, as in `core.exactly_once.ledger`."""
    ids: tuple[int, ...] = ()
    """Ascending; from the column `id`, where there is one."""
    origin: str = ""
    """The origin that the sink was given, for instance the UUID of the database."""
    order: str = ""
    """The columns that order the records of a key; empty: the id."""

    @property
    def is_by_id(self) -> bool:
        return self.order.split(",")[0] in ("", "id")


def entry_key(slice_: int) -> bytes:
    """The Kafka key of a slice's entries: compaction keeps the last one."""
    return b"%d" % slice_


def encode(entry: SliceEntry) -> bytes:
    fields = {name: getattr(entry, name) for name in SliceEntry.__slots__ if name != "ids"}
    head = json.dumps(fields, separators=(",", ":")).encode()
    ids = sorted(entry.ids)
    steps = array("q", [after - before for before, after in zip([0, *ids], ids, strict=False)])
    body = _HEAD.pack(_MAGIC, FORMAT_VERSION, len(head)) + head + zlib.compress(steps.tobytes(), 1)
    return body + zlib.crc32(body).to_bytes(_SEAL_BYTES, "big")


def decode(payload: bytes | None) -> SliceEntry:
    """The entry, or an error that names what is wrong with it."""
    payload = payload or b""
    if payload[:3] != _MAGIC:
        raise ForeignEntry(
            f"A record of the Spark sink's ledger starts with {payload[:4]!r} instead of {_MAGIC!r}: another program "
            "writes to this topic. Give this sink a ledger topic of its own."
        )
    if len(payload) > 3 and payload[3] != FORMAT_VERSION:
        raise UnknownEntryVersion(
            f"An entry of the Spark sink's ledger has format version {payload[3]}, but this release reads version "
            f"{FORMAT_VERSION}. Run the release that wrote it, or a newer one."
        )
    body, seal = payload[:-_SEAL_BYTES], payload[-_SEAL_BYTES:]
    if len(body) < _HEAD.size or zlib.crc32(body).to_bytes(_SEAL_BYTES, "big") != seal:
        raise DamagedEntry(
            f"An entry of the Spark sink's ledger has {len(payload)} bytes, and its checksum is wrong. Read the topic "
            "with a read_committed consumer."
        )
    length = _HEAD.unpack_from(body)[2]
    steps = array("q")
    steps.frombytes(zlib.decompress(body[_HEAD.size + length :]))
    return SliceEntry(**json.loads(body[_HEAD.size : _HEAD.size + length]), ids=tuple(accumulate(steps)))


# ---- the result at the start of a driver


@dataclass(frozen=True, slots=True)
class Start:
    """How the first epoch of a driver begins."""

    slices_before: int
    last: Mapping[int, int]
    """Slice → the epoch of its last entry; absent: it has none."""
    done: Mapping[int, tuple[int, int]]
    """Slice → (count, digest) of the slices that are delivered already."""


def judge(
    found: Sequence[SliceEntry | None],
    name: str,
    query: str,
    epoch: int,
    slices: int,
    *,
    begin_at: int = 0,
    origin: str = "",
) -> Start:
    """`found`: the last entry of each partition of the ledger, read after all of them were fenced. `origin` is
    compared if both sides know one."""
    entries = [entry for entry in found if entry is not None]
    if not entries:
        if epoch > begin_at:
            raise LedgerLost(
                f"The ledger of the Spark sink {name!r} has no entry, but the query is at epoch {epoch}: nobody can "
                "say which records were delivered. Restore the ledger topic. If all earlier epochs were delivered, "
                f"or never went through this sink, set begin_at={epoch} on the sink."
            )
        return Start(0, {}, {})
    latest = max(entries, key=lambda entry: entry.epoch)
    if origin and latest.origin and latest.origin != origin:
        raise OtherDatabase(
            f"The ledger of the Spark sink {name!r} was written for the database {latest.origin}, but this is the "
            f"database {origin}, whose ids and epochs are others. Check the address of the database. If this database "
            "replaces the other one, use a new checkpoint and another sink name."
        )
    _refuse_strangers(latest, name, query, epoch)
    before = _count_before(latest, epoch, slices)
    last = {slice_: entry.epoch for slice_, entry in enumerate(found) if entry is not None}
    done = {
        slice_: (entry.count, entry.digest)
        for slice_, entry in enumerate(found)
        if entry is not None and entry.epoch == epoch
    }
    for slice_ in range(before):
        if slice_ not in done and last.get(slice_) != epoch - 1:
            raise LedgerLost(
                f"The ledger of the Spark sink {name!r} has {_of(last, slice_)} for slice {slice_}, but epoch {epoch} "
                f"must follow epoch {epoch - 1} in every slice. Restore the ledger topic."
            )
    return Start(before, last, done)


def _refuse_strangers(latest: SliceEntry, name: str, query: str, epoch: int) -> None:
    if (latest.name, latest.query) != (name, query):
        raise OtherQuery(
            f"The query {latest.query} wrote the ledger of the Spark sink {name!r} (as sink {latest.name!r}, up to "
            f"epoch {latest.epoch}), but this is the query {query}. If the checkpoint was deleted or moved, restore "
            "it, or use another sink name: that sends again all records that the source still holds. If two queries "
            "use one sink name, give each its own."
        )
    if latest.epoch > epoch:
        raise CheckpointBehind(
            f"The ledger of the Spark sink {name!r} is at epoch {latest.epoch}, but the checkpoint is at epoch "
            f"{epoch}: a newer driver has continued, or somebody restored an old copy of the checkpoint. Stop this "
            "driver, or restore the newest checkpoint."
        )
    if latest.epoch < epoch - 1:
        raise LedgerLost(
            f"The ledger of the Spark sink {name!r} ends with epoch {latest.epoch}, but the checkpoint is at epoch "
            f"{epoch}: entries are missing. Restore the ledger topic."
        )


def _count_before(latest: SliceEntry, epoch: int, slices: int) -> int:
    if latest.epoch == epoch - 1:
        return latest.slices
    if latest.slices != slices:
        raise SlicesChanged(
            f"The Spark sink {latest.name!r} has delivered epoch {epoch} in part with {latest.slices} slices, but "
            f"slices is now {slices}: the other records would be lost or duplicated. Start once with "
            f"slices={latest.slices}, let the epoch end, then change the count."
        )
    return latest.slices_before


def _of(last: Mapping[int, int], slice_: int) -> str:
    return f"epoch {last[slice_]}" if slice_ in last else "no entry"
