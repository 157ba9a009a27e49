"""A model version whose instances may have a waiting batch; their streams are lists."""

import asyncio
from collections.abc import Callable

import pytest

from nereid.core.errors import Internal, ProtocolError, Unavailable
from nereid.core.messages import InferRequest, InferResponse
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.instance_batches import WAITING, WITHDRAWING
from nereid.services.scheduler.executors.remote_instance import RemoteInstance
from nereid.services.scheduler.models.model_version import ModelVersion
from nereid.services.scheduler.models.queue_limits import QueueLimits
from nereid.services.scheduler.models.version_context import VersionContext
from nereid.services.scheduler.models.waiting_batches import lets_batches_wait
from nereid.services.scheduler.observability.request_traces import SpanTraces
from nereid.services.scheduler.observability.trace_timestamps import TimestampTraces
from nereid.services.scheduler.requests.entry import Entry
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.fake_executors import Stream, executed, turn
from tests.support.scheduler.samples import model_of

TENSORS = """
input { name: "I" data_type: TYPE_UINT8 dims: 1 }
output { name: "O" data_type: TYPE_UINT8 dims: 1 }
"""
MS = 1_000_000


class World:
    def __init__(
        self, text: str = "max_batch_size: 2 dynamic_batching { }", *, traces: object = None
    ) -> None:
        self.model = ModelVersion(
            model_of(text + TENSORS),
            1,
            VersionContext(QueueLimits(), traces),  # type: ignore[arg-type]
        )
        self.batched = self.model.config.max_batch_size > 0
        self.responses: list[InferResponse] = []
        self.entries: dict[int, Entry] = {}
        self.asked: list[int] = []

    def instance(
        self, *, patient: bool = True, accepts: bool = True
    ) -> tuple[RemoteInstance, Stream]:
        """One that executes fast; patient: no batch there is overdue in the time of a test."""
        stream = Stream()
        instance = RemoteInstance(1, "i", "executor", stream)
        instance.accepts_waiting = accepts
        instance.request_withdrawal = self.asked.append
        instance.pace.record_batch(1 * MS, 60_000 * MS if patient else 2 * MS)
        self.model.add_instance(instance)
        return instance, stream

    async def submit(self, *numbers: int, trace_context: bytes = b"") -> None:
        """Submit requests in one turn of the event loop."""
        for number in numbers:
            head = kserve_pb2.ModelInferRequest(model_name="m")
            shape = [1, 1] if self.batched else [1]
            head.inputs.add(name="I", datatype="UINT8", shape=shape)
            request = InferRequest(number, head.SerializeToString(), [b"x"])
            request.trace_context = trace_context
            self.entries[number] = self.model.submit(request, self.responses.append)
        await turn()

    def outcomes(self) -> dict[int, str]:
        return {each.id: each.error.message if each.error else "" for each in self.responses}

    def close(self) -> None:
        self.model.fail_all(Unavailable("over"))
        self.model.close()


def batches(stream: Stream) -> list[list[int]]:
    return [[member.id for member in batch.members] for batch in stream.sent if batch.members]


async def test_a_full_batch_waits_and_no_more_than_one() -> None:
    it = World()
    instance, stream = it.instance()
    await it.submit(1, 2)
    await it.submit(3)
    assert batches(stream) == [[1, 2]]
    await it.submit(4)
    await it.submit(5, 6, 7)
    assert batches(stream) == [[1, 2], [3, 4]]
    assert it.model.pending == 5
    it.model.on_reply(instance, executed(stream.sent[0]))
    # At the response, before the responses to clients: the next one waits.
    assert batches(stream) == [[1, 2], [3, 4], [5, 6]]
    assert it.model.pending == 3
    assert [*it.outcomes()] == [1, 2]
    it.model.on_reply(instance, executed(stream.sent[1]))
    assert batches(stream) == [[1, 2], [3, 4], [5, 6]]
    it.model.on_reply(instance, executed(stream.sent[2]))
    it.model.on_reply(instance, executed(stream.sent[3]))
    assert [*it.outcomes()] == [1, 2, 3, 4, 5, 6, 7]
    assert it.model.pending == 0
    assert it.model.instances == (1, 1)
    assert it.model.statistics.execution_count == 4


async def test_many_clients_requests_are_shared_between_two_batches() -> None:
    it = World("max_batch_size: 64 dynamic_batching { }")
    instance, stream = it.instance()
    await it.submit(*range(4))
    assert batches(stream) == [[0, 1, 2, 3]]
    # Not measured before, and short.
    it.model.on_reply(instance, executed(stream.sent[0]))
    await it.submit(*range(100, 164))
    assert batches(stream)[1:] == [[*range(100, 132)], [*range(132, 164)]]
    assert it.model.statistics.batches_closed["shared"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "max_batch_size: 64 dynamic_batching { preferred_batch_size: [ 48, 64 ] }",
        "max_batch_size: 64 dynamic_batching { max_queue_delay_microseconds: 1 }",
    ],
    ids=["preferred sizes", "delay"],
)
async def test_configured_batches_are_not_shared(text: str) -> None:
    it = World(text)
    instance, stream = it.instance()
    await it.submit(*range(48))
    it.model.on_reply(instance, executed(stream.sent[0]))
    await it.submit(*range(100, 164))
    assert len(batches(stream)[1]) >= 48


@pytest.mark.parametrize(
    ("gpu", "asked", "expected"),
    [
        ("GPU-1", "eager_batching: true", [[1], [2]]),
        ("GPU-1", "cuda { output_copy_stream: true }", [[1], [2]]),
        ("GPU-1", "", [[1]]),
        ("", "eager_batching: true", [[1]]),
    ],
)
async def test_copies_to_a_gpu_begin_at_once_where_they_overlap(
    gpu: str, asked: str, expected: list[list[int]]
) -> None:
    it = World(f"max_batch_size: 8 dynamic_batching {{ }} optimization {{ {asked} }}")
    instance, stream = it.instance()
    instance.gpu_uuid = gpu
    # However long it executes.
    instance.pace.execution_ns = 10 * instance.pace.round_trip_ns
    await it.submit(1)
    await it.submit(2)
    assert batches(stream) == expected


async def test_an_instance_that_does_not_say_so_gets_one_batch_at_a_time() -> None:
    it = World("")
    _, stream = it.instance(accepts=False)
    await it.submit(1, 2)
    assert batches(stream) == [[1]]


async def test_free_instances_come_first() -> None:
    it = World("")
    _, stream = it.instance()
    _, other = it.instance()
    await it.submit(1, 2)
    assert (batches(stream), batches(other)) == ([[1]], [[2]])
    await it.submit(3, 4, 5)
    assert (batches(stream), batches(other)) == ([[1], [3]], [[2], [4]])
    assert it.model.pending == 3


async def test_nothing_waits_where_execution_is_long() -> None:
    it = World("")
    slow, stream = it.instance()
    fast, other = it.instance()
    slow.pace.execution_ns = 10 * slow.pace.round_trip_ns
    fast.pace.execution_ns = 10 * fast.pace.round_trip_ns
    await it.submit(1, 2, 3)
    assert (batches(stream), batches(other)) == ([[1]], [[2]])
    it.model.on_reply(fast, executed(other.sent[0]))
    assert (batches(stream), batches(other)) == ([[1]], [[2], [3]])


async def test_a_queue_delay_is_kept() -> None:
    delay = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    it = World(delay)
    _, stream = it.instance()
    await it.submit(1, 2, 3, 4)
    await it.submit(5, 6, 7)
    assert batches(stream) == [[1, 2, 3, 4]]
    # Full: it can grow no more.
    await it.submit(8)
    assert batches(stream) == [[1, 2, 3, 4], [5, 6, 7, 8]]


async def test_both_batches_of_a_lost_instance_are_queued_again_in_order() -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2, 3)
    assert batches(stream) == [[1], [2]]
    it.model.lose_instance(instance, "it died")
    assert it.model.pending == 3
    await turn()
    # Only what was executing has had an attempt.
    assert [it.entries[number].retries for number in (1, 2, 3)] == [1, 0, 0]
    other, more = it.instance()
    await turn()
    assert batches(more) == [[1], [2]]
    for batch in (0, 1, 2):
        it.model.on_reply(other, executed(more.sent[batch]))
    assert it.outcomes() == {1: "", 2: "", 3: ""}


async def test_a_waiting_batch_whose_instance_was_retired_is_executed_there() -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2, 3)
    idle: list[int] = []
    instance.on_idle = lambda: idle.append(1)
    it.model.retire_instance(instance)
    it.model.on_reply(instance, executed(stream.sent[0]))
    assert not idle
    assert instance.at_work
    it.model.on_reply(instance, executed(stream.sent[1]))
    assert idle
    assert batches(stream) == [[1], [2]]
    assert it.outcomes() == {1: "", 2: ""}


async def test_a_retired_instance_is_lost_with_a_waiting_batch() -> None:
    it = World("")
    instance, _ = it.instance()
    await it.submit(1, 2)
    it.model.retire_instance(instance)
    it.model.lose_instance(instance, "it died")
    _, more = it.instance()
    await turn()
    assert batches(more) == [[1], [2]]


@pytest.mark.parametrize(
    ("begun", "outcomes"), [(1, {1: "no"}), (2, {1: "no", 2: "no"})], ids=["running", "both"]
)
async def test_what_a_lost_model_had_begun_fails(begun: int, outcomes: dict[int, str]) -> None:
    it = World("", traces=SpanTraces(RecordedSpans()))
    instance, _ = it.instance()
    await it.submit(1, 2, trace_context=b"\0" + b"\1" * 25)
    it.model.fail_begun(instance, begun, Internal("no"))
    it.model.lose_instance(instance, "it died", begun=False)
    assert dict(sorted(it.outcomes().items())) == outcomes
    assert it.model.pending == 2 - begun


async def test_a_withdrawn_batch_goes_to_the_instance_that_is_free() -> None:
    it = World("")
    slow, stream = it.instance()
    await it.submit(1, 2, 3)
    slow.withdraw_waiting()
    slow.withdraw_waiting()
    assert it.asked == [2]
    _, other = it.instance()
    # It is not known yet whether it has begun.
    it.entries[3].cancel()
    await turn()
    assert batches(other) == []
    it.model.batch_withdrawn(slow, 2)
    await turn()
    assert batches(other) == [[2]]
    assert it.model.pending == 0
    # The slow one may have another when it is about to end.
    it.model.on_reply(slow, executed(stream.sent[0]))
    assert it.outcomes() == {1: ""}
    assert it.entries[2].retries == 0


async def test_a_batch_that_was_withdrawn_while_the_response_before_it_came() -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2)
    instance.withdraw_waiting()
    await it.submit(3)
    it.model.on_reply(instance, executed(stream.sent[0]))
    # None is sent behind a batch that may have been given back: it would go first.
    assert batches(stream) == [[1], [2]]
    it.model.batch_withdrawn(instance, 2)
    assert batches(stream) == [[1], [2], [2], [3]]


async def test_the_last_batch_of_a_retired_instance_is_withdrawn() -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2)
    instance.withdraw_waiting()
    it.model.on_reply(instance, executed(stream.sent[0]))
    idle: list[int] = []
    instance.on_idle = lambda: idle.append(1)
    it.model.retire_instance(instance)
    it.model.batch_withdrawn(instance, 2)
    assert idle
    assert it.model.pending == 1


async def test_a_withdrawal_of_a_retired_instance_leaves_it_without_a_second_batch() -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2)
    instance.withdraw_waiting()
    it.model.retire_instance(instance)
    it.model.batch_withdrawn(instance, 2)
    await turn()
    assert batches(stream) == [[1], [2]]
    assert it.model.pending == 1


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_batch_that_nobody_asked_for_is_not_given_back(
    number: int,
) -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2)
    with pytest.raises(ProtocolError, match=f"batch {number} back"):
        it.model.batch_withdrawn(instance, number)
    it.model.on_reply(instance, executed(stream.sent[0]))
    it.model.on_reply(instance, executed(stream.sent[1]))
    assert it.outcomes() == {1: "", 2: ""}


async def test_a_batch_that_waits_for_too_long_is_asked_for() -> None:
    it = World("")
    asked = asyncio.Event()
    instance, _ = it.instance(patient=False)
    other, _ = it.instance()
    instance.request_withdrawal = lambda _: asked.set()
    await it.submit(1, 2, 3, 4)
    await asyncio.wait_for(asked.wait(), 30)
    assert instance.batches.waiting is not None
    assert instance.batches.waiting.state is WITHDRAWING
    # That one is not overdue.
    assert other.batches.waiting is not None
    assert other.batches.waiting.state is WAITING
    it.model.batch_withdrawn(instance, 2)
    await turn()
    # It takes longer than expected: none is sent behind that.
    assert instance.batches.waiting is None


async def test_a_batch_that_cannot_be_sent_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1)
    stream.broken = True
    await it.submit(2)
    await turn()
    assert it.outcomes() == {2: "the batch cannot be sent to an executor"}
    stream.broken = False
    it.model.on_reply(instance, executed(stream.sent[0]))
    assert it.outcomes()[1] == ""
    assert repr(it.model) in caplog.text


@pytest.mark.parametrize("controls", [False, True])
async def test_a_model_is_notified_of_what_was_cancelled_while_it_waited(controls: bool) -> None:
    it = World("max_batch_size: 8")
    instance, stream = it.instance()
    instance.accepts_controls = controls
    await it.submit(1, 2)
    it.entries[2].cancel()
    await turn()
    assert [len(batch.controls) for batch in stream.sent] == [0, 0]
    it.model.on_reply(instance, executed(stream.sent[0]))
    cancelled = [
        (each.batch, each.member, each.kind) for batch in stream.sent for each in batch.controls
    ]
    assert cancelled == ([(2, 0, pb.MemberControl.CANCEL)] if controls else [])
    it.model.on_reply(instance, executed(stream.sent[1]))
    assert it.outcomes() == {1: ""}


async def test_what_was_cancelled_while_it_waited_is_not_queued_again() -> None:
    it = World()
    instance, stream = it.instance()
    await it.submit(1, 2)
    await it.submit(3, 4)
    assert batches(stream) == [[1, 2], [3, 4]]
    it.entries[3].cancel()
    it.model.lose_instance(instance, "it died")
    assert it.model.pending == 3


def spent(text: bytes, compute_ns: int) -> bytes:
    reply = pb.Executed.FromString(text)
    reply.compute_infer_ns = compute_ns
    return reply.SerializeToString()


@pytest.mark.parametrize(
    ("compute_ns", "limit"),
    [(0, "when the response before it came"), (1 << 62, "when it was sent")],
)
async def test_waiting_at_an_instance_is_waiting_in_the_queue(compute_ns: int, limit: str) -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2)
    first, second = it.entries[1], it.entries[2]
    assert instance.batches.waiting is not None
    sent_ns = instance.batches.waiting.started_ns
    it.model.on_reply(instance, executed(stream.sent[0]))
    assert first.execution is not None
    queued_ns = it.model.statistics.queue_ns
    it.model.on_reply(instance, spent(executed(stream.sent[1]), compute_ns))
    assert second.execution is not None
    # An instance's claims do not reach back to before it had the batch.
    expected = first.execution.finished_ns if compute_ns == 0 else sent_ns
    assert second.execution.started_ns == expected, limit
    assert it.model.statistics.queue_ns - queued_ns == expected - second.enqueued_ns


async def test_a_response_that_was_not_read_at_once_does_not_shorten_the_execution() -> None:
    it = World("")
    instance, stream = it.instance()
    await it.submit(1, 2)
    assert instance.batches.waiting is not None
    sent_ns = instance.batches.waiting.started_ns
    await asyncio.sleep(0.002)
    it.model.on_reply(instance, executed(stream.sent[0]))
    it.model.on_reply(instance, spent(executed(stream.sent[1]), 1 * MS))
    execution = it.entries[2].execution
    assert execution is not None
    assert execution.started_ns == execution.finished_ns - 1 * MS > sent_ns


def lost(it: World, instance: RemoteInstance) -> None:
    it.model.lose_instance(instance, "it died")


def withdrawn(it: World, instance: RemoteInstance) -> None:
    instance.withdraw_waiting()
    it.model.batch_withdrawn(instance, 2)


@pytest.mark.parametrize("end", [lost, withdrawn])
async def test_a_span_of_the_queue_lasts_until_the_instance_begins(
    end: Callable[[World, RemoteInstance], None],
) -> None:
    tracer = RecordedSpans()
    it = World("", traces=SpanTraces(tracer))
    instance, stream = it.instance()
    sampled = [b"\0" + bytes([number]) * 24 + b"\1" for number in (1, 2)]
    await it.submit(1, trace_context=sampled[0])
    await it.submit(2, trace_context=sampled[1])
    end(it, instance)
    # It was never executed there.
    assert all(span.parent != sampled[1] for span in tracer.spans)
    if end is lost:
        instance, stream = it.instance()
        await turn()
    it.model.on_reply(instance, executed(stream.sent[0]))
    it.model.on_reply(instance, executed(stream.sent[-1]))
    assert it.outcomes() == {1: "", 2: ""}
    second = next(span for span in tracer.named("m") if span.parent == sampled[1])
    assert second.attributes["nereid.attempts"] == 1
    queue = next(span for span in tracer.named("queue") if span.parent == second.context)
    execute = next(span for span in tracer.named("execute") if span.parent == second.context)
    assert queue.end_ns == execute.start_ns


async def test_timestamps_begin_to_compute_when_the_instance_does() -> None:
    it = World("", traces=TimestampTraces())
    instance, stream = it.instance()
    for number in (1, 2):
        await it.submit(number, trace_context=b"\0" + bytes([number]) * 24 + b"\1")
    it.model.on_reply(instance, executed(stream.sent[0]))
    it.model.on_reply(instance, executed(stream.sent[1]))
    first, second = (dict(each.trace[0].times) for each in it.responses if each.trace)
    assert second["COMPUTE_START"] >= first["COMPUTE_END"]


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("", True),
        ("max_batch_size: 4", True),
        ("max_batch_size: 4 dynamic_batching { preserve_ordering: true }", True),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 2 }", True),
        (
            "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 4 } }",
            False,
        ),
        (
            "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
            False,
        ),
        ("model_transaction_policy { decoupled: true }", False),
        ("sequence_batching { }", False),
        ('parameters { key: "at_most_once" value { string_value: "true" } }', False),
    ],
)
def test_batches_wait_where_nothing_depends_on_their_being_queued(text: str, waits: bool) -> None:
    assert lets_batches_wait(model_of(text + TENSORS)) is waits
