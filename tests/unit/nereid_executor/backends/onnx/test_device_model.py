"""ONNX models through device_io: on a device in host memory, and on a GPU where there is one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from benchmarks.gpu.host_device import HostDevice
from benchmarks.gpu.host_model import load_on_host
from nereid.backends import TensorParts
from nereid.backends.device_io.device_model import DeviceModel, parts_of
from nereid.core.errors import Internal, InvalidArgument
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.pb import model_config_pb2
from nereid_executor.backends.onnx import backend
from nereid_executor.backends.onnx.device_model import load
from nereid_executor.backends.onnx.device_session import input_places
from nereid_executor.backends.onnx.device_settings import device_io_settings
from nereid_executor.backends.onnx.session_options import CPU, CUDA, TENSORRT, Provider
from tests.support.executor.instances import instance
from tests.support.models.onnx_models import add_sub, config, identity, value, write

OVERLAP = "optimization { eager_batching: true } "
GRAPHS = """optimization { cuda { graphs: true } }
    dynamic_batching { preferred_batch_size: 4 } """
BOUNDED_GRAPH = """optimization { cuda { graphs: true graph_spec { batch_size: 4
    graph_lower_bound { batch_size: 2 } } } } """
CACHE = """parameters { key: "device_input_cache_bytes" value { string_value: "1000000" } }
    parameters { key: "device_input_cache_min_bytes" value { string_value: "1" } } """
STAGED = 'parameters { key: "device_io" value { string_value: "1" } } '
PINNED = """optimization { input_pinned_memory { enable: true }
    output_pinned_memory { enable: true } } """
ALL = """optimization { eager_batching: true cuda { graphs: true }
    input_pinned_memory { enable: true } output_pinned_memory { enable: true } }
    dynamic_batching { preferred_batch_size: 4 } """
FEATURES = {
    "overlap": OVERLAP,
    "graphs": GRAPHS,
    "bounded_graph": BOUNDED_GRAPH,
    "cache": CACHE,
    "unpinned": STAGED,
    "pinned": STAGED + PINNED,
    "all": ALL + CACHE,
}


def add_sub_config(features: str) -> model_config_pb2.ModelConfig:
    return config(
        """max_batch_size: 8
        input [ { name: "a" data_type: TYPE_INT32 dims: 4 },
                { name: "b" data_type: TYPE_INT32 dims: 4 } ]
        output [ { name: "sum" data_type: TYPE_INT32 dims: 4 },
                 { name: "dif" data_type: TYPE_INT32 dims: 4 } ]
        """
        + features
    )


def batch(number: int, rows: int) -> dict[str, TensorParts]:
    a = np.arange(4 * rows, dtype=np.int32).reshape(rows, 4) + number
    b = np.full((rows, 4), number, np.int32)
    # As a batch of single rows brings it.
    parts = [row.tobytes() for row in a]
    return {"a": TensorParts(parts, a.shape, a.dtype), "b": parts_of(b)}


def expected(number: int, rows: int) -> list[list[list[int]]]:
    a = np.arange(4 * rows, dtype=np.int32).reshape(rows, 4) + number
    return [(a - number).tolist(), (a + number).tolist()]


def check_batches(model: Any) -> None:
    """Many batches of many sizes, as many at a time as the model takes."""
    waiting: list[tuple[int, int]] = []
    names = ["dif", "sum"]
    sizes = [1, 4, 3, 8, 2, 2, 4, 1, 5, 8]
    for number, rows in enumerate([*sizes, *sizes]):
        if len(waiting) == model.capabilities.pipeline_depth:
            outputs = [array.tolist() for array in model.collect_batch()]
            assert outputs == expected(*waiting.pop(0))
        model.submit_batch(batch(number % 3, rows), names)
        waiting.append((number % 3, rows))
    for each in waiting:
        assert [array.tolist() for array in model.collect_batch()] == expected(*each)
    (difference,) = model.execute(
        {"a": np.full((2, 4), 9, np.int32), "b": np.full((2, 4), 2, np.int32)}, ["dif"]
    )
    assert difference.tolist() == [[7] * 4] * 2


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_outputs_are_the_models_whatever_the_way(tmp_path: Path, feature: str) -> None:
    device = HostDevice()
    path = add_sub(tmp_path / "1")
    model = load_on_host(add_sub_config(FEATURES[feature]), path, device)
    assert model.capabilities.pipeline_depth == (2 if feature in {"overlap", "all"} else 1)
    check_batches(model)
    assert device.allocated_bytes > 0
    model.close()
    assert device.allocated_bytes == 0


@pytest.mark.parametrize("datatype", ["BOOL", "BF16", "FP16", "FP64", "INT64", "UINT8"])
def test_datatypes(tmp_path: Path, datatype: str) -> None:
    path = identity(tmp_path / "1", datatype, ["n", 2])
    model = load_on_host(
        config(
            f"""max_batch_size: 8 input {{ name: "x" data_type: TYPE_{datatype} dims: 2 }}
            output {{ name: "y" data_type: TYPE_{datatype} dims: 2 }} {GRAPHS} {CACHE}"""
        ),
        path,
    )
    array = np.array([[0, 1], [1, 0]]).astype(NUMPY_TYPE[datatype])
    for rows in (0, 1, 2):
        (out,) = model.execute({"x": array[:rows]}, ["y"])
        assert out.dtype == array.dtype
        assert out.tolist() == array[:rows].tolist()
    model.close()


def test_a_model_that_cannot_have_graphs_runs_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of its outputs has a dimension that the batch's rows do not give."""
    path = write(
        tmp_path / "1",
        [
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("Slice", ["x", "start", "end"], ["z"]),
        ],
        [value("x", "FP32", ["n", 2])],
        [value("y", "FP32", ["n", 2]), value("z", "FP32", ["m", 2])],
        [
            numpy_helper.from_array(np.array([0]), "start"),
            numpy_helper.from_array(np.array([1]), "end"),
        ],
    )
    written = config(
        """max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 2 }
        output { name: "y" data_type: TYPE_FP32 dims: 2 }
        output { name: "z" data_type: TYPE_FP32 dims: 2 } """
        + GRAPHS
    )
    device = HostDevice()
    model = load_on_host(written, path, device)
    assert [record.getMessage() for record in caplog.records] == [
        "model m runs without CUDA graphs: CUDA graphs need outputs with a batch dimension"
    ]
    # What was allocated for graphs is free again.
    assert device.allocated_bytes == 0
    (out,) = model.execute({"x": np.ones((4, 2), np.float32)}, ["y"])
    assert out.tolist() == [[1, 1]] * 4
    model.close()


def test_an_output_that_is_an_input_is_not_written_by_a_graph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(
        tmp_path / "1",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", "FP32", ["n", 2])],
        [value("y", "FP32", ["n", 2]), value("x", "FP32", ["n", 2])],
    )
    tensors = " ".join(
        f"{role} {{ name: '{name}' data_type: TYPE_FP32 dims: 2 }}"
        for role, name in (("input", "x"), ("output", "y"), ("output", "x"))
    )
    model = load_on_host(config(f"max_batch_size: 8 {tensors} {GRAPHS}"), path)
    assert "runs without CUDA graphs: they give other outputs than a plain run" in caplog.text
    y, x = model.execute({"x": np.full((4, 2), 7, np.float32)}, ["y", "x"])
    assert (y.tolist(), x.tolist()) == ([[14, 14]] * 4, [[7, 7]] * 4)
    model.close()


def test_graphs_of_shapes_that_the_model_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = add_sub(tmp_path / "1")
    graph = "graph_spec { batch_size: 4 input { key: 'a' value { dim: 5 } } }"
    model = load_on_host(
        add_sub_config(f"optimization {{ cuda {{ graphs: true {graph} }} }}"), path
    )
    assert "model m runs without CUDA graphs" in caplog.text
    assert "graph_spec has the shape" in caplog.text
    check_batches(model)
    model.close()


def test_errors_of_onnx_runtime_are_the_batchs(tmp_path: Path) -> None:
    path = add_sub(tmp_path / "1")
    model = load_on_host(add_sub_config(OVERLAP), path)
    model.submit_batch(batch(1, 2), ["sum"])
    wrong = {**batch(1, 2), "b": parts_of(np.zeros((2, 3), np.int32))}
    with pytest.raises(Internal, match="onnx runtime error"):
        model.submit_batch(wrong, ["sum"])
    assert model.collect_batch()[0].tolist() == expected(1, 2)[1]
    check_batches(model)
    model.close()


@pytest.mark.parametrize("refuses", [False, True])
def test_providers_execute_on_the_instances_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    path = add_sub(tmp_path / "1")
    written = add_sub_config("optimization { eager_batching: true cuda { graphs: true } }")
    settings = device_io_settings(written)
    assert settings is not None
    asked: list[dict[str, dict[str, str]]] = []

    def make_session(providers: Any) -> Any:
        asked.append(dict(providers))
        if refuses and len(asked) == 1:
            raise Internal("the model has control flow")
        session = onnxruntime.InferenceSession(path / "model.onnx")
        return session, backend.describe(written, path)

    device = HostDevice()
    found: list[Provider] = [(TENSORRT, {}), (CUDA, {"device_id": "3"}), (CPU, {})]
    model = load(written, 3, found, settings, make_session, device=device)
    stream = asked[0][CUDA]["user_compute_stream"]
    assert int(stream) > 0
    assert asked[0][TENSORRT] == {"user_compute_stream": stream}
    assert asked[0][CPU] == {}
    captures = [each[CUDA]["enable_cuda_graph"] for each in asked]
    assert captures == (["1", "0"] if refuses else ["1"])
    assert asked[-1][CUDA]["device_id"] == "3"
    assert ("runs without CUDA graphs: the model has control flow" in caplog.text) is refuses
    model.close()
    assert device.allocated_bytes == 0


class Infos:
    """A session that says where it wants inputs."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_input_memory_infos(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.names]


def test_where_inputs_are_wanted(tmp_path: Path) -> None:
    path = add_sub(tmp_path / "1")
    description = backend.describe(add_sub_config(""), path)
    both = Infos("Cuda", "Cpu")
    assert input_places(both, description) == {"a": "cuda", "b": "cpu"}
    assert input_places(Infos("Cuda", "Npu"), description) == {"a": "cuda", "b": None}
    assert input_places(object(), description) == {"a": None, "b": None}
    assert input_places(Infos("Cuda"), description) == {"a": None, "b": None}
    real = onnxruntime.InferenceSession(path / "model.onnx")
    assert input_places(real, description) == {"a": "cpu", "b": "cpu"}


def test_strings_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="strings"):
        parts_of(np.array(["a"], np.object_))


@pytest.mark.gpu
@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_a_gpu_gives_what_the_cpu_gives(tmp_path: Path, feature: str) -> None:
    if not backend.uses_gpus():
        pytest.skip("this onnxruntime has no CUDA")
    path = add_sub(tmp_path / "1")
    model = backend.load(instance(add_sub_config(FEATURES[feature]), path, gpu=0))
    assert isinstance(model, DeviceModel)
    check_batches(model)
    model.close()
