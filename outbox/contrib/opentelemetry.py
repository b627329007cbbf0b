"""Spans of the harvester's deliveries, linked with the spans in which the messages were stashed.

Each committed batch gets a span ``outbox send``. Each record with a sampled trace context gets a span ``outbox wait``
in the record's own trace. It begins when the record was stashed and ends when Kafka has it, so its length is the time
in the table. The two spans are linked. The thread of signal receivers makes the spans after the commit: an exporter
that is slow or fails does not affect the harvester.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from outbox import __version__
from outbox.exceptions import missing_extra

try:
    from opentelemetry import trace
    from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState
except ImportError as error:
    missing_extra("metrics", error)

LINKS_MAX = 100
_PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_MILLISECOND_NS = 1_000_000


def context_of(traceparent: str, tracestate: str = "") -> SpanContext | None:
    """Return the remote span of a W3C trace context, or None when it is malformed."""
    found = _PARENT.fullmatch(traceparent)
    if found is None:
        return None
    state = TraceState.from_header([tracestate]) if tracestate else None
    return SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16)), state)


def tell(
    *,
    lane: int,
    batch: int,
    count: int,
    began_ns: int,
    committed_ns: int,
    traced: Sequence[Any],
    tracer_provider: Any = None,
    **named: Any,
) -> None:
    """Make the spans of one batch. A receiver of `outbox.signals.batch_delivered`."""
    found = [(record, context) for record in traced if (context := context_of(record.traceparent, record.tracestate))]
    sampled = [(record, context) for record, context in found if context.trace_flags & TraceFlags.SAMPLED]
    if not sampled:
        return
    tracer = trace.get_tracer("outbox", __version__, tracer_provider)
    sending = tracer.start_span(
        "outbox send",
        kind=SpanKind.PRODUCER,
        context=trace.set_span_in_context(trace.INVALID_SPAN),
        links=[Link(context) for _, context in sampled[:LINKS_MAX]],
        start_time=began_ns,
        attributes={
            "messaging.system": "kafka",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": count,
            "outbox.lane": lane,
            "outbox.batch": batch,
        },
    )
    for record, context in sampled:
        _wait(tracer, record, context, sending, lane, began_ns, committed_ns)
    sending.end(committed_ns)


def _wait(
    tracer: Any, record: Any, context: SpanContext, sending: Any, lane: int, began_ns: int, committed_ns: int
) -> None:
    """Make the span from stash to commit. Writers' clocks may be ahead, but no span ends before it begins."""
    stashed_ns = int(record.stashed_at) * _MILLISECOND_NS if record.stashed_at.isdecimal() else began_ns
    start_ns = min(stashed_ns, committed_ns)
    span = tracer.start_span(
        f"outbox wait {record.topic}",
        kind=SpanKind.PRODUCER,
        context=trace.set_span_in_context(NonRecordingSpan(context)),
        links=[Link(sending.get_span_context())],
        start_time=start_ns,
        attributes={
            "messaging.system": "kafka",
            "messaging.destination.name": record.topic,
            "outbox.record_id": record.record_id,
            "outbox.lane": lane,
            "outbox.in_table_s": max(0.0, (began_ns - start_ns) / 1e9),
        },
    )
    span.add_event("sent", timestamp=max(start_ns, began_ns))
    span.end(committed_ns)


__all__ = ["context_of", "tell"]
