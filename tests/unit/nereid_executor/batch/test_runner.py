"""Batches on their stream, one or several at a time: their order, and their errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from nereid.backends import Capabilities, TensorParts
from nereid.core.errors import INTERNAL_MESSAGE, Internal, ProtocolError, Unavailable
from nereid.core.tensors.tensors import Array
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.runner import Runner
from nereid_executor.core.recent_runs import RecentRuns
from nereid_executor.core.shared_tensors import OutputLender, SharedTensors
from tests.support.executor.doubler import Doubler
from tests.support.executor.frames import Frames, OpenFrames
from tests.support.executor.instances import adapter_of, instance
from tests.support.models.onnx_models import head, identity_config, member, response_of
from tests.support.peers.spans import RecordedSpans


class PipelinedDoubler(Doubler):
    """y = 2 x, two batches at a time; a batch is complete once `ready` counts it."""

    capabilities = Capabilities(pipeline_depth=2)

    def __init__(self) -> None:
        super().__init__()
        self.submitted: deque[tuple[Array, Sequence[str]]] = deque()
        self.parts: list[int] = []
        self.ready = 0
        self.collect_error: Exception | None = None

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        if self.failure is not None:
            raise self.failure
        parts, shape, dtype = inputs["x"]
        self.parts.append(len(parts))
        x = np.frombuffer(b"".join(parts), dtype).reshape(shape)
        self.submitted.append((x, outputs))

    def is_batch_complete(self) -> bool:
        return self.ready > 0

    def collect_batch(self) -> Sequence[Array]:
        x, outputs = self.submitted.popleft()
        self.ready = max(0, self.ready - 1)
        if self.collect_error is not None:
            raise self.collect_error
        return [x * 2 for _ in outputs]


def runner(
    model: Doubler,
    *,
    config: model_config_pb2.ModelConfig | None = None,
    recent_runs: RecentRuns | None = None,
) -> Runner:
    spec = instance(config or identity_config("FP32", "1", 8))
    return Runner(spec, model, recent_runs=recent_runs)


def begin(run: Runner, frame: bytes) -> None:
    """Begin a batch of a pipelined model."""
    sent: list[bytes] = []
    run.on_frame(frame, sent.append)
    assert not sent


def is_complete(run: Runner) -> bool:
    """Whether the oldest batch is."""
    adapter = adapter_of(run)
    batch = adapter.received.oldest()
    return batch is not None and adapter.is_complete(batch)


def finish(run: Runner) -> bytes:
    """The oldest batch's."""
    sent: list[bytes] = []
    run.collect(run.adapter.wait_for_model(), sent.append)
    (executed,) = sent
    return executed


def frame(number: int, *values: float) -> bytes:
    """A batch of requests with one row each; a negative value makes a malformed one."""
    members = [
        member(head(("x", "FP32", [1, 1])), np.float32(value).tobytes())
        if value >= 0
        else member(b"\xff")
        for value in values
    ]
    for each in members:
        each.id = 100 * number
    return pb.Batch(id=number, members=members).SerializeToString()


def outcome(executed: bytes) -> tuple[int, list[float | str]]:
    """The batch's number, and of each response the value or the error."""
    message = pb.Executed.FromString(executed)
    return message.id, [
        each.error.message
        if each.HasField("error")
        else float(np.frombuffer(response_of(each)[0][3], np.float32)[0])
        for each in message.responses
    ]


def test_batches_in_flight_are_finished_in_order() -> None:
    model = PipelinedDoubler()
    runs = RecentRuns()
    run = runner(model, recent_runs=runs)
    begin(run, frame(1, 1, 2))
    assert run.received.may_begin
    begin(run, frame(2, 3))
    assert not run.received.may_begin
    # Each request's own bytes, which nobody has joined.
    assert model.parts == [2, 1]
    assert runs.begun_ids() == [100, 100, 200]
    assert not is_complete(run)
    model.ready = 1
    assert is_complete(run)
    first = finish(run)
    assert outcome(first) == (1, [2.0, 4.0])
    times = pb.Executed.FromString(first)
    assert min(times.compute_input_ns, times.compute_infer_ns, times.compute_output_ns) > 0
    assert outcome(finish(run)) == (2, [6.0])
    assert [ids for ids, _ in runs.kept()] == [[100, 100], [200]]


def test_errors_belong_to_their_batch() -> None:
    model = PipelinedDoubler()
    run = runner(model)
    model.failure = Unavailable("out of order")
    begin(run, frame(1, 1))
    model.failure = None
    begin(run, frame(2, 3, -1))
    assert is_complete(run)
    assert outcome(finish(run)) == (1, ["out of order"])
    assert not is_complete(run)
    number, (value, error) = outcome(finish(run))
    assert (number, value) == (2, 6.0)
    assert isinstance(error, str)


@pytest.mark.parametrize(
    ("error", "message"),
    [(Internal("illegal address"), "illegal address"), (KeyError("y"), INTERNAL_MESSAGE)],
)
def test_a_batch_that_fails_on_the_device(error: Exception, message: str) -> None:
    model = PipelinedDoubler()
    run = runner(model)
    begin(run, frame(1, 1))
    model.collect_error = error
    assert outcome(finish(run)) == (1, [message])
    assert not run.received.busy


def test_malformed_requests_alone_do_not_reach_the_model() -> None:
    model = PipelinedDoubler()
    run = runner(model)
    begin(run, frame(1, -1))
    assert is_complete(run)
    assert outcome(finish(run))[0] == 1
    assert model.parts == []


def test_inputs_that_the_batch_makes_come_as_a_whole() -> None:
    config = identity_config("FP32", "1", 8)
    config.input[0].allow_ragged_batch = True
    model = PipelinedDoubler()
    run = runner(model, config=config)
    begin(run, frame(1, 1, 2))
    assert model.parts == [1]
    finish(run)
    assert not model.submitted


def test_outputs_in_shared_memory_and_spans() -> None:
    tracer, lender = RecordedSpans(), OutputLender(SharedTensors(1 << 22))
    spec = instance(identity_config("FP32", "32768", 8))
    run = Runner(spec, PipelinedDoubler(), tracer=tracer)
    run.begin_tenure(lender)
    large = member(head(("x", "FP32", [1, 32768])), np.ones(32768, np.float32).tobytes())
    large.trace_context = b"\0" + bytes(range(1, 25)) + b"\1"
    message = pb.Batch(id=1, members=[large], traced=True).SerializeToString()
    begin(run, message)
    begin(run, pb.Batch(id=2, members=[large], traced=True).SerializeToString())
    executed = pb.Executed.FromString(finish(run))
    assert executed.responses[0].payloads[0].shared_memory.size_bytes == 4 * 32768
    assert not lender.lent
    assert [span.error for span in tracer.named("compute")] == [None]
    # Memory that a failed batch was lent is free again.
    adapter_of(run).max_frame_bytes = 0
    failed = pb.Executed.FromString(finish(run))
    assert "take more than" in failed.responses[0].error.message
    assert not lender.lent
    assert tracer.named("compute")[1].error is not None


# ---- streams


@pytest.mark.parametrize("model", [Doubler(), PipelinedDoubler()])
def test_a_stream_is_served_until_it_ends(model: Doubler) -> None:
    run = runner(model)
    assert run.received.withdraw(2)
    stream = OpenFrames(frame(1, 1), frame(2, 2), frame(3, 3))
    if isinstance(model, PipelinedDoubler):
        model.ready = 2
    run.serve(stream, lambda: len(stream.sent) == 2)
    assert [outcome(each) for each in stream.sent] == [(1, [2.0]), (3, [6.0])]
    assert run.received.completed == 2
    run.serve(Frames(), lambda: False)


@pytest.mark.parametrize(
    "broken", [frame(1, 1), pb.Batch().SerializeToString(), pb.Batch(id=2).SerializeToString()]
)
def test_a_scheduler_that_breaks_the_protocol_loses_the_stream(broken: bytes) -> None:
    run = runner(Doubler())
    stream = OpenFrames(frame(1, 1), broken)
    with pytest.raises(ProtocolError):
        run.serve(stream, lambda: False)
    assert len(stream.sent) == 1
    assert not run.received.busy


def test_a_batch_begins_while_another_executes() -> None:
    model = PipelinedDoubler()
    model.ready = 3
    run = runner(model)
    stream = OpenFrames(frame(1, 1), frame(2, 2), frame(3, 3))
    most: list[int] = []
    stream.on_read = lambda: most.append(len(run.received.executing))
    run.serve(stream, lambda: len(stream.sent) == 3)
    assert [outcome(each) for each in stream.sent] == [(1, [2.0]), (2, [4.0]), (3, [6.0])]
    assert most == [1, 1]
    assert run.received.completed == 3


def test_without_a_further_batch_it_waits_for_the_device() -> None:
    model = PipelinedDoubler()
    run = runner(model)
    reads: list[int] = []

    def read() -> None:
        reads.append(1)
        if len(reads) == 3:
            model.ready = 1

    stream = OpenFrames(frame(1, 1), on_read=read)
    run.serve(stream, lambda: bool(stream.sent))
    assert [outcome(each) for each in stream.sent] == [(1, [2.0])]
    assert len(reads) == 3


def test_what_is_in_flight_when_it_stops_is_finished() -> None:
    model = PipelinedDoubler()
    run = runner(model)
    stopping: list[bool] = []
    stream = OpenFrames(frame(1, 1), on_read=lambda: stopping.append(True))
    run.serve(stream, lambda: bool(stopping))
    assert [outcome(each) for each in stream.sent] == [(1, [2.0])]
    assert not run.received.busy


def test_the_end_of_the_stream_drops_what_is_in_flight() -> None:
    model = PipelinedDoubler()
    runs = RecentRuns()
    run = runner(model, recent_runs=runs)
    stream = Frames(frame(1, 1))
    run.serve(stream, lambda: False)
    assert stream.sent == []
    assert not model.submitted
    # Who sends the request again gets what it has given.
    assert [ids for ids, _ in runs.kept()] == [[100]]
    # An end while nothing is in flight.
    run.serve(Frames(), lambda: False)


@pytest.mark.parametrize("model", [Doubler(), PipelinedDoubler()])
def test_a_broken_stream_leaves_nothing_in_flight(model: Doubler) -> None:
    run = runner(model)
    stream = OpenFrames(frame(1, 1), frame(2, 2), frame(3, 3))
    stream.fails = True
    with pytest.raises(Unavailable):
        run.serve(stream, lambda: False)
    assert not run.received.busy
    assert not isinstance(model, PipelinedDoubler) or not model.submitted
