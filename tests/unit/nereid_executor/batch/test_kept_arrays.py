"""Lone requests that are executed with kept arrays: which, and that nobody can tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from nereid.backends import Capabilities
from nereid.core.errors import Internal
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.classification import Classification
from nereid.core.tensors.tensors import Array
from nereid.model_config import complete_config
from nereid.pb import nereid_pb2 as pb
from nereid_executor.backends.onnx import backend
from nereid_executor.batch.kept_arrays import MAX_BYTES, MAX_KEPT
from nereid_executor.batch.runner import Runner
from tests.support.executor.doubler import Doubler
from tests.support.executor.instances import instance, responses
from tests.support.models.onnx_models import (
    ADD_SUB,
    add_sub,
    config,
    head,
    identity_config,
    member,
    reshaper,
    response_of,
    value,
    write,
)


class WatchedDoubler(Doubler):
    """Counts its executions with arrays that it has had before."""

    capabilities = Capabilities(leaves_arrays=True)

    def __init__(self) -> None:
        super().__init__()
        self.again = 0
        self._given: list[Array] = []

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        array = inputs["x"]
        if any(array is each for each in self._given):
            self.again += 1
        else:
            self._given.append(array)
        return super().execute(inputs, outputs)


class KeepingDoubler(WatchedDoubler):
    capabilities = Capabilities()


@pytest.fixture
def model() -> WatchedDoubler:
    return WatchedDoubler()


@pytest.fixture
def runner(model: WatchedDoubler) -> Runner:
    return Runner(instance(identity_config("FP32", "-1", 8)), model)


def request(number: float, rows: int = 1, columns: int = 2) -> pb.BatchMember:
    raw = np.full((rows, columns), number, np.float32).tobytes()
    return member(head(("x", "FP32", [rows, columns])), raw)


def expect(runner: Runner, number: float, rows: int = 1, columns: int = 2) -> None:
    """A lone request gets its own doubled values back."""
    (response,) = responses(runner, request(number, rows, columns))
    doubled = np.full((rows, columns), 2 * number, np.float32).tobytes()
    assert response_of(response) == [("y", "FP32", [rows, columns], doubled)]


def test_requests_with_the_same_head_get_their_inputs_in_the_same_arrays(
    runner: Runner, model: WatchedDoubler
) -> None:
    for number in (7, -3, 0.5):
        expect(runner, number)
    assert model.again == 2


def test_requests_with_other_heads_and_batches_of_several_are_executed_as_before(
    runner: Runner, model: WatchedDoubler
) -> None:
    expect(runner, 1)
    expect(runner, 5, rows=2)
    found = responses(runner, request(1), request(2))
    assert [np.frombuffer(response_of(each)[0][3], np.float32)[0] for each in found] == [2, 4]
    assert model.again == 0
    expect(runner, 6)
    assert model.again == 1


def test_responses_outlive_the_next_request(runner: Runner) -> None:
    expect(runner, 0)
    one, other = (responses(runner, request(number))[0] for number in (1, 2))
    assert response_of(one) != response_of(other)


def test_an_error_is_the_requests_own(runner: Runner, model: WatchedDoubler) -> None:
    expect(runner, 0)
    model.failure = Internal("the model failed")
    (response,) = responses(runner, request(1))
    assert response.error.message == "the model failed"
    model.failure = None
    expect(runner, 2)


def test_a_model_that_may_keep_its_inputs_gets_new_ones() -> None:
    model = KeepingDoubler()
    runner = Runner(instance(identity_config("FP32", "-1", 8)), model)
    for number in range(3):
        expect(runner, number)
    assert model.again == 0


@pytest.mark.parametrize("columns", [0, MAX_BYTES // 4 + 1])
def test_arrays_of_neither_empty_nor_large_tensors_are_kept(
    runner: Runner, model: WatchedDoubler, columns: int
) -> None:
    for number in range(3):
        expect(runner, number, columns=columns)
    assert model.again == 0


def test_requests_for_classes_are_classified_each_time(runner: Runner) -> None:
    wanted = head(("x", "FP32", [1, 2]), classes={"y": Classification(1)})
    for number in range(3):
        (response,) = responses(runner, member(wanted, np.array([number, 9], np.float32).tobytes()))
        assert response_of(response)[0][3] == join_bytes([b"18.000000:1"])


def test_arrays_are_kept_for_a_bounded_number_of_shapes(
    runner: Runner, model: WatchedDoubler
) -> None:
    for columns in range(1, MAX_KEPT + 2):
        expect(runner, 1, columns=columns)
    # The first one has made room.
    expect(runner, 1, columns=1)
    assert model.again == 0
    expect(runner, 1, columns=1)
    assert model.again == 1


def test_onnx_runtime_gives_what_it_gives_otherwise(tmp_path: Path) -> None:
    spec = instance(ADD_SUB, add_sub(tmp_path / "1"))
    runner = Runner(spec, backend.load(spec))
    wanted = head(("a", "INT32", [2, 4]), ("b", "INT32", [2, 4]))
    random = np.random.default_rng(3)
    for _ in range(4):
        one, other = random.integers(-99, 99, (2, 2, 4), np.int32)
        (response,) = responses(runner, member(wanted, one.tobytes(), other.tobytes()))
        found = [np.frombuffer(raw, np.int32).tolist() for *_, raw in response_of(response)]
        assert found == [(one + other).ravel().tolist(), (one - other).ravel().tolist()]


def test_outputs_that_are_inputs_or_initializers_have_their_values(tmp_path: Path) -> None:
    """ONNX Runtime writes none of these into memory that it is given for outputs."""
    given = numpy_helper.from_array(np.zeros(2, np.int64), "w")
    path = write(
        tmp_path / "1",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", "INT64", [2]), value("w", "INT64", [2])],
        [value(name, "INT64", [2]) for name in ("x", "w", "y")],
        [given],
    )
    written = "".join(
        f"{role} {{ name: '{name}' data_type: TYPE_INT64 dims: 2 {more} }}"
        for role, name, more in [
            ("input", "x", ""),
            ("input", "w", "optional: true"),
            *(("output", name, "") for name in "xwy"),
        ]
    )
    spec = instance(written, path)
    runner = Runner(spec, backend.load(spec))
    wanted = head(("x", "INT64", [2]), ("w", "INT64", [2]))
    for number in range(4):
        x, w = np.full(2, number + 1, np.int64), np.full(2, -number, np.int64)
        (response,) = responses(runner, member(wanted, x.tobytes(), w.tobytes()))
        found = {name: raw for name, *_, raw in response_of(response)}
        assert found == {"x": x.tobytes(), "w": w.tobytes(), "y": (2 * x).tobytes()}


def test_outputs_whose_shapes_the_values_decide(tmp_path: Path) -> None:
    written = """
        input { name: "x" data_type: TYPE_FP32 dims: -1 }
        input { name: "to" data_type: TYPE_INT64 dims: -1 }
        output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }
    """
    spec = instance(written, reshaper(tmp_path / "1"))
    runner = Runner(spec, backend.load(spec))
    wanted = head(("x", "FP32", [6]), ("to", "INT64", [2]))
    values = np.arange(6, dtype=np.float32).tobytes()
    for shape in [(2, 3)] * 3 + [(3, 2), (2, 3)]:
        to = np.array(shape, np.int64).tobytes()
        (response,) = responses(runner, member(wanted, values, to))
        assert response_of(response) == [("y", "FP32", [*shape], values)]


def completed(path: Path, text: str = "") -> Runner:
    """A runner of a model whose configuration is completed from its file."""
    written = config(text)
    described = backend.describe(written, path)
    spec = instance(complete_config(written, model_name="m", description=described), path)
    return Runner(spec, backend.load(spec))


@pytest.mark.parametrize("declared", [[8, 2], [1, "n"], ["n"], None])
def test_outputs_have_the_shapes_that_the_graph_makes_whatever_it_declares(
    tmp_path: Path, declared: list[int | str] | None
) -> None:
    pairs = numpy_helper.from_array(np.array([-1, 2]), "pairs")
    path = write(
        tmp_path / "1",
        [helper.make_node("Reshape", ["x", "pairs"], ["y"])],
        [value("x", "FP32", [1, 1, "h", "w"])],
        [value("y", "FP32", declared)],
        [pairs],
    )
    runner = completed(path)
    for shape in [(1, 1, 8, 4), (1, 1, 4, 4)] * 3:
        raw = np.random.default_rng(1).random(shape, np.float32).tobytes()
        (response,) = responses(runner, member(head(("x", "FP32", [*shape])), raw))
        assert response_of(response) == [("y", "FP32", [len(raw) // 8, 2], raw)]


def test_a_graph_that_makes_a_scalar_serves_batches_of_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1",
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        [value("x", "FP32", ["n", 2])],
        [value("y", "FP32", None)],
    )
    runner = completed(
        path,
        "max_batch_size: 4 input { name: 'x' data_type: TYPE_FP32 dims: 2 }"
        " output { name: 'y' data_type: TYPE_FP32 dims: 1 }",
    )
    for number in range(4):
        (response,) = responses(runner, request(number))
        assert response_of(response) == [("y", "FP32", [1], np.float32(2 * number).tobytes())]
    for several in ([request(1, rows=2)], [request(1), request(2)]):
        for response in responses(runner, *several):
            assert "has shape [], but the batch has size 2" in response.error.message
