"""Bug reports of other servers and runtimes, tried here: each names its report."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh, running

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]

_FILE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    kept = None

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                self.outputs(pb_utils.get_input_tensor_by_name(each, "X").as_numpy())
            )
            for each in requests
        ]

    def outputs(self, x):
        {body}
"""
# By name: the types of X and Y, and what the model makes of the array x.
_PYTHON = {
    # https://github.com/triton-inference-server/server/issues/2971
    "permuted": (
        "UINT8",
        "FP32",
        'return [pb_utils.Tensor("Y", x.transpose(0, 3, 1, 2).astype("f4"))]',
    ),
    # https://github.com/triton-inference-server/server/issues/6960
    "dlpack": ("FP32", "FP32", 'return [pb_utils.Tensor.from_dlpack("Y", x.copy())]'),
    # https://github.com/microsoft/onnxruntime/issues/21888
    "earlier": (
        "FP32",
        "FP32",
        'self.kept, y = x, self.kept; return [pb_utils.Tensor("Y", x if y is None else y)]',
    ),
    # https://github.com/triton-inference-server/server/issues/2545
    # https://github.com/triton-inference-server/pytriton/issues/34
    # https://github.com/triton-inference-server/python_backend/pull/82
    "bytes": ("STRING", "STRING", 'return [pb_utils.Tensor("Y", x)]'),
    # https://github.com/kserve/kserve/pull/5889
    "unicode": (
        "STRING",
        "STRING",
        'return [pb_utils.Tensor("Y", np.array([each.decode() for each in x.ravel()]))]',
    ),
}
_DIMS = {"permuted": ("[-1, -1, -1, 3]", "[-1, 3, -1, -1]"), "dlpack": ("[-1, -1, -1]",) * 2}


def _save_python(repository: Path, name: str) -> None:
    given, made, body = _PYTHON[name]
    dims = _DIMS.get(name, ("[-1]", "[-1]"))
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(_FILE.format(body=body))
    (repository / name / "config.pbtxt").write_text(
        'backend: "python"\n'
        f'input {{ name: "X" data_type: TYPE_{given} dims: {dims[0]} }}\n'
        f'output {{ name: "Y" data_type: TYPE_{made} dims: {dims[1]} }}\n'
    )


def _save_onnx(repository: Path, name: str, graph: onnx.GraphProto, config: str = "") -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")
    if config:
        (repository / name / "config.pbtxt").write_text(config)


def _scaled() -> onnx.GraphProto:
    """Y = X * 3 + 1 of a bound size, Z = the transposed X of a size that varies."""
    value = helper.make_tensor_value_info
    return helper.make_graph(
        [
            helper.make_node("Mul", ["X", "three"], ["XX"]),
            helper.make_node("Add", ["XX", "one"], ["Y"]),
            helper.make_node("Transpose", ["X"], ["Z"], perm=[0, 3, 2, 1]),
        ],
        "scaled",
        [value("X", TensorProto.FLOAT, ["n", "a", "b", "c"])],
        [
            value("Y", TensorProto.FLOAT, ["n", "a", "b", "c"]),
            value("Z", TensorProto.FLOAT, ["n", "c", "b", "a"]),
        ],
        [
            helper.make_tensor("three", TensorProto.FLOAT, [], [3]),
            helper.make_tensor("one", TensorProto.FLOAT, [], [1]),
        ],
    )


def _declared() -> onnx.GraphProto:
    """An exporter's sizes of one example, in value infos that are wrong for any other."""
    graph = _scaled()
    for output in graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = 1
    return graph


def _zipped() -> onnx.GraphProto:
    """What sklearn-onnx makes of a classifier: labels, and a sequence of maps."""
    value = helper.make_tensor_value_info
    maps = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    zipped = helper.make_value_info("P", helper.make_sequence_type_proto(maps))
    zip_map = helper.make_node(
        "ZipMap", ["X"], ["P"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    label = helper.make_node("ArgMax", ["X"], ["L"], axis=1, keepdims=0)
    x, y = value("X", TensorProto.FLOAT, ["n", 2]), value("L", TensorProto.INT64, ["n"])
    return helper.make_graph([zip_map, label], "zipped", [x], [y, zipped])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mesh, Path]]:
    repository = tmp_path_factory.mktemp("models")
    for name in _PYTHON:
        _save_python(repository, name)
    _save_onnx(repository, "scaled", _scaled())
    _save_onnx(repository, "batched", _scaled(), "max_batch_size: 8\ndynamic_batching { }\n")
    _save_onnx(repository, "declared", _declared())
    _save_onnx(repository, "zipped", _zipped())
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(repository, log) as mesh:
        yield mesh, repository


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: tuple[Mesh, Path]) -> Iterator[Any]:
    mesh, _ = served
    url = mesh.http if request.param is tritonclient.http else mesh.grpc
    with request.param.InferenceServerClient(url) as opened:
        opened.module = request.param
        yield opened


def infer(client: Any, model: str, x: Array, datatype: str = "FP32", *names: str) -> list[Array]:
    tensor = client.module.InferInput("X", x.shape, datatype)
    tensor.set_data_from_numpy(x)
    response = client.infer(model, [tensor])
    return [response.as_numpy(name) for name in names or ("Y",)]


def test_a_permuted_array_keeps_its_values(client: Any) -> None:
    """triton-inference-server/server#2971"""
    x = np.random.default_rng(1).integers(0, 255, (2, 5, 7, 3), np.uint8)
    (y,) = infer(client, "permuted", x, "UINT8")
    np.testing.assert_array_equal(y, x.transpose(0, 3, 1, 2).astype(np.float32))


@pytest.mark.parametrize(
    "shape", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 0, 0), (1, 1, 2), (2, 2, 1)]
)
def test_dimensions_of_zero_and_one_by_dlpack(client: Any, shape: tuple[int, ...]) -> None:
    """triton-inference-server/server#6960"""
    x = np.ones(shape, np.float32)
    (y,) = infer(client, "dlpack", x)
    assert y.shape == shape
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("length", [10, 100_000])
def test_an_array_that_is_kept_does_not_change(client: Any, length: int) -> None:
    """microsoft/onnxruntime#21888"""
    arrays = [np.full(length, number, np.float32) for number in range(30)]
    responses = [infer(client, "earlier", each)[0] for each in arrays]
    for before, response in zip(arrays, responses[1:], strict=False):
        np.testing.assert_array_equal(response, before)


@pytest.mark.parametrize("model", ["scaled", "batched", "declared"])
def test_buffers_of_shapes_that_alternate(
    client: Any, served: tuple[Mesh, Path], model: str
) -> None:
    """microsoft/onnxruntime#10103, #10299 and #10992: bound buffers, whose shapes vary; more than
    one row; an array that is not contiguous.
    """
    session = onnxruntime.InferenceSession(served[1] / model / "1" / "model.onnx")
    random = np.random.default_rng(2)
    shapes = [(1, 4, 4, 4), (3, 2, 5, 4), (1, 1, 1, 1), (4, 4, 4, 2)]
    responses = []
    for number in range(48):
        shape = shapes[number // 20 if number < 40 else number % 4]
        x = random.normal(size=shape).astype(np.float32).transpose(0, 2, 1, 3)
        responses.append((x, infer(client, model, x, "FP32", "Y", "Z")))
    # All of them at the end: none has changed since.
    for x, (y, z) in responses:
        expected = session.run(["Y", "Z"], {"X": np.ascontiguousarray(x)})
        np.testing.assert_array_equal(y, expected[0])
        np.testing.assert_array_equal(z, expected[1])


@pytest.mark.parametrize(
    "values",
    [[b"\0\0", b"a\0", b""], [], [bytes(range(256)) * 20_000]],
    ids=["trailing zeros", "none", "5 MB"],
)
def test_bytes_are_not_cut(client: Any, values: list[bytes]) -> None:
    """triton-inference-server/server#2545, pytriton#34 and python_backend#82"""
    (y,) = infer(client, "bytes", np.array(values, np.object_), "BYTES")
    assert y.tolist() == values


def test_an_array_of_unicode_is_refused_in_tritons_words(client: Any) -> None:
    """kserve/kserve#5889: there it became a tensor without a datatype."""
    with pytest.raises(InferenceServerException, match="NumPy dtype is not supported"):
        infer(client, "unicode", np.array(["cat"], np.object_), "BYTES")


def test_a_sequence_of_maps_is_refused_by_its_name(served: tuple[Mesh, Path]) -> None:
    """triton-inference-server/onnxruntime_backend#94: as on Triton, it is no tensor."""
    found = served[0].index()["zipped"]
    assert found["state"] == "UNAVAILABLE"
    assert "'P'" in found["reason"]
