"""Whether the messages of a step belong together, and whether its function wants them. Pure."""

from __future__ import annotations

from outbox.core.consumers.values import Fetched
from outbox.core.graphs.steps import Step
from outbox.core.graphs.values import StepFilter

TYPE_HEADER = "type"


def different_keys(consumed: Step) -> bool:
    """A pair whose messages have keys has one key. A message without a key goes with any."""
    return len({message.key for message in consumed if message.key is not None}) > 1


def mismatch(consumed: Step) -> str:
    """Why the lane stops: with the position of each message."""
    shown = " and ".join(
        f"{one.topic}[{one.partition}] offset {one.offset} with the key {_text(one.key)}" for one in consumed
    )
    return (
        f"The join pairs {shown}, which do not belong together: a message is missing, or is there twice, on one side. "
        "Compare the topics. If these messages do belong together, set check= to a function that says so."
    )


def is_wanted(only: StepFilter, consumed: Step) -> bool:
    """As far as topic and type tell."""
    first = consumed[0]
    if only.topics and first.topic not in only.topics:
        return False
    return not only.types or _type(first) in only.types


def _type(message: Fetched) -> str | None:
    found = [value for name, value in message.headers if name == TYPE_HEADER]
    return found[-1].decode(errors="replace") if found and found[-1] is not None else None


def _text(key: bytes | None) -> str:
    return "None" if key is None else repr(key.decode(errors="backslashreplace"))[:100]
