"""The state of an outbox in numbers: the backlog, the owner of each lane, the batches of table and ledger.

It only reads. It asks Kafka only for the ledger. If Kafka is unavailable, these numbers are missing and the reason is
given.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import psycopg

from outbox.conf import AT_LEAST_ONCE, EXACTLY_ONCE, Conf
from outbox.core.exactly_once.ledger import LedgerEntryError
from outbox.edges.kafka.common.stable_lag import stable_lag
from outbox.edges.kafka.exactly_once.ledger_topic import LedgerMissing, LedgerTopic, LedgerUnreachable
from outbox.edges.postgres.at_least_once.marks import WrongTable
from outbox.edges.postgres.common import table
from outbox.edges.postgres.counts import backlog as backlogs
from outbox.edges.postgres.operations import companions
from outbox.exceptions import OutboxError

ALIVE_S = 10.0  # heartbeats come every few seconds
_LEDGER_S = 5.0
_NAME = "outbox stats"

Connection = psycopg.Connection[Any]


def require_alias(alias: str) -> None:
    from django.db import connections

    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise OutboxError(f"The alias {alias!r} is not in DATABASES, which has {known}. Use one of these.")


def connect(conf: Conf, alias: str) -> Connection:
    require_alias(alias)
    try:
        return table.connect_bounded(
            table.parameters(alias), statement_timeout_s=conf.harvest.statement_timeout_s, application_name=_NAME
        )
    except psycopg.OperationalError as error:
        reason = " ".join(str(error).split())
        raise OutboxError(f"PostgreSQL of the alias {alias!r} cannot be reached: {reason}") from error


def collect(conf: Conf, alias: str, *, with_kafka: bool = True, interval_s: float = 0.0) -> dict[str, Any]:
    """All numbers, as plain values. With an interval it reads the counts twice and computes rates."""
    with closing(connect(conf, alias)) as connection:
        try:
            found = of_database(connection, conf)
            rates = _rates(connection, conf, found["backlog"], interval_s) if interval_s else None
        except psycopg.errors.UndefinedTable as error:
            raise WrongTable(
                f"The table {conf.table!r} does not exist on the alias {alias!r}. "
                f"Run: python manage.py migrate outbox --database {alias}"
            ) from error
    asks_kafka = with_kafka and conf.delivery == EXACTLY_ONCE
    ledger = _ledger(conf, found["lanes"], found["state"]) if asks_kafka else None
    return {
        "name": conf.name,
        "database": alias,
        "table": conf.table,
        "delivery": conf.delivery,
        "backlog": found.pop("backlog"),
        "rates": rates,
        "state": found.pop("state"),
        "lanes": found.pop("lanes"),
        "ledger": ledger,
        **found,
    }


def of_database(connection: Connection, conf: Conf) -> dict[str, Any]:
    """The numbers of the database, by a few statements that are cheap on a table of any size. The caller sets the
    planner of the connection so that it does not read whole tables (`table.PLANNER`)."""
    return {
        "backlog": _waiting(connection, conf),
        "lanes": [_lane(*row) for row in companions.lanes(connection, conf.table)],
        "state": _state(connection, conf),
        **{
            name: backlogs.count_rows(connection, f"{conf.table}_{suffix}")
            for name, suffix in (("holds", "hold"), ("dead_letters", "dead"))
        },
        "holds_by_reason": companions.holds_by_reason(connection, conf.table),
    }


def _waiting(connection: Connection, conf: Conf) -> dict[str, Any]:
    found = backlogs.backlog(connection, conf.table)
    return {
        "records": found.records,
        "is_estimate": found.is_estimate,
        "oldest_age_s": round(found.oldest_age_s, 3),
        "stashed_total": found.stashed_total,
        "deleted_total": found.deleted_total,
    }


def _rates(connection: Connection, conf: Conf, first: dict[str, Any], interval_s: float) -> dict[str, float]:
    """By PostgreSQL's counts of rows, which are up to a second late."""
    begun = time.monotonic()
    time.sleep(interval_s)
    second, took_s = _waiting(connection, conf), time.monotonic() - begun
    names = {"stashed_per_s": "stashed_total", "delivered_per_s": "deleted_total"}
    return {rate: round((second[total] - first[total]) / took_s, 1) for rate, total in names.items()}


def _state(connection: Connection, conf: Conf) -> dict[str, Any] | None:
    state = companions.state(connection, conf.table)
    if state is not None and conf.delivery == AT_LEAST_ONCE:
        state["lanes"] = conf.election.lanes  # its harvesters use the setting, and not the row of the first of them
    return state


def _lane(
    lane: int, owner: str | None = None, heartbeat_s: float | None = None, batch: int | None = None
) -> dict[str, Any]:
    return {
        "lane": lane,
        "owner": owner,
        "heartbeat_s": None if heartbeat_s is None else round(heartbeat_s, 3),
        "is_owned": heartbeat_s is not None and heartbeat_s <= ALIVE_S,
        "purged_batch": batch,
        "ledger_batch": None,
        "ledger_database": None,
    }


def _ledger(conf: Conf, lanes: list[dict[str, Any]], state: dict[str, Any] | None) -> dict[str, Any]:
    """Puts the last committed batch of each lane into `lanes`, and counts the offsets behind an open transaction."""
    topic = LedgerTopic(conf.kafka.client_properties, f"{conf.name}.ledger")
    found: dict[str, Any] = {"topic": topic.name, "error": None, "open_offsets": None}
    count = state["lanes"] if state else 0
    try:
        lags = stable_lag(conf.kafka.client_properties, topic.name)
        found["open_offsets"] = max(lags.values(), default=0)
        known = {lane["lane"] for lane in lanes}
        unknown = [number for number in range(topic.partitions()) if number not in known]
        lanes += [_lane(number) for number in unknown]  # a restored database may lack these
        lanes.sort(key=lambda lane: int(lane["lane"]))
        for lane in (lane for lane in lanes if lane["lane"] < count or lane["lane"] in unknown):
            entry = topic.last_entry(lane["lane"], time.monotonic() + _LEDGER_S)
            lane["ledger_batch"] = entry.batch if entry is not None else 0
            lane["ledger_database"] = str(entry.database) if entry is not None else None
        lanes[:] = [lane for lane in lanes if lane["lane"] not in unknown or lane["ledger_batch"]]
    except (LedgerUnreachable, LedgerMissing, LedgerEntryError) as error:
        found["error"] = str(error)
    except Exception as error:  # the client has no brokers
        found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        topic.close()
    return found


def as_text(found: dict[str, Any]) -> list[str]:
    """Lines for people, one per fact."""
    waiting, state = found["backlog"], found["state"] or {}
    about = "about " if waiting["is_estimate"] else ""
    records = "1 record" if waiting["records"] == 1 else f"{waiting['records']:,} records"
    oldest = f"; the oldest has waited for {waiting['oldest_age_s']:,.1f} s" if waiting["records"] else ""
    lines = [
        f"outbox {found['name']!r}: table {found['table']!r} on {found['database']!r}, {found['delivery']}",
        f"backlog: {about}{records}{oldest}",
    ]
    if found["rates"]:
        lines.append("rates: {stashed_per_s:,} stashed/s, {delivered_per_s:,} delivered/s".format(**found["rates"]))
    if state.get("lease_mode"):
        lines.append(_mode_text(state))
    if state.get("resize_to") or state.get("lanes_wanted"):
        lines.append(f"lanes: the count changes from {state['lanes']} to {state['resize_to'] or state['lanes_wanted']}")
    lines += [_lane_text(lane) for lane in found["lanes"]] or [
        "lanes: none has an owner (no harvester is running, or Kafka is unavailable)"
    ]
    for name, text in (("holds", "held back"), ("dead_letters", "dead letters")):
        if found[name] is not None:
            reasons = found["holds_by_reason"] if name == "holds" else {}
            named = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
            lines.append(f"{text}: {found[name]:,}" + (f" ({named})" if named else ""))
    if found["ledger"]:
        ledger = found["ledger"]
        open_ = "unknown" if ledger["open_offsets"] is None else f"{ledger['open_offsets']:,}"
        lines.append(f"ledger {ledger['topic']!r}: {open_} offsets wait behind an open transaction")
        if ledger["error"]:
            lines.append(f"ledger cannot be read: {ledger['error']}")
    return lines


def _mode_text(state: dict[str, Any]) -> str:
    seen_s = state["lease_seen_s"]
    if seen_s is None:
        return f"lease: {state['lease_mode']} has released the table; any delivery mode may start"
    if seen_s < 0:  # the end of the lease is far ahead
        return f"lease: {state['lease_owner']} holds the table for {state['lease_mode']}, until its query ends cleanly"
    return f"lease: {state['lease_owner']} holds the table for {state['lease_mode']} (renewed {seen_s:.1f} s ago)"


def _lane_text(lane: dict[str, Any]) -> str:
    if lane["owner"] is None:
        who = "no owner (no harvester is running, or Kafka is unavailable)"
    elif lane["is_owned"]:
        who = f"{lane['owner']} (heartbeat {lane['heartbeat_s']:.1f} s ago)"
    else:
        last_seen = f"{lane['owner']}, {lane['heartbeat_s']:,.0f} s ago"
        who = f"no owner; the last one was {last_seen} (it has ended, or Kafka is unavailable)"
    purged, last = lane["purged_batch"], lane["ledger_batch"]
    batches = "" if purged is None else f", purged up to batch {purged}"
    return f"lane {lane['lane']}: {who}{batches}" + ("" if last is None else f", ledger at {last}")
