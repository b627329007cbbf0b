"""The contents of the dashboard as values that are ready to be shown: a summary, numbers, charts and lanes.

All of it comes from the database, by the functions that `outbox_stats` uses; Kafka is not asked. One transaction with
a time limit reads it and is rolled back, so the page changes nothing and blocks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db import connections

from outbox.admin import explain as held
from outbox.admin.dashboard import charts
from outbox.admin.dashboard import last_verification as verified
from outbox.admin.dashboard.charts import Chart, Point, Series
from outbox.admin.dashboard.summary import Summary, summarise
from outbox.admin.reading import bounded, now_of
from outbox.admin.wording import clock, duration, moment, number, rate
from outbox.conf import Conf
from outbox.models import Sample
from outbox.operations import stats

WINDOW = timedelta(hours=1)
# The present rates cover at least this time, because PostgreSQL counts rows up to a second late.
RATE_MIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    label: str
    value: str
    raw: float
    """The exact number, beside the text."""
    note: str = ""
    level: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class LaneRow:
    number: int
    owner: str
    state: str
    level: str
    heartbeat: str
    heartbeat_s: float | None
    batch: str


@dataclass(frozen=True, slots=True)
class DashboardPage:
    at: str
    summary: Summary
    tiles: Sequence[Tile]
    charts: Sequence[Chart]
    times: Sequence[str]
    lanes: Sequence[LaneRow]
    held: held.Held
    verified: verified.LastVerification | None


def read(conf: Conf, may_view: Callable[[str], bool] = lambda name: True) -> DashboardPage:
    """`may_view`: whether the user may see the model of this name; otherwise only its number is shown."""
    with bounded(conf.database) as connection:
        # The connection below Django's, whose errors are psycopg's own.
        with connections[conf.database].wrap_database_errors:
            found = stats.of_database(connection, conf)
        now = now_of(conf.database)
        samples = list(Sample.objects.using(conf.database).filter(taken_at__gt=now - WINDOW).order_by("taken_at"))
        kept = held.read(conf.database, found, now, may_view)
        verification = verified.read(conf, now)
    samples = _with_now(samples, found, now)
    return DashboardPage(
        at=moment(now),
        summary=summarise(found, kept, verification),
        tiles=_tiles(found, kept, samples),
        charts=_charts(samples, now),
        times=[clock(now - WINDOW * part / 4) for part in range(4, 0, -1)] + ["now"],
        lanes=_lanes(found),
        held=kept,
        verified=verification,
    )


def _with_now(samples: list[Sample], found: dict[str, Any], now: datetime) -> list[Sample]:
    """The samples, with the present as the last one. It replaces samples that are less than `RATE_MIN_S` old."""
    waiting = found["backlog"]
    present = Sample(
        taken_at=now,
        backlog=waiting["records"],
        oldest_age_s=waiting["oldest_age_s"],
        stashed=waiting["stashed_total"],
        delivered=waiting["deleted_total"],
    )
    earlier = [sample for sample in samples if (now - sample.taken_at).total_seconds() >= RATE_MIN_S]
    return [*earlier, present]


# --- numbers --------------------------------------------------------------------------------------------------------


def _tiles(found: dict[str, Any], kept: held.Held, samples: Sequence[Sample]) -> list[Tile]:
    waiting = found["backlog"]
    about = "about " if waiting["is_estimate"] else ""
    stashed, delivered = (_last_rate(samples, name) for name in ("stashed", "delivered"))
    return [
        Tile("backlog", "Waiting", f"{about}{number(waiting['records'])}", waiting["records"], "records in the table"),
        Tile(
            "oldest",
            "Oldest record",
            duration(waiting["oldest_age_s"]) if waiting["records"] else "–",
            waiting["oldest_age_s"],
            "by the database's clock" if waiting["records"] else "no record waits",
        ),
        Tile("stashed", "Stashed", *_rate(stashed), _total(samples, "stashed")),
        Tile("delivered", "Delivered", *_rate(delivered), _total(samples, "delivered")),
        Tile(
            "held",
            "Held back",
            number(kept.rejected_count),
            kept.rejected_count,
            kept.pauses,
            "warn" if kept.rejected_count else "",
            kept.url,
        ),
        Tile(
            "dead",
            "Dead letters",
            kept.dead_text,
            kept.dead_count,
            "kept until you decide",
            "warn" if kept.dead_count else "",
            kept.dead_url,
        ),
    ]


def _rate(value: float | None) -> tuple[str, float]:
    return ("–", -1.0) if value is None else (rate(value), round(value, 3))


def _points(samples: Sequence[Sample], name: str) -> list[Point]:
    return [Point(sample.taken_at, getattr(sample, name)) for sample in samples]


def _last_rate(samples: Sequence[Sample], name: str) -> float | None:
    return charts.rates(_points(samples, name))[-1].value


def _total(samples: Sequence[Sample], name: str) -> str:
    """Since the first sample of the window; a count that was reset adds nothing."""
    counts = [getattr(sample, name) for sample in samples]
    grown = sum(max(0, after - before) for before, after in pairwise(counts))
    return f"{number(grown)} in the last hour" if len(counts) > 1 else "no samples yet"


# --- charts ---------------------------------------------------------------------------------------------------------


def _charts(samples: Sequence[Sample], now: datetime) -> list[Chart]:
    waiting = Series("waiting", "waiting", _points(samples, "backlog"))
    flows = [Series(name, name, charts.rates(_points(samples, name))) for name in ("stashed", "delivered")]
    return [
        charts.chart("Backlog, last hour", [waiting], now, WINDOW, number, clock, filled=True),
        charts.chart("Throughput, last hour", flows, now, WINDOW, rate, clock),
    ]


# --- lanes ----------------------------------------------------------------------------------------------------------


def _lanes(found: dict[str, Any]) -> list[LaneRow]:
    """The lanes in use. Lanes above the lane count are shown only while they have an owner."""
    count = (found["state"] or {}).get("lanes")
    return [_lane(lane) for lane in found["lanes"] if count is None or lane["lane"] < count or lane["is_owned"]]


def _lane(lane: dict[str, Any]) -> LaneRow:
    heartbeat_s = lane["heartbeat_s"]
    state, level = ("owned", "") if lane["is_owned"] else ("no owner", "bad")
    said = "never" if heartbeat_s is None else f"{duration(heartbeat_s)} ago"
    batch = "" if lane["purged_batch"] is None else number(lane["purged_batch"])
    return LaneRow(lane["lane"], lane["owner"] or "", state, level, said, heartbeat_s, batch)
