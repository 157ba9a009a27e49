"""The spans of requests in a model version."""

from nereid.core.errors import Unavailable
from nereid.core.wire.messages import MOVED, InferResponse
from nereid.observability.tracing import is_sampled
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.entry import Entry, RequestState
from nereid_scheduler.core.requests.request_trace import RequestTrace
from nereid_scheduler.versions.tracing.spans import SpanTraces
from nereid_scheduler.versions.tracing.traces import NO_TRACES
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.samples import entry_of, request_with
from tests.support.scheduler.world import VersionWorld, turn


def context(number: int, sampled: bool = True) -> bytes:
    return b"\0" + bytes([number]) * 24 + bytes([sampled])


def begun_entry() -> Entry:
    entry = entry_of()
    entry.received_ns = 100
    return entry


def begun(tracer: RecordedSpans, entry: Entry) -> RequestTrace:
    entry.trace = trace = SpanTraces(tracer).begin(request_with(context(1)))
    assert trace is not None
    return trace


class World(VersionWorld):
    def __init__(self, more: str = "", *, traced: bool = True) -> None:
        self.tracer = RecordedSpans()
        traces = SpanTraces(self.tracer) if traced else NO_TRACES
        super().__init__(f"max_batch_size: 8 dynamic_batching {{ }} {more}", traces=traces)

    def send(self, number: int, trace_context: bytes) -> Entry:
        (entry,) = self.submit(number, request_id=str(number), trace_context=trace_context)
        return entry

    def response(self, instance: RemoteInstance, batch: pb.Batch) -> None:
        self.reply(instance, batch)


async def test_without_a_tracer_contexts_are_passed_on() -> None:
    it = World(traced=False)
    instance, stream = it.instance()
    it.send(1, context(1))
    await turn()
    assert stream.sent[0].members[0].trace_context == context(1)
    it.reply(instance, stream.sent[0])
    assert len(it.responses) == 1


async def test_sampled_members_of_a_batch_are_linked_and_others_are_not() -> None:
    it = World()
    instance, stream = it.instance()
    contexts = [context(1), context(2, sampled=False), b"", context(3)]
    for number, each in enumerate(contexts):
        it.send(number, each)
    await turn()
    (sent,) = stream.sent
    passed = [member.trace_context for member in sent.members]
    assert passed[1:3] == contexts[1:3]
    it.reply(instance, sent)
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
    it.send(1, context(1))
    await turn()
    it.model.pool.lose_instance(instance, "the executor died")
    other, more = it.instance()
    await turn()
    assert more.sent[0].members[0].trace_context != stream.sent[0].members[0].trace_context
    it.reply(other, more.sent[0])
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
    it.send(1, context(1))
    it.model.fail_all(Unavailable("over"))
    wait, model = it.tracer.one("queue"), it.tracer.one("m")
    assert wait.parent == model.context
    assert model.error == "over"
    assert it.tracer.named("execute") == []


async def test_a_cancelled_request_has_spans_of_its_wait_and_its_execution() -> None:
    it = World()
    instance, stream = it.instance()
    running = it.send(1, context(1))
    await turn()
    waiting = it.send(2, context(2))
    for entry in (running, waiting):
        it.model.cancel(entry)
    assert [span.error for span in it.tracer.named("m")] == ["cancelled", "cancelled"]
    assert it.tracer.one("queue").parent == it.tracer.named("m")[1].context
    # Its batch goes on.
    it.reply(instance, stream.sent[0])
    assert it.tracer.one("execute").parent == it.tracer.named("m")[0].context
    assert it.responses == []


def test_a_cache_lookup_has_a_span_that_says_whether_it_hit() -> None:
    tracer, entry = RecordedSpans(), begun_entry()
    trace = begun(tracer, entry)
    asked = trace.begin_lookup()
    entry.state = RequestState.CACHE_LOOKUP
    SpanTraces(tracer).end_request(trace, entry, ("m", 1), InferResponse(0), 150)
    lookup, model = tracer.one("cache lookup"), tracer.one("m")
    assert (lookup.context, lookup.parent) == (asked, model.context)
    assert lookup.attributes == {"nereid.cache.hit": True}
    assert lookup.end_ns - lookup.start_ns == 50
    # It never was in the queue.
    assert tracer.named("queue") == []


def test_the_lookup_of_a_returned_entry_ends_where_its_wait_begins() -> None:
    tracer, entry = RecordedSpans(), begun_entry()
    trace = begun(tracer, entry)
    trace.begin_lookup()
    entry.state, entry.enqueued_ns = RequestState.QUEUED, 130
    SpanTraces(tracer).end_request(trace, entry, ("m", 1), InferResponse(0, error=MOVED), 150)
    lookup, wait = tracer.one("cache lookup"), tracer.one("queue")
    assert lookup.attributes == {"nereid.cache.hit": False}
    assert lookup.end_ns == wait.start_ns == lookup.start_ns + 30


def test_a_cancelled_request_has_that_as_its_error() -> None:
    tracer, entry = RecordedSpans(), begun_entry()
    SpanTraces(tracer).end_request(begun(tracer, entry), entry, ("m", 1), None, 200)
    assert tracer.one("m").error == "cancelled"
    assert is_sampled(tracer.one("m").context)
    assert SpanTraces(tracer).begin(request_with(context(1, sampled=False))) is None


def test_a_span_has_events_for_the_responses_of_a_decoupled_model() -> None:
    tracer, entry = RecordedSpans(), begun_entry()
    trace = begun(tracer, entry)
    for number in range(300):
        trace.add_response(110 + number)
    SpanTraces(tracer).end_request(trace, entry, ("m", 1), InferResponse(0), 500)
    span = tracer.one("m")
    times = [time_ns - span.start_ns for name, time_ns in span.events if name == "nereid.response"]
    # Only the first so many.
    assert times == [10 + number for number in range(128)]


async def test_a_target_s_decisions_are_attributes_of_the_batch() -> None:
    target = 'parameters { key: "target_p99_us" value { string_value: "60000000" } }'
    it = World(target)
    instance, stream = it.instance()
    it.send(1, context(1))
    await turn()
    it.reply(instance, stream.sent[0])
    (batch,) = it.tracer.named("batch")
    decided = {name: each for name, each in batch.attributes.items() if "target" in name}
    assert decided == {
        "nereid.target.p99_us": 60_000_000,
        "nereid.target.batch_size": 1,
        "nereid.target.delay_us": 0,
        "nereid.target.execution_us": 0,
    }
    # Of others there is none.
    it = World()
    instance, stream = it.instance()
    it.send(1, context(1))
    await turn()
    it.reply(instance, stream.sent[0])
    (batch,) = it.tracer.named("batch")
    assert not any("target" in name for name in batch.attributes)


def test_a_span_names_the_steps_that_were_skipped() -> None:
    tracer, entry = RecordedSpans(), begun_entry()
    trace = begun(tracer, entry)
    for model in ("a", "b", *["c"] * 200):
        trace.add_skipped_step(model)
    SpanTraces(tracer).end_request(trace, entry, ("m", 1), InferResponse(0), 500)
    skipped = str(tracer.one("m").attributes["nereid.skipped_steps"])
    assert skipped == ",".join(["a", "b", *["c"] * 126])
