"""Implicit state without copies, of models that leave arrays alone."""

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from nereid.backends import Capabilities
from nereid.core.tensors.tensors import Array
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.runner import Runner
from tests.support.executor.instances import execute
from tests.support.executor.running_sums import ArraySum, config_of, member, outcomes
from tests.support.executor.scripted_model import SPEC


class LeavingSum(ArraySum):
    capabilities = Capabilities(leaves_arrays=True)

    def __init__(self) -> None:
        self.given: list[Array] = []
        self.written: list[Array] = []

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        arrays = super().execute(inputs, outputs)
        self.given.append(inputs["s"])
        self.written.append(arrays[list(outputs).index("s_out")])
        return arrays


@pytest.fixture
def model() -> LeavingSum:
    return LeavingSum()


@pytest.fixture
def runner(model: LeavingSum) -> Runner:
    return Runner(replace(SPEC, config=config_of()), model)


def run(runner: Runner, *members: pb.BatchMember) -> list[float | str]:
    return outcomes(execute(runner, *members))


def begin(runner: Runner, *slots: int) -> list[float | str]:
    return run(runner, *(member(slot, slot, "start") for slot in slots))


def go_on(runner: Runner, *slots: int) -> list[float | str]:
    return run(runner, *(member(10, slot) for slot in slots))


def test_sequences_that_come_together_again_are_not_copied(
    runner: Runner, model: LeavingSum
) -> None:
    begin(runner, 1, 2)
    assert go_on(runner, 1, 2) == [11, 12]
    assert model.given[1] is model.written[0]


def test_two_batches_in_turns_are_not_copied(runner: Runner, model: LeavingSum) -> None:
    begin(runner, 1, 2)
    begin(runner, 3, 4)
    assert go_on(runner, 1, 2) == [11, 12]
    assert go_on(runner, 3, 4) == [13, 14]
    assert model.given[2] is model.written[0]
    assert model.given[3] is model.written[1]


def test_one_sequence_by_itself_is_not_copied(runner: Runner, model: LeavingSum) -> None:
    begin(runner, 1)
    assert go_on(runner, 1) == [11]
    assert np.shares_memory(model.given[1], model.written[0])


@pytest.mark.parametrize(
    ("slots", "values"),
    [((2, 1), [12, 11]), ((1,), [11]), ((1, 2, 3), [11, 12, 13]), ((2, 3), [12, 13])],
    ids=["another order", "fewer", "more", "others"],
)
def test_other_batches_have_their_own_states(
    runner: Runner, slots: tuple[int, ...], values: list[float]
) -> None:
    begin(runner, 1, 2)
    begin(runner, 3, 4)
    assert go_on(runner, *slots) == values
    assert sorted(map(float, go_on(runner, 1, 2, 3, 4))) == sorted(
        slot + (20 if slot in slots else 10) for slot in (1, 2, 3, 4)
    )


def test_batches_are_stacked_in_the_same_memory(runner: Runner, model: LeavingSum) -> None:
    for slot in (1, 2, 3):
        begin(runner, slot)
    assert go_on(runner, 1, 2, 3) == [11, 12, 13]
    assert go_on(runner, 3, 1) == [23, 21]
    assert np.shares_memory(model.given[-1], model.given[-2])


def test_a_sequence_that_began_anew_has_not_the_old_state(runner: Runner) -> None:
    begin(runner, 1, 2)
    begin(runner, 1)
    assert go_on(runner, 1, 2) == [11, 12]
    begin(runner, 2)
    assert go_on(runner, 2, 1) == [12, 21]


def test_a_failed_batch_leaves_the_states(runner: Runner) -> None:
    begin(runner, 1, 2)
    assert run(runner, member(-1, 1), member(-1, 2)) == ["negative", "negative"]
    assert go_on(runner, 1, 2) == [11, 12]


def test_an_idle_sequence_keeps_no_batch_in_memory(runner: Runner, model: LeavingSum) -> None:
    begin(runner, 1, 2, 3)
    first = model.written[0]
    model.written.clear()
    for _ in range(4):
        go_on(runner, 1, 2)
    model.given.clear()
    # Ours, and getrefcount's own.
    assert sys.getrefcount(first) == 2
    assert go_on(runner, 3) == [13]
