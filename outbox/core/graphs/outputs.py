"""What a step writes: from what a function returned to records of Kafka, or why that cannot be sent. Pure.

A record says which step has written it, and, if the graph wants that, through which topics its content came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outbox.core.consumers.values import Fetched
from outbox.core.graphs.steps import STEP_HEADER, Step
from outbox.core.graphs.values import Processor

PROVENANCE_HEADER = "outbox-provenance"
HOPS_MAX = 100
"""The newest are kept: a graph with a cycle has no end of them."""
RESERVE_BYTES = 128
"""Of a record beside key, value and headers."""

Encode = Callable[[Any], bytes]


class InvalidOutput(ValueError):
    """Nothing of what the function returned is sent."""


class _SameKey:
    def __repr__(self) -> str:
        return "the key of the input"


SAME_KEY = _SameKey()


@dataclass(frozen=True, slots=True)
class Output:
    """One message to be written. A value of None is a tombstone. The key is that of the step's first message, unless it
    is given; None: no key."""

    value: Any = None
    key: Any = SAME_KEY
    headers: Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]] = ()


class Produced(NamedTuple):
    """A record as the client takes it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        names = sum(len(name.encode()) + len(value or b"") + 4 for name, value in self.headers)
        return RESERVE_BYTES + len(self.key or b"") + len(self.value or b"") + names


class OutputMaker:
    """Of the outputs of one processor."""

    def __init__(
        self, processor: Processor, *, encode: Encode = lambda value: as_json(value), provenance: bool, bytes_max: int
    ) -> None:
        self._processor, self._encode, self._provenance, self._bytes_max = processor, encode, provenance, bytes_max
        self._outputs = {stream.binding: stream.topic for stream in processor.outputs}
        self._is_fork = len(self._outputs) > 1 or any(s.binding != s.topic for s in processor.outputs)

    def outputs(self, consumed: Step, step: str, returned: Any) -> list[Produced]:
        """Raises `InvalidOutput`."""
        if returned is None:
            return []
        hops = ((PROVENANCE_HEADER, provenance(consumed)),) if self._provenance else ()
        found = []
        for binding, outputs in self._bound(returned):
            for number, output in enumerate(outputs):
                name = f"{step}:{binding}" if len(outputs) == 1 else f"{step}:{binding}:{number}"
                own = ((STEP_HEADER, name.encode()), *hops)
                found.append(self._record(binding, output, consumed, own))
        return found

    def _bound(self, returned: Any) -> Iterator[tuple[str, list[Any]]]:
        if not self._is_fork:
            yield next(iter(self._outputs)), _listed(returned)
            return
        if not isinstance(returned, Mapping):
            raise InvalidOutput(
                f"The function returned {type(returned).__name__}, and it has the outputs {', '.join(self._outputs)}. "
                "Return a mapping of these names, or None."
            )
        unknown = [name for name in returned if name not in self._outputs]
        if unknown:
            raise InvalidOutput(
                f"The function returned the output {unknown[0]!r:.100}. Its outputs are {', '.join(self._outputs)}."
            )
        for name, value in returned.items():
            if value is not None:
                yield name, _listed(value)

    def _record(self, binding: str, given: Any, consumed: Step, own: Sequence[tuple[str, bytes]]) -> Produced:
        output = given if isinstance(given, Output) else Output(given)
        key = consumed[0].key if output.key is SAME_KEY else _bytes(output.key, "key")
        headers = output.headers.items() if isinstance(output.headers, Mapping) else output.headers
        try:
            given_headers = tuple((str(name), _bytes(value, f"header {name!r:.100}")) for name, value in headers)
        except (TypeError, ValueError) as error:
            raise InvalidOutput(f"The headers of an output for {binding!r} are no pairs of texts: {error}") from error
        found = Produced(self._outputs[binding], key, self._value(output.value, binding), (*given_headers, *own))
        if found.size > self._bytes_max:
            raise InvalidOutput(
                f"An output for {binding!r} has {found.size:,} bytes, and {self._bytes_max:,} are allowed "
                "(MAX_MESSAGE_BYTES)."
            )
        return found

    def _value(self, value: Any, binding: str) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        try:
            return value.encode() if isinstance(value, str) else self._encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOutput(f"An output for {binding!r} cannot be written: {error}") from error


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _listed(value: Any) -> list[Any]:
    return [one for one in value if one is not None] if isinstance(value, list | tuple) else [value]


def _bytes(value: Any, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise InvalidOutput(f"The {what} of an output is {type(value).__name__}. Give a text or bytes.")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidOutput(f"The {what} of an output is no text that UTF-8 can express.") from error


# ---- where it came from


def provenance(consumed: Sequence[Fetched]) -> bytes:
    """Topic, partition, offset and time of each message on the way, the oldest first."""
    hops: dict[tuple[Any, ...], None] = {}
    for message in consumed:
        hops |= dict.fromkeys(_hops(message))
    hops |= dict.fromkeys((one.topic, one.partition, one.offset, one.timestamp_ms) for one in consumed)
    return as_json(list(hops)[-HOPS_MAX:])


def _hops(message: Fetched) -> list[tuple[Any, ...]]:
    """What its own header says, if that can be read."""
    found = [value for name, value in message.headers if name == PROVENANCE_HEADER]
    try:
        return [
            (str(topic), int(at), int(offset), int(time)) for topic, at, offset, time in json.loads(found[-1] or "")
        ]
    except (IndexError, TypeError, ValueError):
        return []
