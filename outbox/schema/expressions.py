"""SQL expressions of default values and CHECK constraints, and of times for which Python may have no date."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib.postgres.fields import ArrayField
from django.db.models import BinaryField, Case, DateTimeField, F, Func, IntegerField, Q, TextField, Value, When
from django.db.models.lookups import Exact, IsNull

from outbox.schema.times import KNOWN_BEFORE, KNOWN_FROM

if TYPE_CHECKING:
    _DateTimeField = DateTimeField[Any, Any]
else:
    _DateTimeField = DateTimeField


class EmptyTextArray(Func):
    """The empty array as a literal, so that the catalogue shows the usual spelling of the default."""

    template = "'{}'::text[]"

    def __init__(self) -> None:
        super().__init__(output_field=ArrayField(TextField()))


class EmptyIntegerArray(Func):
    """The empty array of integers, also as a literal."""

    template = "'{}'::integer[]"

    def __init__(self) -> None:
        super().__init__(output_field=ArrayField(IntegerField()))


class EmptyBytesArray(Func):
    """The empty array of bytes, also as a literal."""

    template = "'{}'::bytea[]"

    def __init__(self) -> None:
        super().__init__(output_field=ArrayField(BinaryField()))


class SuppliedTime(_DateTimeField):
    """A time that any program may have written. It is None where Python has no such date; psycopg would otherwise fail
    for the whole result."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        given = (*params, KNOWN_FROM, *params, KNOWN_BEFORE, *params)
        return f"CASE WHEN {sql} >= %s AND {sql} < %s THEN {sql} END", given

    def deconstruct(self) -> Any:
        """Migrations use the plain field."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs


def known(column: str) -> Case:
    """Return the time of a `SuppliedTime` for arithmetic, or NULL."""
    bounds = {f"{column}__gte": KNOWN_FROM, f"{column}__lt": KNOWN_BEFORE}
    return Case(When(**bounds, then=F(column)), output_field=DateTimeField())


def has_time(column: str, time: datetime | None) -> Q:
    """Return the condition that a `SuppliedTime` has this value in Python."""
    if time is not None:
        return Q(**{column: time})
    return Q(**{f"{column}__isnull": True}) | Q(**{f"{column}__lt": KNOWN_FROM}) | Q(**{f"{column}__gte": KNOWN_BEFORE})


class Cardinality(Func):
    function = "cardinality"
    arity = 1
    output_field = IntegerField()


class NullPosition(Func):
    """The position of the first NULL element of an array, or NULL."""

    function = "array_position"

    def __init__(self, array: str) -> None:
        super().__init__(array, Value(None), output_field=IntegerField())


def same_length(left: str, right: str) -> "Exact[Cardinality]":
    return Exact(Cardinality(left), Cardinality(right))


def no_null_element(array: str) -> IsNull:
    return IsNull(NullPosition(array), True)
