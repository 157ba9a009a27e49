"""Layers of sentence-transformers, beside their definitions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nereid.core.errors import InvalidArgument
from nereid.text.layers import Layer, read_layer
from nereid_gateway.extras.openai.texts.vector_layers import VectorLayers
from tests.support.models.safetensors import encoded

RANDOM = np.random.default_rng(1)
WEIGHT = RANDOM.normal(size=(3, 4)).astype(np.float32)
BIAS = RANDOM.normal(size=3).astype(np.float32)
VECTOR = RANDOM.normal(size=4).astype(np.float32)
PATH = "2_Dense/model.safetensors"
DENSE = Layer("Dense", PATH, 4, 3, True, "Tanh")
FILE = encoded(linear__weight=WEIGHT, linear__bias=BIAS)


def applied(*layers: Layer, content: bytes = FILE, vector: Any = VECTOR) -> np.ndarray[Any, Any]:
    return VectorLayers(layers, {PATH: content}).apply(vector)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("Identity", lambda x: x),
        ("Tanh", np.tanh),
        ("ReLU", lambda x: np.maximum(x, 0)),
        ("Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_a_dense_layer(activation: str, function: Any) -> None:
    layer = Layer("Dense", PATH, 4, 3, True, activation)
    exact = WEIGHT.astype(np.float64) @ VECTOR + BIAS
    got = applied(layer)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, function(exact), atol=1e-6)
    without = applied(Layer("Dense", PATH, 4, 3), content=encoded(linear__weight=WEIGHT))
    np.testing.assert_allclose(without, WEIGHT @ VECTOR, atol=1e-6)


def test_a_layer_norm() -> None:
    norm = encoded(norm__weight=WEIGHT[0], norm__bias=WEIGHT[1])
    exact = VECTOR.astype(np.float64)
    exact = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5) * WEIGHT[0] + WEIGHT[1]
    layer = Layer("LayerNorm", PATH, 4, 4, bias=True)
    np.testing.assert_allclose(applied(layer, content=norm), exact, atol=1e-6)


def test_the_order_of_layers_counts() -> None:
    unit = VECTOR / np.linalg.norm(VECTOR)
    expected = np.tanh(WEIGHT @ unit + BIAS)
    np.testing.assert_allclose(applied(Layer("Normalize"), DENSE), expected, atol=1e-6)
    assert np.array_equal(applied(), VECTOR)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_weights_of_other_types(dtype: str) -> None:
    stored = (WEIGHT.view(np.uint32) >> 16).astype(np.uint16)
    if dtype != "bfloat16":
        stored = WEIGHT.astype(dtype)
    got = applied(Layer("Dense", PATH, 4, 3), content=encoded(linear__weight=stored))
    np.testing.assert_allclose(got, WEIGHT @ VECTOR, atol=0.1)


def changed(**members: Any) -> bytes:
    size = int.from_bytes(FILE[:8], "little")
    header = json.loads(FILE[8 : 8 + size])
    header["linear.weight"].update(members)
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + FILE[8 + size :]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not a file of safetensors"),
        (b"\xff" * 8 + b"{}", "not a file of safetensors"),
        (b"\x02" + b"\0" * 7 + b"[]", "expected an object"),
        (encoded(linear__weight=WEIGHT), "linear.bias: there is no such tensor"),
        (encoded(linear__weight=WEIGHT.T, linear__bias=BIAS), "shape: expected [3, 4]"),
        (changed(dtype="I8"), "dtype: expected one of F64, F32, F16, BF16"),
        (changed(data_offsets=[0, 4]), "data_offsets: expected a range of 48 bytes"),
        (changed(data_offsets=[40, 88]), "data_offsets: expected a range of 48 bytes"),
        (changed(data_offsets=None), "data_offsets: expected a range of 48 bytes"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        VectorLayers([DENSE], {PATH: content})
    assert refused.value.message.startswith(PATH)
    assert problem in refused.value.message


def test_vectors_of_another_size_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="changes vectors of 4 values, but the model has 5"):
        applied(DENSE, vector=np.zeros(5, np.float32))


@pytest.mark.parametrize(
    ("config", "layer"),
    [
        ({"in_features": 4, "out_features": 3}, DENSE),
        (
            {
                "in_features": 4,
                "out_features": 3,
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            },
            Layer("Dense", PATH, 4, 3),
        ),
        ({"in_features": 4}, "in_features: expected the sizes of vectors"),
        ({"activation_function": "torch.nn.GELU"}, "expected one of Identity, Tanh, ReLU, Sigmoid"),
        ({"module_input_name": "token_embeddings"}, "only vectors of texts can be changed"),
    ],
)
def test_configurations_of_dense_layers(config: dict[str, Any], layer: Layer | str) -> None:
    files = {"2_Dense/config.json": json.dumps(config).encode(), PATH: b""}
    if isinstance(layer, Layer):
        assert read_layer("Dense", "2_Dense", files) == layer
        return
    with pytest.raises(InvalidArgument) as refused:
        read_layer("Dense", "2_Dense", files)
    assert layer in refused.value.message


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"no file .2_Dense/config.json."):
        read_layer("Dense", "2_Dense", {})
    with pytest.raises(InvalidArgument, match=r"pytorch_model.bin is not read, so write it"):
        read_layer("Dense", "2_Dense", {"2_Dense/config.json": b"{}"})
