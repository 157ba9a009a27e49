"""What an ONNX file says and the runtime does not show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from nereid_executor.backends.onnx.model_graph import (
    has_external_data,
    only_moves_strings,
    quantizes_by_batch,
    unranked_tensors,
)
from tests.support.models.onnx_models import value, write


def test_tensors_without_a_shape_are_found(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [helper.make_node("Identity", ["a"], ["c"]), helper.make_node("Identity", ["b"], ["d"])],
        [value("a", "FP32", None), value("b", "FP32", [])],
        [value("c", "FP32", [2, "n"]), value("d", "FP32", None)],
    )
    assert unranked_tensors(path / "model.onnx") == {"a", "d"}


GRAPH = b"\x3a\x05\x5a\x03\x0a\x01q"


@pytest.mark.parametrize(
    ("data", "names"),
    [
        # Other fields of each wire type, then a graph with one input "q" that has no type.
        (b"\x08\x80\x01\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x3a\x05\x5a\x03\x0a\x01q", {"q"}),
        # A group, which ONNX has nowhere.
        (b"\x0b" + GRAPH, set()),
        # A type that is no tensor's.
        (b"\x3a\x09\x62\x07\x0a\x01q\x12\x02\x22\x00", {"q"}),
    ],
)
def test_what_it_does_not_need_is_skipped(tmp_path: Path, data: bytes, names: set[str]) -> None:
    (tmp_path / "m").write_bytes(data)
    assert unranked_tensors(tmp_path / "m") == names


def moves_strings(tmp_path: Path, *nodes: Any, functions: Sequence[Any] = ()) -> bool:
    graph = helper.make_graph(nodes, "g", [], [])
    model = helper.make_model(graph, functions=functions)
    (tmp_path / "m").write_bytes(model.SerializeToString())
    return only_moves_strings(tmp_path / "m")


@pytest.mark.parametrize(
    ("kind", "domain", "expected"),
    [
        ("Identity", "", True),
        ("Gather", "ai.onnx", True),
        ("StringConcat", "", True),
        ("Cast", "", True),
        ("StringNormalizer", "", False),
        ("StringSplit", "", False),
        ("RegexFullMatch", "", False),
        ("TfIdfVectorizer", "", False),
        ("Unique", "", False),
        ("LabelEncoder", "ai.onnx.ml", False),
        ("Identity", "mine", False),
    ],
)
def test_whether_operators_look_into_strings(
    tmp_path: Path, kind: str, domain: str, expected: bool
) -> None:
    node = helper.make_node(kind, ["a"], ["b"], domain=domain)
    assert moves_strings(tmp_path, node) is expected
    branch = helper.make_graph([node], "inner", [], [])
    keep = helper.make_graph([helper.make_node("Identity", ["a"], ["b"])], "keep", [], [])
    outer = helper.make_node("If", ["c"], ["d"], then_branch=keep, else_branch=branch)
    assert moves_strings(tmp_path, helper.make_node("Add", ["a"], ["b"]), outer) is expected


def test_functions_may_hide_anything(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["a"], ["b"])
    opset = helper.make_opsetid("", 17)
    function = helper.make_function("mine", "F", ["a"], ["b"], [node], [opset])
    assert not moves_strings(tmp_path, node, functions=[function])


def constant(tensor: Any) -> Any:
    return helper.make_node("Constant", [], ["c"], value=tensor)


def within(graph: Any) -> Any:
    return helper.make_node("If", ["flag"], ["c"], then_branch=graph, else_branch=graph)


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("place", ["initializer", "sparse", "attribute", "branch", "function"])
def test_weights_in_other_files_are_found_wherever_they_are(
    tmp_path: Path, place: str, external: bool
) -> None:
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "w")
    if external:
        onnx.external_data_helper.set_external_data(tensor, "weights")
        tensor.ClearField("raw_data")
    indices = numpy_helper.from_array(np.arange(2), "i")
    sparse = helper.make_sparse_tensor(tensor, indices, [4])
    inner = helper.make_graph([constant(tensor)], "inner", [], [])
    imports = [helper.make_opsetid("", 21)]
    graph = helper.make_graph(
        [constant(tensor)] if place == "attribute" else [within(inner)] * (place == "branch"),
        "g",
        [],
        [],
        [tensor] if place == "initializer" else [],
        sparse_initializer=[sparse] if place == "sparse" else [],
    )
    functions = [helper.make_function("d", "F", [], ["c"], [constant(tensor)], imports)]
    model = helper.make_model(graph, functions=functions if place == "function" else [])
    (tmp_path / "m").write_bytes(model.SerializeToString())
    assert has_external_data(tmp_path / "m") is external


def test_a_file_that_is_no_model_has_no_weights_elsewhere(tmp_path: Path) -> None:
    for data in (b"", b"\xff" * 12):
        (tmp_path / "m").write_bytes(data)
        assert not has_external_data(tmp_path / "m")


def test_dynamic_quantization_is_found_at_any_depth(tmp_path: Path) -> None:
    quantizing = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    branch = helper.make_graph([quantizing], "b", [], [])
    plain = helper.make_node("QuantizeLinear", ["x", "s"], ["q"])
    function = helper.make_function("own", "F", ["x"], ["q"], [quantizing], [])
    for nodes, functions, expected in (
        ([plain], [], False),
        ([plain, quantizing], [], True),
        (
            [helper.make_node("DynamicQuantizeMatMul", ["x"], ["y"], domain="com.microsoft")],
            [],
            True,
        ),
        ([helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], [], True),
        ([plain], [function], True),
    ):
        model = helper.make_model(helper.make_graph(nodes, "g", [], []), functions=functions)
        (tmp_path / "m").write_bytes(model.SerializeToString())
        assert quantizes_by_batch(tmp_path / "m") == expected
