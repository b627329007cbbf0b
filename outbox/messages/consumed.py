"""What a consumer asks of a message that it has received. Needs neither Django's settings nor a Kafka client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

HEADER = "outbox-id"


class Identity(NamedTuple):
    """Which record of an outbox a message is. Ids are unique in one table of one database."""

    id: int
    database: UUID | None = None
    """The database's UUID, where the header names it."""


def identity(message: Any, *, header: str = HEADER) -> Identity | None:
    """The record that this message was, or None when no exactly-once harvester has sent it.

    `message` is what a client returns (confluent-kafka, kafka-python, aiokafka, a row of Spark with headers), or its
    headers as pairs or as a mapping. `header` is the producer's ID_HEADER.
    """
    found = None
    for name, value in _pairs(_headers(message)):
        if name == header:
            found = value  # the harvester's own is the last one
    if found is None:
        return None
    text = found if isinstance(found, str) else bytes(found).decode("utf-8", "replace")
    database, _, number = text.rpartition("/")
    try:
        if not (number.isascii() and number.isdecimal()):
            raise ValueError
        return Identity(int(number), UUID(database) if database else None)
    except ValueError:
        raise ValueError(
            f"The header {header!r} is {text!r:.100}, which is no id of a record. Does something else write a header "
            "of this name? Choose another one by ID_HEADER, and name it here: identity(message, header=...)."
        ) from None


def _headers(message: Any) -> Any:
    found = getattr(message, "headers", message)
    if callable(found):
        found = found()
    return () if found is None else found


def _pairs(headers: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(headers, Mapping):
        return headers.items()
    try:
        return [(name, value) for name, value in headers]
    except (TypeError, ValueError):
        raise TypeError(
            f"A {type(headers).__name__} is neither a message with headers nor headers. Give what the consumer has "
            "returned, or its headers as (name, value) pairs."
        ) from None
