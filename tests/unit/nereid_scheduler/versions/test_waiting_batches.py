"""A model version whose instances may have a waiting batch; their streams are lists."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nereid.core.errors import Internal, ProtocolError
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.batching.times.instance_times import InstanceTimes
from nereid_scheduler.core.instances.instance_batches import WAITING, WITHDRAWING
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.entry import Entry
from nereid_scheduler.versions.tracing.spans import SpanTraces
from nereid_scheduler.versions.tracing.timestamps import TimestampTraces
from nereid_scheduler.versions.waiting_batches import lets_batches_wait
from tests.support.peers.spans import RecordedSpans
from tests.support.scheduler.samples import model_of
from tests.support.scheduler.world import TENSORS, Stream, VersionWorld, batches, executed, turn

MS = 1_000_000


class World(VersionWorld):
    def __init__(self, text: str = "max_batch_size: 2 dynamic_batching { }", **more: Any) -> None:
        super().__init__(text, **more)
        self.entries: dict[int, Entry] = {}

    def fast_instance(self, *, patient: bool = True) -> tuple[RemoteInstance, Stream]:
        """Patient: no batch there is overdue in the time of a test."""
        instance, stream = self.instance(accepts_waiting=True)
        times = self.model.pool.times.of_instance(instance)
        times.record(1 * MS, 60_000 * MS if patient else 2 * MS)
        return instance, stream

    def slow_down(self, instance: RemoteInstance) -> None:
        """Let the instance's executions take much longer than a round trip."""
        times = self.model.pool.times.instances[instance] = InstanceTimes()
        times.record(10 * MS, 11 * MS)

    async def submit_in_turn(self, *numbers: int, **fields: Any) -> None:
        """Submit requests in one turn of the event loop."""
        self.entries |= zip(numbers, self.submit(*numbers, **fields), strict=True)
        await turn()


async def test_a_full_batch_waits_and_no_more_than_one() -> None:
    it = World()
    instance, stream = it.fast_instance()
    await it.submit_in_turn(1, 2)
    await it.submit_in_turn(3)
    assert batches(stream) == [[1, 2]]
    await it.submit_in_turn(4)
    await it.submit_in_turn(5, 6, 7)
    assert batches(stream) == [[1, 2], [3, 4]]
    assert it.model.dispatcher.pending == 5
    it.reply(instance, stream.sent[0])
    # At the response, before the responses to clients: the next one waits.
    assert batches(stream) == [[1, 2], [3, 4], [5, 6]]
    assert it.model.dispatcher.pending == 3
    assert [*it.outcomes()] == [1, 2]
    it.reply(instance, stream.sent[1])
    assert batches(stream) == [[1, 2], [3, 4], [5, 6]]
    it.reply(instance, stream.sent[2])
    it.reply(instance, stream.sent[3])
    assert [*it.outcomes()] == [1, 2, 3, 4, 5, 6, 7]
    assert it.model.dispatcher.pending == 0
    assert it.model.dispatcher.instances == (1, 1)
    assert it.model.statistics.execution_count == 4


async def test_many_clients_requests_are_shared_between_two_batches() -> None:
    it = World("max_batch_size: 64 dynamic_batching { }")
    instance, stream = it.fast_instance()
    await it.submit_in_turn(*range(4))
    assert batches(stream) == [[0, 1, 2, 3]]
    # Not measured before, and short.
    reply = pb.Executed.FromString(executed(stream.sent[0]))
    reply.compute_infer_ns = MS
    it.model.pool.on_reply(instance, reply.SerializeToString())
    await it.submit_in_turn(*range(100, 164))
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
    instance, stream = it.fast_instance()
    await it.submit_in_turn(*range(48))
    it.reply(instance, stream.sent[0])
    await it.submit_in_turn(*range(100, 164))
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
    instance, stream = it.fast_instance()
    instance.gpu_uuid = gpu
    # However long it executes.
    it.slow_down(instance)
    await it.submit_in_turn(1)
    await it.submit_in_turn(2)
    assert batches(stream) == expected


async def test_free_instances_come_first() -> None:
    it = World("")
    _, stream = it.fast_instance()
    _, other = it.fast_instance()
    await it.submit_in_turn(1, 2)
    assert (batches(stream), batches(other)) == ([[1]], [[2]])
    await it.submit_in_turn(3, 4, 5)
    assert (batches(stream), batches(other)) == ([[1], [3]], [[2], [4]])
    assert it.model.dispatcher.pending == 3


async def test_nothing_waits_where_execution_is_long() -> None:
    it = World("")
    slow, stream = it.fast_instance()
    fast, other = it.fast_instance()
    it.slow_down(slow)
    it.slow_down(fast)
    await it.submit_in_turn(1, 2, 3)
    assert (batches(stream), batches(other)) == ([[1]], [[2]])
    it.reply(fast, other.sent[0])
    assert (batches(stream), batches(other)) == ([[1]], [[2], [3]])


async def test_a_queue_delay_is_kept() -> None:
    delay = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 }"
    it = World(delay)
    _, stream = it.fast_instance()
    await it.submit_in_turn(1, 2, 3, 4)
    await it.submit_in_turn(5, 6, 7)
    assert batches(stream) == [[1, 2, 3, 4]]
    # Full: it can grow no more.
    await it.submit_in_turn(8)
    assert batches(stream) == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("begun", "outcomes"), [(1, {1: "no"}), (2, {1: "no", 2: "no"})], ids=["running", "both"]
)
async def test_what_a_lost_model_had_begun_fails(begun: int, outcomes: dict[int, str]) -> None:
    it = World("", traces=SpanTraces(RecordedSpans()))
    instance, _ = it.fast_instance()
    await it.submit_in_turn(1, 2, trace_context=b"\0" + b"\1" * 25)
    it.model.pool.fail_begun(instance, begun, Internal("no"))
    it.model.pool.lose_instance(instance, "it died", begun=False)
    assert dict(sorted(it.outcomes().items())) == outcomes
    assert it.model.dispatcher.pending == 2 - begun


async def test_the_last_batch_of_a_retired_instance_is_withdrawn() -> None:
    it = World("")
    instance, stream = it.fast_instance()
    await it.submit_in_turn(1, 2)
    instance.withdraw_waiting()
    it.reply(instance, stream.sent[0])
    idle: list[int] = []
    instance.on_idle = lambda: idle.append(1)
    it.model.pool.roster.retire(instance)
    it.model.pool.batch_withdrawn(instance, 2)
    assert idle
    assert it.model.dispatcher.pending == 1


async def test_a_batch_that_waits_for_too_long_is_asked_for() -> None:
    it = World("")
    asked = asyncio.Event()
    instance, _ = it.fast_instance(patient=False)
    other, _ = it.fast_instance()
    instance.request_withdrawal = lambda _: asked.set()
    await it.submit_in_turn(1, 2, 3, 4)
    await asyncio.wait_for(asked.wait(), 30)
    assert instance.batches.waiting is not None
    assert instance.batches.waiting.state is WITHDRAWING
    # That one is not overdue.
    assert other.batches.waiting is not None
    assert other.batches.waiting.state is WAITING
    it.model.pool.batch_withdrawn(instance, 2)
    await turn()
    # It takes longer than expected: none is sent behind that.
    assert instance.batches.waiting is None


@pytest.mark.parametrize("controls", [False, True])
async def test_a_model_is_notified_of_what_was_cancelled_while_it_waited(controls: bool) -> None:
    it = World("max_batch_size: 8")
    instance, stream = it.fast_instance()
    instance.accepts_controls = controls
    await it.submit_in_turn(1, 2)
    it.entries[2].cancel()
    await turn()
    assert [len(batch.controls) for batch in stream.sent] == [0, 0]
    it.reply(instance, stream.sent[0])
    cancelled = [
        (each.batch, each.member, each.kind) for batch in stream.sent for each in batch.controls
    ]
    assert cancelled == ([(2, 0, pb.MemberControl.CANCEL)] if controls else [])
    it.reply(instance, stream.sent[1])
    assert it.outcomes() == {1: ""}


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
    instance, stream = it.fast_instance()
    await it.submit_in_turn(1, 2)
    first, second = it.entries[1], it.entries[2]
    assert instance.batches.waiting is not None
    sent_ns = instance.batches.waiting.started_ns
    it.reply(instance, stream.sent[0])
    assert first.execution is not None
    queued_ns = it.model.statistics.queue_ns
    it.model.pool.on_reply(instance, spent(executed(stream.sent[1]), compute_ns))
    assert second.execution is not None
    # An instance's claims do not reach back to before it had the batch.
    expected = first.execution.finished_ns if compute_ns == 0 else sent_ns
    assert second.execution.started_ns == expected, limit
    assert it.model.statistics.queue_ns - queued_ns == expected - second.enqueued_ns


async def test_a_response_that_was_not_read_at_once_does_not_shorten_the_execution() -> None:
    it = World("")
    instance, stream = it.fast_instance()
    await it.submit_in_turn(1, 2)
    waiting = instance.batches.waiting
    assert waiting is not None
    # Sent a minute ago; the response before it was sent half a minute ago.
    waiting.waited_since_ns -= 60_000 * MS
    it.reply(instance, stream.sent[0])
    it.model.pool.on_reply(instance, spent(executed(stream.sent[1]), 30_000 * MS))
    execution = it.entries[2].execution
    assert execution is not None
    sent_ns = waiting.waited_since_ns
    assert execution.started_ns == execution.finished_ns - 30_000 * MS > sent_ns


def lost(it: World, instance: RemoteInstance) -> None:
    it.model.pool.lose_instance(instance, "it died")


def withdrawn(it: World, instance: RemoteInstance) -> None:
    instance.withdraw_waiting()
    it.model.pool.batch_withdrawn(instance, 2)


@pytest.mark.parametrize("end", [lost, withdrawn])
async def test_a_span_of_the_queue_lasts_until_the_instance_begins(
    end: Callable[[World, RemoteInstance], None],
) -> None:
    tracer = RecordedSpans()
    it = World("", traces=SpanTraces(tracer))
    instance, stream = it.fast_instance()
    sampled = [b"\0" + bytes([number]) * 24 + b"\1" for number in (1, 2)]
    await it.submit_in_turn(1, trace_context=sampled[0])
    await it.submit_in_turn(2, trace_context=sampled[1])
    end(it, instance)
    # It was never executed there.
    assert all(span.parent != sampled[1] for span in tracer.spans)
    if end is lost:
        instance, stream = it.fast_instance()
        await turn()
    it.reply(instance, stream.sent[0])
    it.reply(instance, stream.sent[-1])
    assert it.outcomes() == {1: "", 2: ""}
    second = next(span for span in tracer.named("m") if span.parent == sampled[1])
    assert second.attributes["nereid.attempts"] == 1
    queue = next(span for span in tracer.named("queue") if span.parent == second.context)
    execute = next(span for span in tracer.named("execute") if span.parent == second.context)
    assert queue.end_ns == execute.start_ns


async def test_timestamps_begin_to_compute_when_the_instance_does() -> None:
    it = World("", traces=TimestampTraces())
    instance, stream = it.fast_instance()
    for number in (1, 2):
        await it.submit_in_turn(number, trace_context=b"\0" + bytes([number]) * 24 + b"\1")
    it.reply(instance, stream.sent[0])
    it.reply(instance, stream.sent[1])
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


async def test_a_batch_that_was_withdrawn_while_the_response_before_it_came() -> None:
    it = World("")
    instance, stream = it.fast_instance()
    instance.request_withdrawal = lambda _: None
    await it.submit_in_turn(1, 2)
    for _ in range(2):
        instance.withdraw_waiting()
    await it.submit_in_turn(3)
    it.reply(instance, stream.sent[0])
    # None is sent behind a batch that may have been given back: it would go first.
    assert batches(stream) == [[1], [2]]
    it.model.pool.batch_withdrawn(instance, 2)
    await turn()
    assert batches(stream) == [[1], [2], [2], [3]]


async def test_a_retired_instance_is_lost_with_a_waiting_batch() -> None:
    it = World("")
    instance, _ = it.fast_instance()
    await it.submit_in_turn(1, 2)
    it.model.pool.roster.retire(instance)
    it.model.pool.lose_instance(instance, "it died")
    _, more = it.fast_instance()
    await turn()
    assert batches(more) == [[1], [2]]


async def test_a_batch_that_nobody_asked_for_is_not_given_back() -> None:
    it = World("")
    instance, _ = it.fast_instance()
    await it.submit_in_turn(1, 2)
    with pytest.raises(ProtocolError, match="batch 2 back"):
        it.model.pool.batch_withdrawn(instance, 2)


async def test_a_waiting_batch_that_cannot_be_sent_fails_alone() -> None:
    it = World("")
    _, stream = it.fast_instance()
    await it.submit_in_turn(1)
    stream.broken = True
    await it.submit_in_turn(2)
    await turn()
    assert it.outcomes() == {2: "the batch cannot be sent to an executor"}


async def test_a_retired_instance_has_the_patience_that_it_had() -> None:
    it = World("")
    instance, stream = it.fast_instance()
    await it.submit_in_turn(1, 2)
    times = it.model.pool.times
    patience_ns = times.of_instance(instance).patience_ns
    it.model.pool.roster.retire(instance)
    assert times.instances[instance].patience_ns == patience_ns > 1000 * MS
    it.reply(instance, stream.sent[0])
    it.reply(instance, stream.sent[1])
    assert [*it.outcomes()] == [1, 2]
    assert not times.instances
