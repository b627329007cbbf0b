"""A trace goes on through the table: its context is stored at stash, and the wait and the sending become spans."""

import re
import subprocess
import sys
import textwrap

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

import outbox
from outbox.contrib.opentelemetry import context_of, tell
from outbox.core.contract import BatchDelivered, Traced
from outbox.models import OutboxRecord
from tests.harvest.exactly_once.conftest import bench  # noqa: F401
from tests.harvest.hosts import wait_until
from tests.support.databases import ROOT

PARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]")
REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.exporter = exporter
    yield provider
    provider.shutdown()


def headers():
    record = OutboxRecord.objects.latest("id")
    return dict(zip(record.kafka_header_keys, record.kafka_header_values, strict=True))


@pytest.mark.django_db
def test_the_context_of_the_current_span_is_stored(spans):
    with spans.get_tracer("t").start_as_current_span("request") as span:
        outbox.stash("t", "v", headers={"a": "1"})
        found = headers()
        assert list(found) == ["a", "message-id", "traceparent", "outbox-stashed-at"]
        assert PARENT.fullmatch(found["traceparent"])
        assert context_of(found["traceparent"]).span_id == span.get_span_context().span_id
        outbox.stash_many([outbox.Message("t", "v")])
        assert headers()["traceparent"] == found["traceparent"]


@pytest.mark.django_db
def test_a_state_goes_along_and_what_is_not_sampled_carries_no_time():
    context = SpanContext(1, 2, True, TraceFlags(0), TraceState([("vendor", "x")]))
    with use_span(NonRecordingSpan(context)):
        outbox.stash("t", "v")
    found = headers()
    assert found["traceparent"] == f"00-{1:032x}-{2:016x}-00"
    assert found["tracestate"] == "vendor=x"
    assert "outbox-stashed-at" not in found


@pytest.mark.django_db
def test_without_a_span_or_with_one_s_own_header_or_switched_off_nothing_is_added(spans, settings):
    outbox.stash("t", "v")
    assert list(headers()) == ["message-id"]
    with spans.get_tracer("t").start_as_current_span("request"):
        outbox.stash("t", "v", headers={"traceparent": REMOTE})
        assert headers()["traceparent"] == REMOTE
        settings.OUTBOX = {**settings.OUTBOX, "TRACING": False}
        outbox.stash("t", "v")
        assert list(headers()) == ["message-id"]


@pytest.mark.django_db
def test_broken_tracing_does_not_keep_a_message_from_being_stashed(monkeypatch):
    def broken():
        raise RuntimeError("no")

    monkeypatch.setattr(trace, "get_current_span", broken)
    outbox.stash("t", "v")
    assert list(headers()) == ["message-id"]


def test_a_process_that_does_not_use_it_does_not_load_it():
    code = """
    import sys, django
    django.setup()
    from outbox.messages.context import is_tracing, trace_headers
    import outbox.harvest.harvester
    assert trace_headers() == () and not is_tracing()
    assert not any(name.startswith("opentelemetry") for name in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "malformed",
    ["", "00", REMOTE.upper(), f"ff{REMOTE[2:]}", REMOTE.replace("b7ad6b7169203331", "0" * 16), f"{REMOTE}-x"],
)
def test_a_malformed_context_is_no_context(malformed):
    assert context_of(malformed) is None


def test_the_wait_is_a_span_of_the_record_s_trace_linked_with_the_sending(spans):
    traced = [
        Traced(7, "orders", REMOTE, "vendor=x", "1700000000000"),
        Traced(8, "orders", REMOTE[:-1] + "0", "", ""),
        Traced(9, "orders", "nonsense", "", "x"),
    ]
    second = 1_000_000_000
    began, committed = 1_700_000_003 * second, 1_700_000_004 * second
    tell(lane=1, batch=5, count=3, began_ns=began, committed_ns=committed, traced=traced, tracer_provider=spans)
    wait, sending = spans.exporter.get_finished_spans()
    assert (wait.name, wait.context.trace_id) == ("outbox wait orders", context_of(REMOTE).trace_id)
    assert wait.parent.span_id == context_of(REMOTE).span_id
    assert (wait.start_time, wait.end_time) == (1_700_000_000 * second, committed)
    assert wait.attributes["outbox.in_table_s"] == 3.0
    assert wait.links[0].context == sending.context
    assert (sending.name, sending.parent, sending.attributes["outbox.batch"]) == ("outbox send", None, 5)
    assert [link.context.span_id for link in sending.links] == [context_of(REMOTE).span_id]
    assert not {"key", "value"} & {name for span in (wait, sending) for name in span.attributes}


def test_a_writer_whose_clock_is_ahead_makes_no_span_of_negative_length(spans):
    tell(
        lane=0, batch=1, count=1, began_ns=10**9, committed_ns=2 * 10**9, tracer_provider=spans,
        traced=[Traced(1, "t", REMOTE, "", "9000")],
    )  # fmt: skip
    wait, _ = spans.exporter.get_finished_spans()
    assert wait.start_time == wait.end_time == 2 * 10**9
    assert wait.attributes["outbox.in_table_s"] == 0.0


def test_a_batch_without_sampled_records_makes_no_span():
    provider = TracerProvider(sampler=ALWAYS_OFF)
    tell(lane=0, batch=1, count=1, began_ns=1, committed_ns=2, traced=[], tracer_provider=provider)


def test_a_delivered_batch_tells_its_traces_and_the_message_keeps_them(bench):  # noqa: F811
    bench.stash(["other"] * 300)
    bench.db.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values) "
        "VALUES (%s, 'traced', 'v', %s, %s)",
        [bench.topic, ["traceparent", "outbox-stashed-at"], [REMOTE, "1700000000000"]],
    )
    with bench.working() as host:
        bench.wait_empty()
        told = wait_until(lambda: [event for event in host.of(BatchDelivered) if event.traced])
    [traced] = [record for event in told for record in event.traced]
    assert (traced.topic, traced.traceparent, traced.stashed_at) == (bench.topic, REMOTE, "1700000000000")
    batches = host.of(BatchDelivered)
    assert sum(event.count for event in batches) == 301
    assert all(event.commit_s > 0 and event.began_ns < event.committed_ns for event in batches)
    assert any(event.delays_s for event in batches)
    assert all(0 <= delay_s < 60 for event in batches for delay_s in event.delays_s)
    [found] = [record for record in bench.read() if record.key == b"traced"]
    assert ("traceparent", REMOTE.encode()) in found.headers
