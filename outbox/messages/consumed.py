"""The identity of a message, for its consumer. Needs neither Django's settings nor a Kafka client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

HEADER = "outbox-id"


class Identity(NamedTuple):
    """The record from which a message was made. Ids are unique in one table of one database."""

    id: int
    database: UUID | None = None
    """The database's UUID, where the header names it."""


def identity(message: Any, *, header: str = HEADER) -> Identity | None:
    """Return the record from which the message was made, or None if no exactly-once harvester has sent it.

    `message` is the message of a client (confluent-kafka, kafka-python, aiokafka, a row of Spark with headers), or its
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
            f"The header {header!r} is {text!r:.100}, which is not the id of a record. If another program writes a "
            "header of this name, set ID_HEADER to another name, and pass it: identity(message, header=...)."
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
            f"A {type(headers).__name__} is neither a message with headers nor headers. Pass the message that the "
            "consumer returned, or its headers as (name, value) pairs."
        ) from None
