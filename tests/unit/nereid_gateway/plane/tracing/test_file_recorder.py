"""Requests' traces for files: which requests have one, and what is in it."""

from collections.abc import Callable, Sequence
from time import monotonic_ns

import pytest

from nereid.core.wire.messages import (
    ErrorStatus,
    InferResponse,
    TracedModel,
    TracedTensor,
    TraceRule,
    TraceRules,
)
from nereid.observability.tracing import MAX_TRACED_TENSOR_BYTES, Sampler, is_sampled, shows_tensors
from nereid.pb import kserve_pb2
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.request_handle import RequestHandle
from nereid_gateway.core.request_record import RequestRecord
from nereid_gateway.plane.recording import Recording
from nereid_gateway.plane.tracing.file_format import Trace
from nereid_gateway.plane.tracing.file_recorder import FileTracing, to_local_clock
from nereid_gateway.plane.tracing.sampling import Sampling
from tests.support.gateway.scripted_mesh import ScriptedMesh

SAMPLED = b"\0" + bytes(range(1, 25)) + b"\3"
ALL = TraceRule(on=True, rate=1, limit=-1)
GRPC = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
RESPONDED = ["INFER_RESPONSE_COMPLETE", "GRPC_SEND_START", "GRPC_SEND_END"]


class KeptTraces:
    def __init__(self) -> None:
        self.traces: list[tuple[Sampler, Trace | None]] = []
        self.rules: list[list[TraceRule]] = []
        self.closed = 0

    def record_trace(self, sampler: Sampler, trace: Trace | None) -> None:
        self.traces.append((sampler, trace))

    def set_samplers(self, samplers: Sequence[Sampler]) -> None:
        self.rules.append([sampler.rule for sampler in samplers])

    def close(self) -> None:
        self.closed += 1


class Mesh(ScriptedMesh):
    """The step behind the tracing."""

    def __init__(self, rule: TraceRule = ALL) -> None:
        super().__init__()
        self.sink = KeptTraces()
        self.tracing = FileTracing(self.sink, Sampling(rule))
        self.recording = Recording(self.infer, None, self.tracing, None)

    def ask(
        self,
        request: ClientRequest,
        protocol: str = "grpc",
        on_response: Callable[[InferResponse], None] | None = None,
    ) -> RequestHandle:
        request.record = RequestRecord(protocol, monotonic_ns())
        return self.recording.infer(request, on_response or self.delivered.append)

    def response(self, head: bytes = b"", **more: object) -> None:
        self.on_response(InferResponse(1, head, **more))  # type: ignore[arg-type]

    def trace(self) -> Trace:
        ((_, trace),) = self.sink.traces
        assert trace is not None
        return trace


def request(context: bytes = b"") -> ClientRequest:
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[2])
    return ClientRequest(1, head.SerializeToString(), [b"ab"], trace_context=context)


def part(start_ns: int = 0, end_ns: int = 0) -> TracedModel:
    now_ns = monotonic_ns()
    times = (("REQUEST_START", start_ns or now_ns), ("REQUEST_END", end_ns or now_ns))
    return TracedModel(b"c", b"p", "m", 1, "", times)


def names(moments: Sequence[tuple[str, int]]) -> list[str]:
    assert list(moments) == sorted(moments, key=lambda each: each[1])
    return [name for name, _ in moments]


def test_the_settings_alone_say_which_are_traced() -> None:
    it = Mesh(ALL._replace(rate=2))
    passed, chosen = request(SAMPLED), request(SAMPLED)
    it.ask(passed)
    # No service collects times that no file is for.
    assert passed.trace_context == SAMPLED[:25] + b"\2"
    it.ask(chosen)
    assert is_sampled(chosen.trace_context)
    assert not shows_tensors(chosen.trace_context)
    assert chosen.trace_context[1:17] != SAMPLED[1:17]
    unchosen = request()
    it.ask(unchosen)
    assert unchosen.trace_context == b""


@pytest.mark.parametrize(
    ("protocol", "seen"),
    [
        ("grpc", GRPC + RESPONDED[1:]),
        ("http", [f"HTTP_{name}" for name in ("RECV_START", "RECV_END", "SEND_START", "SEND_END")]),
    ],
)
def test_a_trace_has_the_gateways_times_and_the_models(protocol: str, seen: list[str]) -> None:
    it = Mesh()
    it.ask(request(), protocol)
    model = part()
    it.response(b"head", trace=(model,))
    assert len(it.delivered) == 1
    assert it.trace().models == (model,)
    shown = names(it.trace().moments)
    assert [name for name in shown if name != RESPONDED[0]] == seen
    assert shown[2] == RESPONDED[0]
    assert it.trace().tensors == []


def test_each_response_is_shown_but_the_first_empty_one() -> None:
    it = Mesh()
    handle = it.ask(request())
    it.response(more=True)
    it.response(b"one", more=True)
    handle.set_flow(paused=True)
    assert it.flows == [True]
    for _ in range(500):
        it.response(b"two", more=True)
    assert it.sink.traces == []
    it.response(trace=(part(),))
    assert len(it.delivered) == 503
    shown = names(it.trace().moments)
    assert shown[:8] == GRPC + 2 * RESPONDED
    assert len(shown) < 400


def test_a_refused_or_cancelled_request_counts_and_has_no_trace() -> None:
    it = Mesh()
    it.ask(request()).cancel()
    it.response(trace=(part(),))
    assert it.cancelled == 1
    assert [trace for _, trace in it.sink.traces] == [None]
    it.ask(request())
    it.response(error=ErrorStatus(5, "unknown"))
    assert [trace for _, trace in it.sink.traces] == [None, None]


def test_a_response_that_cannot_be_delivered_ends_the_trace() -> None:
    it = Mesh()

    def fail(_response: InferResponse) -> None:
        raise RuntimeError("broken")

    it.ask(request(), "http", fail)
    with pytest.raises(RuntimeError):
        it.response(trace=(part(),))
    assert it.trace().models


def test_times_of_another_host_are_put_into_the_middle() -> None:
    step = part(1_000_020, 1_000_030)
    there = (part(1_000_010, 1_000_050), step)
    first, second = to_local_clock(there, 100, 180)
    assert [ns for _, ns in first.times] == [120, 160]
    assert [ns for _, ns in second.times] == [130, 140]
    here = (part(100, 180), step)
    assert to_local_clock(here, 100, 180) is here


def test_tensors_are_copied_as_they_come_and_go() -> None:
    it = Mesh(ALL._replace(tensors=True))
    asked = request()
    asked.payloads = [memoryview(b"ab")]
    it.ask(asked)
    # The scheduler keeps those of what is below it.
    assert shows_tensors(asked.trace_context)
    assert is_sampled(asked.trace_context)
    head = kserve_pb2.ModelInferResponse()
    head.outputs.add(name="O", datatype="UINT8", shape=[1])
    it.response(head.SerializeToString(), payloads=[memoryview(b"c")], more=True)
    it.response(
        head.SerializeToString(), payloads=[bytes(MAX_TRACED_TENSOR_BYTES + 1)], trace=(part(),)
    )
    assert it.trace().tensors == [
        TracedTensor("TENSOR_QUEUE_INPUT", "I", "UINT8", (2,), b"ab"),
        TracedTensor("TENSOR_BACKEND_OUTPUT", "O", "UINT8", (1,), b"c"),
        TracedTensor("TENSOR_BACKEND_OUTPUT", "O", "UINT8", (1,), None),
    ]
    damaged = request()
    damaged.head = b"\xff"
    it.ask(damaged).cancel()
    assert it.sink.traces[-1][1] is None


def test_changed_rules_reach_the_sink() -> None:
    it = Mesh()
    off = ALL._replace(on=False)
    it.tracing.set_rules(TraceRules(off, (("m", ALL),)))
    assert it.sink.rules == [[off, ALL]]
    it.ask(request())
    it.response(trace=(part(),))
    assert it.sink.traces[0][0].rule == ALL
    it.tracing.close()
    assert it.sink.closed == 1
