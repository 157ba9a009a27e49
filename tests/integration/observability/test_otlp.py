"""Spans sent to a real receiver, and to none."""

import logging
import threading
import time

import grpc
import pytest

from nereid.observability.trace_config import TraceSettings
from nereid.observability.tracers import open_tracer
from nereid.observability.tracing import Span, Tracer, child_context
from tests.support.peers.otlp_receiver import receiver


def tracer_to(url: str, *more: str) -> Tracer:
    texts = ("mode=opentelemetry", f"opentelemetry,url={url}", *more)
    tracer = open_tracer(TraceSettings(trace_config=texts), "test", "one")
    assert tracer is not None
    return tracer


@pytest.fixture
def closed_address() -> str:
    """An address at which nothing listens."""
    with receiver() as it:
        # Closed by the time that the test uses it.
        return it.url


def test_a_span_arrives_as_it_was() -> None:
    root, other = child_context(b""), child_context(b"")
    span = Span(
        name="work",
        context=child_context(root),
        parent=root,
        start_ns=1_700_000_000_000_000_000,
        end_ns=1_700_000_000_000_000_500,
        attributes={"text": "t", "number": 3, "part": 0.5, "yes": True},
        links=[other],
        events=[("half", 1_700_000_000_000_000_250)],
        error="went wrong",
    )
    with receiver() as it:
        tracer = tracer_to(it.url, "opentelemetry,resource=service.name=mine")
        tracer.record(span)
        tracer.close()
        ((_, tree),) = it.trees().items()
    (seen,) = tree.spans
    assert seen.service == "mine"
    assert (seen.trace, seen.id) == (root[1:17].hex(), span.context[17:25].hex())
    assert seen.parent == root[17:25].hex()
    assert (seen.start_ns, seen.end_ns) == (span.start_ns, span.end_ns)
    assert seen.attributes == span.attributes
    assert seen.links == [(other[1:17].hex(), other[17:25].hex())]
    assert seen.error == "went wrong"


def test_texts_of_clients_are_cut() -> None:
    """The queue is bounded in spans, so each has to be bounded."""
    long = "i" * 5000
    span = Span(
        name=long,
        context=child_context(b""),
        parent=b"",
        start_ns=1,
        end_ns=2,
        attributes={"triton.request_id": long, "number": 3},
        error=long,
    )
    with receiver() as it:
        tracer = tracer_to(it.url)
        tracer.record(span)
        tracer.close()
        ((_, tree),) = it.trees().items()
    (seen,) = tree.spans
    assert seen.name == seen.error == seen.attributes["triton.request_id"] == long[:1024]
    assert seen.attributes["number"] == 3


@pytest.mark.slow
def test_an_unreachable_receiver_costs_spans_and_one_line(
    closed_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    small = ("opentelemetry,bsp_max_queue_size=8", "opentelemetry,bsp_schedule_delay=1")
    with caplog.at_level(logging.WARNING):
        tracer = tracer_to(closed_address, *small)
        for _ in range(1000):
            tracer.record(
                Span(name="w", context=child_context(b""), parent=b"", start_ns=1, end_ns=2)
            )
        started_s = time.monotonic()
        tracer.close()
    # Bounded, whatever the exporter's own patience is.
    assert time.monotonic() - started_s < 8
    # OpenTelemetry's own records reach no handler but ours.
    assert not logging.getLogger("opentelemetry").propagate
    assert (
        len([record for record in caplog.records if record.name == "nereid.observability.otlp"])
        <= 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "refusal", [None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED]
)
def test_a_receiver_that_is_slow_or_refuses_costs_spans_and_blocks_nothing(
    refusal: grpc.StatusCode | None, caplog: pytest.LogCaptureFixture
) -> None:
    small = ("opentelemetry,bsp_max_queue_size=8", "opentelemetry,bsp_schedule_delay=1")
    with receiver() as it, caplog.at_level(logging.WARNING):
        it.responses.clear()
        it.refusal = refusal
        tracer = tracer_to(it.url, *small)
        for _ in range(1000):
            tracer.record(
                Span(name="w", context=child_context(b""), parent=b"", start_ns=1, end_ns=2)
            )
        assert it.called.wait(20)
        # Returns although the receiver has not replied, or only with refusals.
        tracer.close()
        it.refusal = None
        it.responses.set()
    # At most those of the pending call: no others were kept.
    assert len(it.trees()) <= 8
    assert (
        len([record for record in caplog.records if record.name == "nereid.observability.otlp"])
        <= 1
    )


def test_a_malformed_span_is_logged_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as it:
        tracer = tracer_to(it.url)
        tracer.record(Span(name="w", context=b"", parent=b"", start_ns=1, end_ns=2))
        tracer.close()
    assert "a span could not be recorded" in caplog.text


def test_an_ended_tracer_leaves_no_thread(closed_address: str) -> None:
    with receiver() as it:
        tracer = tracer_to(it.url)
        tracer.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("OtelBatch")]
