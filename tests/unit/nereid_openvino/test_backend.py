"""OpenVINO with real models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from onnx import helper
from openvino import opset13 as ops

from nereid.backends import InstanceSpec, TensorDescription
from nereid.core.errors import Internal, InvalidArgument, Unavailable
from nereid.pb import model_config_pb2
from nereid_executor.batch.runner import Runner
from nereid_openvino import backend
from tests.support.executor.instances import instance, responses
from tests.support.models.onnx_models import head, member, response_of, value, write


def save(
    directory: Path,
    shape: list[int],
    names: tuple[set[str], set[str]] = ({"x"}, {"y"}),
    kind: Any = openvino.Type.f32,
) -> Path:
    """y = x + x, in OpenVINO's own form."""
    given = ops.parameter(shape, kind, name="given")
    made = ops.add(given, given, name="made")
    given.output(0).get_tensor().set_names(names[0])
    made.output(0).get_tensor().set_names(names[1])
    directory.mkdir(parents=True)
    openvino.save_model(openvino.Model([made], [given], "m"), directory / "model.xml")
    return directory


def spec(
    path: Path, text: str = "max_batch_size: 8", dims: str = "2", **values: str
) -> InstanceSpec:
    tensor = f"data_type: TYPE_FP32 dims: [ {dims} ]"
    text += f' input {{ name: "x" {tensor} }} output {{ name: "y" {tensor} }}'
    made = instance(text, path)
    for name, each in values.items():
        made.config.parameters[name].string_value = each
    return made


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(2 * count, dtype=np.float32).reshape(count, 2)


def doubled(one: InstanceSpec, count: int) -> bool:
    model = backend.load(one)
    array = rows(count)
    array.flags.writeable = False
    (out,) = model.execute({"x": array}, ["y"])
    return bool(out.tolist() == (2 * array).tolist())


def test_a_fixed_batch_is_made_variable(tmp_path: Path) -> None:
    path = save(tmp_path / "1", [1, 2])
    assert doubled(spec(path), 3)
    described = backend.describe(spec(path).config, path)
    assert described.inputs == (TensorDescription("x", "FP32", (-1, 2)),)
    # As the file has it, where the configuration does not ask for batches.
    config = model_config_pb2.ModelConfig(name="m")
    assert backend.describe(config, path).inputs == (TensorDescription("x", "FP32", (1, 2)),)


def test_a_fixed_batch_is_kept_if_configured(tmp_path: Path) -> None:
    path = save(tmp_path / "1", [1, 2])
    with pytest.raises(InvalidArgument, match="an initial batch dimension"):
        backend.load(spec(path, SKIP_OV_DYNAMIC_BATCHSIZE="YES"))


def test_inputs_are_reshaped_if_configured(tmp_path: Path) -> None:
    path = save(tmp_path / "1", [1, 2])
    array = np.ones((3, 5), np.float32)
    model = backend.load(spec(path, "", "-1, -1", RESHAPE_IO_LAYERS="YES"))
    assert model.execute({"x": array}, ["y"])[0].tolist() == (2 * array).tolist()
    with pytest.raises(InvalidArgument, match="tensor 'x'"):
        backend.load(spec(path, "", "-1, -1"))


def test_onnx_files_are_read(tmp_path: Path) -> None:
    given, made = (value(name, "FP32", ["n", 2]) for name in "xy")
    path = write(tmp_path / "1", [helper.make_node("Add", ["x", "x"], ["y"])], [given], [made])
    one = spec(path, 'max_batch_size: 8 default_model_filename: "model.onnx"')
    assert doubled(one, 2)
    assert doubled(one, 1)


def test_a_tensor_of_several_names_goes_by_the_configured_one(tmp_path: Path) -> None:
    path = save(tmp_path / "1", [-1, 2], ({"a", "x"}, {"b", "y"}))
    assert doubled(spec(path), 2)
    described = backend.describe(model_config_pb2.ModelConfig(name="m"), path)
    assert (described.inputs[0].name, described.outputs[0].name) == ("a", "b")


def test_tensors_without_names_go_by_their_nodes(tmp_path: Path) -> None:
    path = save(tmp_path / "1", [-1, 2], (set(), set()))
    described = backend.describe(model_config_pb2.ModelConfig(name="m"), path)
    assert described.inputs[0].name == "given"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("PERFORMANCE_HINT", "throughput", "haste"),
        ("NUM_STREAMS", "2", "few"),
        ("INFERENCE_NUM_THREADS", "1", "x"),
        ("HINT_BF16", "NO", "x"),
        ("TARGET_DEVICE", "AUTO", "TOASTER"),
        ("RESHAPE_IO_LAYERS", "no", "x"),
        ("CPU_EXTENSION_PATH", "", "/no/such/library.so"),
    ],
)
def test_tritons_parameters_are_taken(tmp_path: Path, name: str, good: str, bad: str) -> None:
    path = save(tmp_path / "1", [-1, 2])
    assert doubled(spec(path, **({name: good} if good else {})), 2)
    with pytest.raises((InvalidArgument, Internal), match=r"load (model )?'m'"):
        backend.load(spec(path, **{name: bad}))


def test_strings_are_refused(tmp_path: Path) -> None:
    given = ops.parameter([-1], openvino.Type.string, name="x")
    made = ops.unsqueeze(given, 0)
    (tmp_path / "1").mkdir()
    model = openvino.Model([made], [given], "m")
    openvino.save_model(model, tmp_path / "1" / "model.xml")
    with pytest.raises(InvalidArgument, match="unsupported datatype 'string' for input 'x'"):
        backend.describe(model_config_pb2.ModelConfig(name="m"), tmp_path / "1")


def test_a_failing_execution_is_an_error_and_the_model_continues(tmp_path: Path) -> None:
    model = backend.load(spec(save(tmp_path / "1", [-1, 2])))
    with pytest.raises(Internal, match="openvino error: "):
        model.execute({"x": np.ones((1, 3), np.float32)}, ["y"])
    assert model.execute({"x": rows(1)}, ["y"])[0].tolist() == [[0.0, 2.0]]
    model.close()


def test_threads_are_the_instances_share_unless_configured(tmp_path: Path) -> None:
    path = save(tmp_path / "1", [-1, 2])
    core = backend.load(replace(spec(path), threads=1))
    assert threads_of(core) == 1
    asked = spec(path, INFERENCE_NUM_THREADS="2")
    assert threads_of(backend.load(replace(asked, threads=1))) == 2


def test_threads_of_compilation_are_openvinos_to_refuse(tmp_path: Path) -> None:
    """As on Triton: the plugin for CPUs has no such property."""
    path = save(tmp_path / "1", [-1, 2])
    with pytest.raises(Internal, match="COMPILATION_NUM_THREADS"):
        backend.load(spec(path, COMPILATION_NUM_THREADS="2"))
    with pytest.raises(InvalidArgument, match="COMPILATION_NUM_THREADS"):
        backend.load(spec(path, COMPILATION_NUM_THREADS="x"))


def threads_of(model: backend.OpenVinoModel) -> int:
    compiled = model._request.get_compiled_model()
    return int(compiled.get_property("INFERENCE_NUM_THREADS"))


def test_nvidias_gpus_are_refused(tmp_path: Path) -> None:
    one = spec(save(tmp_path / "1", [-1, 2]))
    assert backend.uses_gpus() is False
    with pytest.raises(Unavailable, match="OpenVINO cannot use GPU 0"):
        backend.load(replace(one, gpu=0))


@pytest.mark.parametrize("reshaped", ["NO", "YES"])
def test_ragged_inputs_are_flat(tmp_path: Path, reshaped: str) -> None:
    given, made = (value(name, "FP32", ["n"]) for name in "xy")
    path = write(tmp_path / "1", [helper.make_node("Add", ["x", "x"], ["y"])], [given], [made])
    tensor = "data_type: TYPE_FP32 dims: [ -1, 2 ]"
    spec = instance(
        f"max_batch_size: 8 default_model_filename: 'model.onnx' "
        f"input {{ name: 'x' {tensor} allow_ragged_batch: true }} output {{ name: 'y' {tensor} }} "
        "batch_output { target_name: 'y' source_input: 'x' } "
        f"parameters {{ key: 'RESHAPE_IO_LAYERS' value {{ string_value: '{reshaped}' }} }}",
        path,
    )
    runner = Runner(spec, backend.load(spec))
    arrays = [np.ones((1, rows, 2), np.float32) for rows in (1, 3)]
    members = [member(head(("x", "FP32", [*each.shape])), each.tobytes()) for each in arrays]
    assert [response_of(each) for each in responses(runner, *members)] == [
        [("y", "FP32", [*each.shape], (2 * each).tobytes())] for each in arrays
    ]
