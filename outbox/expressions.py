"""SQL expressions of the table's default values and CHECK constraints."""

from django.contrib.postgres.fields import ArrayField
from django.db.models import Func, IntegerField, TextField, Value
from django.db.models.lookups import Exact, IsNull


class EmptyTextArray(Func):
    """A literal, so that the catalogue shows the default the way people write it."""

    template = "'{}'::text[]"

    def __init__(self) -> None:
        super().__init__(output_field=ArrayField(TextField()))


class EmptyIntegerArray(Func):
    """Likewise."""

    template = "'{}'::integer[]"

    def __init__(self) -> None:
        super().__init__(output_field=ArrayField(IntegerField()))


class Cardinality(Func):
    function = "cardinality"
    arity = 1
    output_field = IntegerField()


class NullPosition(Func):
    """Where an array has its first NULL element; NULL when it has none."""

    function = "array_position"

    def __init__(self, array: str) -> None:
        super().__init__(array, Value(None), output_field=IntegerField())


def same_length(left: str, right: str) -> "Exact[Cardinality]":
    return Exact(Cardinality(left), Cardinality(right))


def no_null_element(array: str) -> IsNull:
    return IsNull(NullPosition(array), True)
