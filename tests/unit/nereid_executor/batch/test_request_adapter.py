"""Batches for models that respond to requests in their own time: the frames that are sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import itemgetter
from threading import Event
from typing import Any

import pytest

from nereid.backends import BatchUpdate, InstanceSpec, ModelLostError, Response
from nereid.core.errors import ProtocolError, Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import RpcError, Status
from nereid_executor.batch.runner import Runner
from nereid_executor.batch.warmup import WarmupBatch
from nereid_executor.core.recent_runs import RecentRuns
from nereid_executor.core.shared_tensors import OutputLender, SharedTensors
from tests.support.executor.scripted_model import (
    DECOUPLED_SPEC,
    SPEC,
    Model,
    Stream,
    batch,
    begin,
    collect,
    failed,
    member,
    response,
    responses_of,
)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    model = Model(**getattr(request, "param", {}))
    yield model
    model.close()


# ---- models with one response to each request


def test_a_batch_is_responded_to_in_one_frame(model: Model) -> None:
    runner = Runner(SPEC, model)
    message = batch(member(b"a"), member(b"bc", request_id="q"))
    assert begin(runner, message) == []
    requests = model.begun[1]
    assert [each.tensors for each in requests] == [[b"a"], [b"bc"]]
    assert requests[1].request_id == "q"
    assert requests[0].spec.inputs == (("X", "UINT8", (1,)),)
    assert requests[0].spec.outputs == ("Y",)
    assert runner.received.busy
    # One may have its response before the other, from a thread of the model.
    assert collect(runner, model, BatchUpdate(1, [response(1, b"2")], ready_for_next=False)) == []
    (executed,) = collect(runner, model, BatchUpdate(1, [failed(0)], ready_for_next=True))
    assert executed.id == message.id
    assert not executed.partial
    assert [each[1] for each in responses_of(executed)] == ["no", [b"2"]]
    assert not runner.received.busy


def test_a_batch_of_malformed_requests_is_responded_to_at_once(model: Model) -> None:
    runner = Runner(SPEC, model)
    (executed,) = begin(runner, batch(pb.BatchMember(head=b"\xff")))
    assert len(executed.responses) == 1
    assert not model.begun
    assert not runner.received.busy


@pytest.mark.parametrize("spec", [SPEC, DECOUPLED_SPEC])
def test_a_batch_that_the_model_cannot_begin(model: Model, spec: InstanceSpec) -> None:
    runner = Runner(spec, model)
    model.refusal = Unavailable("too much")
    frames = begin(runner, batch(member(), pb.BatchMember(head=b"\xff"), member()))
    responses = [each for frame in frames for each in responses_of(frame)]
    assert [each[1] for each in sorted(responses, key=itemgetter(0))] == [
        "too much",
        "a batch member's head is no ModelInferRequest",
        "too much",
    ]
    assert not frames[-1].busy
    assert not runner.received.busy
    model.refusal = None
    begin(runner, batch(member()))
    assert len(collect(runner, model, BatchUpdate(2, [response(0)], ready_for_next=True))) == 1


def test_responses_that_no_request_waits_for_are_dropped(model: Model) -> None:
    runner = Runner(SPEC, model)
    begin(runner, batch(member()))
    assert collect(runner, model, BatchUpdate(99, [response(0)], ready_for_next=True)) == []
    odd = BatchUpdate(1, [response(7), response(0, b"1"), response(0, b"2")], ready_for_next=True)
    (executed,) = collect(runner, model, odd)
    assert [each[1] for each in responses_of(executed)] == [[b"1"]]


def test_after_a_large_output_requests_get_buffers(model: Model) -> None:
    """What becomes of them is tests/unit/nereid_executor/batch/test_response_writer.py's."""
    shared_tensors = SharedTensors(1 << 26)
    runner = Runner(SPEC, model)
    lender = OutputLender(shared_tensors)
    runner.begin_tenure(lender)
    large = response(0, b"x" * 100_000)
    begin(runner, batch(member()))
    assert model.begun[1][0].output_buffer is None
    (first,) = collect(runner, model, BatchUpdate(1, [large], ready_for_next=True))
    assert first.responses[0].payloads[0].shared_memory.size_bytes == 100_000
    # An unused buffer is released, and after small outputs requests get none.
    for number, wire_response in ((2, failed(0)), (3, response(0, b"small"))):
        begin(runner, batch(member()))
        assert model.begun[number][0].output_buffer is not None
        collect(runner, model, BatchUpdate(number, [wire_response], ready_for_next=True))
        assert shared_tensors.segments.used_count == 1
    begin(runner, batch(member()))
    assert model.begun[4][0].output_buffer is None
    lender.discard_lent()


# ---- decoupled ones


def test_responses_are_sent_as_they_come(model: Model) -> None:
    runner = Runner(DECOUPLED_SPEC, model)
    begin(runner, batch(member(), member()))
    frames = collect(
        runner,
        model,
        BatchUpdate(1, [response(0, b"1", more=True)], ready_for_next=False),
        BatchUpdate(1, [response(1, b"2")], ready_for_next=False),
        BatchUpdate(1, [], ready_for_next=True),
    )
    assert [(each.partial, each.busy) for each in frames] == [
        (True, True),
        (True, True),
        (True, False),
    ]
    assert [responses_of(each) for each in frames] == [
        [(0, [b"1"], True)],
        [(1, [b"2"], False)],
        [],
    ]
    # The instance is free while a request is open.
    assert runner.received.busy
    begin(runner, batch(member(), number=1 << 20))
    (second, first) = collect(
        runner,
        model,
        BatchUpdate(2, [response(0, b"3")], ready_for_next=True),
        BatchUpdate(1, [Response(0, more=False)], ready_for_next=False),
    )
    assert (second.id, second.busy, responses_of(second)) == (1 << 20, False, [(0, [b"3"], False)])
    assert (first.id, first.busy, first.partial) == (frames[0].id, False, True)
    assert responses_of(first) == [(0, [], False)]
    assert not runner.received.busy


def test_controls_reach_their_member(model: Model) -> None:
    runner = Runner(DECOUPLED_SPEC, model)
    message = batch(pb.BatchMember(head=b"\xff"), member())
    begin(runner, message)
    controls = pb.Batch()
    # Of a member, of one that the model did not get, and of an earlier batch.
    for number, place in ((message.id, 1), (message.id, 0), (message.id - 1, 1)):
        controls.controls.add(batch=number, member=place, kind=pb.MemberControl.PAUSE)
    assert begin(runner, controls) == []
    assert model.controls == [(1, 0, pb.MemberControl.PAUSE)]


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (pb.Batch(id=1, members=[member()]), "comes while batch 1 executes"),
        (pb.Batch(controls=[pb.MemberControl(batch=2)]), "a control for batch 2"),
        (pb.Batch(id=2, exported_slots=[1]), "of a model that gives none away"),
    ],
)
def test_a_scheduler_that_breaks_the_protocol_loses_the_stream(
    model: Model, broken: pb.Batch, text: str
) -> None:
    stream = Stream(batch(member(), number=1), broken)
    runner = Runner(SPEC, model)
    with pytest.raises(ProtocolError, match=text):
        runner.serve(stream, Event().is_set)
    # Its numbers go on over the next stream.
    with pytest.raises(ProtocolError, match="batch 1 comes after batch 1"):
        runner.serve(Stream(batch(member(), number=1)), Event().is_set)


# ---- streams


def test_a_stream_is_served_until_it_ends(model: Model) -> None:
    class Ending(Stream):
        def send(self, message: bytes) -> None:
            super().send(message)
            assert runner.received.busy, "its response was not sent"
            self.ended = True

    stream = Ending(batch(member()))
    runner = Runner(SPEC, model)
    model.send_update(BatchUpdate(1, [response(0, b"1")], ready_for_next=True))
    runner.serve(stream, Event().is_set)
    assert [responses_of(each) for each in stream.sent] == [[(0, [b"1"], False)]]
    assert runner.received.completed == 1


def test_stopping_waits_for_open_batches(model: Model) -> None:
    stream = Stream(batch(member()))
    runner = Runner(SPEC, model)
    stopping = Event()

    class Slow(Stream):
        def read_messages(self) -> list[bytes]:
            stopping.set()
            model.send_update(BatchUpdate(1, [response(0)], ready_for_next=True))
            return super().read_messages()

    slow = Slow(batch(member()))
    runner.serve(slow, stopping.is_set)
    assert len(slow.sent) == 1
    # Nothing is read any more.
    runner.serve(stream, stopping.is_set)
    assert stream.has_input


def test_batches_of_an_earlier_stream_are_cancelled(model: Model) -> None:
    runner = Runner(SPEC, model)
    begin(runner, batch(member(), member()))
    stopping = Event()
    stopping.set()
    runner.serve(Stream(), stopping.is_set)
    cancel = pb.MemberControl.CANCEL
    assert model.controls == [(1, 0, cancel), (1, 1, cancel)]
    assert not runner.received.busy
    # A response to it is dropped.
    assert collect(runner, model, BatchUpdate(1, [response(0)], ready_for_next=True)) == []


# ---- the model's end


@pytest.mark.parametrize("seen", [True, False])
def test_batches_that_a_lost_model_saw_fail(model: Model, *, seen: bool) -> None:
    stream = Stream(batch(member(), member()))
    runner = Runner(SPEC, model)
    model.seen = int(seen)
    model.send_update(BatchUpdate(1, [response(1, b"1")], ready_for_next=False))
    model.send_update(ModelLostError("it fell"))
    with pytest.raises(ModelLostError):
        runner.serve(stream, Event().is_set)
    responses = [[each[1] for each in responses_of(one)] for one in stream.sent]
    expected: list[Any] = [["Stub process 'm_0_0' is not healthy.", [b"1"]]]
    assert responses == (expected if seen else [])
    assert not runner.received.busy


@pytest.mark.parametrize("model", [{"execution_timeout_s": 0.01}], indirect=True)
def test_a_batch_that_takes_too_long_ends_the_model(model: Model) -> None:
    stream = Stream(batch(member()))
    os.eventfd_read(stream.event)
    model.seen = 1
    with pytest.raises(ModelLostError, match=r"within 0.01 s"):
        Runner(SPEC, model).serve(stream, Event().is_set)
    assert model.given_up
    assert responses_of(stream.sent[0])[0][1] == (
        "Failed to process the request(s) for model 'm_0_0', message: the batch was not executed"
        " within 0.01 s"
    )


def test_warming_up_waits_for_the_responses(model: Model) -> None:
    runner = Runner(SPEC, model)
    model.send_update(BatchUpdate(1, [response(0, b"1")], ready_for_next=True))
    warmup = WarmupBatch(member().head, [b"1"], 1)
    executed = pb.Executed.FromString(runner.execute_warmup(warmup))
    assert responses_of(executed) == [(0, [b"1"], False)]
    model.send_update(ModelLostError("it fell"))
    with pytest.raises(ModelLostError):
        runner.execute_warmup(warmup)


def test_a_broken_stream_is_raised(model: Model) -> None:
    class Broken(Stream):
        def send(self, message: bytes) -> None:
            raise RpcError(Status.UNAVAILABLE, "broken")

    model.send_update(BatchUpdate(1, [response(0)], ready_for_next=True))
    runs = RecentRuns()
    with pytest.raises(RpcError):
        Runner(SPEC, model, recent_runs=runs).serve(Broken(batch(member(id=7))), Event().is_set)
    # Who sends the request again gets the response.
    assert [ids for ids, _ in runs.kept()] == [[7]]
