"""Optimised graphs are kept in files: what is loaded from them, and when they do not count."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from nereid.core.errors import Internal
from nereid_executor.backends.onnx import backend
from tests.support.executor.instances import instance
from tests.support.models.onnx_models import value, with_external_weights, write

X = np.array([[1.0, -2.0]], np.float32)
CONFIG = "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 2 }"


def save(directory: Path, operator: str = "Relu") -> Path:
    """y = operator(x), with an Identity that is optimised away."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node(operator, ["same"], ["y"]),
    ]
    return write(directory, nodes, [value("x", "FP32", ["n", 2])], [value("y", "FP32", ["n", 2])])


def load_and_run(path: Path, kept: Path, text: str = CONFIG) -> list[float]:
    model = backend.load(instance(text, path, settings={"optimized-graph-directory": str(kept)}))
    try:
        (values,) = model.execute({"x": X}, ["y"])[0].tolist()
        return [float(each) for each in values]
    finally:
        model.close()


def operators(kept: Path) -> list[str]:
    (file,) = kept.iterdir()
    return [node.op_type for node in onnx.load(file).graph.node]


def test_a_graph_is_optimised_once(tmp_path: Path) -> None:
    path, kept = save(tmp_path / "1"), tmp_path / "kept"
    assert load_and_run(path, kept) == [1.0, 0.0]
    assert operators(kept) == ["Relu"]
    # It is what the next load runs: another graph under its name is not told apart.
    (file,) = kept.iterdir()
    (save(tmp_path / "other", "Neg") / "model.onnx").replace(file)
    assert load_and_run(path, kept) == [-1.0, 2.0]


def test_other_models_and_levels_have_files_of_their_own(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    path = save(tmp_path / "1")
    load_and_run(path, kept)
    assert load_and_run(save(tmp_path / "2", "Neg"), kept) == [-1.0, 2.0]
    load_and_run(path, kept, CONFIG + " optimization { graph { level: 1 } }")
    assert len(list(kept.iterdir())) == 3


def test_a_model_with_the_size_and_date_of_the_last_one_is_another(tmp_path: Path) -> None:
    path, kept = save(tmp_path / "1", "Abs"), tmp_path / "kept"
    file = path / "model.onnx"
    assert load_and_run(path, kept) == [1.0, 2.0]
    before = file.stat()
    save(path, "Neg")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load_and_run(path, kept) == [-1.0, 2.0]


def test_a_model_with_weights_in_other_files_is_loaded_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept, path = tmp_path / "kept", tmp_path / "1"
    for factor in (3.0, 5.0):
        write(
            path,
            [helper.make_node("Mul", ["x", "w"], ["y"])],
            [value("x", "FP32", ["n", 2])],
            [value("y", "FP32", ["n", 2])],
            [numpy_helper.from_array(np.full(2, factor, np.float32), "w")],
        )
        with_external_weights(path)
        os.utime(path / "weights", ns=(1, 1))
        assert load_and_run(path, kept) == [factor, -2 * factor]
    assert not kept.exists()
    assert not caplog.records


def test_a_graph_that_is_not_optimised_is_not_kept(tmp_path: Path) -> None:
    level = CONFIG + " optimization { graph { level: 2 } }"
    assert load_and_run(save(tmp_path / "1"), tmp_path / "kept", level) == [1.0, 0.0]
    assert not (tmp_path / "kept").exists()


def test_a_damaged_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, kept = save(tmp_path / "1"), tmp_path / "kept"
    load_and_run(path, kept)
    (file,) = kept.iterdir()
    file.write_bytes(b"damaged")
    assert load_and_run(path, kept) == [1.0, 0.0]
    assert "cannot be loaded" in caplog.text
    assert operators(kept) == ["Relu"]


def test_a_directory_that_cannot_be_written_costs_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    assert load_and_run(save(tmp_path / "1"), tmp_path / "file") == [1.0, 0.0]
    assert "cannot be kept" in caplog.text


def test_a_models_own_error_is_what_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.mkdir()
    (path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(Internal, match="failed to load 'm'"):
        load_and_run(path, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())
