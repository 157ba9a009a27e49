"""Requests with different shapes in one batch: ragged inputs, and dimensions that are padded."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from onnx import helper, numpy_helper

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import onnx_models
from tests.support.models.onnx_models import value, write

pytestmark = pytest.mark.slow

# A batch is complete with three requests, and waits for them.
BATCHING = "preferred_batch_size: 3 max_queue_delay_microseconds: 60000000"
PADDED = f"""
backend: "onnxruntime"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group [{{ count: 1 kind: KIND_CPU }}]
dynamic_batching {{ {BATCHING} }}
parameters {{ key: "padding" value {{ string_value: "X[0]=0.5 -> Y[0]: 4 8" }} }}
"""
# A budget of 18 is complete with three requests of six elements.
TOKENS = (
    PADDED.replace(BATCHING, "max_queue_delay_microseconds: 60000000")
    + 'parameters { key: "max_batch_tokens" value { string_value: "18" } }'
)
# Responds with how many requests it got, and the shape of each.
PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        xs = [pb_utils.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
        seen = [np.array([[len(xs), *x.shape]], np.float32) for x in xs]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in seen]
"""
PYTHON_CONFIG = f"""
backend: "python"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group [{{ count: 1 kind: KIND_CPU }}]
dynamic_batching {{ {BATCHING} }}
"""
# Each request's elements, in its own shape.
IDENTITY = (
    PYTHON_CONFIG.replace('"python"', '"identity"')
    .replace(
        '"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"OUTPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ]'
    )
    .replace('"X"', '"INPUT0"')
)


def padded(directory: Path) -> Path:
    """Y = 2 X, and the sum of each row."""
    nodes = [
        helper.make_node("Add", ["X", "X"], ["Y"]),
        helper.make_node("ReduceSum", ["X", "AXIS"], ["SUM"], keepdims=1),
    ]
    axis = numpy_helper.from_array(np.array([1], np.int64), "AXIS")
    outputs = [value("Y", "FP32", ["n", "m"]), value("SUM", "FP32", ["n", 1])]
    return write(directory, nodes, [value("X", "FP32", ["n", "m"])], outputs, [axis])


def exported(folder: Path) -> None:
    """An encoder as Hugging Face's tools export it; the vector of each token is its id, masked."""
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["known"]),
        helper.make_node("Unsqueeze", ["known", "AXIS"], ["vectors"]),
        helper.make_node("Cast", ["vectors"], ["last_hidden_state"], to=1),
    ]
    axis = numpy_helper.from_array(np.array([2], np.int64), "AXIS")
    inputs = [value(name, "INT64", ["n", "m"]) for name in ("input_ids", "attention_mask")]
    outputs = [value("last_hidden_state", "FP32", ["n", "m", 1])]
    path = write(folder / "onnx", nodes, inputs, outputs, [axis])
    assert path.is_dir() or path.is_file()
    facts = {"max_position_embeddings": 40, "pad_token_id": 3}
    (folder / "config.json").write_text(json.dumps(facts))
    (folder / "tokenizer.json").write_text("{}")


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("models")
    for name, scheduler in {
        "ragged": f"dynamic_batching {{ {BATCHING} }}",
        "oldest": f"sequence_batching {{ oldest {{ max_candidate_sequences: 3 {BATCHING} }} }}",
        "direct": "sequence_batching { direct { minimum_slot_utilization: 0.75"
        " max_queue_delay_microseconds: 60000000 } }",
    }.items():
        version = onnx_models.ragged(root / name / "1")
        (version.parent / "config.pbtxt").write_text(onnx_models.RAGGED_CONFIG + scheduler)
    for name, config in {"padded": PADDED, "tokens": TOKENS}.items():
        (padded(root / name / "1").parent / "config.pbtxt").write_text(config)
    (root / "python" / "1").mkdir(parents=True)
    (root / "python" / "1" / "model.py").write_text(PYTHON)
    (root / "python" / "config.pbtxt").write_text(PYTHON_CONFIG)
    (root / "identity" / "1").mkdir(parents=True)
    (root / "identity" / "config.pbtxt").write_text(IDENTITY)
    exported(root / "exported")
    with running(root, tmp_path_factory.mktemp("mesh") / "log") as mesh:
        yield mesh


def infer(
    mesh: Mesh, model: str, xs: list[Any], name: str = "X", **options: Any
) -> list[tritonclient.grpc.InferResult]:
    """The results of one request for each array, sent one after the other without waiting."""
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for index, x in enumerate(xs):
            tensor = tritonclient.grpc.InferInput(name, x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            own = {"sequence_id": index + 1} if options else {}
            client.async_stream_infer(model, [tensor], request_id=str(index), **own, **options)
        found = {}
        for _ in xs:
            result, error = results.get(timeout=60)
            assert error is None, error
            found[int(result.get_response().id)] = result
        client.stop_stream()
    return [found[index] for index in range(len(xs))]


def batches(mesh: Mesh, model: str) -> tuple[int, int]:
    """How many inferences and executions there were."""
    counts = mesh.counts(model)
    return counts["inference_count"], counts["execution_count"]


def floats(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("ragged", {}),
        ("oldest", {"sequence_start": True, "sequence_end": True}),
        ("direct", {"sequence_start": True, "sequence_end": True}),
    ],
)
def test_every_kind_of_batch_input(mesh: Mesh, model: str, options: dict[str, Any]) -> None:
    xs = [floats(1, 2, 3), floats(1, 4, 1), floats(1, 0, 5)]
    results = infer(mesh, model, xs, **options)
    assert batches(mesh, model) == (3, 1)
    # Their order in the batch is not theirs to say in a sequence batcher.
    order = sorted(range(3), key=lambda index: results[index].as_numpy("OUT_SUM_WITH_ZERO")[0, 0])
    before = 0
    assert model != "ragged" or order == [0, 1, 2]
    for index in order:
        x, result = xs[index], results[index]
        np.testing.assert_array_equal(result.as_numpy("Y"), -x)
        seen = {
            name: result.as_numpy(f"OUT_{name}")[0].tolist() for name in onnx_models.RAGGED_KINDS
        }
        assert seen["COUNT"] == [x.size]
        assert seen["LARGEST"] == [6]
        assert seen["SHAPE"] == seen["FLAT_SHAPE"] == [*x.shape[1:]]
        assert seen["SUM_WITH_ZERO"] == [before]
        before += x.size
        assert seen["SUM"] == [before]


def test_sizes_in_one_bucket_share_a_batch(mesh: Mesh) -> None:
    xs = [floats(1, 5), floats(1, 8), floats(1, 7)]
    results = infer(mesh, "padded", xs)
    assert batches(mesh, "padded") == (3, 1)
    for x, result in zip(xs, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("Y"), 2 * x)
        # The padding is what the model sees.
        assert result.as_numpy("SUM").tolist() == [[x.sum() + 0.5 * (8 - x.size)]]
    # One of another bucket closes the batch that waits for a third.
    first, second, _, _, _ = infer(mesh, "padded", [floats(1, n) for n in (3, 4, 6, 6, 6)])
    assert first.as_numpy("Y").shape == (1, 3)
    assert second.as_numpy("Y").shape == (1, 4)
    assert batches(mesh, "padded") == (8, 3)


def test_similar_sizes_share_a_batch_by_a_budget_of_tokens(mesh: Mesh) -> None:
    # They are of two buckets. A request may add padding of four elements.
    xs = [floats(1, 3), floats(1, 6), floats(1, 5)]
    results = infer(mesh, "tokens", xs)
    assert batches(mesh, "tokens") == (3, 1)
    for x, result in zip(xs, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("Y"), 2 * x)
        assert result.as_numpy("SUM").tolist() == [[x.sum() + 0.5 * (6 - x.size)]]
    # One of another length leaves alone, and four rows are as many as fit.
    infer(mesh, "tokens", [floats(1, size) for size in (9, 1, 2, 2, 2)])
    assert batches(mesh, "tokens") == (8, 3)


def test_python_models_see_each_request_as_it_is(mesh: Mesh) -> None:
    shapes = [(1, 2, 3), (1, 4, 1), (2, 3, 3)]
    results = infer(mesh, "python", [floats(*shape) for shape in shapes[:2]] + [floats(1, 0, 0)])
    assert [result.as_numpy("Y").tolist() for result in results] == [
        [[3, 1, 2, 3]],
        [[3, 1, 4, 1]],
        [[3, 1, 0, 0]],
    ]


def test_ragged_identity_batches_are_counted(mesh: Mesh) -> None:
    xs = [floats(1, 2, 3), floats(2, 4, 1)]
    results = infer(mesh, "identity", xs, "INPUT0")
    for x, result in zip(xs, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), x)
    (statistics,) = json.loads(mesh.get("/v2/models/identity/stats")[1])["model_stats"]
    # As the real server counts a Python model that does the same.
    assert statistics["inference_count"] == 3
    assert statistics["execution_count"] == 1
    assert [each["batch_size"] for each in statistics["batch_stats"]] == [3]
    assert statistics["inference_stats"]["success"]["count"] == 2


def test_an_exported_encoder_is_padded_without_configuration(mesh: Mesh) -> None:
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        config = client.get_model_config("exported").config
        assert config.max_batch_size == 32
        assert config.HasField("dynamic_batching")
        assert config.parameters["padding"].string_value == (
            "input_ids[0]=3 attention_mask[0] -> last_hidden_state[0]: 16 24 32 40"
        )
        for length in (1, 16, 17, 50):
            ids = np.arange(length, dtype=np.int64)[None] + 5
            inputs = []
            for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
                inputs.append(tritonclient.grpc.InferInput(name, [1, length], "INT64"))
                inputs[-1].set_data_from_numpy(array)
            vectors = client.infer("exported", inputs).as_numpy("last_hidden_state")
            np.testing.assert_array_equal(vectors, ids[:, :, None])
