"""Implicit state of models that execute requests, on its way from one instance to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from nereid.backends import BatchUpdate, ModelLostError, Request, Response
from nereid.core.errors import Unavailable
from nereid.core.messages import ErrorStatus
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.open_batches import OpenBatches
from nereid.services.executor.batch.request_runner import RequestRunner
from tests.support.executor.scripted_model import SPEC, Model, Stream, begin, collect

CONFIG = """
name: "m" backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_INT32 dims: 1 }
output { name: "Y" data_type: TYPE_INT32 dims: 1 }
sequence_batching { %s state {
  input_name: "S" output_name: "S_OUT" data_type: TYPE_INT32 dims: -1
} }
"""
_LOST = (
    "the state of sequence 0 of model 'm' is lost: %s; begin it again with a request that has the"
    " START flag"
)
LOST, NOT_RESTORED = _LOST % "its instance does not have it", _LOST % "it could not be restored"


def config_of(more: str = "") -> model_config_pb2.ModelConfig:
    return text_format.Parse(CONFIG % more, model_config_pb2.ModelConfig())


class RunningSum(Model):
    """Y and S_OUT are S plus X; fails if X is negative, and defers its response if X is 100."""

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        super().begin_batch(batch, requests)
        values = [value_of(request) for request in requests]
        responses = [
            self.respond(place, request)
            for place, request in enumerate(requests)
            if values[place] != 100
        ]
        self.send_update(BatchUpdate(batch, responses, ready_for_next=True))

    def respond(self, place: int, request: Request) -> Response:
        if value_of(request) < 0:
            return Response(place, False, ErrorStatus(13, "negative"))
        state = request.tensors[1]
        assert isinstance(state, bytes)
        total = (np.frombuffer(state, np.int32) + value_of(request)).tobytes()
        shape = request.spec.inputs[1][2]
        head = kserve_pb2.ModelInferResponse(model_name="m")
        head.outputs.add(name="Y", datatype="INT32", shape=shape)
        head.outputs.add(name="S_OUT", datatype="INT32", shape=shape)
        return Response(place, False, None, head.SerializeToString(), [total, total])


def value_of(request: Request) -> int:
    assert isinstance(request.tensors[0], bytes)
    return int(np.frombuffer(request.tensors[0], np.int32)[0])


class Site:
    """A runner of a model that adds up."""

    def __init__(self, config: model_config_pb2.ModelConfig, model: RunningSum) -> None:
        self.model = model
        self.runner = RequestRunner(replace(SPEC, config=config), model)

    def run(self, *members: pb.BatchMember) -> pb.Executed:
        batch = pb.Batch(members=members)
        return pb.Executed.FromString(self.runner.execute(batch.SerializeToString()))

    def export(self, *slots: int) -> list[tuple[int, bytes]]:
        number = self.runner.received.last_read + 1
        (executed,) = begin(self.runner, pb.Batch(id=number, exported_slots=slots))
        assert executed.id == number
        assert not executed.responses
        return states_of(executed)


@pytest.fixture
def sites() -> Iterator[tuple[Site, Site]]:
    models = RunningSum(), RunningSum()
    yield Site(config_of(), models[0]), Site(config_of(), models[1])
    for model in models:
        model.close()


def states_of(executed: pb.Executed) -> list[tuple[int, bytes]]:
    return [(each.slot, each.state) for each in executed.states]


def state(*values: int) -> bytes:
    message = pb.StateTensors()
    message.tensors.add(shape=[len(values)], data=np.array(values, np.int32).tobytes())
    return message.SerializeToString()


def member(value: int, slot: int = 1, flag: str = "") -> pb.BatchMember:
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="X", datatype="INT32", shape=[1, 1])
    request = pb.BatchMember(head=head.SerializeToString(), sequence_slot=slot)
    request.payloads.add(inline=np.int32(value).tobytes())
    if flag:
        request.parameters[f"sequence_{flag}"].bool_param = True
    return request


def asked(value: int, slot: int = 1, flag: str = "") -> pb.BatchMember:
    request = member(value, slot, flag)
    request.returns_state = True
    return request


def malformed(request: pb.BatchMember) -> pb.BatchMember:
    del request.payloads[:]
    return request


def restored(request: pb.BatchMember, state: bytes, *again: pb.BatchMember) -> pb.BatchMember:
    request.restore.SetInParent()
    request.restore.state = state
    request.restore.requests.extend(again)
    return request


def outcomes(executed: pb.Executed) -> list[int | str]:
    return [
        each.error.message or int(np.frombuffer(each.payloads[0].inline, np.int32)[0])
        for each in executed.responses
    ]


def test_a_state_moves_once(sites: tuple[Site, Site]) -> None:
    one, other = sites
    one.run(member(1, 1, "start"), member(10, 2, "start"))
    # Without the batch dimension, as of other models.
    assert one.export(1, 3) == [(1, state(1)), (3, b"")]
    assert one.export(1) == [(1, b"")]
    assert outcomes(other.run(restored(member(2, 4), state(1)))) == [3]
    assert outcomes(other.run(member(3, 4))) == [6]
    assert outcomes(one.run(member(3, 2))) == [13]


def test_another_scheduler_finds_no_sequences(sites: tuple[Site, Site]) -> None:
    one, _ = sites
    one.run(member(1, 1, "start"))
    one.runner.forget_sequences()
    assert outcomes(one.run(member(2, 1))) == [LOST]
    assert outcomes(one.run(member(2, 1, "start"))) == [2]


def test_states_come_with_responses(sites: tuple[Site, Site]) -> None:
    one, _ = sites
    executed = one.run(asked(1, 1, "start"), member(2, 2, "start"), asked(3, 3, "start"))
    assert states_of(executed) == [(1, state(1)), (3, state(3))]
    # An error leaves the state, which is known therefore.
    executed = one.run(asked(-1, 1), malformed(asked(2, 2)))
    assert outcomes(executed) == ["negative", "a request has 1 inputs but 0 payloads"]
    assert states_of(executed) == [(1, state(1))]


def test_requests_since_a_snapshot_run_again_without_responses(sites: tuple[Site, Site]) -> None:
    one, other = sites
    ((_, snapshot),) = states_of(one.run(asked(1, 1, "start")))
    first = restored(member(4, 7), snapshot, member(2, 0), member(3, 0))
    # From the beginning.
    second = restored(member(4, 8), b"", member(1, 0, "start"))
    executed = other.run(first, second, member(9, 9, "start"))
    assert outcomes(executed) == [10, 5, 9]
    # Those of several sequences run together.
    batches = [[value_of(each) for each in batch] for batch in other.model.begun.values()]
    assert batches == [[2, 1], [3], [4, 4, 9]]
    assert outcomes(other.run(member(0, 7), member(0, 8))) == [10, 5]
    assert not other.runner.received.busy


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\xff", "it cannot be read"),
        (state(1) * 2, "it has 2 tensors instead of 1"),
        (pb.StateTensors(tensors=[pb.StateTensor(shape=[2], data=b"1")]).SerializeToString(), ""),
    ],
)
def test_a_state_that_cannot_be_restored_is_no_other_ones(
    sites: tuple[Site, Site], bad: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = sites
    one.run(member(1, 1, "start"))
    assert outcomes(one.run(restored(member(1, 1), bad))) == [NOT_RESTORED]
    assert f"the state of a sequence of model 'm' cannot be restored: {why}" in caplog.text
    assert outcomes(one.run(member(1, 1))) == [LOST]
    assert outcomes(one.run(member(1, 1, "start"))) == [1]


@pytest.mark.parametrize("bad", [member(-1, 0), malformed(member(1, 0))])
def test_a_replay_that_fails_loses_the_state(
    sites: tuple[Site, Site], bad: pb.BatchMember, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = sites
    one.run(member(1, 1, "start"))
    failing = restored(member(1, 1), state(1), bad, member(1, 0))
    other = restored(member(1, 2), state(5), member(1, 0))
    assert outcomes(one.run(failing, other)) == [NOT_RESTORED, 7]
    assert "the requests of a sequence of model 'm' could not be replayed" in caplog.text


def test_a_replay_that_the_model_cannot_begin_loses_the_state(sites: tuple[Site, Site]) -> None:
    one, _ = sites
    one.model.refusal = Unavailable("too much")
    assert outcomes(one.run(restored(member(1, 1), state(1), member(1, 0)))) == [NOT_RESTORED]


def test_a_model_that_is_lost_in_a_replay_has_not_seen_the_batch(sites: tuple[Site, Site]) -> None:
    one, _ = sites
    one.model.seen = 1
    one.model.updates.append(ModelLostError("it fell"))
    stream = Stream(pb.Batch(id=1, members=[restored(member(1), state(1), member(1, 0))]))
    with pytest.raises(ModelLostError):
        one.runner.serve(stream, bool)  # type: ignore[arg-type]
    assert stream.sent == []
    assert not one.runner.received.busy


def test_states_are_given_away_when_all_responses_have_come(sites: tuple[Site, Site]) -> None:
    one, _ = sites
    begin(one.runner, pb.Batch(id=1, members=[member(100, 1, "start")]))
    (deferred,) = collect(one.runner, one.model)
    assert deferred.partial
    # Meanwhile others may come from elsewhere.
    request = restored(asked(1, 2), state(1), member(1, 0))
    assert begin(one.runner, pb.Batch(id=2, members=[request])) == []
    (executed,) = collect(one.runner, one.model)
    assert outcomes(executed) == [3]
    assert begin(one.runner, pb.Batch(id=3, exported_slots=[2, 1])) == []
    response = one.model.respond(0, one.model.begun[1][0])
    last, export = collect(one.runner, one.model, BatchUpdate(1, [response], ready_for_next=False))
    assert outcomes(last) == [100]
    assert (export.id, states_of(export)) == (3, [(2, state(3)), (1, state(100))])


@pytest.mark.parametrize(
    ("more", "decoupled", "moves"),
    [("", False, True), ("", True, False), ("iterative_sequence: true", False, False)],
)
def test_states_that_any_response_may_change_do_not_move(
    more: str, *, decoupled: bool, moves: bool
) -> None:
    batches = OpenBatches(config_of(more), Path(), "m_0", decoupled=decoupled, traced=False)
    assert batches.has_states == moves
