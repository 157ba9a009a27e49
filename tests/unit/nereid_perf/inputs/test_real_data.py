"""perf_analyzer's JSON files and directories."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.tensors.byte_elements import join_bytes, split_bytes
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid_perf.inputs.errors import InputError
from nereid_perf.inputs.real_data import DataReader, Step, Stream
from nereid_perf.inputs.signature import TensorSpec
from nereid_perf.inputs.tensors import Tensor

X = TensorSpec("X", "FP32", (2, 2))
V = TensorSpec("V", "INT32", (-1, 2))
S = TensorSpec("S", "BYTES", (-1,))
TWO = TensorSpec("T", "INT8", (-1, -1))
Y = TensorSpec("Y", "FP32", (2,))


def read(
    path: Path,
    document: Any,
    *specs: TensorSpec,
    options: dict[str, tuple[int, ...]] | None = None,
    max_file_bytes: int = 1 << 20,
) -> tuple[Stream, ...]:
    file = path / "data.json"
    text = document if isinstance(document, str) else json.dumps(document)
    file.write_text(text)
    return DataReader(specs, [Y], options or {}, max_file_bytes).read([str(file)])


def only(streams: tuple[Stream, ...]) -> Tensor:
    ((step,),) = streams
    (tensor,) = step.inputs
    return tensor


def test_steps_with_flat_and_nested_arrays_objects_and_base64(tmp_path: Path) -> None:
    raw = np.arange(4, dtype="<f4").tobytes()
    encoded = base64.b64encode(raw).decode()
    forms: list[Any] = [
        [0, 1, 2, 3],
        [[0, 1], [2, 3]],
        {"content": [0, 1, 2, 3], "shape": [2, 2]},
        {"b64": encoded},
        {"content": {"b64": encoded}, "shape": [2, 2]},
    ]
    (stream,) = read(tmp_path, {"data": [{"X": each} for each in forms]}, X)
    assert stream == (Step((Tensor("X", "FP32", (2, 2), raw),)),) * 5


def test_arrays_of_steps_are_streams_with_their_expected_outputs(tmp_path: Path) -> None:
    document = {
        "data": [[{"V": [1, 2]}, {"V": [3, 4, 5, 6]}], [{"V": [7, 8]}]],
        "validation_data": [[{"Y": [1, 2]}, {}], [{"Y": [3, 4]}]],
    }
    first, second = read(tmp_path, document, V)
    assert [each.inputs[0].shape for each in first] == [(1, 2), (2, 2)]
    assert [len(each.expected) for each in first] == [1, 0]
    assert second[0].expected == (Tensor("Y", "FP32", (2,), np.array([3, 4], "<f4").tobytes()),)


def test_strings(tmp_path: Path) -> None:
    raw = join_bytes([b"\xff", b""])
    assert only(read(tmp_path, {"data": [{"S": ["é", ""]}]}, S)).raw == join_bytes(["é", ""])
    tensor = only(read(tmp_path, {"data": [{"S": {"b64": base64.b64encode(raw).decode()}}]}, S))
    assert (tensor.raw, tensor.shape) == (raw, (2,))


def test_shapes_come_from_the_step_before_the_flag(tmp_path: Path) -> None:
    document = {"data": [{"T": {"content": [1, 2, 3, 4], "shape": [4, 1]}}, {"T": [1, 2, 3, 4]}]}
    (stream,) = read(tmp_path, document, TWO, options={"T": (1, 4)})
    assert [each.inputs[0].shape for each in stream] == [(4, 1), (1, 4)]


def test_files_are_joined(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(json.dumps({"data": [{"V": [value, value]}]}))
    (stream,) = DataReader([V], [], {}).read([str(tmp_path / "a"), str(tmp_path / "b")])
    assert len(stream) == 2
    (tmp_path / "c").write_text(json.dumps({"data": [[{"V": [3, 3]}]]}))
    with pytest.raises(InputError, match="steps or arrays of steps, found both"):
        DataReader([V], [], {}).read([str(tmp_path / "a"), str(tmp_path / "c")])


def test_optional_inputs_may_be_missing_and_metadata_too(tmp_path: Path) -> None:
    optional = TensorSpec("O", "FP32", (1,), is_optional=True)
    assert only(read(tmp_path, {"data": [{"V": [1, 2], "model": "lora"}]}, V, optional)).name == "V"
    given_all = {"content": [True], "shape": [1, 1], "datatype": "BOOL"}
    tensor = only(read(tmp_path, {"data": [{"Q": given_all}]}))
    assert tensor == Tensor("Q", "BOOL", (1, 1), b"\x01")


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", r"data\.json:1:2: expected JSON"),
        ('{"data": [\n{"X": }]}', r"data\.json:2:7: expected JSON"),
        ("[" * 100_000, "data.json: expected JSON"),
        ('{"data": [{"X": [' + "9" * 5000 + "]}]}", "data.json: expected JSON"),
        ([], "expected an object with steps"),
        ({"data": []}, "expected an object with steps"),
        ({"data": {"X": [1]}}, "expected an object with steps"),
        ({"data": [{}], "other": 1}, "unknown member 'other'"),
        ({"data": [3]}, r"data\[0\]: expected an object with a member for each tensor"),
        ({"data": [{}]}, r"data\[0\]: expected a value of input 'X', found none"),
        ({"data": [{"X": [1] * 4}, []]}, r"data\[1\]: expected an object"),
        ({"data": [[{"X": [1] * 4}], {}]}, r"data\[1\]: expected an array of steps"),
        ({"data": [[{"X": [1] * 4}], []]}, r"data\[1\]: expected an array of steps"),
        (
            {"data": [{"X": [1] * 4, "Z": [1]}]},
            r"data\[0\]: the model has no input 'Z': expected X",
        ),
        (
            {"data": [{"X": [1] * 4}, {"X": [1] * 5}]},
            r"data\[1\]\.X: expected 4 elements .*found 5",
        ),
        ({"data": [[{"X": ["a"] * 4}]]}, r"data\[0\]\[0\]\.X: element 0: expected a number"),
        ({"data": [{"X": 3}]}, r"data\[0\]\.X: expected an array of elements, or"),
        ({"data": [{"X": {"content": 3}}]}, r"data\[0\]\.X: expected an array of elements, or"),
        ({"data": [{"X": {"shape": [2, 2]}}]}, r"data\[0\]\.X: expected an array of elements, or"),
        ({"data": [{"X": {"contents": []}}]}, r"data\[0\]\.X: unknown member 'contents'"),
        ({"data": [{"X": {"content": [], "shape": 4}}]}, r"X: shape: expected an array of whole"),
        ({"data": [{"X": {"content": [], "shape": [2, -2]}}]}, r"X: shape: expected an array"),
        ({"data": [{"X": {"content": [], "shape": [4]}}]}, r"shape: expected one as \[2,2\]"),
        ({"data": [{"X": {"content": [1], "shape": [2, 2]}}]}, "expected 4 elements.*found 1"),
        ({"data": [{"X": {"b64": "x"}}]}, r"X: b64: expected a string in base64"),
        ({"data": [{"X": {"b64": 4}}]}, r"X: b64: expected a string in base64"),
        ({"data": [{"X": {"b64": "AAA="}}]}, "FP32 elements of 4 bytes each, found 2 bytes"),
        ({"data": [{"X": [1] * 4}], "validation_data": []}, "validation_data: expected an array"),
        (
            {"data": [[{"X": [1] * 4}]], "validation_data": [[{}, {}]]},
            r"validation_data\[0\]: expected an array of 1 steps",
        ),
        (
            {"data": [{"X": [1] * 4}], "validation_data": [{"Z": [1]}]},
            r"validation_data\[0\]: the model has no output 'Z': expected Y",
        ),
    ],
)
def test_malformed_files(tmp_path: Path, document: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        read(tmp_path, document, X)


def test_shapes_that_do_not_follow(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"data\[0\]\.T: the model's shape is \[-1,-1\].*--shape T:"
    ):
        read(tmp_path, {"data": [{"T": [1, 2]}]}, TWO)
    with pytest.raises(InputError, match=r"data\[0\]\.V: expected a multiple of 2 elements"):
        read(tmp_path, {"data": [{"V": [1, 2, 3]}]}, V)
    with pytest.raises(InputError, match="expected BYTES elements, each behind its length"):
        read(tmp_path, {"data": [{"S": {"b64": "AAAA"}}]}, S)
    with pytest.raises(InputError, match="no input 'Q': give it a datatype"):
        read(tmp_path, {"data": [{"Q": [1]}]})
    with pytest.raises(InputError, match="Q: datatype: expected one of BF16"):
        read(tmp_path, {"data": [{"Q": {"content": [1], "datatype": "X"}}]})
    with pytest.raises(InputError, match="Q: datatype: expected one of BF16"):
        read(tmp_path, {"data": [{"Q": {"content": [1], "datatype": []}}]})
    with pytest.raises(InputError, match="Q: expected a shape"):
        read(tmp_path, {"data": [{"Q": {"content": [1], "datatype": "FP32"}}]})


def test_files_that_cannot_be_read_or_are_too_large(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: cannot be read: No such file.*random, zero"):
        DataReader([X], [], {}).read([str(tmp_path / "none")])
    with pytest.raises(InputError, match="more than 10 bytes"):
        read(tmp_path, {"data": [{"X": [1] * 4}]}, X, max_file_bytes=10)


def test_directory(tmp_path: Path) -> None:
    raw = np.arange(4, dtype="<f4").tobytes()
    (tmp_path / "X").write_bytes(raw)
    (tmp_path / "S").write_bytes("one\n\ntwö\n".encode())
    (tmp_path / "Y").write_bytes(raw[:8])
    ((step,),) = DataReader([X, S], [Y], {}).read([str(tmp_path)])
    assert step.inputs == (
        Tensor("X", "FP32", (2, 2), raw),
        Tensor("S", "BYTES", (3,), join_bytes(["one", "", "twö"])),
    )
    assert [each.raw for each in step.expected] == [raw[:8]]


def test_directories_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="X: expected a file for this input"):
        DataReader([X], [], {}).read([str(tmp_path)])
    (tmp_path / "X").write_bytes(b"123")
    with pytest.raises(
        InputError, match="X: expected FP32 elements of 4 bytes each, found 3 bytes"
    ):
        DataReader([X], [], {}).read([str(tmp_path)])
    (tmp_path / "X").write_bytes(bytes(12))
    with pytest.raises(InputError, match=r"X: expected 4 elements for the shape \[2,2\], found 3"):
        DataReader([X], [], {}).read([str(tmp_path)])
    (tmp_path / "Q").write_bytes(b"")
    with pytest.raises(InputError, match="Q: expected files named as tensors of the model: X"):
        DataReader([X], [], {}).read([str(tmp_path)])


VALUES = {
    "BOOL": st.booleans(),
    "INT16": st.integers(-(1 << 15), (1 << 15) - 1),
    "UINT64": st.integers(0, (1 << 64) - 1),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "BYTES": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
}


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[TensorSpec], list[dict[str, Any]]]:
    datatypes = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    specs = [TensorSpec(f"I{i}", each, (-1, -1)) for i, each in enumerate(datatypes)]
    written = []
    for _ in range(draw(st.integers(1, 3))):
        step = {}
        for spec in specs:
            shape = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
            count = math.prod(shape)
            content = draw(st.lists(VALUES[spec.datatype], min_size=count, max_size=count))
            step[spec.name] = {"content": content, "shape": [*shape]}
        written.append(step)
    return specs, written


@given(steps())
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[list[TensorSpec], list[dict[str, Any]]]
) -> None:
    specs, written = made
    (stream,) = read(tmp_path_factory.getbasetemp(), {"data": written}, *specs)
    for step, source in zip(stream, written, strict=True):
        for tensor in step.inputs:
            assert tensor.shape == tuple(source[tensor.name]["shape"])
            if tensor.datatype == "BYTES":
                found: list[Any] = [each.decode() for each in split_bytes(tensor.raw)]
            else:
                found = np.frombuffer(tensor.raw, NUMPY_TYPE[tensor.datatype]).tolist()
            assert found == source[tensor.name]["content"]


@given(st.data())
def test_any_document_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    names = st.sampled_from(["X", "content", "shape", "b64", "data", "datatype"])
    tree = st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3)
    )
    document = {"data": data.draw(tree), "validation_data": data.draw(tree)}
    refusal = ""
    try:
        read(tmp_path_factory.getbasetemp(), document, X)
    except InputError as error:
        refusal = str(error)
    assert not refusal or "data.json" in refusal
