"""NVIDIA's own clients against the whole mesh, on both edge engines."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh
from tests.support.mesh.nvidia_clients import SITES, Client, connected
from tests.support.models.e2e_models import DATATYPES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(("mesh", "flavour"), SITES, indirect=["mesh"]),
]


@pytest.fixture
def client(mesh: Mesh, flavour: str) -> Iterator[Client]:
    with connected(mesh, flavour) as made:
        yield made


def sample(datatype: str) -> np.ndarray[Any, Any]:
    if datatype == "BYTES":
        return np.array([[b"", b"abc", "é".encode()], [b"x" * 300, b"a\0b", b"1"]], np.object_)
    numpy_type = np.dtype(DATATYPES[datatype][1])
    return np.arange(6).reshape(2, 3).astype(numpy_type)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back_as_it_went(client: Client, datatype: str) -> None:
    array = sample(datatype)
    result = client.infer(f"identity_{datatype.lower()}", {"INPUT0": array}, request_id="mine")
    wire_response = result.as_numpy("OUTPUT0")
    assert wire_response.dtype == array.dtype
    assert wire_response.tolist() == array.tolist()
    response = result.get_response()
    assert (response["id"] if client.is_http else response.id) == "mine"


def test_two_inputs_two_outputs(client: Client) -> None:
    left = np.arange(32, dtype=np.int32).reshape(2, 16)
    right = np.ones((2, 16), np.int32)
    result = client.infer("add_sub", {"INPUT0": left, "INPUT1": right})
    assert (result.as_numpy("OUTPUT0") == left + right).all()
    assert (result.as_numpy("OUTPUT1") == left - right).all()


def test_only_the_requested_output_is_returned(client: Client) -> None:
    array = np.ones((1, 16), np.int32)
    result = client.infer(
        "add_sub",
        {"INPUT0": array, "INPUT1": array},
        outputs=[client.module.InferRequestedOutput("OUTPUT1")],
    )
    assert result.as_numpy("OUTPUT0") is None
    assert (result.as_numpy("OUTPUT1") == 0).all()


def test_classification_returns_labels(client: Client) -> None:
    array = np.array([[1, 3, 2, 3, 0, 0, 0, 0], [0.25, 0, 0, 0, 0, 0, 0, -1]], np.float32)
    result = client.infer(
        "doubler",
        {"INPUT0": array},
        outputs=[client.module.InferRequestedOutput("OUTPUT0", class_count=3)],
    )
    assert result.as_numpy("OUTPUT0").tolist() == [
        [b"6.000000:1:one", b"6.000000:3:three", b"4.000000:2"],
        [b"0.500000:0:zero", b"0.000000:1:one", b"0.000000:2"],
    ]
    with pytest.raises(InferenceServerException, match="unsupported type 'BYTES'"):
        client.infer(
            "identity_bytes",
            {"INPUT0": sample("BYTES")},
            outputs=[client.module.InferRequestedOutput("OUTPUT0", class_count=3)],
        )


def test_a_partial_configuration_is_completed(client: Client) -> None:
    config = client("get_model_config", "partial")
    fields = config if client.is_http else {"max_batch_size": config.config.max_batch_size}
    assert fields["max_batch_size"] == 8
    metadata = client("get_model_metadata", "partial")
    inputs = metadata["inputs"] if client.is_http else metadata.inputs
    shapes = [list(i["shape"] if client.is_http else i.shape) for i in inputs]
    assert [[int(dim) for dim in shape] for shape in shapes] == [[-1, 16], [-1, 16]]


def test_control_plane(client: Client) -> None:
    assert client("is_server_live") is True
    assert client("is_server_ready") is False  # one model of the repository is broken
    assert client("is_model_ready", "add_sub") is True
    assert client("is_model_ready", "broken") is False
    metadata = client("get_server_metadata")
    extensions = metadata["extensions"] if client.is_http else metadata.extensions
    assert "binary_tensor_data" in extensions
    index = client("get_model_repository_index")
    entries = {
        (e["name"] if client.is_http else e.name): (
            (e.get("state"), e.get("reason")) if client.is_http else (e.state, e.reason)
        )
        for e in (index if client.is_http else index.models)
    }
    assert entries["add_sub"][0] == "READY"
    state, reason = entries["broken"]
    assert state == "UNAVAILABLE"
    assert reason


def test_statistics_count_what_ran(client: Client) -> None:
    def counts() -> tuple[int, int, int]:
        reply = client("get_inference_statistics", "doubler")
        stats = reply["model_stats"][0] if client.is_http else reply.model_stats[0]
        if client.is_http:
            successes = stats["inference_stats"]["success"]["count"]
            return stats["inference_count"], stats["execution_count"], successes
        success = stats.inference_stats.success.count
        return stats.inference_count, stats.execution_count, success

    before = counts()
    for _ in range(3):
        client.infer("doubler", {"INPUT0": np.ones((4, 8), np.float32)})
    after = counts()
    assert tuple(b - a for a, b in zip(before, after, strict=True)) == (12, 3, 3)


@pytest.mark.parametrize(
    ("model", "array", "text"),
    [
        ("nope", np.ones((1, 8), np.float32), "unknown model"),
        ("doubler", np.ones((1, 8), np.int32), "data-type"),
        ("doubler", np.ones((1, 7), np.float32), "unexpected shape"),
        ("doubler", np.ones((17, 8), np.float32), "batch-size must be <= 16"),
        ("broken", np.ones((1, 8), np.float32), "no available versions"),
    ],
)
def test_bad_requests_get_a_reason(
    client: Client, model: str, array: np.ndarray[Any, Any], text: str
) -> None:
    with pytest.raises(InferenceServerException, match=text):
        client.infer(model, {"INPUT0": array})
