"""Ranks in an ONNX file that the runtime does not show."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from nereid.services.executor.backends.onnx.model_graph import unranked_tensors
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
