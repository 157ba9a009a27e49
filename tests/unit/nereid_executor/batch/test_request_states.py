"""Implicit state of models that execute requests: what a model gets, and what clients get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.backends import Request, Response
from nereid.core.errors import InvalidArgument, Unavailable
from nereid.core.tensors.datatypes import NAMES, byte_size
from nereid.core.tensors.tensors import to_raw
from nereid.core.wire.messages import ErrorStatus
from nereid.model_config import parse_config
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import parse_batch, request_of
from nereid_executor.batch.open_batches import OpenBatches
from nereid_executor.batch.request_states import MemberState, RequestStates
from nereid_executor.batch.requests import RequestReader
from nereid_executor.batch.sequence_states import state_specs
from nereid_executor.batch.stateful_model import read_row

STATE = """
state {
  input_name: "S" output_name: "S_OUT" data_type: TYPE_%s dims: [%s]
  %s
}
"""


def states_of(
    state: str = STATE % ("INT32", "-1", ""), *, batch: int = 4, path: Path = Path()
) -> RequestStates:
    return RequestStates(config_of(state, batch), path)


def config_of(state: str, batch: int = 4) -> Any:
    text = f'name: "m" max_batch_size: {batch} sequence_batching {{ {state} }}'
    text += 'output { name: "Y" data_type: TYPE_INT32 dims: [1] }'
    return parse_config(text, model_name="m")


def member(slot: int, *, start: bool = False, outputs: tuple[str, ...] = ()) -> pb.BatchMember:
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="X", datatype="INT8", shape=[1, 1])
    for name in outputs:
        head.outputs.add(name=name)
    made = pb.BatchMember(head=head.SerializeToString(), sequence_slot=slot)
    made.payloads.add(inline=b"x")
    if start:
        made.parameters["sequence_start"].bool_param = True
    return made


class Site:
    """States, and the reader before them."""

    def __init__(self, states: RequestStates) -> None:
        self.states = states
        self.reader = RequestReader(("Y",))

    def add(self, given: pb.BatchMember) -> tuple[Request, MemberState]:
        return self.states.read_request(given, request_of(given), None, self.reader.read_request)

    def state(self, slot: int, *, start: bool = False) -> tuple[tuple[int, ...], bytes]:
        """What a request gets."""
        request, _ = self.add(member(slot, start=start))
        (name, _, shape) = request.spec.inputs[-1]
        assert name == "S"
        raw = request.tensors[-1]
        assert isinstance(raw, bytes)
        return shape, raw


def response(*outputs: tuple[str, str, list[int], bytes]) -> Response:
    head = kserve_pb2.ModelInferResponse(model_name="m")
    for name, datatype, shape, _ in outputs:
        head.outputs.add(name=name, datatype=datatype, shape=shape)
    return Response(0, False, None, head.SerializeToString(), [memoryview(o[3]) for o in outputs])


def names_of(response: Response) -> list[str]:
    head = kserve_pb2.ModelInferResponse.FromString(response.head)
    assert len(head.outputs) == len(response.tensors)
    return [output.name for output in head.outputs]


Y = ("Y", "INT32", [1, 1], b"yyyy")


def test_a_state_goes_from_one_request_to_the_next() -> None:
    site = Site(states_of())
    request, state = site.add(member(2, start=True))
    assert request.spec.inputs == (("X", "INT8", (1, 1)), ("S", "INT32", (1, 1)))
    assert request.spec.outputs == ("Y", "S_OUT")
    assert list(request.tensors) == [b"x", b"\0\0\0\0"]
    raw = bytearray(b"aaaabbbb")
    kept = site.states.keep(response(Y, ("S_OUT", "INT32", [1, 2], bytes(raw))), state)
    # It is no output of the client's.
    assert names_of(kept) == ["Y"]
    assert site.state(2) == ((1, 2), b"aaaabbbb")
    # Of the same slot, but of another sequence.
    assert site.state(2, start=True) == ((1, 1), b"\0\0\0\0")
    assert site.state(5, start=True) == ((1, 1), b"\0\0\0\0")


def test_requests_with_the_same_shapes_share_a_spec() -> None:
    site = Site(states_of())
    one, _ = site.add(member(1, start=True))
    two, state = site.add(member(2, start=True))
    assert one.spec is two.spec
    site.states.keep(response(("S_OUT", "INT32", [1, 2], b"aaaabbbb")), state)
    three, _ = site.add(member(2))
    assert three.spec is not one.spec


def test_a_client_may_request_a_state_that_is_an_output_as_well() -> None:
    site = Site(states_of())
    request, state = site.add(member(1, start=True, outputs=("S_OUT", "Y")))
    assert request.spec.outputs == ("S_OUT", "Y")
    given = response(Y, ("S_OUT", "INT32", [1, 1], b"aaaa"))
    assert site.states.keep(given, state) is given
    assert site.state(1) == ((1, 1), b"aaaa")


@pytest.mark.parametrize(
    "given",
    [response(Y), Response(0, False, ErrorStatus(13, "no")), Response(0, False)],
    ids=["without", "error", "empty"],
)
def test_a_response_without_the_state_leaves_it(given: Response) -> None:
    site = Site(states_of())
    _, state = site.add(member(1, start=True))
    site.states.keep(response(("S_OUT", "INT32", [1, 1], b"aaaa")), state)
    assert site.states.keep(given, state) is given
    assert site.state(1) == ((1, 1), b"aaaa")


def test_a_request_in_no_sequence_keeps_nothing() -> None:
    site = Site(states_of())
    _, state = site.add(member(0))
    kept = site.states.keep(response(("S_OUT", "INT32", [1, 1], b"aaaa")), state)
    assert names_of(kept) == []
    assert site.state(0) == ((1, 1), b"\0\0\0\0")


def test_a_request_whose_sequence_has_no_state_here_is_refused() -> None:
    with pytest.raises(Unavailable, match="of model 'm' is lost: its instance does not have it"):
        Site(states_of()).add(member(1))


@pytest.mark.parametrize(
    ("datatype", "shape", "text"),
    [
        ("INT64", [1, 1], r"as INT64 of shape \[1,1\].*says INT32 of shape \[1,-1\]"),
        ("INT32", [1], r"as INT32 of shape \[1\]"),
        ("INT32", [2, 1], r"as INT32 of shape \[2,1\]"),
    ],
)
def test_a_state_that_does_not_fit_fails_the_request(
    datatype: str, shape: list[int], text: str
) -> None:
    site = Site(states_of())
    _, state = site.add(member(1, start=True))
    failed = site.states.keep(response(Y, ("S_OUT", datatype, shape, b"aaaa")), state)
    assert failed.error_status is not None
    assert failed.tensors == ()
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(failed.error_status.message)
    assert site.state(1) == ((1, 1), b"\0\0\0\0")


def test_a_malformed_head_fails_the_request() -> None:
    site = Site(states_of())
    _, state = site.add(member(1, start=True))
    failed = site.states.keep(Response(0, False, None, b"\xff", ()), state)
    assert failed.error_status is not None


@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("datatype", sorted(NAMES))
def test_states_of_each_datatype_begin_with_zeros_or_a_file(
    tmp_path: Path, datatype: str, batch: int
) -> None:
    (tmp_path / "initial_state").mkdir()
    size = byte_size(datatype, [2])
    texts = to_raw(np.array([b"a", b""], np.object_))
    raw = texts if size is None else bytes([1, 0] * (size // 2))
    (tmp_path / "initial_state" / "first").write_bytes(raw)
    kind = "STRING" if datatype == "BYTES" else datatype
    shape = (1, 2) if batch else (2,)
    for initial, begins in (
        ("zero_data: true", bytes(8 if size is None else size)),
        ('data_file: "first"', raw),
    ):
        text = f'initial_state {{ data_type: TYPE_{kind} dims: [2] {initial} name: "f" }}'
        config = config_of(STATE % (kind, "-1", text), batch)
        states = RequestStates(config, tmp_path)
        assert Site(states).state(1, start=True) == (shape, begins)
        # They move in the form that those of other models have.
        exported = states.table.export(1)
        (spec,) = state_specs(config, tmp_path)
        (tensor,) = pb.StateTensors.FromString(exported).tensors
        row = read_row(spec, tensor)
        assert (row.shape, to_raw(row)) == ((2,), begins)
        states.table.restore(2, exported)
        assert Site(states).state(2) == (shape, begins)


def test_an_initial_state_must_be_there(tmp_path: Path) -> None:
    initial = 'initial_state { data_type: TYPE_INT32 dims: [1] data_file: "no" name: "f" }'
    with pytest.raises(InvalidArgument, match="failed to read initial state 'no'"):
        states_of(STATE % ("INT32", "1", initial), path=tmp_path)


def test_batches_have_states_and_members_that_the_model_wants_again() -> None:
    batches = OpenBatches(config_of(STATE % ("INT32", "-1", "")), Path(), "m_0")
    message = pb.Batch(id=3, members=[member(9), member(1, start=True), member(2, start=True)])
    batch = batches.begin_batch(parse_batch(message.SerializeToString()), 1, 0)
    assert [request.spec.inputs[-1][0] for request in batch.requests] == ["S", "S"]
    given = response(Y, ("S_OUT", "INT32", [1, 1], b"aaaa"))
    batches.add_responses(batch, [given])
    # One that has its last response is not rescheduled.
    batches.reschedule(batch, [0, 1])
    executed = pb.Executed.FromString(batch.next_frame(batches.received, 1, executed=True) or b"")
    assert [each.rescheduled for each in executed.responses] == [False, False, True]
    assert "does not have it" in executed.responses[0].error.message
    head = kserve_pb2.ModelInferResponse.FromString(executed.responses[1].head)
    assert [output.name for output in head.outputs] == ["Y"]
    message = pb.Batch(id=4, members=[member(1)])
    (again,) = batches.begin_batch(parse_batch(message.SerializeToString()), 2, 0).requests
    assert again.tensors[-1] == b"aaaa"
