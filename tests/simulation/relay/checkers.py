"""What must hold at the end of a scenario of relays."""

from __future__ import annotations

from typing import Any

from outbox.core.relay.settlement import FAILED, POISON, REJECTED
from tests.simulation.checkers import Violation


def check_end(world: Any) -> None:
    check_none_lost(world)
    check_dead(world)
    check_order(world)


def check_none_lost(world: Any) -> None:
    """Each delivery was accepted, or is dead, or waits behind a dead one of its key."""
    accepted = {id_ for receiver in world.receivers.values() for id_ in receiver.accepted}
    rows = world.table.rows
    for id_ in world.posted:
        if id_ not in rows and id_ not in accepted:
            raise Violation(f"delivery {id_} is gone, and no receiver has accepted it")
        if id_ in rows and not rows[id_].reason and not world.is_blocked(id_):
            raise Violation(f"delivery {id_} still waits")


def check_dead(world: Any) -> None:
    """Those that can never succeed are dead, with their reason. Of the others those that met so many outages as they
    have attempts: each outage may cost one."""
    expected = {**dict.fromkeys(world.rejected, REJECTED), **dict.fromkeys(world.failing, FAILED)}
    expected |= dict.fromkeys(world.crashing, POISON)
    for id_, row in world.table.rows.items():
        may_be_dead = len(world.met.get(id_, ())) >= world.options[row.destination].schedule.attempts
        if row.reason and row.reason != expected.get(id_) and not (row.reason == FAILED and may_be_dead):
            raise Violation(f"delivery {id_} is dead ({row.reason}), and should not be")
        if row.attempts < 0 or row.attempts != len(row.charged_by):
            raise Violation(f"delivery {id_} has {row.attempts} attempts")


def check_order(world: Any) -> None:
    """Of an ordered key each delivery is accepted first behind those before it. A repeat may come late."""
    for receiver in world.receivers.values():
        first: dict[str, int] = {}
        for id_ in dict.fromkeys(receiver.accepted):
            key = world.posted[id_]
            if key and first.setdefault(key, id_) > id_:
                raise Violation(f"delivery {id_} of the key {key} was accepted behind {first[key]}")
            first[key] = id_
