"""Optional inputs that a request does not send, with their defaults, by NVIDIA's clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.support.mesh.mesh import Mesh, running
from tests.support.mesh.nvidia_clients import FLAVOURS, connected
from tests.support.models import python_models
from tests.support.models.e2e_models import DATATYPES
from tests.support.scheduler.ensemble_configs import ensemble_config, save_ensemble

pytestmark = pytest.mark.slow

VALUES: dict[str, list[Any]] = {datatype: [0, 1, 2] for datatype in DATATYPES} | {
    "BOOL": [True, False],
    "FP16": [0.5, -2],
    "FP32": [0.5, -2],
    "FP64": [0.1],
    "INT64": [-(2**63)],
    "UINT64": [2**64 - 1],
    "BYTES": ["a", "", "é"],
}


def default(name: str, value: list[Any]) -> str:
    text = json.dumps(json.dumps(value))
    return f'parameters {{ key: "default.{name}" value {{ string_value: {text} }} }}\n'


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """`identity` returns all inputs, and `through` is an ensemble of it with its own default."""
    root = tmp_path_factory.mktemp("defaults")
    config = 'backend: "python" max_batch_size: 8\n' + "".join(
        default(f"IN_{datatype}", value) for datatype, value in VALUES.items()
    )
    config += "dynamic_batching { max_queue_delay_microseconds: 5000000 }\n"
    config += "instance_group { count: 1 kind: KIND_CPU }\n"
    python_models.save(root / "models", "identity", config)
    inputs = ["X INT32 -1", "Y FP32 -1 optional"]
    maps = {"IN_INT32": "X", "IN_FP32": "Y"}, {"OUT_INT32": "A", "OUT_FP32": "B", "OUT_BOOL": "C"}
    outputs = ["A INT32 -1", "B FP32 -1", "C BOOL -1"]
    more = "max_batch_size: 8\n" + default("Y", [7])
    through = ensemble_config(inputs, outputs, [("identity", *maps)], more)
    save_ensemble(root / "models", "through", through)
    with running(root / "models", root / "log") as it:
        yield it


def array(datatype: str, values: list[Any], rows: int) -> np.ndarray[Any, Any]:
    _, dtype = DATATYPES[datatype]
    elements = [each.encode() for each in values] if datatype == "BYTES" else values
    return np.array([elements] * rows, dtype)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_inputs_of_every_datatype_have_their_defaults(mesh: Mesh, flavour: str) -> None:
    sent = array("INT32", [5], 8)
    with connected(mesh, flavour) as client:
        response = client.infer("identity", {"IN_INT32": sent})
        for datatype, values in VALUES.items():
            expected = sent if datatype == "INT32" else array(datatype, values, 8)
            np.testing.assert_array_equal(response.as_numpy(f"OUT_{datatype}"), expected)
        response = client.infer("through", {"X": sent})
        np.testing.assert_array_equal(response.as_numpy("A"), sent)
        np.testing.assert_array_equal(response.as_numpy("B"), array("FP32", [7], 8))
        np.testing.assert_array_equal(response.as_numpy("C"), array("BOOL", VALUES["BOOL"], 8))


def test_requests_share_a_batch_whether_they_send_an_input_or_not(mesh: Mesh) -> None:
    before = mesh.counts("identity")["execution_count"]

    def ask(number: int) -> None:
        inputs = {"IN_INT32": np.array([[number]], np.int32)}
        if number % 2:
            inputs["IN_FP32"] = np.array([[number, number]], np.float32)
        with connected(mesh, "grpc") as client:
            response = client.infer("identity", inputs)
        wanted = inputs.get("IN_FP32", array("FP32", VALUES["FP32"], 1))
        np.testing.assert_array_equal(response.as_numpy("OUT_FP32"), wanted)
        np.testing.assert_array_equal(response.as_numpy("OUT_INT32"), inputs["IN_INT32"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert mesh.counts("identity")["execution_count"] == before + 1
