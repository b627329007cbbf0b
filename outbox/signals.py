"""Django signals of the harvester. Receivers run one after another in a thread of their own, in the harvest process.

Every signal is sent with ``sender=Harvester`` (the class) and these arguments:

- ``harvester``: the `outbox.harvest.Harvester` that it happened to,
- ``lane``: the number of the lane,

and those named below. A receiver that raises is logged and changes nothing. A slow one delays later receivers, never
the election or the sending; only `leader_revoked` is waited for, within the limits that its entry names.

Per lane the order is: acquired (refreshed)* (revoked | fenced), and after fenced either acquired or revoked. A leader
id is random and never used twice. There is no `meter_read` between the end of a leadership and the next `acquired`.
"""

from django.dispatch import Signal

leader_acquired = Signal()
"""This process owns the lane. Arguments: ``leader_id`` (UUID), ``epoch`` (int, grows with every owner)."""

leader_refreshed = Signal()
"""The owner goes on under another id, because an outcome was in doubt. Arguments: ``leader_id``, ``epoch``."""

leader_revoked = Signal()
"""The lane is given back, nothing of it is in flight any more. Argument: ``leader_id`` of the leadership that ended.

The next owner starts after the receivers have returned, or after FLUSH_TIMEOUT (at most three quarters of
SESSION_TIMEOUT) since the lane was asked back, whichever comes first.
"""

leader_fenced = Signal()
"""Somebody else may own the lane already: everything in flight was dropped at once. Arguments: ``leader_id``,
``reason``.

``reason`` is one of lost, heartbeat-timeout, newer-owner, not-a-member, superseded. Nobody waits for its receivers.
"""

meter_read = Signal()
"""How fast the lane delivers, at most once per METRICS_INTERVAL and only while it delivers.

Arguments: ``leader_id``, ``delivered`` (records since the lane was acquired), ``interval_s``, ``rate`` (records per
second in the interval), ``average_rate`` (since the lane was acquired), ``in_flight``. Readings are dropped when
receivers cannot follow.
"""

batch_delivered = Signal()
"""Exactly-once: a batch was committed that has records with a trace context; not sent for others.

Arguments: ``leader_id``, ``batch`` (its number), ``count``, ``began_ns`` and ``committed_ns`` (wall clock), ``traced``:
for each such record, up to a hundred, an object with ``record_id``, ``topic``, ``traceparent``, ``tracestate`` and
``stashed_at`` (milliseconds, as text). Dropped when receivers cannot follow.
"""

record_held = Signal()
"""Kafka rejected a record; it holds back the later ones of its key.

Arguments: ``record_id``, ``topic`` and ``key`` (both None for a record without key), ``attempts``, ``error``.
"""

lane_stopped = Signal()
"""The lane sends and deletes nothing until an operator has decided (exactly-once delivery alone), or until somebody has
removed what keeps its rows from being deleted. Other lanes go on.

Argument: ``reason``, with what was found on both sides and the command that settles it. Told once per reason.
"""
