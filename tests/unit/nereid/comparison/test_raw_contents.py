from typing import Any

import numpy as np
import pytest

from nereid.comparison.raw_contents import raw_contents
from nereid.pb import kserve_pb2


def outputs(*tensors: tuple[str, dict[str, Any]]) -> Any:
    message = kserve_pb2.ModelInferResponse()
    for datatype, contents in tensors:
        message.outputs.add(datatype=datatype, shape=[2], contents=contents)
    return message.outputs


@pytest.mark.parametrize(
    ("datatype", "contents", "raw"),
    [
        ("BOOL", {"bool_contents": [True, False]}, b"\1\0"),
        ("INT8", {"int_contents": [1, -1]}, b"\1\xff"),
        ("UINT16", {"uint_contents": [1, 2]}, b"\1\0\2\0"),
        ("INT64", {"int64_contents": [1]}, np.array([1], "<i8").tobytes()),
        ("FP32", {"fp32_contents": [1.5]}, np.array([1.5], "<f4").tobytes()),
        ("FP64", {"fp64_contents": [1.5]}, np.array([1.5], "<f8").tobytes()),
        ("BYTES", {"bytes_contents": [b"ab"]}, b"\2\0\0\0ab"),
        ("FP16", {}, b""),
    ],
)
def test_typed_contents(datatype: str, contents: dict[str, Any], raw: bytes) -> None:
    assert raw_contents(outputs((datatype, contents)), ()) == [raw]


def test_raw_contents_come_first() -> None:
    tensors = outputs(("FP32", {"fp32_contents": [1.5]}), ("INT32", {}))
    assert raw_contents(tensors, [b"a"]) == [b"a", b""]


@pytest.mark.parametrize(("datatype", "value"), [("INT8", 300), ("NONE", 1)])
def test_contents_of_another_datatype_are_refused(datatype: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"no {datatype}"):
        raw_contents(outputs((datatype, {"int_contents": [value]})), ())
