"""Which requests the gateway traces, and the spans that it exports."""

from collections.abc import Callable
from time import monotonic_ns

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.observability.trace_config import TraceConfig, TraceSettings
from nereid.observability.tracing import SpanKind, is_sampled
from nereid.pb import kserve_pb2
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_handle import RequestHandle
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.plane.recording import Recording
from nereid_gateway.plane.tracing.request_traces import SpanTracing, open_tracing
from nereid_gateway.plane.tracing.sampling import Sampling
from tests.support.gateway.scripted_mesh import ScriptedMesh
from tests.support.peers.spans import RecordedSpans

SAMPLED = b"\0" + bytes(range(1, 25)) + b"\1"
UNSAMPLED = SAMPLED[:25] + b"\0"
HEAD = kserve_pb2.ModelInferRequest(model_name="m", model_version="3").SerializeToString()


class Mesh(ScriptedMesh):
    """The step behind the tracing."""

    def __init__(self, config: TraceConfig) -> None:
        super().__init__()
        self.tracer = RecordedSpans()
        sampling = Sampling(config.rule, parent_based=config.parent_based)
        self.recording = Recording(self.infer, None, SpanTracing(self.tracer, sampling), None)

    def ask(
        self, request: ClientRequest, on_response: Callable[[InferResponse], None] | None = None
    ) -> RequestHandle:
        request.record = RequestRecord("grpc", monotonic_ns())
        return self.recording.infer(request, on_response or self.delivered.append)


def request(context: bytes = b"", head: bytes = HEAD) -> ClientRequest:
    return ClientRequest(1, head, [], request_id="seven", trace_context=context)


@pytest.mark.parametrize(("level", "warned"), [("TIMESTAMPS", True), ("OFF", False)])
def test_a_missing_file_name_is_logged_where_one_is_needed(
    level: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = TraceSettings(trace_config=("mode=triton", f"level={level}"))
    assert open_tracing(settings) is None
    assert ("triton,file=" in caplog.text) is warned


@pytest.mark.parametrize("context", [b"", UNSAMPLED])
def test_an_unsampled_request_passes_as_it_came(context: bytes) -> None:
    it = Mesh(TraceConfig(mode="opentelemetry"))
    asked = request(context)
    handle = it.ask(asked)
    handle.cancel()
    assert it.cancelled == 1
    assert asked.trace_context == context
    assert it.tracer.spans == []


def test_an_unsampled_parent_decides_where_that_is_asked_for() -> None:
    it = Mesh(TraceConfig(rate=1, levels=("TIMESTAMPS",), parent_based=True))
    unsampled, own, sampled = map(request, (UNSAMPLED, b"", SAMPLED))
    for asked in (unsampled, own, sampled):
        it.ask(asked)
        it.on_response(InferResponse(1))
    assert unsampled.trace_context == UNSAMPLED
    assert is_sampled(own.trace_context)
    assert sampled.trace_context[1:17] == SAMPLED[1:17]
    assert len(it.tracer.named("InferRequest")) == 2


def test_the_root_span_is_below_the_clients_and_above_the_schedulers() -> None:
    it = Mesh(TraceConfig(mode="opentelemetry"))
    asked = request(SAMPLED)
    it.ask(asked)
    response = InferResponse(1)
    it.on_response(response)
    assert it.delivered == [response]
    root = it.tracer.one("InferRequest")
    assert root.parent == SAMPLED
    assert root.context == asked.trace_context != SAMPLED
    assert asked.trace_context[1:17] == SAMPLED[1:17]
    assert root.kind is SpanKind.SERVER
    assert root.error is None
    assert root.attributes == {
        "nereid.protocol": "grpc",
        "triton.request_id": "seven",
        "triton.model_name": "m",
        "triton.model_version": "3",
    }
    receive, send = it.tracer.one("receive"), it.tracer.one("send")
    assert receive.parent == send.parent == root.context
    assert root.start_ns == receive.start_ns <= receive.end_ns <= send.start_ns
    assert send.end_ns == root.end_ns


@pytest.mark.parametrize("tokenized_ns", [None, (0, 0), (5, 9)])
def test_a_row_shows_when_its_calls_texts_were_tokenized(
    tokenized_ns: tuple[int, int] | None,
) -> None:
    it = Mesh(TraceConfig(mode="opentelemetry"))
    asked = request(SAMPLED)
    record = asked.record = RequestRecord("http", monotonic_ns())
    record.tokenized_ns = tokenized_ns
    it.recording.infer(asked, it.delivered.append)
    it.on_response(InferResponse(1))
    spans = it.tracer.named("tokenize")
    assert len(spans) == (tokenized_ns == (5, 9))
    for span in spans:
        assert span.end_ns - span.start_ns == 4
        assert span.parent == it.tracer.one("InferRequest").context


def test_a_request_of_our_own_choice_is_a_trace_of_its_own() -> None:
    it = Mesh(TraceConfig(rate=1, levels=("TIMESTAMPS",)))
    asked = request(head=b"\xff damaged")
    it.ask(asked)
    it.on_response(InferResponse(1, error=ErrorStatus(5, "not found")))
    root = it.tracer.one("InferRequest")
    assert root.parent == b""
    assert is_sampled(root.context)
    assert root.error == "not found"
    assert "triton.model_name" not in root.attributes


def test_a_client_that_disconnects_ends_its_trace_once() -> None:
    it = Mesh(TraceConfig(mode="opentelemetry"))
    it.ask(request(SAMPLED)).cancel()
    it.on_response(InferResponse(1))
    assert it.cancelled == 1
    assert it.tracer.one("InferRequest").error == "the client disconnected"
    assert it.tracer.named("send") == []


def test_a_request_with_several_responses_is_traced_to_the_last() -> None:
    it = Mesh(TraceConfig(mode="opentelemetry"))
    handle = it.ask(request(SAMPLED))
    it.on_response(InferResponse(1, b"one", more=True))
    handle.set_flow(paused=True)
    assert it.flows == [True]
    assert it.tracer.spans == []
    it.on_response(InferResponse(1))
    assert [response.head for response in it.delivered] == [b"one", b""]
    assert len(it.tracer.named("InferRequest")) == len(it.tracer.named("send")) == 1


def test_a_response_that_cannot_be_delivered_ends_the_trace() -> None:
    it = Mesh(TraceConfig(mode="opentelemetry"))

    def fail(_response: InferResponse) -> None:
        raise RuntimeError("broken")

    it.ask(request(SAMPLED), fail)
    with pytest.raises(RuntimeError):
        it.on_response(InferResponse(1))
    assert len(it.tracer.named("InferRequest")) == 1
