"""Implicit state on its way out of one instance and into another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec
from nereid.core.errors import Internal, Unavailable
from nereid.core.tensors import Array
from nereid.pb import model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.batch_runner import BatchRunner
from nereid.services.executor.batch.sequence_states import SequenceStates, StateSpec
from tests.support.models.onnx_models import head

CONFIG = """
name: "m" backend: "onnxruntime" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
sequence_batching { state {
  input_name: "s" output_name: "s_out" data_type: TYPE_FP32 dims: %d
} }
"""
HEAD = head(("x", "FP32", [1, 1]))


class RunningSum:
    """y and s_out are s plus x; fails if an x is negative."""

    description = EMPTY_DESCRIPTION
    bytes_as_text = False

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        if (inputs["x"] < 0).any():
            raise Internal("negative")
        total = inputs["s"] + inputs["x"]
        by_name = {"y": total[:, :1], "s_out": total}
        return [by_name[name] for name in outputs]

    def close(self) -> None:
        """Do nothing."""


class Site:
    """A runner of a model that adds up."""

    def __init__(self, dims: int = 1) -> None:
        config = text_format.Parse(CONFIG % dims, model_config_pb2.ModelConfig())
        spec = InstanceSpec(config=config, version=1, version_path=Path("1"), name="m_0")
        self.runner = BatchRunner(spec, RunningSum())
        self.exports = 1

    def run(self, *members: pb.BatchMember) -> pb.Executed:
        batch = pb.Batch(members=members)
        return pb.Executed.FromString(self.runner.execute(batch.SerializeToString()))

    def export(self, *slots: int) -> list[tuple[int, bytes]]:
        batch = pb.Batch(id=self.exports, exported_slots=slots)
        executed = pb.Executed.FromString(self.runner.execute(batch.SerializeToString()))
        assert executed.id == self.exports
        self.exports += 1
        assert not executed.responses
        return [(each.slot, each.state) for each in executed.states]


def member(value: float, slot: int = 1, flag: str = "") -> pb.BatchMember:
    request = pb.BatchMember(head=HEAD, sequence_slot=slot)
    request.payloads.add(inline=np.full(1, value, np.float32).tobytes())
    if flag:
        request.parameters[f"sequence_{flag}"].bool_param = True
    return request


def of(which: int | str, request: pb.BatchMember) -> pb.BatchMember:
    """A request of this sequence."""
    if isinstance(which, str):
        request.parameters["sequence_id"].string_param = which
    else:
        request.parameters["sequence_id"].int64_param = which
    return request


def outcomes(executed: pb.Executed) -> list[float | str]:
    return [
        each.error.message or float(np.frombuffer(each.payloads[0].inline, np.float32)[0])
        for each in executed.responses
    ]


def restored(request: pb.BatchMember, state: bytes, *again: pb.BatchMember) -> pb.BatchMember:
    request.restore.SetInParent()
    request.restore.state = state
    request.restore.requests.extend(again)
    return request


def test_a_state_moves_once() -> None:
    site, other = Site(), Site()
    site.run(member(1, 1, "start"), member(10, 2, "start"))
    ((slot, state), missing) = site.export(1, 3)
    assert slot == 1
    assert missing == (3, b"")
    assert site.export(1) == [(1, b"")]
    assert outcomes(other.run(restored(member(2, 4), state))) == [3]
    assert outcomes(other.run(member(3, 4))) == [6]
    assert outcomes(site.run(member(3, 2))) == [13]


def test_requests_since_a_snapshot_run_again_without_responses() -> None:
    site, other = Site(), Site()
    asked = member(1, 1, "start")
    asked.returns_state = True
    (snapshot,) = site.run(asked).states
    again = [member(2, 0), member(3, 0)]
    assert outcomes(other.run(restored(member(4, 7), snapshot.state, *again))) == [10]
    # From the beginning.
    first = restored(member(4, 8), b"", member(1, 0, "start"), *again)
    assert outcomes(other.run(first)) == [10]
    assert outcomes(other.run(member(0, 7), member(0, 8))) == [10, 10]


def test_two_sequences_with_one_slot_in_a_batch() -> None:
    """The first one ends there; both may come from elsewhere."""
    site, other = Site(), Site()
    site.run(member(1, 1, "start"), member(10, 2, "start"))
    states = dict(site.export(1, 2))
    batch = (restored(member(1, 5, "end"), states[1]), restored(member(1, 5), states[2]))
    assert outcomes(other.run(*batch)) == [2, 11]
    assert outcomes(other.run(member(1, 5))) == [12]


def test_a_restored_state_outlives_a_request_that_fails() -> None:
    site, other = Site(), Site()
    site.run(member(1, 1, "start"))
    ((_, state),) = site.export(1)
    assert outcomes(other.run(restored(member(-1, 5), state))) == ["negative"]
    assert outcomes(other.run(member(2, 5))) == [3]
    ((_, state),) = other.export(5)
    malformed = restored(member(2, 6), state)
    malformed.head = b"\xff"
    assert isinstance(outcomes(other.run(malformed))[0], str)
    assert outcomes(other.run(member(2, 6))) == [5]


def lost(which: int | str, cause: str) -> str:
    return (
        f"the state of sequence {which} of model 'm' is lost: {cause}; begin it again with a"
        " request that has the START flag"
    )


@pytest.mark.parametrize("state", [b"\xff", b"\x0a\x00" * 2])
def test_a_state_that_cannot_be_restored_is_no_other_ones(state: bytes) -> None:
    site = Site()
    site.run(member(1, 1, "start"))
    assert outcomes(site.run(restored(of(7, member(1, 1)), state))) == [
        lost(7, "it could not be restored")
    ]
    executed = site.run(of(7, member(1, 1)))
    assert outcomes(executed) == [lost(7, "its instance does not have it")]
    assert executed.responses[0].error.code == Unavailable.code
    assert outcomes(site.run(of(7, member(1, 1, "start")))) == [1]


def test_a_replay_that_fails_loses_the_state() -> None:
    request = of("text", restored(member(1, 1), b"", member(-1, 0, "start")))
    assert outcomes(Site().run(request)) == [lost("text", "it could not be restored")]


def test_a_state_that_cannot_be_restored_fails_its_member_alone() -> None:
    """There, in the sequence's next batches, and among members that are malformed."""
    site = Site()
    site.run(member(1, 1, "start"), member(10, 2, "start"))
    malformed = member(1, 4)
    malformed.head = b"\xff"
    bad = restored(of(7, member(1, 3)), b"\xff")
    first, second, third, fourth = outcomes(site.run(bad, member(2, 2), malformed, member(2, 1)))
    assert (first, second, fourth) == (lost(7, "it could not be restored"), 12, 3)
    assert isinstance(third, str)
    bad = of(7, member(1, 3))
    assert outcomes(site.run(member(3, 2), bad, member(3, 1))) == [
        15, lost(7, "its instance does not have it"), 6
    ]  # fmt: skip
    bad = of(7, member(1, 3, "end"))
    assert outcomes(site.run(bad)) == [lost(7, "its instance does not have it")]
    # With START there is nothing to restore.
    again = restored(member(1, 3, "start"), b"\xff")
    assert outcomes(site.run(again, member(4, 1))) == [1, 10]
    assert outcomes(site.run(member(1, 3), member(1, 2))) == [2, 16]


def test_a_request_that_runs_again_behind_the_end_of_its_sequence_loses_the_state() -> None:
    again = [member(1, 0, "start"), member(1, 0, "end"), member(1, 0)]
    request = of(5, restored(member(1, 1), b"", *again))
    assert outcomes(Site().run(request)) == [lost(5, "it could not be restored")]


def test_a_failed_start_leaves_the_initial_state() -> None:
    site = Site()
    site.run(member(5, 1, "start"))
    assert outcomes(site.run(member(-1, 1, "start"))) == ["negative"]
    assert outcomes(site.run(member(1, 1))) == [1]


# ---- the table


def table(max_state_bytes: int = 1000) -> SequenceStates[bytes]:
    """One whose tensors are bytes."""
    spec = StateSpec("s", "s_out", "UINT8", np.zeros(4, np.uint8))
    return SequenceStates(
        "m",
        [spec],
        [bytes(4)],
        lambda _, tensor: tensor.data,
        lambda data: pb.StateTensor(data=data),
        max_state_bytes,
    )


SIZE_BYTES = len(pb.StateTensors(tensors=[pb.StateTensor(data=bytes(4))]).SerializeToString())


@pytest.mark.parametrize(("most", "first"), [(2 * SIZE_BYTES, [3, 2]), (1, [3])])
def test_exported_states_fill_no_more_than_a_frame(most: int, first: list[int]) -> None:
    states = table(most)
    for slot in (1, 2, 3):
        states.begin(member(1, slot, "start"))
    executed = pb.Executed()
    states.export_states([3, 2, 1], executed)
    # One there always is.
    assert [each.slot for each in executed.states] == first
    # Those that did not fit are still here.
    rest = pb.Executed()
    states.export_states([1], rest)
    assert [each.slot for each in rest.states] == [1]
    assert rest.states[0].state


def test_returned_states_fill_no_more_than_a_frame() -> None:
    executed = pb.Executed()
    table(2 * SIZE_BYTES).return_states([(slot, [bytes(4)]) for slot in (1, 2, 3)], executed)
    assert [each.slot for each in executed.states] == [1, 2]


def test_the_end_of_a_sequence_leaves_the_next_one_in_its_slot() -> None:
    states = table()
    first = states.begin(member(1, 1, "start"))
    second = states.begin(member(1, 1, "start"))
    states.end(1, first)
    assert states.begin(member(1, 1)) is second
    states.end(1, second)
    with pytest.raises(Unavailable):
        states.begin(member(1, 1))


def test_requests_of_several_sequences_are_replayed_step_by_step() -> None:
    states = table()
    one = restored(member(1, 1), b"", member(2), member(3))
    other = restored(member(1, 2), b"", member(4))
    steps = []
    for step in states.replays([one, member(1, 3, "start"), other]):
        steps.append([np.frombuffer(each.payloads[0].inline, np.float32)[0] for each in step])
        for each in step:
            states.begin(each)[:] = [each.payloads[0].inline]
    assert steps == [[2, 4], [3]]
    assert not one.restore.requests
    assert states.begin(one) == [np.float32(3).tobytes()]
    assert states.begin(other) == [np.float32(4).tobytes()]
