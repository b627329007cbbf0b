"""The selection of holds and dead letters for an operation. An empty selector is refused unless `all` is set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, F, Func, Q
from django.db.models.functions import Now

from outbox import conf as settings
from outbox.edges.postgres.operations import lanes
from outbox.exceptions import OutboxError
from outbox.models import DeadLetter, Hold


class OperationRefused(OutboxError):
    """The request of an operator cannot be carried out; nothing was changed."""


class NothingSelected(OperationRefused):
    def __init__(self, names: str = "a topic, a key, ids, a lane or an age") -> None:
        super().__init__(f"The selection is empty. Name {names}, or select everything (--all).")


@dataclass(frozen=True, slots=True)
class Selector:
    """A row must match all given fields. `ids` are those that the records have or had in the outbox."""

    topic: str | None = None
    key: str | None = None
    ids: Sequence[int] = ()
    lane: int | None = None
    older_than: timedelta | None = None
    all: bool = False
    hold_ids: Sequence[int] = ()
    """Primary keys of holds. With them, no dead letter is selected."""
    hold_records: Mapping[int, tuple[int | None, datetime | None]] = field(default_factory=dict)
    """By primary key of a hold: the id and the time of the record that the operator has seen. A hold that stands for
    another record now is not selected."""
    dead_ids: Sequence[int] = ()
    """Primary keys of dead letters. With them, no hold is selected."""

    def require(self) -> None:
        """Raises `NothingSelected`."""
        given = (self.ids, self.hold_ids, self.dead_ids)
        if not self.all and not any(given) and (self.topic, self.key, self.lane, self.older_than) == (None,) * 4:
            raise NothingSelected
        if self.key is not None and self.topic is None:
            raise OperationRefused("A key alone does not select, because it belongs to a topic. Name the topic too.")

    def holds(self, alias: str) -> Any:
        if self.dead_ids:
            return Hold.objects.none()
        wanted = self._wanted("since")
        if self.hold_ids:
            wanted &= Q(pk__in=list(self.hold_ids))
        if self.lane is not None:
            wanted &= Q(lane=self.lane) | Q(lane__isnull=True, key__isnull=False, of_lane=self.lane)
        return self._with_lane(Hold.objects, alias).filter(wanted)

    def is_meant(self, pk: int, record_id: int | None, stashed_at: datetime | None) -> bool:
        """Whether a hold that `holds` has found still stands for the record that the operator has seen."""
        return self.hold_records.get(pk, (record_id, stashed_at)) == (record_id, stashed_at)

    def dead_letters(self, alias: str) -> Any:
        if self.hold_ids:
            return DeadLetter.objects.none()
        wanted = self._wanted("died_at")
        if self.dead_ids:
            wanted &= Q(pk__in=list(self.dead_ids))
        if self.lane is not None:
            wanted &= Q(of_lane=self.lane)
        return self._with_lane(DeadLetter.objects, alias).filter(wanted)

    def _wanted(self, time_field: str) -> Q:
        wanted = Q()
        for name, value in (("topic", self.topic), ("key", self.key)):
            if value is not None:
                wanted &= Q(**{name: value})
        if self.ids:
            wanted &= Q(record_id__in=list(self.ids))
        if self.older_than is not None:
            wanted &= Q(**{f"{time_field}__lt": Now() - self.older_than})
        return wanted

    def _with_lane(self, manager: Any, alias: str) -> Any:
        found = manager.using(alias)
        return found if self.lane is None else found.annotate(of_lane=lane_expression(alias))

    def as_dict(self) -> dict[str, Any]:
        """For the audit log entry."""
        given = given_fields(self)
        given.pop("hold_records", None)
        return given


def given_fields(selector: Any) -> dict[str, Any]:
    """Those that narrow the selection, as JSON has them; of long lists the first 100."""
    given = {n: v for n, v in asdict(selector).items() if v is not None and v is not False and v not in ((), [])}
    if selector.older_than is not None:
        given["older_than"] = selector.older_than.total_seconds()
    return {name: list(v)[:100] if isinstance(v, list | tuple) else v for name, v in given.items()}


def lane_count(alias: str) -> int:
    """The number of lanes. Before the first harvester has written the state row it is the setting. In at-least-once
    delivery it is always the setting, because the row is written only once."""
    conf = settings.current()
    if conf.delivery == settings.AT_LEAST_ONCE:
        return conf.election.lanes
    with connections[alias].cursor() as cursor:
        count = lanes.count(cursor, conf.table)
    return conf.election.lanes if count is None else count


def lane_expression(alias: str) -> Any:
    """The lane of a row with `key` and `record_id`."""
    template = lanes.template(lane_count(alias), keep_empty_key=settings.current().harvest.keep_empty_key)
    return Func(F("key"), F("record_id"), template=template, output_field=BigIntegerField())
