"""Counting and paging a table of any size for the admin.

No query reads the table more than once, sorts more rows than the pages hold, or fetches whole values.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

from django.core.paginator import Paginator
from django.db.models import BinaryField, Func, IntegerField
from django.db.models.functions import Left, Substr

from outbox.models import OutboxRecord
from outbox.redaction import TEXT_MAX, keeps_everything
from outbox.schema.fields import TextField

# Rows up to this number are counted and paged; for more, the list shows the planner's estimate.
COUNT_EXACT_MAX = 10_000
LIST_CHARS = 80
BINARY_PREFIX_BYTES = 16
_NOT_LISTED = ("kafka_value", "kafka_value_binary", "kafka_header_keys", "kafka_header_values")

if TYPE_CHECKING:
    _Paginator = Paginator[OutboxRecord]
else:
    _Paginator = Paginator


@dataclass(frozen=True)
class Count:
    """A number of records: exact, or an estimate."""

    rows: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.rows:,}" if self.exact else f"about {self.rows:,}"


def count(queryset: Any) -> Count:
    """Exact as long as it is cheap: it reads at most `COUNT_EXACT_MAX` + 1 matching rows."""
    ids = queryset.order_by().values("pk")
    if not queryset.query.where:
        # Without this the planner reads the table itself, with the pages that purged rows have left behind.
        ids = ids.order_by("pk")
    rows = ids[: COUNT_EXACT_MAX + 1].count()
    if rows <= COUNT_EXACT_MAX:
        return Count(rows, exact=True)
    plan = json.loads(queryset.order_by().values("pk").explain(format="json"))
    return Count(max(rows, plan[0]["Plan"]["Plan Rows"]), exact=False)


class _OctetLength(Func):
    """Takes the length from the header of a stored value, without reading it."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()


def with_preview(queryset: Any, characters: int) -> Any:
    """Add the beginnings and the sizes of the values in place of the values."""
    return queryset.defer("kafka_value", "kafka_value_binary").annotate(
        text_start=Left("kafka_value", characters, output_field=TextField()),
        text_bytes=_OctetLength("kafka_value"),
        binary_start=Substr("kafka_value_binary", 1, BINARY_PREFIX_BYTES, output_field=BinaryField()),
        binary_bytes=_OctetLength("kafka_value_binary"),
    )


class RecordPaginator(_Paginator):
    """Pages of the first `COUNT_EXACT_MAX` records in an order. Search and filters reach the rest."""

    @cached_property
    def estimate(self) -> Count:
        return count(self.object_list)

    @cached_property
    def count(self) -> int:
        return self.estimate.rows

    @cached_property
    def num_pages(self) -> int:
        return max(1, ceil(min(self.count, COUNT_EXACT_MAX) / self.per_page))

    @property
    def is_cut(self) -> bool:
        return self.count > self.num_pages * self.per_page

    def records(self, number: int) -> list[OutboxRecord]:
        """The ids of the page first, in a query without any wide column, then its rows by primary key."""
        if not self.count:  # known from a pass over the table, which is not repeated
            return []
        queryset: Any = self.object_list
        bottom = (self.validate_number(number) - 1) * self.per_page
        ids = list(queryset.values_list("pk", flat=True)[bottom : bottom + self.per_page])
        # A redactor needs enough text to recognise what it hides.
        characters = LIST_CHARS + 1 if keeps_everything() else TEXT_MAX
        rows = queryset.model.objects.using(queryset.db).filter(pk__in=ids)
        found = {row.pk: row for row in with_preview(rows, characters).defer(*_NOT_LISTED)}
        return [found[pk] for pk in ids if pk in found]
