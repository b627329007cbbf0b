"""The records that are sent and not yet purged, and those of which that is not known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from outbox.core.at_least_once.values import Limits, Record


class Window:
    """Each goes from sent to acknowledged to being purged."""

    __slots__ = ("_acknowledged", "_delivered", "_is_repeated", "_limits", "_purging", "_sent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sent: dict[int, tuple[Record, float]] = {}  # in the order of sending
        self._acknowledged: dict[int, Record] = {}  # to be purged
        self._purging: dict[int, Record] = {}
        self._is_repeated = False  # the purge: the first one may have worked
        self._delivered: dict[int, Record] = {}  # acknowledged under an earlier leader id, purge unknown

    def __len__(self) -> int:
        return len(self._sent) + len(self._acknowledged) + len(self._purging)

    def __iter__(self) -> Iterator[int]:
        yield from self._sent
        yield from self._acknowledged
        yield from self._purging

    # ---- sending

    def send(self, records: Iterable[Record], now: float) -> None:
        sent = self._sent
        for record in records:
            sent[record.id] = record, now

    @property
    def is_undecided(self) -> bool:
        """Whether a report is awaited."""
        return bool(self._sent)

    def oldest(self) -> tuple[int, float] | None:
        """The id of the record whose report has been awaited longest, and since when."""
        for id_, (_, sent_at) in self._sent.items():
            return id_, sent_at
        return None

    def acknowledge(self, ids: Iterable[int]) -> int:
        """How many of them were awaited."""
        pop, acknowledged, before = self._sent.pop, self._acknowledged, len(self._acknowledged)
        for id_ in ids:
            entry = pop(id_, None)
            if entry is not None:
                acknowledged[id_] = entry[0]
        return len(acknowledged) - before

    def fail(self, id_: int) -> Record | None:
        """It was not delivered; the record, if its report was awaited."""
        entry = self._sent.pop(id_, None)
        return None if entry is None else entry[0]

    # ---- purging

    @property
    def has_delivered(self) -> bool:
        """Whether there is something to purge, or its purge is under way."""
        return bool(self._acknowledged or self._purging)

    def next_purge(self) -> tuple[int, ...]:
        """The batch whose purge failed, or the next one."""
        if not self._purging:
            if len(self._acknowledged) <= self._limits.purge_max:
                self._purging, self._acknowledged = self._acknowledged, {}
            else:
                for id_ in list(self._acknowledged)[: self._limits.purge_max]:
                    self._purging[id_] = self._acknowledged.pop(id_)
        return tuple(self._purging)

    def purge_failed(self) -> None:
        self._is_repeated = True

    def purged(self) -> tuple[Collection[int], bool]:
        """The batch, and whether this was not the first try."""
        batch, self._purging = self._purging, {}
        is_repeated, self._is_repeated = self._is_repeated, False
        return batch, is_repeated

    def last_purge(self) -> tuple[int, ...]:
        return tuple(self._purging) + tuple(self._acknowledged)

    # ---- a remark

    def forget(self) -> None:
        """Everything but what is in Kafka and may still be in the table."""
        self._delivered.update(self._purging)
        self._delivered.update(self._acknowledged)
        while len(self._delivered) > self._limits.in_flight_max:
            del self._delivered[next(iter(self._delivered))]
        for part in (self._sent, self._acknowledged, self._purging):
            part.clear()
        self._is_repeated = False

    @property
    def remembers(self) -> bool:
        return bool(self._delivered)

    def was_delivered(self, row: Record) -> bool:
        """Whether this row, marked again, is in Kafka already."""
        return self._delivered.get(row.id) == row

    def purge_again(self, id_: int) -> None:
        self._acknowledged[id_] = self._delivered.pop(id_)

    def forget_delivered(self) -> None:
        self._delivered.clear()
