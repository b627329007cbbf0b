"""The top of the dashboard: one sentence about the state, and the notices with their next steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outbox.admin.dashboard.last_verification import LastVerification
from outbox.admin.explain import Held
from outbox.admin.wording import duration, plural

OLD_S = 60.0
LANES_NAMED = 10
START = "Check that Kafka answers, and start a harvester: python manage.py harvest"
GOOD, WARN, BAD = "", "warn", "bad"


@dataclass(frozen=True, slots=True)
class Notice:
    level: str
    text: str
    step: str
    url: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    level: str
    headline: str
    notices: Sequence[Notice]


def summarise(found: dict[str, Any], held: Held, verified: LastVerification | None = None) -> Summary:
    """`found` comes from `operations.stats`."""
    all_notices = (
        _delivery(found),
        _verified(verified),
        _age(found, held),
        _topics(held),
        _rejected(held),
        _dead(held),
    )
    notices = [notice for notice in all_notices if notice]
    levels = {notice.level for notice in notices}
    if BAD in levels:
        some = "Some records" if any(lane["is_owned"] for lane in found["lanes"]) else "Records"
        return Summary(BAD, f"{some} are not being delivered.", notices)
    if WARN in levels:
        return Summary(WARN, "Read the notices below.", notices)
    waiting = found["backlog"]["records"]
    if not waiting:
        return Summary(GOOD, "Delivery works normally. No records are waiting.", notices)
    verb = "is" if waiting == 1 else "are"
    return Summary(GOOD, f"Delivery works normally. {plural(waiting, 'record')} {verb} waiting.", notices)


def _delivery(found: dict[str, Any]) -> Notice | None:
    state = found["state"] or {}
    seen_s = state.get("lease_seen_s")
    if state.get("lease_mode") == "spark" and seen_s is not None and seen_s < OLD_S:
        return None
    if state.get("resize_to"):
        return Notice(
            WARN,
            f"The harvester is changing the lane count from {state['lanes']} to {state['resize_to']}.",
            "You need to do nothing: delivery then resumes automatically.",
        )
    lanes = found["lanes"]
    ownerless = [lane["lane"] for lane in lanes if not lane["is_owned"] and lane["lane"] < state.get("lanes", 1)]
    if not any(lane["is_owned"] for lane in lanes):
        return Notice(BAD, "No harvester owns a lane: none is running, or Kafka is unavailable.", START)
    if ownerless:
        return Notice(
            BAD,
            f"{_named(ownerless)}, so no records are sent there.",
            "Search the harvesters' log for lane_stopped, or start another harvester.",
        )
    return None


def _named(ownerless: Sequence[int]) -> str:
    if len(ownerless) == 1:
        return f"Lane {ownerless[0]} has no owner"
    more = len(ownerless) - LANES_NAMED
    names = ", ".join(map(str, ownerless[:LANES_NAMED]))
    return f"Lanes {names}{f' and {more:,} more' if more > 0 else ''} have no owner"


def _verified(verified: LastVerification | None) -> Notice | None:
    if verified is None or verified.is_clean:
        return None
    return Notice(WARN, "The last verification found faults.", "", "#outbox-verified", "Show them")


def _age(found: dict[str, Any], held: Held) -> Notice | None:
    """No notice while records are held back: these are the oldest, and another notice names them."""
    age_s = found["backlog"]["oldest_age_s"]
    if age_s <= OLD_S or held.rejected_count or held.paused_count:
        return None
    return Notice(
        WARN,
        f"The oldest record has waited for {duration(age_s)}.",
        "Check the backlog below. If it grows, read the harvesters' log.",
    )


def _topics(held: Held) -> Notice | None:
    if not held.topic_count:
        return None
    names, more = ", ".join(held.topics), held.topic_count - len(held.topics)
    if held.topic_count == 1:
        what, of = f"The topic {names} is" if names else "1 topic is", "it"
    else:
        named = f" ({names}{f' and {more:,} more' if more else ''})" if names else ""
        what, of = f"{plural(held.topic_count, 'topic')}{named} are", "them"
    text = f"{what} held back as a whole, because Kafka rejects every record of {of}. All other topics continue."
    return Notice(WARN, text, "", "#outbox-held", "Show why, and what to do")


def _rejected(held: Held) -> Notice | None:
    keys, keyless = held.key_count, held.keyless_count
    if keys + keyless <= 0:
        return None
    parts = ([plural(keys, "key")] if keys else []) + ([_keyless(keyless)] if keyless else [])
    verb = "is" if keys + keyless == 1 else "are"
    others = "" if held.topic_count else " All other records continue."
    text = f"{' and '.join(parts)} {verb} held back, because of rejected or poison records.{others}"
    return Notice(WARN, text, "", "#outbox-held", "Show which, why, and what to do")


def _keyless(count: int) -> str:
    return f"{plural(count, 'record')} without a key"


def _dead(held: Held) -> Notice | None:
    if not held.dead_count:
        return None
    one = held.dead_count == 1
    text = f"{held.dead_text} {'dead letter waits' if one else 'dead letters wait'} for your decision."
    return Notice(WARN, text, "", held.dead_url, "Show them" if held.dead_url else "")
