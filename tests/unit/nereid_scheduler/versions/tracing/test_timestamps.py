"""Timestamps of sampled requests, collected until the response carries them."""

from typing import Any

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse, Payload, TracedModel, TracedTensor
from nereid.observability.trace_config import TraceSettings
from nereid.observability.tracing import MAX_TRACED_TENSOR_BYTES, is_sampled, with_tensors
from nereid.pb import kserve_pb2
from nereid.shm.segments import SegmentPool
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.core.requests.execution import Execution
from nereid_scheduler.versions.tracing.spans import SpanTraces, open_traces
from nereid_scheduler.versions.tracing.timestamps import TimestampTraces
from nereid_scheduler.versions.tracing.traces import NO_TRACES, RefusedRequest
from tests.support.scheduler.samples import entry_of, request_with

FIRST, SECOND = (b"\0" + bytes([number]) * 24 + b"\1" for number in (1, 2))
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


class Begun:
    """A traced request, with its record, and the reader that ends it."""

    def __init__(self, traces: TimestampTraces, context: bytes, now_ns: int, **more: Any) -> None:
        trace = traces.begin(request_with(context, **more))
        assert trace is not None
        self.traces, self.trace, self.received_ns = traces, trace, now_ns

    def begin_attempt(self, now_ns: int) -> bytes:
        return self.trace.begin_attempt(now_ns)

    def begin_steps(self) -> bytes:
        return self.trace.begin_steps()

    def responded(self, response: InferResponse, now_ns: int) -> None:
        self.trace.add_response(now_ns)
        self.traces.copy_response(self.trace, response)

    def end(
        self, entry: Entry, model: tuple[str, int], response: InferResponse | None, now_ns: int
    ) -> None:
        entry.received_ns = self.received_ns
        self.traces.end_request(self.trace, entry, model, response, now_ns)


def begun(traces: TimestampTraces, context: bytes, *, now_ns: int = 100, **more: Any) -> Begun:
    return Begun(traces, context, now_ns, **more)


def ended(trace: Begun, entry: Entry, now_ns: int, name: str = "m") -> tuple[TracedModel, ...]:
    response = InferResponse(1)
    trace.end(entry, (name, 3), response, now_ns)
    return response.trace


def executed(input_ns: int, infer_ns: int, output_ns: int, *, finished_ns: int) -> Execution:
    return Execution(0, finished_ns, 0, input_ns, infer_ns, output_ns)


def test_a_response_carries_the_timestamps() -> None:
    traces = TimestampTraces()
    trace = begun(traces, FIRST)
    entry = entry_of()
    entry.request.request_id = "mine"
    entry.enqueued_ns = 110
    assert trace.begin_attempt(200) == trace.trace.context
    # 40 ns of 100 were not the instance's.
    entry.execution = executed(10, 30, 20, finished_ns=300)
    (model,) = ended(trace, entry, 310)
    assert model == TracedModel(
        trace.trace.context,
        FIRST,
        "m",
        3,
        "mine",
        (
            ("REQUEST_START", 100),
            ("QUEUE_START", 110),
            *zip(COMPUTE, (220, 230, 260, 280), strict=True),
            ("REQUEST_END", 310),
        ),
    )


@pytest.mark.parametrize(
    ("execution", "times"),
    [
        # Longer than the time that has passed here, by another clock.
        (executed(10, 300, 20, finished_ns=300), (200, 210, 280, 300)),
        (executed(500, 0, 0, finished_ns=300), (200, 300, 300, 300)),
        # A decoupled model that ended its request and goes on executing; an instance that died.
        (None, (200, 200, 310, 310)),
        # Of an attempt that was lost.
        (executed(1, 1, 1, finished_ns=150), (200, 200, 310, 310)),
    ],
)
def test_timestamps_are_in_order_whatever_the_instance_reports(
    execution: Execution | None, times: tuple[int, ...]
) -> None:
    trace = begun(TimestampTraces(), FIRST)
    trace.begin_attempt(200)
    entry = entry_of()
    entry.execution = execution
    (model,) = ended(trace, entry, 310)
    assert model.times[2:-1] == tuple(zip(COMPUTE, times, strict=True))


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        # 40 ns of 100 went to the ways there and back: half of them to each, if nothing is known.
        ([], (220, 280)),
        ([(230, 270)], (220, 280)),
        ([(205, 230)], (205, 265)),
        ([(230, 240), (250, 295)], (235, 295)),
        # What asks when it has been executed, as models do that keep their requests.
        ([(230, 400)], (240, 300)),
        ([(150, 250)], (200, 260)),
    ],
)
def test_nested_requests_lie_within_the_execution(
    asked: list[tuple[int, int]], times: tuple[int, int]
) -> None:
    traces = TimestampTraces()
    root = begun(traces, FIRST)
    step = begun(traces, root.begin_steps())
    context = step.begin_attempt(200)
    for asked_ns, responded_ns in asked:
        ended(begun(traces, context, now_ns=asked_ns), entry_of(), responded_ns)
    entry = entry_of()
    entry.execution = executed(10, 30, 20, finished_ns=300)
    ended(step, entry, 410, "step")
    (model,) = (each for each in ended(root, entry_of(), 420, "root") if each.name == "step")
    shown = dict(model.times)
    assert (shown["COMPUTE_START"], shown["COMPUTE_END"]) == times


def test_a_request_without_an_execution_has_no_compute_timestamps() -> None:
    traces = TimestampTraces()
    trace = begun(traces, FIRST)
    # An ensemble's: it is that of its steps.
    entry = entry_of()
    entry.execution = executed(1, 2, 3, finished_ns=300)
    (model,) = ended(trace, entry, 310)
    assert [name for name, _ in model.times] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]


def test_the_response_carries_the_models_below_the_request() -> None:
    traces = TimestampTraces()
    root, other = begun(traces, FIRST), begun(traces, SECOND)
    step = begun(traces, root.begin_steps())
    inner = begun(traces, step.begin_attempt(105))
    # Their responses go to the ensemble or the model, which need no timestamps.
    assert ended(inner, entry_of(), 120, "inner") == ()
    assert ended(step, entry_of(), 130, "step") == ()
    models = ended(root, entry_of(), 140, "root")
    assert [each.name for each in models] == ["root", "inner", "step"]
    assert models[1].parent == models[2].context == step.trace.context
    assert models[2].parent == root.trace.context
    assert [each.name for each in ended(other, entry_of(), 140, "other")] == ["other"]
    # Nothing is kept.
    assert [each.name for each in ended(begun(traces, FIRST), entry_of(), 150)] == ["m"]


def test_a_cancelled_or_refused_request_is_forgotten() -> None:
    traces = TimestampTraces()
    trace = begun(traces, FIRST)
    step = begun(traces, trace.begin_steps())
    ended(step, entry_of(), 120)
    # A refused step is no refused request.
    refused = entry_of().request
    refused.trace_context = trace.trace.context
    traces.refused(RefusedRequest(refused, "m", "", 0, "no"))
    assert len(ended(trace, entry_of(), 130)) == 2
    for cancelled in (True, False):
        trace = begun(traces, FIRST)
        ended(begun(traces, trace.begin_steps()), entry_of(), 120)
        if cancelled:
            trace.end(entry_of(), ("m", 1), None, 130)
        else:
            refused.trace_context = FIRST
            traces.refused(RefusedRequest(refused, "m", "", 0, "no"))
    assert len(ended(begun(traces, FIRST), entry_of(), 140)) == 1


def test_models_of_one_request_beyond_a_limit_are_not_traced() -> None:
    traces = TimestampTraces()
    root = begun(traces, FIRST)
    for _ in range(2000):
        ended(begun(traces, root.begin_steps()), entry_of(), 120)
    assert len(ended(root, entry_of(), 130)) == 1025


INPUT_HEAD = kserve_pb2.ModelInferRequest()
INPUT_HEAD.inputs.add(name="I", datatype="UINT8", shape=[2])
OUTPUT_HEAD = kserve_pb2.ModelInferResponse()
OUTPUT_HEAD.outputs.add(name="O", datatype="UINT8", shape=[2])


def traced_input(data: bytes | None, size: int = 2) -> TracedTensor:
    return TracedTensor("TENSOR_QUEUE_INPUT", "I", "UINT8", (size,), data)


def traced_output(data: bytes | None) -> TracedTensor:
    return TracedTensor("TENSOR_BACKEND_OUTPUT", "O", "UINT8", (2,), data)


def inputs(*payloads: Payload) -> dict[str, Any]:
    return {"head": INPUT_HEAD.SerializeToString(), "payloads": [*payloads]}


def response_with(data: bytes, *, more: bool = False) -> InferResponse:
    return InferResponse(1, OUTPUT_HEAD.SerializeToString(), [data], more=more)


def test_tensors_of_models_below_a_request_are_copied_while_they_exist() -> None:
    traces = TimestampTraces()
    root = begun(traces, with_tensors(FIRST), **inputs(b"ab"))
    segments = SegmentPool(1 << 20)
    segment = segments.acquire_segment(1 << 16)
    assert segment is not None
    segment.view[:2] = b"cd"
    step = begun(traces, root.begin_steps(), **inputs(segment.range(0, 2)))
    # The segment may be reused as soon as the response is there.
    segment.view[:2] = b"??"
    step.end(entry_of(), ("step", 1), response_with(b"ef"), 120)
    lost = segment.range(0, 2)
    segments.discard(segment.name)
    many = begun(traces, root.begin_steps(), **inputs(lost))
    for data in (b"gh", b"ij"):
        many.responded(response_with(data, more=True), 120)
    last = response_with(b"kl")
    many.responded(last, 130)
    many.end(entry_of(), ("many", 1), last, 130)
    failed = begun(traces, root.begin_steps(), **inputs(b"mn"))
    failed.end(
        entry_of(),
        ("failed", 1),
        InferResponse(1, OUTPUT_HEAD.SerializeToString(), error=ErrorStatus(3, "no")),
        140,
    )
    models = ended(root, entry_of(), 150, "root")
    assert {each.name: each.tensors for each in models} == {
        # Its own tensors are traced by the gateway.
        "root": (),
        "step": (traced_input(b"cd"), traced_output(b"ef")),
        "many": (traced_input(None), *map(traced_output, (b"gh", b"ij", b"kl"))),
        "failed": (traced_input(b"mn"),),
    }


def test_tensors_are_copied_for_traces_that_show_them_and_within_limits() -> None:
    traces = TimestampTraces(max_tensor_bytes=10)

    def tensors_below(context: bytes, *datas: bytes) -> list[bytes | None]:
        root = begun(traces, context)
        for data in datas:
            step = begun(traces, root.begin_steps(), **inputs(data))
            step.end(entry_of(), ("step", 1), InferResponse(1), 120)
        _, *models = ended(root, entry_of(), 130)
        return [tensor.data for model in models for tensor in model.tensors]

    assert tensors_below(FIRST, b"ab") == []
    pending = begun(traces, with_tensors(SECOND))
    ended(begun(traces, pending.begin_steps(), **inputs(b"12")), entry_of(), 120)
    for _ in range(2):
        # The copies of an ended request no longer count.
        copied = tensors_below(with_tensors(FIRST), b"12345", b"6789", b"678")
        assert copied == [b"12345", None, b"678"]
    traces = TimestampTraces()
    large = bytes(MAX_TRACED_TENSOR_BYTES)
    assert tensors_below(with_tensors(FIRST), large, large + b"1") == [large, None]
    root = begun(traces, with_tensors(FIRST))
    damaged = begun(traces, root.begin_steps(), head=b"\xff", payloads=[b"a"])
    damaged.end(entry_of(), ("damaged", 1), InferResponse(1, b"\xff", [b"a"]), 120)
    assert [each.tensors for each in ended(root, entry_of(), 130)] == [(), ()]
    root = begun(traces, with_tensors(FIRST))
    step = begun(traces, root.begin_steps())
    for _ in range(300):
        step.responded(response_with(b"ab", more=True), 120)
    ended(step, entry_of(), 130)
    assert len(ended(root, entry_of(), 140)[1].tensors) == 128


def test_a_request_that_is_not_sampled_has_no_trace() -> None:
    assert TimestampTraces().begin(request_with(FIRST[:25] + b"\0")) is None
    assert is_sampled(begun(TimestampTraces(), FIRST).trace.begin_lookup())


def test_the_settings_choose_the_form_of_traces() -> None:
    assert open_traces(TraceSettings()) is NO_TRACES
    assert isinstance(open_traces(TraceSettings(trace_config=("triton,file=f",))), TimestampTraces)
    spans = open_traces(TraceSettings(trace_config=("mode=opentelemetry",)))
    assert isinstance(spans, SpanTraces)
    spans.close()
