"""Arrays, descriptions and errors between an executor and a confined process."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nereid.backends import Capabilities, ModelDescription, TensorDescription
from nereid.core.errors import NereidError, Unavailable
from nereid.pb import model_config_pb2
from nereid_executor.backends.native import messages
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire

ARRAYS = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    np.array(7, np.uint8),
    np.empty((0, 3), np.float32),
    np.array([True, False]),
    np.array([["a", "\udcff"], ["", "ü"]], np.object_),
    np.array([b"\xff", b""], np.object_),
    np.empty((2, 0), np.object_),
    np.array(["ab", "c"]),
    np.array([b"ab", b"c"]),
]


def body(parts: list[Any]) -> bytearray:
    return bytearray(b"".join(map(wire.as_bytes, parts)))


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype} {array.shape}")
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    inputs, names = messages.read_batch(body(messages.batch_parts({"x": array}, ["y"])))
    (output,) = messages.read_outputs(body(messages.outputs_parts([array])))
    assert names == ["y"]
    for read in (inputs["x"], output):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tolist() == array.tolist()
        assert not read.flags.writeable
        assert read.flags.c_contiguous


def test_mixed_elements_are_bytes() -> None:
    array = np.array(["ü", b"\xff"], np.object_)
    (output,) = messages.read_outputs(body(messages.outputs_parts([array])))
    assert output.tolist() == ["ü".encode(), b"\xff"]


def test_descriptions() -> None:
    config = model_config_pb2.ModelConfig(name="m", max_batch_size=3)
    given = (
        ModelDescription(
            (TensorDescription("x", "FP32", (-1, 2), optional=True),),
            (TensorDescription("y", "BYTES", None),),
            config,
            mixes_rows=True,
        ),
        Capabilities(bytes_as_text=True, leaves_arrays=True, ragged_outputs={"y": "x"}),
    )
    assert messages.read_loaded(body(messages.loaded_parts(*given))) == given


def test_errors() -> None:
    for read, parts in (
        (messages.read_loaded, messages.failed_parts(Unavailable("\ud800", accepted=True))),
        (messages.read_outputs, messages.error_parts(Unavailable("\ud800", accepted=True))),
    ):
        with pytest.raises(Unavailable) as raised:
            read(body(parts))
        assert (raised.value.message, raised.value.accepted) == ("\\ud800", True)


@pytest.mark.parametrize(
    "message",
    [
        b"", b"[", b"[" * 100_000, b"null", b"{}", b'{"error": 1}', b'{"error": [1, "x"]}',
        b'{"inputs": [["x"]], "outputs": [], "config": null, "mixes_rows": 0, "capabilities": {}}',
        b'{"inputs": [], "outputs": [], "config": "AAAA", "mixes_rows": 0, "capabilities": {}}',
    ],
    ids=lambda message: repr(message[:30]),
)  # fmt: skip
def test_malformed_descriptions(message: bytes) -> None:
    with pytest.raises(wire.WireError):
        messages.read_loaded(bytearray(message))


@pytest.mark.parametrize(
    "head",
    [
        1, [1], ["|O", [1]], ["O", [1]], ["<f4", [3]], ["<f4", [-2]], ["<f4", [1 << 70]],
        ["<f4", "x"], ["<f4", [0]], ["text", [1]], ["bytes", [1]], ["<U999999999999", [1]],
        ["<f4,<f4", [1]],
    ],
    ids=repr,
)  # fmt: skip
def test_malformed_outputs(head: Any) -> None:
    call = wire.Call(0, 0, json.dumps([head]).encode(), [b"\1\0\0\0\xff\0\0\0"])
    with pytest.raises(wire.WireError):
        messages.read_outputs(body(wire.call_parts(call)))


@pytest.mark.parametrize("meta", [b"", b"[1]", b'["x", "y", 1]', b"[" * 100_000])
def test_malformed_errors(meta: bytes) -> None:
    call = wire.Call(0, wire.ERROR, meta, ())
    with pytest.raises(wire.WireError):
        messages.read_outputs(body(wire.call_parts(call)))


def test_an_unknown_code_is_an_error() -> None:
    call = wire.Call(0, wire.ERROR, b'[99, "x", true]', ())
    with pytest.raises(NereidError, match="x"):
        messages.read_outputs(body(wire.call_parts(call)))
