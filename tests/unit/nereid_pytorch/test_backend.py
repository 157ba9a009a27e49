"""TorchScript models. PyTorch is large and no dependency of the tests: they run where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec
from nereid.core.errors import Internal, InvalidArgument, Unavailable, Unimplemented
from tests.support.executor.instances import instance
from tests.support.models.torch_models import save

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytorch = pytest.importorskip("nereid_pytorch.backend")

# PyTorch has begun to advise against TorchScript.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

SUB = "def forward(self, a, b):\n    return a - b\n"
ONE, THREE = np.full((2, 1), 1, np.float32), np.full((2, 1), 3, np.float32)


def spec(
    path: Path,
    inputs: Sequence[str],
    outputs: Sequence[str] = ("y",),
    text: str = "max_batch_size: 8",
    datatype: str = "FP32",
) -> InstanceSpec:
    tensor = f"data_type: TYPE_{datatype} dims: 1"
    text += "".join(f' input {{ name: "{name}" {tensor} }}' for name in inputs)
    text += "".join(f' output {{ name: "{name}" {tensor} }}' for name in outputs)
    return instance(f'backend: "pytorch" {text}', path)


def parameter(name: str, value: str) -> str:
    return f'max_batch_size: 8 parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize(
    "names",
    [("a", "b"), ("INPUT__0", "INPUT__1"), ("first", "second")],
)
def test_inputs_find_their_arguments(tmp_path: Path, names: tuple[str, str]) -> None:
    model = pytorch.load(spec(save(tmp_path / "1", SUB), names))
    (out,) = model.execute({names[1]: ONE, names[0]: THREE}, ["y"])
    assert out.tolist() == [[2.0], [2.0]]


def test_batch_inputs_are_arguments_behind_the_others(tmp_path: Path) -> None:
    path = save(tmp_path / "1", "def forward(self, a, n):\n    return a * n\n")
    batch_input = 'batch_input { target_name: "counts" source_input: "x" data_type: TYPE_INT32 }'
    model = pytorch.load(spec(path, ["x"], text=f"max_batch_size: 8 {batch_input}"))
    inputs = {"x": ONE.reshape(-1), "counts": np.array([3, 4], np.int32)}
    assert model.execute(inputs, ["y"])[0].tolist() == [3.0, 4.0]


def test_an_argument_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    source = (
        "def forward(self, a, b: Optional[Tensor] = None):\n    return a if b is None else a + b\n"
    )
    path = save(tmp_path / "1", source)
    (out,) = pytorch.load(spec(path, ["a"])).execute({"a": THREE}, ["y"])
    assert out.tolist() == THREE.tolist()
    (out,) = pytorch.load(spec(path, ["a", "b"])).execute({"a": THREE, "b": ONE}, ["y"])
    assert out.tolist() == [[4.0], [4.0]]


@pytest.mark.parametrize(
    ("outputs", "wanted", "values"),
    [
        (("y", "z"), ["y", "z"], [3.0, 1.0]),
        (("OUTPUT__1", "OUTPUT__0"), ["OUTPUT__1", "OUTPUT__0"], [1.0, 3.0]),
        (("y", "z"), ["z"], [1.0]),
    ],
)
def test_outputs_find_their_results(
    tmp_path: Path, outputs: tuple[str, str], wanted: list[str], values: list[float]
) -> None:
    path = save(tmp_path / "1", "def forward(self, a, b):\n    return a, b\n")
    made = pytorch.load(spec(path, ["a", "b"], outputs)).execute({"a": THREE, "b": ONE}, wanted)
    assert [array[0, 0] for array in made] == values


def test_an_output_that_is_not_made_is_an_error(tmp_path: Path) -> None:
    model = pytorch.load(spec(save(tmp_path / "1", SUB), ["a", "b"], ["y", "z"]))
    with pytest.raises(Internal, match="output 'z' is number 1 of a model that makes 1 outputs"):
        model.execute({"a": ONE, "b": ONE}, ["z"])


def test_dictionaries_go_by_the_tensors_names(tmp_path: Path) -> None:
    head = "def forward(self, given: Dict[str, Tensor]):\n"
    source = head + '    return {"z": given["b"] * 2, "y": given["a"]}\n'
    model = pytorch.load(spec(save(tmp_path / "1", source), ["a", "b"], ["y", "z"]))
    y, z = model.execute({"a": ONE, "b": THREE}, ["y", "z"])
    assert (y[0, 0], z[0, 0]) == (1.0, 6.0)
    with pytest.raises(Internal, match="PyTorch execute failure: "):
        model.execute({"a": ONE}, ["y"])


@pytest.mark.parametrize(("batch", "shape"), [(8, (2, 1)), (0, (2,))])
def test_lists_of_strings_are_bytes(tmp_path: Path, batch: int, shape: tuple[int, ...]) -> None:
    source = "def forward(self, words: List[str]):\n    return [word + '!' for word in words]\n"
    text = f"max_batch_size: {batch}"
    model = pytorch.load(spec(save(tmp_path / "1", source), ["words"], ["y"], text, "STRING"))
    assert model.capabilities.bytes_as_text
    (out,) = model.execute({"words": np.array(["é", ""], np.object_).reshape(shape)}, ["y"])
    assert out.tolist() == np.array(["é!", "!"], np.object_).reshape(shape).tolist()


def test_a_model_may_write_to_what_it_gets(tmp_path: Path) -> None:
    path = save(tmp_path / "1", "def forward(self, a):\n    return a.add_(1)\n")
    array = ONE.copy()
    array.flags.writeable = False
    (out,) = pytorch.load(spec(path, ["a"])).execute({"a": array}, ["y"])
    assert (array[0, 0], out[0, 0]) == (1.0, 2.0)


def test_a_failing_execution_is_an_error_and_the_model_continues(tmp_path: Path) -> None:
    model = pytorch.load(spec(save(tmp_path / "1", SUB), ["a", "b"]))
    with pytest.raises(Internal, match=r"PyTorch execute failure: (.|\n)*must match"):
        model.execute({"a": np.zeros((2, 2), np.float32), "b": np.zeros((2, 3), np.float32)}, ["y"])
    assert model.execute({"a": THREE, "b": ONE}, ["y"])[0][0, 0] == 2.0


def test_instances_share_weights_if_configured(tmp_path: Path) -> None:
    path = save(tmp_path / "1", SUB)
    shared = spec(path, ["a", "b"], text=parameter("ENABLE_WEIGHT_SHARING", "true"))
    first, second = pytorch.load(shared), pytorch.load(shared)
    alone = pytorch.load(spec(path, ["a", "b"]))
    assert first._module is second._module
    assert alone._module is not first._module
    # A file that is another now is not what they share.
    save(tmp_path / "1", "def forward(self, a, b):\n    return b - a\n")
    assert pytorch.load(shared)._module is not first._module


@pytest.mark.parametrize(
    "name",
    [
        "DISABLE_OPTIMIZED_EXECUTION",
        "INFERENCE_MODE",
        "ENABLE_CACHE_CLEANING",
        "CACHE_CLEANING_ENABLED",
        "ENABLE_JIT_EXECUTOR",
        "ENABLE_JIT_PROFILING",
        "ENABLE_TENSOR_FUSER",
    ],
)
def test_tritons_parameters_are_taken(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "1", SUB)
    for value in ("false", "true"):
        model = pytorch.load(spec(path, ["a", "b"], text=parameter(name, value)))
        assert model.execute({"a": THREE, "b": ONE}, ["y"])[0][0, 0] == 2.0
    with pytest.raises(InvalidArgument, match=f"'{name}' expected true or false but got 'x'"):
        pytorch.load(spec(path, ["a", "b"], text=parameter(name, "x")))
    # Some hold for the whole process.
    on = "false" if name == "DISABLE_OPTIMIZED_EXECUTION" else "true"
    pytorch.load(spec(path, ["a", "b"], text=parameter(name, on)))


def test_threads_are_the_instances(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        path = save(tmp_path / "1", SUB)
        pytorch.load(spec(path, ["a", "b"], text=parameter("INTRA_OP_THREAD_COUNT", "1")))
        assert torch.get_num_threads() == 1
        shared = replace(spec(path, ["a", "b"]), threads=2)
        pytorch.load(shared)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_between_operators_are_the_processs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path / "1", SUB)
    first = torch.get_num_interop_threads() + 1
    for threads in (first, first, first + 1):
        assert not caplog.messages
        text = parameter("INTER_OP_THREAD_COUNT", str(threads))
        pytorch.load(spec(path, ["a", "b"], text=text))
        assert torch.get_num_interop_threads() == first
    (message,) = caplog.messages
    assert f"the process has been using {first} threads" in message


@pytest.mark.parametrize(
    ("inputs", "text", "error_status", "message"),
    [
        (["a"], "", InvalidArgument, "expects 1 inputs, model provides 2; none is for b"),
        (["a", "b", "c"], "", InvalidArgument, "'c' is number 2 of a model that takes 2"),
        (["a", "b"], 'runtime: "model.py"', Unimplemented, "use the backend 'python'"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, inputs: list[str], text: str, error_status: Any, message: str
) -> None:
    with pytest.raises(error_status, match=message):
        pytorch.load(spec(save(tmp_path / "1", SUB), inputs, text=text))


@pytest.mark.parametrize(("batch", "dims"), [(0, "[ 2, 2 ]"), (4, "2"), (4, "[ 1, 1 ]")])
def test_strings_have_one_dimension(tmp_path: Path, batch: int, dims: str) -> None:
    path = save(tmp_path / "1", "def forward(self, a: List[str]):\n    return a\n")
    text = f'max_batch_size: {batch} output {{ name: "y" data_type: TYPE_STRING dims: {dims} }}'
    with pytest.raises(InvalidArgument, match="'y': TorchScript has lists of strings only"):
        pytorch.load(spec(path, ["a"], [], text, "STRING"))


def test_the_description_is_empty_but_the_file_must_exist(tmp_path: Path) -> None:
    one = spec(save(tmp_path / "1", SUB), ["a", "b"])
    assert pytorch.describe(one.config, one.version_path) is EMPTY_DESCRIPTION


def test_kind_model_leaves_parts_where_the_file_puts_them(tmp_path: Path) -> None:
    text = "max_batch_size: 8 instance_group { kind: KIND_MODEL }"
    model = pytorch.load(spec(save(tmp_path / "1", SUB), ["a", "b"], text=text))
    assert model._device is None
    assert model.execute({"a": THREE, "b": ONE}, ["y"])[0][0, 0] == 2.0


@pytest.mark.skipif(pytorch.uses_gpus(), reason="this torch has CUDA")
def test_a_gpu_instance_needs_a_torch_with_cuda(tmp_path: Path) -> None:
    one = spec(save(tmp_path / "1", SUB), ["a", "b"])
    with pytest.raises(Unavailable, match="the executor's torch has no CUDA"):
        pytorch.load(replace(one, gpu=0))


@pytest.mark.gpu
@pytest.mark.skipif(not pytorch.uses_gpus(), reason="this torch has no CUDA")
def test_a_gpu_gives_what_the_cpu_gives(tmp_path: Path) -> None:
    one = spec(save(tmp_path / "1", SUB), ["a", "b"])
    model = pytorch.load(replace(one, gpu=0))
    assert model.execute({"a": THREE, "b": ONE}, ["y"])[0].tolist() == [[2.0], [2.0]]
