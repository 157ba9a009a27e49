"""Deducing the input that a raw body is the data of."""

from __future__ import annotations

import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import CONFIG_NUMBER
from nereid.pb import model_config_pb2
from nereid_gateway.fronts.http.inference.raw_request import deduce_input


def config(
    datatype: str, dims: list[int], *, max_batch_size: int = 0, inputs: int = 1
) -> model_config_pb2.ModelConfig:
    built = model_config_pb2.ModelConfig(name="m", max_batch_size=max_batch_size)
    for _ in range(inputs):
        tensor = built.input.add(name="X", data_type=CONFIG_NUMBER[datatype])
        tensor.dims.extend(dims)
    return built


@pytest.mark.parametrize(
    ("datatype", "dims", "max_batch_size", "size", "shape"),
    [
        ("FP32", [-1], 0, 16, [4]),
        ("FP32", [-1], 8, 16, [1, 4]),
        ("FP16", [-1, 2], 0, 16, [4, 2]),
        ("FP32", [2, 2], 0, 16, [2, 2]),
        ("FP32", [-1], 0, 0, [0]),
        ("INT8", [-1, 0], 0, 3, [0, 0]),
    ],
)
def test_the_variable_dimension_follows_from_the_size(
    datatype: str, dims: list[int], max_batch_size: int, size: int, shape: list[int]
) -> None:
    tensor, payload = deduce_input(
        config(datatype, dims, max_batch_size=max_batch_size), bytes(size)
    )
    assert tensor == ("X", datatype, shape)
    assert payload == bytes(size)


def test_a_string_is_framed() -> None:
    tensor, payload = deduce_input(config("BYTES", [1], max_batch_size=2), b"text")
    assert tensor.shape == [1, 1]
    assert payload == b"\4\0\0\0text"


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (
            config("FP32", [-1], inputs=2),
            "Raw request must only have 1 input .* got 2 inputs in 'm'",
        ),
        (config("FP32", [-1, -1]), "more than one variable-sized dimension"),
        (config("BYTES", [-1]), "For BYTE datatype raw input 'X', the model must have input shape"),
        (config("BYTES", [2]), "For BYTE datatype raw input 'X', the model must have input shape"),
    ],
)
def test_what_cannot_be_deduced(built: model_config_pb2.ModelConfig, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        deduce_input(built, b"1234")
