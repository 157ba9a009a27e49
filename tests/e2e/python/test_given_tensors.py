"""Tensors that Python models are given: writeable, aligned and their own, however they come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from tests.support.mesh.mesh import Mesh, running
from tests.support.models import python_models
from tests.support.peers.shared_memory import shared_memory_objects

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
# The first ones have odd sizes, so that what follows in an HTTP body is not aligned.
NAMES = ("UINT8", "BOOL", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES", "BF16")
DTYPES: dict[str, Any] = {name: np.dtype(triton_to_np_dtype(name)) for name in NAMES}
INVERTED = bytes(range(255, -1, -1))
# Elements: below and above what is sent inline, for each of the datatypes.
SIZES = (3, 70_001)
ASKS = 'parameters { key: "asks" value { string_value: "direct" } }\n'


def _tensors(kind: str, prefix: str) -> str:
    """In a configuration, of all datatypes."""
    return "".join(
        f'{kind} {{ name: "{prefix}{name}" dims: [-1]'
        f" data_type: TYPE_{'STRING' if name == 'BYTES' else name} }}\n"
        for name in DTYPES
    )


def _step(model: str, given: str, made: str, report: str) -> str:
    inputs = "".join(f'input_map {{ key: "IN_{n}" value: "{given}{n}" }} ' for n in DTYPES)
    outputs = "".join(f'output_map {{ key: "OUT_{n}" value: "{made}{n}" }} ' for n in DTYPES)
    reported = f'output_map {{ key: "REPORT" value: "{report}" }} '
    return f'step {{ model_name: "{model}" model_version: -1 {inputs}{outputs}{reported}}}\n'


def _ensemble() -> str:
    """Two steps are given what another made and what is an output as well."""
    steps = [_step("direct", "IN_", "INNER_", "R0"), _step("direct", "INNER_", "OUT_", "REPORT")]
    steps.append(_step("mediated", "INNER_", "BESIDE_", "R2"))
    outputs = "".join(_tensors("output", each) for each in ("INNER_", "OUT_", "BESIDE_"))
    for name in ("R0", "REPORT", "R2"):
        outputs += f'output {{ name: "{name}" data_type: TYPE_STRING dims: [-1] }}\n'
    scheduling = f"ensemble_scheduling {{ {''.join(steps)} }}\n"
    return f'platform: "ensemble"\n{_tensors("input", "IN_")}{outputs}{scheduling}'


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("repository")
    python = 'backend: "python"\n'
    python_models.save(root, "writer", python, "direct")
    # Over its executor, which watches the time.
    python_models.save(root, "writer", python + python_models.LIMIT, "mediated")
    python_models.save(root, "writer", python + ASKS, "asking")
    (root / "ensemble" / "1").mkdir(parents=True)
    (root / "ensemble" / "config.pbtxt").write_text(_ensemble())
    log = tmp_path_factory.mktemp("mesh") / "log"
    with running(root, log, "--allow-client-shm=true") as mesh:
        yield mesh


def _arrays(size: int, seed: int) -> dict[str, Array]:
    chance = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, dtype in DTYPES.items():
        if name == "BYTES":
            arrays[name] = np.array([chance.bytes(3) for _ in range(size)], np.object_)
        elif name in ("BOOL", "BF16"):
            arrays[name] = chance.integers(0, 2, size).astype(dtype)
        else:
            # Small numbers, whose inverted bits are no NaN.
            arrays[name] = chance.integers(1, 100, size).astype(dtype)
    return arrays


def _inverted(array: Array, name: str) -> Array:
    if name == "BYTES":
        return np.array([text.translate(INVERTED) for text in array], np.object_)
    if name == "BF16":
        return array
    if name == "BOOL":
        return ~array
    return (~array.view(f"u{array.itemsize}")).view(array.dtype)


def _serialised(array: Array, name: str) -> bytes:
    return bytes(serialize_byte_tensor(array).item()) if name == "BYTES" else array.tobytes()


class Client:
    """Sends arrays inline or in a region of its own memory."""

    def __init__(self, mesh: Mesh, transport: str) -> None:
        self.protocol, _, memory = transport.partition(" ")
        self.in_memory, self.as_json = memory == "region", memory == "JSON"
        self.module: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[self.protocol]
        self.client = self.module.InferenceServerClient(getattr(mesh, self.protocol))

    def infer(self, model: str, arrays: dict[str, Array]) -> Any:
        inputs = [
            self.module.InferInput(f"IN_{name}", list(array.shape), name)
            for name, array in arrays.items()
        ]
        if not self.in_memory:
            more = {"binary_data": False} if self.as_json else {}
            for tensor, (name, array) in zip(inputs, arrays.items(), strict=True):
                # JSON has no half precision, and of BYTES texts alone.
                is_text = self.as_json and name not in ("FP16", "BF16", "BYTES")
                tensor.set_data_from_numpy(array, **(more if is_text else {}))
            return self.client.infer(model, inputs)
        with shared_memory_objects() as objects:
            whole, places = b"", []
            for name, array in arrays.items():
                data = _serialised(array, name)
                places.append((len(data), len(whole)))
                whole += data
            self.client.register_system_shared_memory("region", objects.make(whole), len(whole))
            try:
                for tensor, (size, offset) in zip(inputs, places, strict=True):
                    tensor.set_shared_memory("region", size, offset)
                self.client.infer(model, inputs)
                # The same again: the model has not written to the client's memory.
                return self.client.infer(model, inputs)
            finally:
                self.client.unregister_system_shared_memory("region")


def _assert_outputs(result: Any, prefix: str, arrays: dict[str, Array], *, inverted: bool) -> None:
    for name, array in arrays.items():
        wanted = _inverted(array, name) if inverted else array
        np.testing.assert_array_equal(result.as_numpy(prefix + name), wanted, f"{prefix}{name}")


# The gateway makes an array and the executor gives it to a model: each way once.
_BOTH = [
    pytest.param(
        transport,
        model,
        marks=() if model == "direct" or transport == "grpc" else pytest.mark.nightly,
    )
    for transport in ("grpc", "http", "http JSON", "grpc region")
    for model in ("direct", "mediated", "asking", "ensemble")
]


@pytest.mark.parametrize(("transport", "model"), _BOTH)
def test_what_a_model_is_given_is_its_own(mesh: Mesh, model: str, transport: str) -> None:
    client = Client(mesh, transport)
    with contextlib.closing(client.client):
        for size in SIZES:
            # From the second on, segments are used again and the model writes to earlier arrays.
            for repeat in range(2):
                arrays = _arrays(size, repeat)
                result = client.infer(model, arrays)
                for report in ("R0", "REPORT", "R2") if model == "ensemble" else ("REPORT",):
                    assert result.as_numpy(report).tolist() == []
                _assert_outputs(result, "OUT_", arrays, inverted=model != "ensemble")
                if model == "ensemble":
                    _assert_outputs(result, "INNER_", arrays, inverted=True)
                    _assert_outputs(result, "BESIDE_", arrays, inverted=False)
