"""Inputs and outputs from annotations, and what the refusals say."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import pytest

import nereid
from nereid.app.signature import signature_of
from nereid.app.tensor import Tensor

F32 = Tensor("float32", -1)


class Named(NamedTuple):
    low: nereid.Tensor["float32", -1]
    text: str


class Typed(TypedDict):
    low: nereid.Tensor["float32", -1]
    text: str


@dataclass
class Data:
    low: nereid.Tensor["float32", -1]
    text: str


@pytest.mark.parametrize(
    ("dtype", "datatype", "is_text"),
    [
        ("float32", "FP32", False),
        (np.float16, "FP16", False),
        (np.dtype("int8"), "INT8", False),
        ("FP64", "FP64", False),
        (float, "FP64", False),
        (int, "INT64", False),
        (bool, "BOOL", False),
        ("u2", "UINT16", False),
        (str, "BYTES", True),
        ("str", "BYTES", True),
        (bytes, "BYTES", False),
        ("bytes", "BYTES", False),
        (object, "BYTES", False),
    ],
)
def test_datatypes(dtype: Any, datatype: str, is_text: bool) -> None:
    tensor = Tensor(dtype, 2, -1)
    assert (tensor.datatype, tensor.dims, tensor.is_text) == (datatype, (2, -1), is_text)


@pytest.mark.parametrize("dtype", ["float33", "complex64", "datetime64[s]", 3.5])
def test_other_datatypes_are_refused_with_those_there_are(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"no datatype.*: write one of bool, float16.*, str, bytes"):
        Tensor(dtype, 1)


@pytest.mark.parametrize("dim", [0, -2, 1.0, True, None])
def test_dimensions_are_numbers(dim: Any) -> None:
    with pytest.raises(TypeError, match="write a number, or -1"):
        Tensor("float32", dim)


def test_annotations() -> None:
    def function(
        x: nereid.Tensor["float32", -1],
        text: str,
        y: Annotated[np.ndarray[Any, Any], Tensor("int8", 2)],
        n: int = 3,
    ) -> float: ...

    inputs, outputs = signature_of(function)
    assert inputs["x"] == F32
    assert inputs["text"].is_text
    assert inputs["text"].is_scalar
    assert inputs["y"].dims == (2,)
    assert [name for name, tensor in inputs.items() if tensor.is_optional] == ["n"]
    assert list(outputs) == ["output"]
    assert outputs["output"].datatype == "FP64"


@pytest.mark.parametrize(
    "annotation", [Named, Typed, Data, Iterator[Named], AsyncIterator[Data]], ids=str
)
def test_several_outputs(annotation: Any) -> None:
    def function(x: float) -> None: ...

    function.__annotations__["return"] = annotation
    outputs = signature_of(function).outputs
    assert outputs["low"] == F32
    assert outputs["text"].is_text


def test_given_types_need_no_annotations() -> None:
    def function(x, **others): ...  # type: ignore[no-untyped-def]

    given = {"x": F32, "y": str}
    inputs, outputs = signature_of(function, given, {"z": nereid.Tensor["int8", 1]})
    assert list(inputs) == ["x", "y"]
    assert outputs["z"] == Tensor("int8", 1)


def bare(x): ...  # type: ignore[no-untyped-def]
def array(x: np.ndarray) -> float: ...  # type: ignore[type-arg]
def no_result(x: float): ...  # type: ignore[no-untyped-def]
def dictionary(x: float) -> dict[str, float]: ...  # type: ignore[empty-body]
def several(*x: float) -> float: ...  # type: ignore[empty-body]
def nothing() -> float: ...  # type: ignore[empty-body]
def missing(x: "Absent") -> float: ...  # type: ignore[name-defined, empty-body]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (bare, r"bare: annotate 'x': write x: nereid.Tensor\[\"float32\", -1\]"),
        (array, r"array: 'x': ndarray says no datatype and dimensions: write nereid.Tensor"),
        (no_result, r"no_result: say what it returns: write `-> nereid.Tensor"),
        (dictionary, "does not name its outputs: return a NamedTuple"),
        (several, "names no input: give inputs="),
        (nothing, r"needs an input: write nothing\(x: nereid.Tensor"),
        (missing, "name 'Absent', which its module does not have"),
    ],
)
def test_refusals_say_what_to_write(function: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        nereid.model(function)


def test_given_inputs_are_the_parameters() -> None:
    with pytest.raises(TypeError, match="no parameter 'y', which inputs= names"):
        nereid.model(bare, inputs={"x": F32, "y": F32}, outputs={"z": F32})
    with pytest.raises(TypeError, match="write a dict of names"):
        nereid.model(bare, inputs=[F32], outputs={"z": F32})  # type: ignore[arg-type]


def test_settings_are_refused_when_decorated() -> None:
    def stream(x: float) -> Iterator[float]:
        yield x

    def function(x: float, y: float = 1) -> float:
        return x + y

    class NotCallable: ...

    for target, options, text in (
        (stream, {"batch": True}, "streams to one request at a time: leave batch= out"),
        (function, {"batch": True}, "has all inputs: drop the defaults"),
        (function, {"max_batch_size": 2}, "need batch=True"),
        (function, {"instances": 0}, "instances=0 has to be a number of at least 1"),
        (function, {"name": "a/b"}, "a model's name has"),
        (NotCallable, {}, r"write __call__\(self, ...\)"),
        (3, {}, "is no function and no class"),
    ):
        with pytest.raises(TypeError, match=text):
            nereid.model(target, **options)  # type: ignore[arg-type]
