"""What a model version records for timelines: batches, requests without one, and waits."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from nereid.core.errors import Internal, Unavailable
from nereid.model_config.instance_groups import RateLimit, ResourceNeed
from nereid.pb import nereid_pb2 as pb
from nereid.timeline.recorder import Recorder
from nereid.timeline.records import (
    DELAY,
    LOADING,
    RATE_LIMITER,
    BatchRecord,
    EndedRequest,
    Wait,
)
from nereid.timeline.wire import file_part, read_timeline
from nereid_scheduler.batching.rate_limiting.rate_limiter import RateLimiter
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
from nereid_scheduler.core.resources import Device, Resources
from nereid_scheduler.versions.queue_limits import QueueLimits
from nereid_scheduler.versions.version_context import VersionContext
from tests.support.scheduler.world import Stream, VersionWorld, executed, turn
from tests.support.waiting import until

R = TypeVar("R")


class World(VersionWorld):
    def __init__(self, text: str = "dynamic_batching { }", **context: Any) -> None:
        self.recorder = Recorder("scheduler", "s", 30)
        self.timeline = SchedulerTimeline(self.recorder)
        super().__init__(
            f"max_batch_size: 8 {text}", context=VersionContext(timeline=self.timeline, **context)
        )

    def records(self, kind: type[R]) -> list[R]:
        read = read_timeline(b"".join(map(file_part, self.recorder.frames(30_000_000_000))))
        return [each for each in read.services[0].records if isinstance(each, kind)]


async def test_a_batch_and_its_members() -> None:
    it = World()
    instance, stream = it.instance("m_0")
    await turn()
    entries = it.submit(1, 2)
    await turn()
    it.reply(instance, stream.sent[0])
    [batch] = it.records(BatchRecord)
    assert (batch.model, batch.version, batch.instance, batch.executor) == (
        "m",
        "1",
        "m_0",
        "executor",
    )
    assert (batch.number, batch.size, batch.error) == (1, 2, "")
    assert [(each.number, each.received_ns, each.retries) for each in batch.members] == [
        (entry.request.id, entry.received_ns, 0) for entry in entries
    ]
    times = (
        batch.idle_since_ns,
        batch.members[0].received_ns,
        batch.members[0].enqueued_ns,
        batch.sent_ns,
        batch.started_ns,
        batch.finished_ns,
    )
    assert list(times) == sorted(times)
    assert it.records(EndedRequest) == []
    assert it.records(Wait) == []


async def test_payloads_are_not_kept() -> None:
    it = World()
    instance, stream = it.instance()
    await turn()
    it.submit(1)
    await turn()
    it.reply(instance, stream.sent[0])
    assert [type(each) for each in it.timeline._batches.objects] == [str, str, str]


async def test_any_number_that_a_request_may_have() -> None:
    it = World()
    instance, stream = it.instance()
    await turn()
    numbers = [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    it.submit(*numbers)
    await turn()
    for message in stream.sent:
        it.reply(instance, message)
        await turn()
    found = [each.number for batch in it.records(BatchRecord) for each in batch.members]
    assert found == numbers


async def test_a_time_that_cannot_be_recorded_is_no_error() -> None:
    it = World()
    instance, stream = it.instance()
    await turn()
    for number, infer_ns in ((1, (1 << 64) - 1), (2, 5)):
        it.submit(number)
        await turn()
        reply = pb.Executed.FromString(executed(stream.sent[number - 1]))
        reply.compute_infer_ns = infer_ns
        it.model.pool.on_reply(instance, reply.SerializeToString())
    [batch] = it.records(BatchRecord)
    assert (batch.number, batch.infer_ns, batch.members[0].number) == (2, 5, 2)


async def test_a_batch_that_failed() -> None:
    it = World()
    instance, _ = it.instance()
    await turn()
    it.submit(1, 2)
    await turn()
    reply = pb.Executed(id=1)
    reply.responses.add()
    reply.responses.add().error.code = Internal.code
    reply.responses[1].error.message = "out of memory"
    it.model.pool.on_reply(instance, reply.SerializeToString())
    [batch] = it.records(BatchRecord)
    assert batch.error == "out of memory"


async def test_a_batch_that_was_lost_and_the_next_attempt() -> None:
    it = World()
    lost, _ = it.instance("m_0")
    await turn()
    it.submit(7)
    await turn()
    it.model.pool.lose_instance(lost, "instance 'm_0' was lost")
    await turn()
    instance, stream = it.instance("m_1", 2)
    await turn()
    it.reply(instance, stream.sent[0])
    first, second = it.records(BatchRecord)
    assert (first.instance, first.error) == ("m_0", "instance 'm_0' was lost")
    assert (second.instance, second.error) == ("m_1", "")
    assert [each.members[0].number for each in (first, second)] == [7, 7]
    assert second.members[0].retries == 1
    [wait] = it.records(Wait)
    assert (wait.reason, wait.requests) == (LOADING, 1)
    assert first.finished_ns <= wait.from_ns <= wait.to_ns <= second.sent_ns + 1_000_000


async def test_requests_that_never_ran() -> None:
    it = World(limits=QueueLimits(max_queue_size=1))
    [entry] = it.submit(1)
    try:
        it.submit(2)
    except Unavailable:
        pass
    else:
        raise AssertionError("queued beyond the limit")
    entry.cancel()
    ended = it.records(EndedRequest)
    assert [(each.number, each.outcome, each.status) for each in ended] == [
        (2, "[request id: <id_unknown>] Exceeds maximum queue size", 14),
        (1, "cancelled", 1),
    ]
    assert ended[1].received_ns <= ended[1].enqueued_ns <= ended[1].ended_ns


async def test_a_request_that_ends_before_its_batch_is_only_in_its_batch() -> None:
    it = World("model_transaction_policy { decoupled: true }")
    instance, _ = it.instance()
    it.submit(1, accepts_many=True)
    await turn()
    for busy in (True, False):
        reply = pb.Executed(id=1, partial=True, busy=busy)
        if busy:
            reply.responses.add(id=0, head=b"head")
        it.model.pool.on_reply(instance, reply.SerializeToString())
    [batch] = it.records(BatchRecord)
    assert [member.number for member in batch.members] == [1]
    assert it.records(EndedRequest) == []


async def test_a_delay_is_one_wait_however_often_the_version_looks() -> None:
    delay = "max_queue_delay_microseconds: 20000 preferred_batch_size: [ 4 ]"
    it = World(f"dynamic_batching {{ {delay} }}")
    instance, stream = it.instance()
    await turn()
    for number in (1, 2):
        it.submit(number)
        await turn()
    assert it.records(Wait) == []
    await until(lambda: stream.sent)
    [wait] = it.records(Wait)
    assert (wait.model, wait.version, wait.reason, wait.requests) == ("m", "1", DELAY, 2)
    assert wait.to_ns - wait.from_ns > 15_000_000
    it.reply(instance, stream.sent[0])
    [batch] = it.records(BatchRecord)
    assert batch.sent_ns == wait.to_ns


async def test_requests_behind_a_busy_instance_are_no_wait() -> None:
    it = World(limits=QueueLimits(waiting_batches=0))
    instance, stream = it.instance()
    await turn()
    it.submit(1)
    await turn()
    it.submit(2)
    await turn()
    it.reply(instance, stream.sent[0])
    it.reply(instance, stream.sent[1])
    assert len(it.records(BatchRecord)) == 2
    assert it.records(Wait) == []


async def test_a_resource_that_another_model_holds() -> None:
    shared: RateLimiter[RemoteInstance] = RateLimiter(
        Resources(), asyncio.get_running_loop().call_soon
    )
    worlds = [World(rate_limiter=shared), World(rate_limiter=shared)]
    streams = []
    for number, it in enumerate(worlds, 1):
        stream = Stream()
        instance = RemoteInstance(number, "i", "executor", stream)
        shared.add_instance(instance, RateLimit((ResourceNeed("R", False, 1),), 1), Device("h", 0))
        it.model.pool.roster.add(instance)
        streams.append((instance, stream))
    first, second = worlds
    first.submit(1)
    await until(lambda: streams[0][1].sent)
    second.submit(2)
    for _ in range(12):
        await asyncio.sleep(0)
    assert not streams[1][1].sent
    first.model.pool.on_reply(streams[0][0], executed(streams[0][1].sent[0]))
    await until(lambda: streams[1][1].sent)
    assert {each.reason for each in second.records(Wait)} == {RATE_LIMITER}
