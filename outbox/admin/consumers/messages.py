"""Held messages and dead letters of consumers: what the lists and pages show of them, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from outbox.admin.wording import counted, duration
from outbox.edges.postgres.operations.messages import BEHIND_MAX
from outbox.models import ConsumerHold
from outbox.operations.held import text_of

_REASONS: Mapping[str, tuple[str, str]] = {
    ConsumerHold.Reason.FAILED: (
        "The function of the consumer failed.",
        "Correct the function and retry it, or edit, skip or discard it.",
    ),
    ConsumerHold.Reason.NOT_YET: (
        "The function has postponed the message.",
        "Wait for the next try, or skip or discard it.",
    ),
    ConsumerHold.Reason.POISON: (
        "The message ended the process of the consumer.",
        "Read the log of that time. Then correct the function and retry it, or edit, skip or discard it.",
    ),
    ConsumerHold.Reason.WAITING: (
        "An earlier message of its key is held.",
        "Decide about the first message of the key.",
    ),
}
_STEP_OF_DEAD = "Correct the function and requeue it, or edit or discard it."
_WANTED: Mapping[str, str] = {
    ConsumerHold.Wanted.RETRY: "The consumer is about to try it.",
    ConsumerHold.Wanted.SKIP: "The consumer is about to move it to the dead letters.",
    ConsumerHold.Wanted.DISCARD: "The consumer is about to delete it.",
}


def explained(row: ConsumerHold) -> tuple[str, str]:
    """The reason and the next step. A newer version may have written another reason."""
    why, step = _REASONS.get(row.reason, (row.reason, ""))
    return why, step if row.died_at is None else _STEP_OF_DEAD


def became(row: ConsumerHold, now: datetime) -> str:
    if row.wanted:
        return _WANTED.get(row.wanted, row.wanted)
    if row.died_at is not None:
        return "It is a dead letter."
    if row.next_try is not None:
        left_s = (row.next_try - now).total_seconds()
        return f"The consumer tries it in {duration(left_s)}." if left_s >= 1 else "The consumer is about to try it."
    if row.reason == ConsumerHold.Reason.WAITING:
        return "It waits for the earlier message."
    return "It waits for your decision."


def key_of(row: ConsumerHold) -> str:
    text = text_of(row.key)
    return "(no key)" if text is None else text or "(empty)"


def behind_text(count: int) -> str:
    return counted(count, BEHIND_MAX)
