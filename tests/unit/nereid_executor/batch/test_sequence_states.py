"""Implicit state on its way out of one instance and into another, of models of either kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from nereid.core.errors import Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.sequence_states import SequenceStates, StateSpec
from tests.support.executor.running_sums import (
    ArraySite,
    RequestSite,
    asked,
    malformed,
    member,
    not_here,
    not_restored,
    of,
    outcomes,
    restored,
    state,
    states_of,
)

Sites = tuple[ArraySite, ArraySite]


@pytest.fixture(params=[ArraySite, RequestSite], ids=["arrays", "requests"])
def sites(request: pytest.FixtureRequest) -> Iterator[Sites]:
    made: Callable[[], ArraySite] = request.param
    one, other = made(), made()
    yield one, other
    one.close()
    other.close()


def test_a_state_moves_once(sites: Sites) -> None:
    one, other = sites
    one.run(member(1, 1, "start"), member(10, 2, "start"))
    # Without the batch dimension: it may move to a model of the other kind.
    assert one.export(1, 3) == [(1, state(1)), (3, b"")]
    assert one.export(1) == [(1, b"")]
    assert outcomes(other.run(restored(member(2, 4), state(1)))) == [3]
    assert outcomes(other.run(member(3, 4))) == [6]
    assert outcomes(one.run(member(3, 2))) == [13]


def test_requests_since_a_snapshot_run_again_without_responses(sites: Sites) -> None:
    one, other = sites
    ((_, snapshot),) = states_of(one.run(asked(1, 1, "start")))
    first = restored(member(4, 7), snapshot, member(2, 0), member(3, 0))
    # From the beginning.
    second = restored(member(4, 8), b"", member(1, 0, "start"))
    assert outcomes(other.run(first, second, member(9, 9, "start"))) == [10, 5, 9]
    assert outcomes(other.run(member(0, 7), member(0, 8))) == [10, 5]
    assert not other.runner.received.busy


def test_two_sequences_with_one_slot_in_a_batch() -> None:
    """The first one ends there; both may come from elsewhere."""
    other = ArraySite()
    batch = (restored(member(1, 5, "end"), state(1)), restored(member(1, 5), state(10)))
    assert outcomes(other.run(*batch)) == [2, 11]
    assert outcomes(other.run(member(1, 5))) == [12]


def test_a_restored_state_outlives_a_request_that_fails(sites: Sites) -> None:
    one, _ = sites
    assert outcomes(one.run(restored(member(-1, 5), state(1)))) == ["negative"]
    assert outcomes(one.run(member(2, 5))) == [3]
    assert isinstance(outcomes(one.run(restored(malformed(member(2, 6)), state(3))))[0], str)
    assert outcomes(one.run(member(2, 6))) == [5]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\xff", "it cannot be read"),
        (state(1) * 2, "it has 2 tensors instead of 1"),
        (pb.StateTensors(tensors=[pb.StateTensor(shape=[2], data=b"1")]).SerializeToString(), ""),
    ],
)
def test_a_state_that_cannot_be_restored_is_no_other_ones(
    sites: Sites, bad: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = sites
    one.run(member(1, 1, "start"))
    assert outcomes(one.run(restored(of(7, member(1, 1)), bad))) == [not_restored(7)]
    assert f"the state of a sequence of model 'm' cannot be restored: {why}" in caplog.text
    executed = one.run(of(7, member(1, 1)))
    assert outcomes(executed) == [not_here(7)]
    assert executed.responses[0].error.code == Unavailable.code
    assert outcomes(one.run(of(7, member(1, 1, "start")))) == [1]


def test_a_replay_that_fails_loses_the_state(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = sites
    failing = of("text", restored(member(1, 1), state(1), member(-1, 0), member(1, 0)))
    other = restored(member(1, 2), state(5), member(1, 0))
    assert outcomes(one.run(failing, other)) == [not_restored("text"), 7]
    assert "the requests of a sequence of model 'm' could not be replayed" in caplog.text


def test_a_state_that_cannot_be_restored_fails_its_member_alone(sites: Sites) -> None:
    """There, in the sequence's next batches, and among members that are malformed."""
    one, _ = sites
    one.run(member(1, 1, "start"), member(10, 2, "start"))
    bad = restored(of(7, member(1, 3)), b"\xff")
    first, second, third, fourth = outcomes(
        one.run(bad, member(2, 2), malformed(member(1, 4, "start")), member(2, 1))
    )
    assert (first, second, fourth) == (not_restored(7), 12, 3)
    assert isinstance(third, str)
    bad = of(7, member(1, 3))
    assert outcomes(one.run(member(3, 2), bad, member(3, 1))) == [15, not_here(7), 6]
    assert outcomes(one.run(of(7, member(1, 3, "end")))) == [not_here(7)]
    # With START there is nothing to restore.
    again = restored(member(1, 3, "start"), b"\xff")
    assert outcomes(one.run(again, member(4, 1))) == [1, 10]
    assert outcomes(one.run(member(1, 3), member(1, 2))) == [2, 16]


def test_a_request_that_runs_again_behind_the_end_of_its_sequence_loses_the_state() -> None:
    again = [member(1, 0, "start"), member(1, 0, "end"), member(1, 0)]
    request = of(5, restored(member(1, 1), b"", *again))
    assert outcomes(ArraySite().run(request)) == [not_restored(5)]


def test_a_failed_start_leaves_the_initial_state(sites: Sites) -> None:
    one, _ = sites
    one.run(member(5, 1, "start"))
    assert outcomes(one.run(member(-1, 1, "start"))) == ["negative"]
    assert outcomes(one.run(member(1, 1))) == [1]


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
