"""A model version with instances whose streams are lists."""

import asyncio
import itertools
import logging
import time
from typing import Any

import pytest

from nereid.core.errors import Aborted, DeadlineExceeded, ProtocolError, Unavailable
from nereid.core.sequence_owners import owner_of_copies, sequence_key
from nereid.core.wire.messages import (
    InferRequest,
    InferResponse,
    MovedResponse,
    Parameter,
    moved_response,
)
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.core.requests.entry import Entry
from tests.support.scheduler.world import Stream, VersionWorld, batches, turn
from tests.support.waiting import until


class World(VersionWorld):
    def __init__(self, batching: str = "dynamic_batching { }", **limits: Any) -> None:
        super().__init__(f"max_batch_size: 8 {batching}", **limits)


async def test_a_lone_request_is_sent_without_waiting_for_the_loop() -> None:
    it = World()
    _, stream = it.instance()
    await turn()
    it.receive(1)
    assert len(stream.sent) == 1
    it.receive(2)
    assert len(stream.sent) == 1


async def test_after_a_batch_of_many_one_that_comes_alone_waits_for_others_of_its_turn() -> None:
    it = World()
    instance, stream = it.instance()
    await turn()
    it.submit(1, 2, 3)
    await turn()
    it.reply(instance, stream.sent[0])
    # Their clients send the next ones.
    it.receive(4, 5)
    assert len(stream.sent) == 1
    await turn()
    it.reply(instance, stream.sent[1])
    # Two were few: the next one may well be the only one.
    it.receive(6)
    assert batches(stream) == [[1, 2, 3], [4, 5], [6]]


async def test_requests_of_one_turn_leave_together() -> None:
    it = World()
    _, stream = it.instance()
    it.submit(1, 2, 3)
    assert stream.sent == []
    await turn()
    assert [len(batch.members) for batch in stream.sent] == [3]


async def test_what_expires_while_the_loop_is_behind_does_not_run() -> None:
    it = World()
    instance, stream = it.instance()
    it.submit(1)
    await turn()
    deadline = time.monotonic() + 0.5
    it.submit(2, deadline=deadline)
    await turn()
    # The timer cannot fire meanwhile.
    while time.monotonic() <= deadline:
        pass
    it.reply(instance, stream.sent[0])
    assert batches(stream) == [[1]]
    assert it.outcomes()[2].startswith("deadline exceeded while the request was queued")


async def test_a_passed_deadline_is_refused() -> None:
    it = World()
    with pytest.raises(DeadlineExceeded):
        it.submit(1, deadline=1.0)
    await it.model.idle()


async def test_a_batch_that_cannot_be_sent_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    it = World()
    instance, stream = it.instance()
    await turn()
    stream.broken = True
    it.receive(1)
    # Not within a step.
    assert it.outcomes() == {}
    await turn()
    assert it.outcomes() == {1: "the batch cannot be sent to an executor"}
    stream.broken = False
    it.submit(2)
    await turn()
    it.reply(instance, stream.sent[0])
    assert it.outcomes()[2] == ""
    assert repr(it.model) in caplog.text


async def test_a_callback_that_raises_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    it = World()
    instance, stream = it.instance()

    def fail(response: InferResponse) -> None:
        raise RuntimeError(response.id)

    it.model.submit(it.request(1), fail)
    it.submit(2)
    await turn()
    it.reply(instance, stream.sent[0])
    assert it.outcomes() == {2: ""}
    assert "could not be sent" in caplog.text
    await it.model.idle()


async def test_the_last_attempt_is_made_alone() -> None:
    it = World(max_retries=2)
    it.submit(1, 2)
    sizes: list[int] = []
    for _ in range(4):
        instance, stream = it.instance()
        await turn()
        sizes += map(len, batches(stream))
        it.model.pool.lose_instance(instance, "it died")
    assert sizes == [2, 2, 1, 1]
    assert len(it.outcomes()) == 2
    assert all("3 of 3 attempts" in text for text in it.outcomes().values())


async def test_a_loss_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    it = World()
    it.submit(1, 2, 3)
    instance, _ = it.instance()
    await turn()
    with caplog.at_level(logging.DEBUG):
        it.model.pool.lose_instance(instance, "it died")
    lines = [(each.levelno, each.getMessage()) for each in caplog.records]
    assert (logging.WARNING, "it died; 3 of its requests run again") in lines
    assert lines.count((logging.DEBUG, "it died: its request runs again")) == 3
    assert sum(level >= logging.WARNING for level, _ in lines) == 1


AT_MOST_ONCE = 'dynamic_batching { } parameters { key: "at_most_once" value { string_value: "1" } }'


async def test_a_model_that_runs_requests_at_most_once_repeats_only_what_had_not_begun() -> None:
    it = World(AT_MOST_ONCE)
    for number, begun in ((1, True), (2, False)):
        instance, stream = it.instance()
        it.submit(number)
        await turn()
        assert batches(stream) == [[number]]
        it.model.pool.lose_instance(instance, "it died", begun=begun)
    text = "it died; the request may have run, and model 'm' runs requests at most once"
    assert it.outcomes() == {1: text}
    (first,) = it.responses
    assert first.error is not None
    assert first.error.code == Aborted.code
    _, stream = it.instance("other")
    await turn()
    assert batches(stream) == [[2]]


async def test_requests_of_a_lost_leaving_executor_time_out() -> None:
    it = World(no_executor_timeout_s=0.0)
    instance, _ = it.instance()
    it.submit(1)
    await turn()
    it.model.pool.roster.retire(instance)
    await turn()
    assert it.responses == []
    it.model.pool.lose_instance(instance, "killed while leaving")
    await asyncio.wait_for(it.model.idle(), 5)
    assert it.outcomes() == {1: "no executor has model 'm' version 1; waited 0 s for one"}


async def test_closing_cancels_timers() -> None:
    it = World(no_executor_timeout_s=60.0)
    it.submit(1, deadline=1e9)
    await turn()
    it.model.close()
    it.model.close()
    assert it.responses == []


async def test_a_delayed_batch_leaves_when_its_delay_is_over() -> None:
    it = World("dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 2000 }")
    instance, stream = it.instance()
    loop = asyncio.get_running_loop()
    submitted_s = loop.time()
    it.submit(1, 2)
    idle = asyncio.ensure_future(it.model.idle())
    async with asyncio.timeout(5):
        while not stream.sent:
            await asyncio.sleep(0)
    assert loop.time() - submitted_s >= 0.002
    it.reply(instance, stream.sent[0])
    await idle
    assert sorted(it.outcomes()) == [1, 2]


def executed_in_part(batch: pb.Batch, *members: int) -> bytes:
    """Responses to some of a batch's members; the instance is free for its next one."""
    reply = pb.Executed(id=batch.id, partial=True)
    for member in members:
        reply.responses.add(id=member)
    return reply.SerializeToString()


async def deferred_world() -> tuple[World, RemoteInstance, Stream, pb.Batch]:
    """Three requests that were executed together, one of which has its response."""
    it = World()
    instance, stream = it.instance()
    it.submit(1, 2, 3)
    await turn()
    (batch,) = stream.sent
    it.model.pool.on_reply(instance, executed_in_part(batch, 1))
    assert it.outcomes() == {2: ""}
    return it, instance, stream, batch


async def test_deferred_responses_delay_no_batch() -> None:
    it, instance, stream, batch = await deferred_world()
    idle = []
    instance.on_idle = lambda: idle.append(True)
    it.submit(4)
    await turn()
    assert len(stream.sent) == 2
    it.model.pool.on_reply(instance, executed_in_part(batch, 2))
    assert it.outcomes() == {2: "", 3: ""}
    it.reply(instance, stream.sent[1])
    assert it.outcomes() == {2: "", 3: "", 4: ""}
    # One is still open: the instance must not be unloaded.
    assert instance.at_work
    assert not idle
    it.model.pool.on_reply(instance, executed_in_part(batch, 0))
    assert it.outcomes() == {1: "", 2: "", 3: "", 4: ""}
    assert not instance.at_work
    assert idle
    statistics = it.model.statistics
    assert (statistics.execution_count, statistics.inference_count) == (2, 4)
    assert statistics.success.count == 4


SEQUENCES = """sequence_batching {
  %s max_sequence_idle_microseconds: 3600000000
}"""


class SequenceWorld(World):
    """Sequences 1 and 2, each at an instance of its own."""

    def __init__(self, strategy: str) -> None:
        super().__init__(SEQUENCES % strategy)
        self.instances = [self.instance(name) for name in ("first", "second")]

    def step(self, which: int, **flags: bool) -> None:
        parameters: dict[str, Parameter] = {"sequence_id": which}
        parameters |= {f"sequence_{name}": value for name, value in flags.items()}
        self.submit(which, parameters=parameters)

    async def execute(self) -> list[str]:
        """Respond to all batches; the names of the instances that had them."""
        await turn()
        names = []
        for instance, stream in self.instances:
            while stream.sent:
                names.append(instance.name)
                self.reply(instance, stream.sent.pop())
        await turn()
        return names

    async def begin(self) -> None:
        for which in (1, 2):
            self.step(which, start=True)
        assert sorted(await self.execute()) == ["first", "second"]


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
class TestRetireAfterSequences:
    async def test_the_last_end_unloads_the_instance(self, strategy: str) -> None:
        it = SequenceWorld(strategy)
        await it.begin()
        it.retire(it.instances[0][0], after_sequences=True)
        for which in (1, 2, 3):
            it.step(which, start=which == 3)
        first, second = (stream for _, stream in it.instances)
        await turn()
        assert (batches(first), batches(second)) == ([[1]], [[2, 3]])
        assert await it.execute() == ["first", "second"]
        assert (it.idle, it.model.dispatcher.instances) == ([], (2, 2))
        it.step(1, end=True)
        await turn()
        # It still executes this.
        assert it.idle == []
        assert await it.execute() == ["first"]
        assert (it.idle, it.model.dispatcher.instances) == (["first"], (1, 1))
        it.step(4, start=True)
        assert await it.execute() == ["second"]
        assert set(it.outcomes().values()) == {""}

    async def test_a_cancelled_sequence_unloads_it_as_well(self, strategy: str) -> None:
        it = SequenceWorld(strategy)
        await it.begin()
        it.retire(it.instances[0][0], after_sequences=True)
        (entry,) = it.submit(9, parameters={"sequence_id": 1})
        it.model.cancel(entry)
        await turn()
        assert it.idle == ["first"]

    async def test_one_without_sequences_is_unloaded_at_once(self, strategy: str) -> None:
        it = SequenceWorld(strategy)
        it.retire(it.instances[0][0], after_sequences=True)
        assert (it.idle, it.model.dispatcher.instances) == (["first"], (1, 1))

    async def test_a_lost_one_is_kept_no_more(self, strategy: str) -> None:
        it = SequenceWorld(strategy)
        await it.begin()
        it.retire(it.instances[0][0], after_sequences=True)
        instance = it.instances[0][0]
        it.model.pool.lose_instance(instance, "it broke")
        await turn()
        assert not instance.at_work
        with pytest.raises(Unavailable, match="it broke"):
            it.step(1)

    async def test_its_executor_may_leave_meanwhile(self, strategy: str) -> None:
        it = SequenceWorld(strategy)
        await it.begin()
        it.retire(it.instances[0][0], after_sequences=True)
        instance = it.instances[0][0]
        it.model.pool.roster.retire(instance)
        await turn()
        assert not instance.at_work
        with pytest.raises(Unavailable, match="is gone"):
            it.step(1)


async def test_without_sequences_an_instance_retires_after_its_batch() -> None:
    it = World()
    instance, stream = it.instance()
    it.submit(1)
    await turn()
    it.model.pool.roster.retire_after_sequences(instance)
    assert instance.at_work
    it.reply(instance, stream.sent[0])
    assert not instance.at_work


async def test_a_request_to_passive_instances_fails_at_once() -> None:
    it = World("instance_group { count: 1 kind: KIND_CPU passive: true }")
    it.submit(1)
    assert it.outcomes() == {}
    await turn()
    assert it.outcomes() == {1: "model 'm' has only passive instances, which get no requests"}


async def test_a_deferred_response_may_be_an_error() -> None:
    it, instance, _, batch = await deferred_world()
    reply = pb.Executed(id=batch.id, partial=True)
    reply.responses.add(id=0).error.message = "no"
    it.model.pool.on_reply(instance, reply.SerializeToString())
    assert it.outcomes() == {1: "no", 2: ""}
    assert it.model.statistics.fail.count == 1


@pytest.mark.parametrize("busy", [False, True])
async def test_a_partial_response_that_cannot_be(busy: bool) -> None:
    it = World()
    instance, stream = it.instance()
    it.submit(1)
    await turn()
    reply = pb.Executed.FromString(executed_in_part(stream.sent[0], *() if busy else (5,)))
    reply.busy = busy
    with pytest.raises(ProtocolError):
        it.model.pool.on_reply(instance, reply.SerializeToString())
    assert it.outcomes() == {}


async def test_a_deferred_request_may_be_cancelled() -> None:
    it = World()
    instance, stream = it.instance()
    instance.accepts_controls = True
    (entry,) = it.submit(1)
    await turn()
    (batch,) = stream.sent
    it.model.pool.on_reply(instance, executed_in_part(batch))
    it.model.cancel(entry)
    it.model.cancel(entry)
    (control,) = stream.sent[1].controls
    assert (control.batch, control.member) == (batch.id, 0)
    it.model.pool.on_reply(instance, executed_in_part(batch, 0))
    assert not it.responses
    assert not instance.at_work


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_the_next_request_of_a_sequence_joins_the_batch_behind_its_response(
    strategy: str,
) -> None:
    it = World(f"sequence_batching {{ {strategy} }}")
    instance, stream = it.instance()
    for number, which, start in ((1, 7, True), (2, 7, False), (3, 8, True)):
        parameters: dict[str, Parameter] = {"sequence_id": which, "sequence_start": start}
        it.submit(number, parameters=parameters)
        await turn()
    it.reply(instance, stream.sent[0])
    await turn()
    assert [len(batch.members) for batch in stream.sent] == [1, 2]
    it.reply(instance, stream.sent[1])
    assert it.outcomes() == {1: "", 2: "", 3: ""}


async def test_refused_and_expired_requests_say_when_to_come_back() -> None:
    timeout = "default_queue_policy { default_timeout_microseconds: 1000 }"
    it = World(f"dynamic_batching {{ {timeout} }}", max_queue_size=1)
    it.submit(1)
    with pytest.raises(Unavailable, match="Exceeds maximum queue size") as refused:
        it.submit(2)
    assert refused.value.retry_after_ms == 1000
    await until(lambda: it.responses)
    (expired,) = it.responses
    assert expired.error is not None
    assert (expired.error.message, expired.error.retry_after_ms) == (
        "Request timeout expired",
        1000,
    )
    assert it.model.statistics.refused == 1


async def test_adaptive_admission_is_the_queue_s_from_the_start() -> None:
    it = World("", admission_target_ms=20)
    _, stream = it.instance()
    it.submit(1, 2)
    await turn()
    assert len(stream.sent) == 1
    assert it.model.dispatcher.pending == 1


@pytest.mark.parametrize(
    "batching", ["", "dynamic_batching { }", "dynamic_batching { preserve_ordering: true }"]
)
async def test_what_waits_is_returned_when_another_scheduler_has_the_model(batching: str) -> None:
    it = World(batching)
    instance, stream = it.instance()
    it.submit(1)
    await turn()
    it.submit(2, 3)
    await turn()
    it.model.return_queued()
    it.reply(instance, stream.sent[0])
    await turn()
    assert {each.id: isinstance(each, MovedResponse) for each in it.responses} == {
        1: False,
        2: True,
        3: True,
    }
    assert len(stream.sent) == 1
    assert it.model.statistics.fail.count == 0
    await it.model.idle()


async def test_what_cannot_run_is_known() -> None:
    """Without an instance, and of sequences those that wait for another to leave its slot."""
    it = World("sequence_batching { oldest { max_candidate_sequences: 1 } }")

    def submit(number: int, **flags: Parameter) -> Entry:
        parameters = {"sequence_id": number // 10, **flags}
        return it.submit(number, parameters=parameters)[0]

    first, other = submit(10, sequence_start=True), submit(20, sequence_start=True)
    assert it.model.is_blocked(first)
    instance, stream = it.instance()
    await turn()
    next_in_slot, next_of_other = submit(11), submit(21)
    entries = (first, other, next_in_slot, next_of_other)
    assert [it.model.is_blocked(each) for each in entries] == [False, True, False, True]
    for each in (other, next_of_other):
        it.model.return_entry(each, moved_response(each.request.id))
    it.reply(instance, stream.sent[0])
    await turn()
    it.reply(instance, stream.sent[1])
    await it.model.idle()
    assert {each.id: isinstance(each, MovedResponse) for each in it.responses} == {
        10: False,
        11: False,
        20: True,
        21: True,
    }


async def test_a_response_to_no_batch_breaks_the_protocol() -> None:
    it = World()
    instance, _ = it.instance()
    with pytest.raises(ProtocolError, match="a response to batch 0 while executing none"):
        it.model.pool.on_reply(instance, b"")


@pytest.mark.parametrize("members", [(1,), (0, 0), (7,)])
async def test_a_deferred_response_that_nobody_waits_for(members: tuple[int, ...]) -> None:
    it, instance, _, batch = await deferred_world()
    with pytest.raises(ProtocolError, match=f"batch {batch.id}"):
        it.model.pool.on_reply(instance, executed_in_part(batch, *members))
    assert it.outcomes() == {2: ""}


async def test_responses_keep_their_order_though_requests_leave_at_once() -> None:
    it = World("dynamic_batching { preserve_ordering: true }")
    (one, stream), (other, more) = it.instance("one"), it.instance("other")
    await turn()
    it.receive(1)
    it.receive(2)
    it.reply(other, more.sent[0])
    assert it.responses == []
    it.reply(one, stream.sent[0])
    assert [*it.outcomes()] == [1, 2]


def _target(us: int) -> str:
    value = f'value {{ string_value: "{us}" }}'
    return f'dynamic_batching {{ }} parameters {{ key: "target_p99_us" {value} }}'


async def test_a_target_that_cannot_be_held_is_logged_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    it = World(_target(1))
    instance, stream = it.instance()
    target = it.model.dispatcher.target
    assert target is not None
    for number in (1, 2):
        it.submit(number)
        await turn()
        it.reply(instance, stream.sent[-1])
    assert not target.reachable
    assert "cannot hold its target_p99_us=1: executing one request takes" in caplog.text
    assert it.outcomes() == {1: "", 2: ""}

    it = World(_target(60_000_000))
    instance, stream = it.instance()
    target = it.model.dispatcher.target
    assert target is not None
    target.reachable = False
    for number in (1, 2):
        it.submit(number)
        await turn()
        it.reply(instance, stream.sent[-1])
    assert target.reachable
    assert "can hold its target_p99_us=60000000 again" in caplog.text


async def test_a_target_forgets_batches_that_no_instance_has_any_more() -> None:
    it = World(_target(60_000_000))
    (lost, _), (other, stream) = it.instance("lost"), it.instance("other", 2)
    target = it.model.dispatcher.target
    assert target is not None
    it.submit(1, 2)
    await turn()
    assert target.executing == 2
    it.model.pool.lose_instance(lost, "it crashed")
    assert target.executing == 1
    it.reply(other, stream.sent[0])
    await turn()
    # The retry.
    assert target.executing == 1
    it.model.pool.fail_begun(other, other.batches.last_id, Unavailable("it crashed"))
    assert target.executing == 0
    stream.broken = True
    it.submit(3)
    await turn()
    assert target.executing == 0


async def test_requests_that_would_miss_it_are_refused_with_a_hint() -> None:
    it = World(_target(1))
    instance, stream = it.instance()
    for number in (1, 2):
        it.submit(number)
        await turn()
        it.reply(instance, stream.sent[-1])
    with pytest.raises(Unavailable, match=r"the model's target_p99_us of 1$") as refused:
        it.submit(*range(3, 1000))
    assert refused.value.retry_after_ms > 0
    assert it.model.statistics.refused == 1


async def _two_groups_take_turns(it: World, taken_ns: int, most: int) -> int:
    """Groups of two clients, each of which sends again right after its batch of `taken_ns`. After
    how many batches, at most `most`, the instance waits for a group.
    """
    instance, stream = it.instance()
    numbers = itertools.count(1)
    it.submit(next(numbers), next(numbers))
    await turn()
    it.submit(next(numbers), next(numbers))
    await turn()
    for ended in range(most):
        first = instance.batches.first
        assert first is not None
        first.started_ns -= taken_ns
        it.reply(instance, stream.sent[ended])
        if len(stream.sent) == ended + 1:
            return ended
        it.submit(next(numbers), next(numbers))
        await turn()
    return most


async def test_an_instance_may_wait_for_the_clients_of_its_last_batch() -> None:
    it = World("dynamic_batching { }")
    waited = await _two_groups_take_turns(it, 8_000_000, 100)
    assert 8 <= waited < 100
    # For a moment: without them, it executes what is there.
    async with asyncio.timeout(5):
        while it.model.dispatcher.pending:
            await asyncio.sleep(0)


@pytest.mark.parametrize("taken_ns", [8_000_000, 0])
async def test_it_does_not_beside_others_nor_after_short_batches(taken_ns: int) -> None:
    it = World("dynamic_batching { }")
    if taken_ns:
        other, stream = it.instance("busy", 2)
        it.submit(1_000_000)
        await turn()
        assert batches(stream) == [[1_000_000]]
        assert other.batches.first is not None
    assert await _two_groups_take_turns(it, taken_ns, 60) == 60


async def test_an_instance_that_has_left_is_not_kept_for_its_times() -> None:
    world = VersionWorld()
    instance, stream = world.instance()
    world.submit(1, 2)
    await turn()
    world.reply(instance, stream.sent[0])
    await turn()
    assert instance in world.model.pool.times.instances
    world.retire(instance)
    world.reply(instance, stream.sent[1])
    assert world.idle == ["i"]
    assert not world.model.pool.times.instances


class TestCopies:
    """Copies for shadows, which must delay no other request."""

    async def test_a_copy_runs_while_an_instance_is_left(self) -> None:
        it = World()
        instances = [it.instance() for _ in range(3)]
        await turn()
        for number in (1, 2):
            it.receive(number, is_shadow=True)
            await turn()
        # The third instance is for others.
        with pytest.raises(Unavailable, match="no other request waits"):
            it.submit(3, is_shadow=True)
        it.receive(4)
        await turn()
        assert sorted(each for _, stream in instances for each in batches(stream)) == [
            [1],
            [2],
            [4],
        ]

    async def test_a_lone_instance_executes_one_copy_at_a_time(self) -> None:
        it = World()
        instance, stream = it.instance()
        await turn()
        it.receive(1, is_shadow=True)
        with pytest.raises(Unavailable):
            it.submit(2, is_shadow=True)
        it.reply(instance, stream.sent[0])
        it.receive(3, is_shadow=True)
        assert batches(stream) == [[1], [3]]
        assert it.outcomes() == {1: ""}

    async def test_copies_are_refused_while_others_wait_or_none_can_run(self) -> None:
        it = World()
        with pytest.raises(Unavailable):
            it.submit(1, is_shadow=True)
        it.submit(2)
        it.instance()
        with pytest.raises(Unavailable):
            it.submit(3, is_shadow=True)

    async def test_a_queued_copy_makes_way_and_takes_no_place_in_the_queue(self) -> None:
        it = World(
            "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 60000000 }",
            max_queue_size=1,
        )
        it.instance()
        await turn()
        it.submit(1, is_shadow=True)
        await turn()
        it.submit(2)
        await turn()
        assert it.outcomes()[1].startswith("a copy runs only")
        assert it.model.dispatcher.pending == 1
        # Neither is a failure of the version.
        assert it.model.statistics.fail.count == 0

    async def test_a_sequence_that_was_given_up_has_no_slot(self) -> None:
        it = World("sequence_batching { direct { } }")
        instance, stream = it.instance()
        await turn()
        rest: dict[str, Any] = {"is_shadow": True, "sequence_owner": owner_of_copies("m", "")}
        it.receive(1, parameters={"sequence_id": 7, "sequence_start": True}, **rest)
        it.reply(instance, stream.sent[0])
        request = InferRequest(2, b"", [], "", {"sequence_id": 7}, **rest)
        assert it.model.has_sequence(sequence_key(7, request.sequence_owner))
        it.model.end_copied_sequence(request)
        assert not it.model.in_use
        # Its next request is no response of the model, which could differ.
        with pytest.raises(Unavailable, match="no other request waits"):
            it.submit(3, parameters={"sequence_id": 7}, **rest)

    async def test_the_last_response_has_the_place_in_the_sequence(self) -> None:
        it = World()
        instance, stream = it.instance()
        await turn()
        start: dict[str, Any] = {"sequence_id": 7, "sequence_start": True}
        end: dict[str, Any] = {"sequence_id": 7, "sequence_end": True}
        wants = {"wants_sequence_place": True}
        fields: list[dict[str, Any]] = [
            # Before the first one whose place is wanted, none is counted.
            {"parameters": start},
            {"parameters": {"sequence_id": 7}, **wants},
            {"parameters": start, **wants},
            # One that comes by a gateway that does not know of the shadow yet.
            {"parameters": {"sequence_id": 7}},
            {"parameters": end, **wants},
        ]
        for number, each in enumerate(fields):
            it.receive(number, **each)
            it.reply(instance, stream.sent[-1])
        places = [response.sequence_place for response in it.responses]
        assert places[:2] == [None, None]
        assert places[3] is None
        assert places[2] is not None
        assert places[4] == (places[2].start, 3)

    async def test_a_copy_does_not_run_twice(self) -> None:
        it = World()
        it.instance()
        await turn()
        with pytest.raises(Unavailable):
            it.submit(1, is_shadow=True, resent=True)
