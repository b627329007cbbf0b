"""How it is, in one sentence, and what to do about it: above everything else on the dashboard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outbox.admin.dashboard.last_verification import LastVerification
from outbox.admin.explain import Held
from outbox.admin.wording import duration, plural

OLD_S = 60.0
START = "See that Kafka answers, and that a harvester runs: python manage.py harvest"
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
    """`found` as `operations.stats` says it."""
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
        return Summary(WARN, "Something waits for you.", notices)
    waiting = found["backlog"]["records"]
    if not waiting:
        return Summary(GOOD, "All is well: nothing waits.", notices)
    return Summary(GOOD, f"All is well: {plural(waiting, 'record')} on the way.", notices)


def _delivery(found: dict[str, Any]) -> Notice | None:
    state = found["state"] or {}
    seen_s = state.get("lease_seen_s")
    if state.get("lease_mode") == "spark" and seen_s is not None and seen_s < OLD_S:
        return None
    if state.get("resize_to"):
        return Notice(
            WARN,
            f"The lanes are being changed from {state['lanes']} to {state['resize_to']}.",
            "Nothing needs to be done: delivery goes on when it is over.",
        )
    lanes = found["lanes"]
    ownerless = [lane["lane"] for lane in lanes if not lane["is_owned"] and lane["lane"] < state.get("lanes", 1)]
    if not any(lane["is_owned"] for lane in lanes):
        return Notice(BAD, "No harvester is at work: none runs, or Kafka is away.", START)
    if ownerless:
        names = ", ".join(map(str, ownerless[:10]))
        return Notice(
            BAD,
            f"Nobody works on lane {names}; its records wait.",
            "Look for lane_stopped in the harvesters' log, or start another harvester.",
        )
    return None


def _verified(verified: LastVerification | None) -> Notice | None:
    if verified is None or verified.is_clean:
        return None
    return Notice(WARN, "The last verification has found faults.", "", "#outbox-verified", "See which")


def _age(found: dict[str, Any], held: Held) -> Notice | None:
    """Where something is held back, its records are the oldest, and that is known."""
    age_s = found["backlog"]["oldest_age_s"]
    if age_s <= OLD_S or held.rejected_count or held.paused_count:
        return None
    return Notice(
        WARN,
        f"The oldest record has waited for {duration(age_s)}.",
        "Look at the backlog below: where it grows, see the harvesters' log.",
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
    text = f"{what} held back as a whole, because Kafka takes no record of {of}; all other topics go on."
    return Notice(WARN, text, "", "#outbox-held", "See why, and what to do")


def _rejected(held: Held) -> Notice | None:
    count = held.rejected_count - held.topic_count
    if count <= 0:
        return None
    others = "" if held.topic_count else "; all others go on"
    text = f"{plural(count, 'key')} {'is' if count == 1 else 'are'} held back, because Kafka rejected a record{others}."
    return Notice(WARN, text, "", "#outbox-held", "See which, why, and what to do")


def _dead(held: Held) -> Notice | None:
    if not held.dead_count:
        return None
    one = held.dead_count == 1
    text = f"{held.dead_text} {'dead letter waits' if one else 'dead letters wait'} for a decision."
    return Notice(WARN, text, "", held.dead_url, "Look at them" if held.dead_url else "")
