"""ONNX Runtime with real models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from nereid.backends import TensorDescription
from nereid.core.errors import (
    Internal,
    InvalidArgument,
    NereidError,
    Unavailable,
    Unimplemented,
)
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_executor.backends.onnx import backend
from tests.support.executor.instances import instance
from tests.support.models.onnx_models import (
    ADD_SUB,
    add_sub,
    config,
    identity,
    identity_config,
    reshaper,
    value,
    write,
)


def sample(datatype: str) -> np.ndarray:
    if datatype == "BYTES":
        return np.array([["a", "é"], ["", "b\0c"]], np.object_)
    return np.array([[0, 1], [1, 0]]).astype(NUMPY_TYPE[datatype])


def test_bytes_that_are_no_text_go_through_a_model_that_moves_them(tmp_path: Path) -> None:
    path = identity(tmp_path / "1", "BYTES", ["n", 2])
    model = backend.load(instance(identity_config("BYTES", "2"), path))
    assert model.capabilities.escapes_bytes
    text = np.array([["a", "é"]], np.object_)
    bad = np.array([[b"\xff\0".decode("utf-8", "surrogateescape"), "é"]], np.object_)
    for array, expected in ((bad, [b"\xff\0", "é".encode()]), (text, ["a", "é"])):
        for _ in range(2):
            (out,) = model.execute({"x": array}, ["y"])
            assert out.tolist() == [expected]


@pytest.mark.parametrize("location", ["../other/weights", "{other}/weights", "link"])
@pytest.mark.parametrize("outputs", [("y",), ("y", "z")])
def test_weights_outside_of_the_models_folder_are_not_read(
    tmp_path: Path, location: str, outputs: tuple[str, ...]
) -> None:
    """So graphs and weights are data, which need no process of their own (--sandbox-models)."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights").write_bytes(bytes(8))
    path = tmp_path / "1"
    path.mkdir()
    (path / "link").symlink_to(other / "weights")
    weights = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    weights.external_data.add(key="location", value=location.format(other=other))
    nodes = [
        helper.make_node(kind, ["x", "w"], [name]) for kind, name in (("Add", "y"), ("Sub", "z"))
    ]
    made = [value(name, "FP32", ["n", 2]) for name in ("y", "z")]
    write(path, nodes, [value("x", "FP32", ["n", 2])], made, [weights])
    spec = instance(identity_config("FP32", "2"), path)
    if "z" in outputs:
        spec.config.output.add(name="z", data_type=spec.config.output[0].data_type, dims=[2])
    for act in (lambda: backend.describe(spec.config, path), lambda: backend.load(spec)):
        with pytest.raises(Internal, match="External data path validation failed"):
            act()


def test_a_model_that_looks_into_strings_gets_text_only(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1",
        [helper.make_node("Unique", ["x"], ["y"])],
        [value("x", "BYTES", ["n"])],
        [value("y", "BYTES", ["m"])],
    )
    model = backend.load(instance(identity_config("BYTES", "-1", 0), path))
    assert not model.capabilities.escapes_bytes


def test_bfloat16_survives_an_empty_batch(tmp_path: Path) -> None:
    path = identity(tmp_path / "1", "BF16", ["n", 2])
    model = backend.load(instance(identity_config("BF16", "2"), path))
    (out,) = model.execute({"x": np.zeros((0, 2), np.uint16)}, ["y"])
    assert out.shape == (0, 2)


def test_an_output_that_is_an_input_outlives_the_input(tmp_path: Path) -> None:
    """BF16 among the inputs: ONNX Runtime's values have the memory of the arrays."""
    path = write(
        tmp_path / "1",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("b", "BF16", ["n", 1]), value("x", "FP32", ["n", 2])],
        [value("x", "FP32", ["n", 2]), value("y", "FP32", ["n", 2])],
    )
    tensors = [
        f"{role} {{ name: '{name}' data_type: TYPE_{datatype} dims: {dims} }}"
        for role, name, datatype, dims in (
            ("input", "b", "BF16", 1),
            ("input", "x", "FP32", 2),
            ("output", "x", "FP32", 2),
            ("output", "y", "FP32", 2),
        )
    ]
    model = backend.load(instance("max_batch_size: 8 " + " ".join(tensors), path))
    given = np.full((3, 2), 7, np.float32)
    outs = model.execute({"b": np.zeros((3, 1), np.uint16), "x": given}, ["x", "y"])
    given[:] = 0
    assert [out.tolist() for out in outs] == [[[7, 7]] * 3, [[14, 14]] * 3]


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL", "FP16"])
def test_io_binding_gives_what_a_plain_run_gives(tmp_path: Path, datatype: str) -> None:
    path = identity(tmp_path / "1", datatype, ["n", 2])
    loaded = backend.load(instance(identity_config(datatype, "2"), path))
    bound = backend.OnnxModel(
        config(""),
        onnxruntime.InferenceSession(path / "model.onnx"),
        loaded.description,
        on_gpu=True,
    )
    array = sample(datatype)
    for _ in range(2):
        (out,) = bound.execute({"x": array}, ["y"])
        assert (out == array).all()


def test_only_the_named_outputs_are_computed(tmp_path: Path) -> None:
    model = backend.load(instance(ADD_SUB, add_sub(tmp_path / "1")))
    inputs = {"a": np.full((1, 4), 7, np.int32), "b": np.full((1, 4), 2, np.int32)}
    assert [one.tolist() for one in model.execute(inputs, ["dif"])] == [[[5, 5, 5, 5]]]
    assert [one[0, 0] for one in model.execute(inputs, ["sum", "dif"])] == [9, 5]


def test_description_distinguishes_scalars_from_tensors_without_rank(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1",
        [
            helper.make_node("Identity", ["scalar"], ["same"]),
            helper.make_node("Identity", ["open"], ["opened"]),
            helper.make_node("Add", ["part", "weight"], ["added"]),
        ],
        [
            value("scalar", "FP32", []),
            value("open", "INT64", None),
            value("part", "FP32", [None, "k", 3]),
            value("weight", "FP32", [3]),
        ],
        [value("same", "FP32", []), value("opened", "INT64", None), value("added", "FP32", None)],
        [numpy_helper.from_array(np.zeros(3, np.float32), "weight")],
    )
    described = backend.describe(config(""), path)
    assert described.inputs == (
        TensorDescription("scalar", "FP32", ()),
        TensorDescription("open", "INT64", None),
        TensorDescription("part", "FP32", (-1, -1, 3)),
        TensorDescription("weight", "FP32", (3,), optional=True),
    )
    assert [one.dims for one in described.outputs] == [(), None, None]


def test_outputs_that_are_no_tensors_may_be_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1",
        [
            helper.make_node("SequenceConstruct", ["x"], ["list"]),
            helper.make_node("Identity", ["x"], ["y"]),
        ],
        [value("x", "FP32", ["n"])],
        [
            helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None),
            value("y", "FP32", ["n"]),
        ],
    )
    with pytest.raises(InvalidArgument) as caught:
        backend.describe(config(""), path)
    assert caught.value.message == (
        "unable to load model 'm', unsupported datatype 'seq(tensor(float))' for output 'list'"
    )
    described = backend.describe(config("output { name: 'y' }"), path)
    assert [one.name for one in described.outputs] == ["y"]


def test_a_model_may_lie_in_a_directory_or_under_another_name(tmp_path: Path) -> None:
    identity(tmp_path / "1" / "model.onnx", "FP32", ["n"])
    assert backend.describe(config(""), tmp_path / "1").inputs[0].name == "x"
    named = config("default_model_filename: 'other.onnx'")
    (tmp_path / "1" / "model.onnx" / "model.onnx").rename(tmp_path / "1" / "other.onnx")
    assert backend.describe(named, tmp_path / "1").inputs[0].name == "x"


@pytest.mark.parametrize("content", [None, b"this is no model", b""])
def test_a_file_that_is_no_graph_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Further ones are the contract's (tests/contract/test_backends.py)."""
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    for load in (
        lambda: backend.describe(config(""), tmp_path),
        lambda: backend.load(instance("", tmp_path)),
    ):
        with pytest.raises(NereidError, match="failed to load 'm'"):
            load()


def test_a_configuration_that_does_not_fit_the_graph_is_refused(tmp_path: Path) -> None:
    path = identity(tmp_path / "1", "FP32", ["n", 2])
    with pytest.raises(InvalidArgument, match="making complete shape"):
        backend.load(instance(identity_config("FP32", "3"), path))


def test_a_failing_execution_is_an_error_and_the_model_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (
        "input { name: 'x' data_type: TYPE_FP32 dims: -1 } "
        "input { name: 'to' data_type: TYPE_INT64 dims: -1 } "
        "output { name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }"
    )
    model = backend.load(instance(text, reshaper(tmp_path / "1")))
    x = np.arange(6, dtype=np.float32)
    with pytest.raises(Internal, match=r"onnx runtime error .*Reshape"):
        model.execute({"x": x, "to": np.array([4, 2])}, ["y"])
    (out,) = model.execute({"x": x, "to": np.array([3, 2])}, ["y"])
    assert out.shape == (3, 2)
    # The failure is in the response only, not on stderr as well.
    assert capfd.readouterr().err == ""


def test_inputs_that_do_not_fit_the_graph_are_the_models_failure(tmp_path: Path) -> None:
    model = backend.load(
        instance(identity_config("BF16", "2"), identity(tmp_path / "1", "BF16", ["n", 2]))
    )
    with pytest.raises(Internal, match="onnx runtime error"):
        model.execute({"x": np.zeros((1, 3), np.uint16)}, ["y"])
    with pytest.raises(Internal, match="onnx runtime error"):
        model.execute({"x": np.zeros((1, 2), np.uint16)[:, ::2]}, ["y"])


def test_both_bfloat16_and_text_is_more_than_the_python_api_offers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1",
        [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])],
        [value("x", "BF16", [1]), value("s", "BYTES", [1])],
        [value("y", "BF16", [1]), value("t", "BYTES", [1])],
    )
    tensors = [
        f"{role} {{ name: '{name}' data_type: TYPE_{datatype} dims: 1 }}"
        for role, name, datatype in (
            ("input", "x", "BF16"),
            ("input", "s", "STRING"),
            ("output", "y", "BF16"),
        )
    ]
    with pytest.raises(Unimplemented, match="both BF16 and BYTES"):
        backend.load(instance(" ".join(tensors), path))


@pytest.mark.skipif(backend.uses_gpus(), reason="this onnxruntime has CUDA")
def test_a_gpu_instance_needs_an_onnxruntime_with_cuda(tmp_path: Path) -> None:
    path = identity(tmp_path / "1", "FP32", ["n", 2])
    with pytest.raises(Unavailable, match="install onnxruntime-gpu"):
        backend.load(instance(identity_config("FP32", "2"), path, gpu=0))


@pytest.mark.gpu
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "INT64", "BYTES"])
def test_a_gpu_gives_what_the_cpu_gives(tmp_path: Path, datatype: str) -> None:
    if not backend.uses_gpus():
        pytest.skip("this onnxruntime has no CUDA")
    path = identity(tmp_path / "1", datatype, ["n", 2])
    model = backend.load(instance(identity_config(datatype, "2"), path, gpu=0))
    array = sample(datatype)
    (out,) = model.execute({"x": array}, ["y"])
    assert out.tolist() == array.tolist()
