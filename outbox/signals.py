"""Django signals of the harvester. Receivers run one after another in a thread of their own, in the harvest process.

Every signal is sent with ``sender=Harvester`` (the class) and these arguments:

- ``harvester``: the `outbox.harvest.Harvester` that it happened to,
- ``lane``: the number of the lane,

and those named below. When a receiver raises, the harvester logs the error and continues. A slow receiver delays later
receivers, but never the election or the sending. The harvester waits only for receivers of `leader_revoked`, within the
limits that its entry names.

Per lane the order is: acquired (refreshed)* (revoked | fenced), and after fenced either acquired or revoked. A leader
id is random and never used twice. There is no `meter_read` between the end of a leadership and the next `acquired`.
"""

from django.dispatch import Signal

leader_acquired = Signal()
"""This process owns the lane. Arguments: ``leader_id`` (UUID), ``epoch`` (int, grows with every owner)."""

leader_refreshed = Signal()
"""The owner continues under another id, because an outcome was in doubt. Arguments: ``leader_id``, ``epoch``."""

leader_revoked = Signal()
"""This process has given the lane back; nothing of it is in flight. Argument: ``leader_id`` of the leadership that
ended.

The next owner starts when the receivers have returned. It waits at most FLUSH_TIMEOUT (never more than
three quarters of SESSION_TIMEOUT) after Kafka has asked for the lane.
"""

leader_fenced = Signal()
"""Another process may own the lane already, so this one has dropped everything in flight. Arguments: ``leader_id``,
``reason``.

``reason`` is one of lost, heartbeat-timeout, newer-owner, not-a-member, superseded. No process waits for its receivers.
"""

meter_read = Signal()
"""The harvester reports how fast the lane delivers, at most once per METRICS_INTERVAL and only while it delivers.

Arguments: ``leader_id``, ``delivered`` (records since the lane was acquired), ``interval_s``, ``rate`` (records per
second in the interval), ``average_rate`` (since the lane was acquired), ``in_flight``. The harvester drops readings
when receivers are too slow.
"""

batch_delivered = Signal()
"""Exactly-once: the harvester has committed a batch that has records with a trace context.

Arguments: ``leader_id``, ``batch`` (its number), ``count``, ``began_ns`` and ``committed_ns`` (wall clock), ``traced``:
for each such record, up to a hundred, an object with ``record_id``, ``topic``, ``traceparent``, ``tracestate`` and
``stashed_at`` (milliseconds, as text). The harvester drops events when
receivers are too slow.
"""

record_held = Signal()
"""Kafka rejected a record; the later records of its key wait.

Arguments: ``record_id``, ``topic`` and ``key`` (both None for a record without key), ``attempts``, ``error``.
"""

lane_stopped = Signal()
"""The lane sends and deletes nothing. In exactly-once delivery it waits for the decision of an operator. In both modes
it waits until an operator has removed the object that keeps its rows from being deleted. Other lanes continue.

Argument: ``reason``, with the state of both servers and the command that settles the lane. Sent once per reason.
"""
