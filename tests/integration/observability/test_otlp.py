"""Spans sent to a real receiver, and to none."""

import logging
import threading
import time
from collections.abc import Mapping

import grpc
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext

from nereid.observability.otel_variables import export_options
from nereid.observability.otlp_http import HttpSpanExporter
from nereid.observability.trace_config import TraceSettings
from nereid.observability.tracers import open_tracer
from nereid.observability.tracing import Span, Tracer, child_context
from nereid.version import version
from tests.support.peers.otlp_receiver import receiver


def tracer_to(url: str, *more: str, environ: Mapping[str, str] | None = None) -> Tracer:
    texts = ("mode=opentelemetry", f"opentelemetry,url={url}", *more)
    tracer = open_tracer(TraceSettings(trace_config=texts), "test", "one", environ or {})
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
    "refusal",
    [
        None,
        grpc.StatusCode.UNAVAILABLE,
        pytest.param(grpc.StatusCode.RESOURCE_EXHAUSTED, marks=pytest.mark.nightly),
    ],
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


def a_span(state: bytes = b"") -> Span:
    return Span(name="w", context=child_context(b"") + state, parent=b"", start_ns=1, end_ns=2)


@pytest.mark.parametrize("gzip", [True, False])
def test_spans_arrive_over_http(gzip: bool) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip" if gzip else "none",
    }
    with receiver() as it:
        tracer = tracer_to(it.http_url, environ=environ)
        tracer.record(a_span(b"a=1"), a_span())
        tracer.close()
        seen = [tree.one("w") for tree in it.trees().values()]
    assert sorted(span.state for span in seen) == ["", "a=1"]
    assert {span.service for span in seen} == {"nereid-test"}
    assert seen[0].resource["service.instance.id"] == "one"
    assert seen[0].resource["service.version"] == version()
    (headers,) = it.headers
    assert headers["authorization"] == "Bearer x"
    assert headers["content-type"] == "application/x-protobuf"


def test_headers_go_along_over_grpc_too() -> None:
    with receiver() as it:
        tracer = tracer_to(it.url, environ={"OTEL_EXPORTER_OTLP_HEADERS": "a=b"})
        tracer.record(a_span(b"a=1"))
        tracer.close()
    ((_, tree),) = it.trees().items()
    assert tree.one("w").state == "a=1"
    assert it.headers[0]["a"] == "b"


@pytest.mark.parametrize(
    ("refusals", "arrived", "words"),
    [
        # Sent again after as many seconds as the receiver asks for.
        ([(503, "1")], 1, ""),
        # Not within the time limit.
        ([(429, "60")], 0, "HTTP 429"),
        ([(400, "")], 0, "HTTP 400"),
        # Not followed: the spans would be lost with a 200.
        ([(302, "")], 0, "HTTP 302"),
    ],
)
def test_refusals_over_http(
    refusals: list[tuple[int, str]], arrived: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    options, _ = export_options({})
    with receiver() as it:
        it.http_refusals += refusals
        exporter = HttpSpanExporter(it.http_url, options)
        handler = caplog.handler
        logging.getLogger("opentelemetry.nereid").addHandler(handler)
        try:
            result = exporter.export([readable()])
        finally:
            logging.getLogger("opentelemetry.nereid").removeHandler(handler)
        assert len(it.trees()) == arrived
    assert (result is SpanExportResult.SUCCESS) is bool(arrived)
    assert words in caplog.text
    assert len(it.headers) == 1 + arrived


def test_a_closed_exporter_gives_up_its_pause() -> None:
    with receiver() as it:
        it.http_refusals += [(503, "5")]
        exporter = HttpSpanExporter(it.http_url, export_options({})[0])
        results: list[SpanExportResult] = []
        exporting = threading.Thread(target=lambda: results.append(exporter.export([readable()])))
        exporting.start()
        assert it.called.wait(20)
        exporter.shutdown()
        exporting.join()
    assert results == [SpanExportResult.FAILURE]
    assert it.trees() == {}


def readable() -> ReadableSpan:
    context = SpanContext(1, 2, is_remote=False)
    resource = Resource({"service.name": "s"})
    return ReadableSpan("w", context, resource=resource, start_time=1, end_time=2)


def test_certificates_that_cannot_be_read_switch_traces_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = TraceSettings(trace_config=("mode=opentelemetry", "opentelemetry,url=https://a/x"))
    environ = {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere", "OTEL_TRACES_SAMPLER": "xray"}
    assert open_tracer(settings, "test", environ=environ) is None
    assert "no traces are exported: " in caplog.text
    assert "OTEL_TRACES_SAMPLER: 'xray' is not supported; it is ignored" in caplog.text
