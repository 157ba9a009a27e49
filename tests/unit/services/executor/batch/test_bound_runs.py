"""Lone requests that are executed in place: which, and that nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from nereid.core.classification import Classification
from nereid.core.errors import Internal
from nereid.core.tensors import Array
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.backends.onnx import backend
from nereid.services.executor.batch.batch_runner import BatchRunner
from nereid.services.executor.batch.bound_runs import FEWEST, MOST_BYTES, MOST_RUNS
from tests.support.executor.doubler import Doubler
from tests.support.executor.instances import instance, responses
from tests.support.models.onnx_models import (
    ADD_SUB,
    add_sub,
    head,
    identity_config,
    member,
    reshaper,
    response_of,
)


class BoundDoubler(Doubler):
    """Counts its executions: as of any model, and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.binds = True
        self.bound_failure: Exception | None = None
        self.bound = 0
        self.in_place = 0

    def bind_arrays(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> Callable[[], None] | None:
        if not self.binds:
            return None
        self.bound += 1

        def run() -> None:
            if self.bound_failure is not None:
                raise self.bound_failure
            self.in_place += 1
            outputs["y"][...] = inputs["x"] * 2

        return run


@pytest.fixture
def model() -> BoundDoubler:
    return BoundDoubler()


@pytest.fixture
def runner(model: BoundDoubler) -> BatchRunner:
    return BatchRunner(instance(identity_config("FP32", "-1", 8)), model)


def request(value: float, rows: int = 1, columns: int = 2) -> pb.BatchMember:
    raw = np.full((rows, columns), value, np.float32).tobytes()
    return member(head(("x", "FP32", [rows, columns])), raw)


def expect(runner: BatchRunner, value: float, rows: int = 1, columns: int = 2) -> None:
    """A lone request gets its own doubled values back."""
    (response,) = responses(runner, request(value, rows, columns))
    doubled = np.full((rows, columns), 2 * value, np.float32).tobytes()
    assert response_of(response) == [("y", "FP32", [rows, columns], doubled)]


def repeat(runner: BatchRunner, **shape: int) -> None:
    for value in range(FEWEST):
        expect(runner, value, **shape)


def test_the_sixteenth_lone_request_is_the_last_that_needs_arrays(
    runner: BatchRunner, model: BoundDoubler
) -> None:
    repeat(runner)
    assert (len(model.batches), model.in_place) == (FEWEST, 0)
    for value in (7, -3, 0.5):
        expect(runner, value)
    assert (len(model.batches), model.in_place) == (FEWEST, 3)


def test_requests_with_other_heads_and_batches_of_several_are_executed_as_before(
    runner: BatchRunner, model: BoundDoubler
) -> None:
    repeat(runner)
    expect(runner, 5, rows=2)
    found = responses(runner, request(1), request(2))
    assert [np.frombuffer(response_of(each)[0][3], np.float32)[0] for each in found] == [2, 4]
    assert model.in_place == 0
    expect(runner, 6)
    assert model.in_place == 1


def test_responses_outlive_the_next_request(runner: BatchRunner) -> None:
    repeat(runner)
    one, other = (responses(runner, request(value))[0] for value in (1, 2))
    assert response_of(one) != response_of(other)


def test_a_run_in_place_that_fails_is_the_last_one(
    runner: BatchRunner, model: BoundDoubler
) -> None:
    repeat(runner)
    model.bound_failure = Internal("the output has another shape")
    for value in range(2 * FEWEST):
        expect(runner, value)
    assert (model.bound, model.in_place) == (1, 0)


def test_a_model_that_cannot_is_asked_once(runner: BatchRunner, model: BoundDoubler) -> None:
    model.binds = False
    repeat(runner)
    model.binds = True
    repeat(runner)
    assert model.bound == 0


@pytest.mark.parametrize("columns", [0, MOST_BYTES // 4])
def test_neither_empty_nor_large_tensors_are_bound(
    runner: BatchRunner, model: BoundDoubler, columns: int
) -> None:
    repeat(runner, columns=columns)
    assert model.bound == 0


def test_requests_for_classes_are_not_bound(runner: BatchRunner, model: BoundDoubler) -> None:
    wanted = head(("x", "FP32", [1, 2]), classes={"y": Classification(1)})
    for value in range(FEWEST):
        responses(runner, member(wanted, np.full(2, value, np.float32).tobytes()))
    assert model.bound == 0


def test_clients_with_many_shapes_bind_a_bounded_number(
    runner: BatchRunner, model: BoundDoubler
) -> None:
    repeat(runner)
    for columns in range(3, 3 + MOST_RUNS):
        repeat(runner, columns=columns)
    # The first one has made room, and is bound again when it comes again.
    expect(runner, 1)
    assert (model.bound, model.in_place) == (MOST_RUNS + 1, 0)
    repeat(runner)
    assert (model.bound, model.in_place) == (MOST_RUNS + 2, 1)


def test_onnx_runtime_gives_what_it_gives_otherwise(tmp_path: Path) -> None:
    spec = instance(ADD_SUB, add_sub(tmp_path / "1"))
    model = backend.load(spec)
    runner = BatchRunner(spec, model)
    wanted = head(("a", "INT32", [2, 4]), ("b", "INT32", [2, 4]))
    random = np.random.default_rng(3)
    for _ in range(2 * FEWEST):
        one, other = random.integers(-99, 99, (2, 2, 4), np.int32)
        (response,) = responses(runner, member(wanted, one.tobytes(), other.tobytes()))
        found = [np.frombuffer(raw, np.int32).tolist() for *_, raw in response_of(response)]
        assert found == [(one + other).ravel().tolist(), (one - other).ravel().tolist()]
    (plan,) = runner._planner.plans.values()
    assert plan.bound is not None


def test_onnx_models_whose_inputs_do_not_say_the_outputs_shapes_are_not_bound(
    tmp_path: Path,
) -> None:
    config = """
        input { name: "x" data_type: TYPE_FP32 dims: -1 }
        input { name: "to" data_type: TYPE_INT64 dims: -1 }
        output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }
    """
    spec = instance(config, reshaper(tmp_path / "1"))
    runner = BatchRunner(spec, backend.load(spec))
    wanted = head(("x", "FP32", [6]), ("to", "INT64", [2]))
    values = np.arange(6, dtype=np.float32).tobytes()
    for shape in [(2, 3)] * FEWEST + [(3, 2)]:
        to = np.array(shape, np.int64).tobytes()
        (response,) = responses(runner, member(wanted, values, to))
        assert response_of(response) == [("y", "FP32", [*shape], values)]
    (plan,) = runner._planner.plans.values()
    assert plan.bound is None
