"""Ledger entries, the digest of a batch, and the codec between them and Kafka.

The ledger says which batches each lane has committed: one entry per Kafka transaction, written last, so that records
and entry commit or vanish together. What a successor concludes from an entry is decided in ``decisions.py``. No I/O
here.

**Digest.** Python and Spark SQL must get the same number, so it is built from CRC-32 (IEEE, ``zlib.crc32``; Spark's
``crc32(binary)``) of one byte string per record, and a batch's digest is the plain *sum* of its records' checksums:
it does not depend on order, two equal records do not cancel out (as in an exclusive or), and 2^31 records fit a
signed bigint. The bytes of a record are the UTF-8 form of

    id "," length(topic) "," length(key) { "," length(header key) "," length(header value) } mark topic key
    { header key, header value } value

with decimal numbers without padding, lengths in code points (Python's ``len``, SQL's ``char_length``), and mark
``:`` when there is a value, ``-`` when it is null. The numbers end at the first character that is neither digit nor
comma (a negative id's sign is the very first one), each text has a stated length and the value is all that remains:
no two different records have the same bytes. The value needs no length, so binary values (raw bytes, from either
column) and text share one form. Headers are those stored in the row, without those that the harvester adds; a null
and an empty array are the same; an empty key is the empty text, also where Kafka received a null key.

**The newest create_time** of a batch stands in a header of the Kafka record, not in its value: releases that know
nothing of it read the entry as ever. It tells a batch from other records of the same content under the same ids,
drawn a second time.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from operator import sub
from uuid import UUID
from zlib import crc32

from outbox.core.times import INFINITE, NONE, time_of

Row = tuple[int, str, str, str | None, Sequence[str] | None, Sequence[str] | None, bytes | None]
"""id, topic, key, value, header keys, header values, binary value: the columns of the read, in its order."""

Headers = Sequence[tuple[str, bytes | None]] | None
"""Of a Kafka record, as the client has them."""

FORMAT_VERSION = 2
_WITHOUT_CHANGE = 1
"""The version of entries from before any change of the lane count, and of releases that wrote no number of it."""
_MAGIC = b"OBL"
BEGINNING = _MAGIC + b"\0"
"""What a transaction writes to the ledger ahead of its entry, so that the brokers take the ledger's partition into it
together with those of the records: to add it later costs a round trip and more. It says nothing; readers pass over
it. Committed without an entry, by a late EndTxn, it still says nothing."""
BEGINNING_KEY = b"beginning"
"""Not an entry's key: compaction would drop the last entry for it."""
_NEWEST = "newest-create-time"
"""The header, in microseconds since 2000, as a decimal number."""
_FIXED = struct.Struct(">16s16sq")  # owner, database, read_at in microseconds since 1970
_SEAL_BYTES = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_INT64_MAX = (1 << 63) - 1
_IDS_MAX = 10_000_000
"""No batch comes near it; a damaged count must not make the decoder allocate without bound."""
_ERRORS = "surrogateescape"  # of a database without an encoding; a row that is no text is never equal to one sent


class LedgerEntryError(ValueError):
    """A ledger record that cannot be read. Never skipped: without it nobody knows what is already in Kafka."""


class ForeignEntry(LedgerEntryError):
    """Not written by this package."""


class UnknownEntryVersion(LedgerEntryError):
    """Written by a release with another format."""


class DamagedEntry(LedgerEntryError):
    """Truncated or altered, or inconsistent in itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed batch of one lane, perhaps of no row. Batch 0 only says under which count the lanes work."""

    lane: int
    batch: int
    owner: UUID
    database: UUID
    ids: tuple[int, ...]
    """Ascending: the rows whose records this transaction carries."""
    digest: int
    read_at: datetime
    """The database's clock when the batch was read."""
    change: int = 0
    """Number of the latest change of the lane count when it was written; 0: none, or not known."""
    newest: int | None = None
    """The newest create_time of the rows, see `times`; None: no rows, or written by a release that did not note it."""

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def up_to(self) -> int:
        """No row of the batch is younger. Of an entry that does not know the newest one this rests on the clock."""
        return time_of(self.read_at) if self.newest is None else self.newest

    def has_newest(self, newest: int | None) -> bool:
        """Whether rows of this newest create_time may be those of the batch. Without knowing that of the batch: as
        long as none is younger than its reading, by the database's clock."""
        if newest is None or self.newest is None:
            return newest is not None and newest <= self.up_to
        return newest == self.newest


def record_bytes(row: Row) -> bytes:
    """The bytes that a record's checksum is taken of; see the module's description."""
    id_, topic, key, value, header_keys, header_values, binary = row[:7]
    lengths, headers = "", ""
    if header_keys:
        pairs = list(zip(header_keys, header_values or (), strict=True))
        lengths = "".join(f",{len(name)},{len(text)}" for name, text in pairs)
        headers = "".join(name + text for name, text in pairs)
    mark = "-" if value is None and binary is None else ":"
    head = f"{id_},{len(topic)},{len(key)}{lengths}{mark}{topic}{key}{headers}{value or ''}".encode(errors=_ERRORS)
    return head if binary is None else head + binary


def digest(rows: Iterable[Row]) -> int:
    """The sum of the records' checksums. Text without headers, the common case, is spelled out: it costs half as
    much. What follows the seventh column is not looked at."""
    total = 0
    for row in rows:
        topic, key, value = row[1], row[2], row[3]
        if value is not None and not row[4]:
            total += crc32(f"{row[0]},{len(topic)},{len(key)}:{topic}{key}{value}".encode(errors=_ERRORS))
        else:
            total += crc32(record_bytes(row))
    return total


def entry_key(lane: int) -> bytes:
    """The Kafka key of a lane's entries: compaction keeps the last entry of each lane for ever."""
    return b"%d" % lane


def encode(entry: Entry) -> bytes:
    """Magic, version, fixed fields, numbers as varints, ids as differences, and a CRC-32 of all that as the seal. The
    number of the change is the fifth varint of version 2; version 1 ends with the fourth."""
    if entry.read_at.tzinfo is None:
        raise ValueError(f"read_at {entry.read_at!r} has no time zone; take clock_timestamp() as timestamptz")
    numbers = (entry.lane, entry.batch, entry.digest, entry.count, entry.change)
    in_range = max(*numbers, *entry.ids[-1:]) <= _INT64_MAX and min((0, *entry.ids[:1])) >= -_INT64_MAX - 1
    if not in_range or min(numbers) < 0 or not _is_sound(entry.batch, entry.count, entry.change):
        raise ValueError(
            f"not an entry: lane {entry.lane}, batch {entry.batch}, {entry.count} ids, {entry.digest=}, {entry.change=}"
        )
    version = FORMAT_VERSION if entry.change else _WITHOUT_CHANGE
    out = bytearray(_MAGIC)
    out.append(version)
    out += _FIXED.pack(entry.owner.bytes, entry.database.bytes, (entry.read_at - _EPOCH) // _MICROSECOND)
    for number in numbers if entry.change else numbers[:-1]:
        _put_varint(out, number)
    if entry.ids:
        _put_varint(out, _zigzag(entry.ids[0]))
        _put_differences(out, entry.ids)
    out += crc32(out).to_bytes(_SEAL_BYTES, "big")
    return bytes(out)


def headers(entry: Entry) -> list[tuple[str, bytes]]:
    """Of the Kafka record whose value is the encoded entry."""
    return [] if entry.newest is None else [(_NEWEST, b"%d" % entry.newest)]


def decode(payload: bytes | None, headers: Headers = None) -> Entry:
    """The entry, exactly as it was encoded, or a `LedgerEntryError` that says which kind of wrong it is."""
    body = _unseal(payload or b"")
    try:
        owner, database, read_at_us = _FIXED.unpack_from(body, len(_MAGIC) + 1)
        reader = _Varints(body, len(_MAGIC) + 1 + _FIXED.size)
        lane, batch, total, count = (reader.take() for _ in range(4))
        change = reader.take() if body[len(_MAGIC)] == FORMAT_VERSION else 0
        ids = reader.take_ids(count)
        read_at = _EPOCH + read_at_us * _MICROSECOND
    except (struct.error, OverflowError) as error:
        raise DamagedEntry(_damage(f"has {len(body)} bytes: {error}")) from None
    numbered = bool(change) is (body[len(_MAGIC)] == FORMAT_VERSION)
    if not numbered or not _is_sound(batch, count, change) or not reader.at_end:
        over = len(body) - reader.position
        raise DamagedEntry(_damage(f"has batch number {batch}, {count} ids, {change=} and {over} bytes too many"))
    return Entry(lane, batch, UUID(bytes=owner), UUID(bytes=database), ids, total, read_at, change, _newest(headers))


def _newest(headers: Headers) -> int | None:
    for name, text in headers or ():
        if name == _NEWEST:
            # 19 digits and a sign: a damaged header must not be a long number to read.
            is_number = text is not None and len(text) <= 20 and text.removeprefix(b"-").isdigit()
            if not is_number or not NONE <= (newest := int(text or b"")) <= INFINITE:
                raise DamagedEntry(_damage(f"has {(text or b'')[:24]!r} in its header {_NEWEST}"))
            return newest
    return None


def _is_sound(batch: int, count: int, change: int) -> bool:
    """A batch without rows shows that its owner may act, see `holds.values.HoldActions`. Batch 0 is the entry that a
    change writes into a lane without any."""
    return batch > 0 or (not count and change > 0)


def _unseal(payload: bytes) -> bytes:
    start = bytes(payload[:4])
    if not payload or not payload.startswith(_MAGIC[: len(payload)]):
        raise ForeignEntry(
            f"Another program writes to the ledger topic: a record there starts with {start!r} instead of {_MAGIC!r}. "
            "Give this outbox a ledger topic of its own."
        )
    if len(payload) > len(_MAGIC) and payload[len(_MAGIC)] not in (_WITHOUT_CHANGE, FORMAT_VERSION):
        raise UnknownEntryVersion(
            f"A ledger entry has format version {payload[len(_MAGIC)]}, but this release reads versions up to "
            f"{FORMAT_VERSION}. Run the release that wrote it, or a newer one."
        )
    body, seal = payload[:-_SEAL_BYTES], payload[-_SEAL_BYTES:]
    if len(body) <= len(_MAGIC) or crc32(body).to_bytes(_SEAL_BYTES, "big") != seal:
        raise DamagedEntry(_damage(f"has {len(payload)} bytes and its checksum does not match them"))
    return bytes(body)


def _damage(what: str) -> str:
    return (
        f"A ledger entry is damaged: it {what}. Read the ledger topic with a read_committed consumer. If you cannot "
        "recover the entry, settle the lane with manage.py outbox_resolve."
    )


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if not number & 1 else -((number + 1) >> 1)


def _put_varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_differences(out: bytearray, ids: Sequence[int]) -> None:
    differences = list(map(sub, islice(ids, 1, None), ids))
    if not differences:
        return
    if min(differences) < 1:
        raise ValueError("the ids of a ledger entry must ascend: a lane's records of one read come in that order")
    if max(differences) < 0x80:
        out += bytes(differences)  # neighbours nearly always are this close: no loop in Python
        return
    for difference in differences:
        _put_varint(out, difference)


class _Varints:
    """A strict reader: no number above 2^63 - 1, none spelled longer than necessary, none beyond the end."""

    def __init__(self, body: bytes, position: int) -> None:
        self._body = body
        self.position = position

    @property
    def at_end(self) -> bool:
        return self.position == len(self._body)

    def take(self, limit: int = _INT64_MAX) -> int:
        number, shift = 0, 0
        while True:
            if self.at_end:
                raise DamagedEntry(_damage("ends in the middle of a number"))
            byte = self._body[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            if number > limit or (byte == 0 and shift):
                raise DamagedEntry(_damage("holds a number out of range"))
            if byte < 0x80:
                return number
            shift += 7

    def take_ids(self, count: int) -> tuple[int, ...]:
        if count > _IDS_MAX:
            raise DamagedEntry(_damage(f"lists {count} ids"))
        if not count:
            return ()
        current = _unzigzag(self.take(limit=(1 << 64) - 1))
        ids = [current]
        for _ in range(count - 1):
            difference = self.take(limit=(1 << 64) - 1)  # from below zero the step may be the larger one
            current += difference
            if not difference or current > _INT64_MAX:
                raise DamagedEntry(_damage("lists ids that do not ascend"))
            ids.append(current)
        return tuple(ids)
