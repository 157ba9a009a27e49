"""The spans of requests in a model version."""

import asyncio

import pytest

from nereid.core.errors import ProtocolError, Unavailable
from nereid.core.messages import InferRequest, InferResponse
from nereid.observability.tracing import is_sampled
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.remote_instance import RemoteInstance
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.models.version_context import VersionContext
from nereid.services.scheduler.observability.request_traces import SpanTraces
from nereid.services.scheduler.requests.entry import Entry
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.fake_executors import Stream, executed, turn
from tests.support.scheduler.samples import entry_of, model_of, request_with

CONFIG = """
max_batch_size: 8
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
dynamic_batching { %s }
"""


def context(number: int, sampled: bool = True) -> bytes:
    return b"\0" + bytes([number]) * 24 + bytes([sampled])


class World:
    def __init__(self, *, traced: bool = True, policy: str = "", **limits: float) -> None:
        self.tracer = RecordedSpans()
        queue = f"default_queue_policy {{ {policy} }}" if policy else ""
        self.model = ModelVersion(
            model_of(CONFIG % queue),
            1,
            VersionContext(
                QueueLimits(**limits),  # type: ignore[arg-type]
                SpanTraces(self.tracer) if traced else None,
            ),
        )
        self.responses: list[InferResponse] = []
        self.responded = asyncio.Event()

    def instance(self) -> tuple[RemoteInstance, Stream]:
        stream = Stream()
        instance = RemoteInstance(1, "i", "executor", stream)
        self.model.add_instance(instance)
        return instance, stream

    def submit(self, number: int, trace_context: bytes, timeout_us: int = 0) -> Entry:
        head = kserve_pb2.ModelInferRequest(model_name="m")
        head.inputs.add(name="I", datatype="UINT8", shape=[1, 1])
        request = InferRequest(number, head.SerializeToString(), [b"x"], request_id=str(number))
        request.trace_context, request.timeout_us = trace_context, timeout_us
        return self.model.submit(request, self._on_response)

    def _on_response(self, response: InferResponse) -> None:
        self.responses.append(response)
        self.responded.set()

    def response(self, instance: RemoteInstance, batch: pb.Batch) -> None:
        self.model.on_reply(instance, executed(batch))


async def test_without_a_tracer_contexts_are_passed_on() -> None:
    it = World(traced=False)
    instance, stream = it.instance()
    it.submit(1, context(1))
    await turn()
    assert stream.sent[0].members[0].trace_context == context(1)
    it.response(instance, stream.sent[0])
    assert len(it.responses) == 1


async def test_sampled_members_of_a_batch_are_linked_and_others_are_not() -> None:
    it = World()
    instance, stream = it.instance()
    contexts = [context(1), context(2, sampled=False), b"", context(3)]
    for number, each in enumerate(contexts):
        it.submit(number, each)
    await turn()
    (sent,) = stream.sent
    passed = [member.trace_context for member in sent.members]
    assert passed[1:3] == contexts[1:3]
    it.response(instance, sent)
    assert len(it.responses) == 4
    first, last = it.tracer.named("m")
    assert (first.parent, last.parent) == (contexts[0], contexts[3])
    executes = it.tracer.named("execute")
    # The executor's spans are children of the attempts.
    assert [span.context for span in executes] == [passed[0], passed[3]]
    assert [span.parent for span in executes] == [first.context, last.context]
    batch = it.tracer.one("batch")
    assert batch.parent == first.context
    assert list(batch.links) == [passed[0], passed[3]]
    assert all(list(span.links) == [batch.context] for span in executes)
    assert batch.attributes["nereid.batch.members"] == 4
    assert [span.parent for span in it.tracer.named("queue")] == [first.context, last.context]
    assert first.attributes == {
        "triton.model_name": "m",
        "triton.model_version": 1,
        "triton.request_id": "0",
        "nereid.attempts": 1,
    }
    assert all(span.error is None for span in it.tracer.spans)


async def test_a_lost_attempt_has_a_span_and_the_next_wait_begins_there() -> None:
    it = World()
    instance, stream = it.instance()
    it.submit(1, context(1))
    await turn()
    it.model.lose_instance(instance, "the executor died")
    other, more = it.instance()
    await turn()
    assert more.sent[0].members[0].trace_context != stream.sent[0].members[0].trace_context
    it.response(other, more.sent[0])
    lost, done = it.tracer.named("execute")
    assert (lost.error, done.error) == ("the executor died", None)
    assert [span.attributes["nereid.attempt"] for span in (lost, done)] == [1, 2]
    assert [span.error for span in it.tracer.named("batch")] == ["the executor died", None]
    waits = it.tracer.named("queue")
    assert waits[0].end_ns == lost.start_ns
    # Two readings of the wall clock's offset stand between them.
    assert abs(waits[1].start_ns - lost.end_ns) < 1_000_000
    assert it.tracer.one("m").attributes["nereid.attempts"] == 2
    assert it.tracer.one("m").error is None


async def test_a_request_that_was_never_executed_has_a_queue_span_and_an_error() -> None:
    it = World()
    it.submit(1, context(1))
    it.model.fail_all(Unavailable("over"))
    wait, model = it.tracer.one("queue"), it.tracer.one("m")
    assert wait.parent == model.context
    assert model.error == "over"
    assert it.tracer.named("execute") == []


async def test_a_request_that_times_out_in_the_queue_has_only_a_queue_span() -> None:
    it = World(policy="default_timeout_microseconds: 60000000 allow_timeout_override: true")
    _, stream = it.instance()
    # The other one is executed, which takes its time.
    for number, timeout_us in ((1, 0), (2, 1000)):
        it.submit(number, context(number), timeout_us)
        await turn()
    assert [len(batch.members) for batch in stream.sent] == [1]
    await asyncio.wait_for(it.responded.wait(), 20)
    wait, model = it.tracer.one("queue"), it.tracer.one("m")
    assert model.error == "Request timeout expired"
    assert (wait.parent, model.parent) == (model.context, context(2))
    assert wait.end_ns - wait.start_ns >= 1_000_000
    assert model.attributes["nereid.attempts"] == 0


async def test_a_cancelled_request_has_spans_of_its_wait_and_its_execution() -> None:
    it = World()
    instance, stream = it.instance()
    running = it.submit(1, context(1))
    await turn()
    waiting = it.submit(2, context(2))
    for entry in (running, waiting):
        it.model.cancel(entry)
    assert [span.error for span in it.tracer.named("m")] == ["cancelled", "cancelled"]
    assert it.tracer.one("queue").parent == it.tracer.named("m")[1].context
    # Its batch goes on.
    it.response(instance, stream.sent[0])
    assert it.tracer.one("execute").parent == it.tracer.named("m")[0].context
    assert it.responses == []


async def test_a_malformed_response_still_ends_its_attempts() -> None:
    it = World()
    instance, _ = it.instance()
    it.submit(1, context(1))
    await turn()
    with pytest.raises(ProtocolError):
        it.model.on_reply(instance, b"\xff")
    it.model.lose_instance(instance, "its stream has ended")
    assert it.tracer.one("execute").error == "its stream has ended"


def test_a_cache_lookup_has_a_span_that_says_whether_it_hit() -> None:
    tracer = RecordedSpans()
    trace = SpanTraces(tracer).begin(request_with(context(1)), 100)
    assert trace is not None
    asked = trace.begin_lookup()
    trace.end_lookup(100, 150, hit=True)
    trace.end(entry_of(), ("m", 1), InferResponse(0), 200)
    lookup, model = tracer.one("cache lookup"), tracer.one("m")
    assert (lookup.context, lookup.parent) == (asked, model.context)
    assert lookup.attributes == {"hit": True}
    assert lookup.end_ns - lookup.start_ns == 50
    # It never was in the queue.
    assert tracer.named("queue") == []


def test_a_cancelled_request_has_that_as_its_error() -> None:
    tracer = RecordedSpans()
    trace = SpanTraces(tracer).begin(request_with(context(1)), 100)
    assert trace is not None
    trace.end(entry_of(), ("m", 1), None, 200)
    assert tracer.one("m").error == "cancelled"
    assert is_sampled(tracer.one("m").context)
    assert SpanTraces(tracer).begin(request_with(context(1, sampled=False)), 100) is None


def test_a_span_has_events_for_the_responses_of_a_decoupled_model() -> None:
    tracer = RecordedSpans()
    trace = SpanTraces(tracer).begin(request_with(context(1)), 100)
    assert trace is not None
    for number in range(300):
        trace.responded(InferResponse(0, more=True), 110 + number)
    trace.end(entry_of(), ("m", 1), InferResponse(0), 500)
    span = tracer.one("m")
    times = [time_ns - span.start_ns for name, time_ns in span.events if name == "response"]
    # Only the first so many.
    assert times == [10 + number for number in range(128)]
