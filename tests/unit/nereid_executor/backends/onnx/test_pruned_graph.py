"""Outputs that nobody asks for are not computed: a model in which computing one of them fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from nereid.core.errors import Internal, InvalidArgument
from nereid_executor.backends.onnx import backend
from nereid_executor.backends.onnx.pruned_graph import prune_outputs
from nereid_executor.batch.runner import Runner
from tests.support.executor.instances import instance, responses
from tests.support.models.onnx_models import (
    head,
    member,
    response_of,
    value,
    with_external_weights,
    write,
)

X = np.array([[1.0, -2.0]], np.float32)
CONFIG = (
    "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: 2 }"
    " output { name: 'relu' data_type: TYPE_FP32 dims: 2 }"
)
OTHERS = (
    " output { name: 'twice' data_type: TYPE_FP32 dims: 2 }"
    " output { name: 'bad' data_type: TYPE_FP32 dims: 2 }"
)


def sets(text: str) -> str:
    return f" parameters {{ key: 'output_sets' value {{ string_value: '{text}' }} }}"


def fragile(directory: Path) -> Path:
    """relu = max(x, 0), twice = 2 relu; bad cannot be computed."""
    return write(
        directory,
        [
            helper.make_node("Relu", ["x"], ["relu"]),
            helper.make_node("Gather", ["x", "beyond"], ["bad"], axis=1),
            helper.make_node("Add", ["relu", "relu"], ["twice"]),
        ],
        [value("x", "FP32", ["n", 2])],
        [value(name, "FP32", ["n", 2]) for name in ("relu", "twice", "bad")],
        [numpy_helper.from_array(np.array([7, 7]), "beyond")],
    )


def test_an_output_that_the_configuration_omits_is_not_computed(tmp_path: Path) -> None:
    path = fragile(tmp_path / "1")
    model = backend.load(instance(CONFIG, path))
    assert model.execute({"x": X}, ["relu"])[0].tolist() == [[1.0, 0.0]]
    model.close()
    # ONNX Runtime by itself computes it, though it is not asked for.
    with pytest.raises(Internal, match="onnx runtime error"):
        backend.load(instance(CONFIG + OTHERS, path)).execute({"x": X}, ["relu"])


def test_each_batch_runs_on_the_smallest_set_with_all_that_its_members_ask_for(
    tmp_path: Path,
) -> None:
    spec = instance(CONFIG + OTHERS + sets("twice, relu; relu;"), fragile(tmp_path / "1"))
    runner = Runner(spec, backend.load(spec))

    def outputs_of(*wanted: tuple[str, ...]) -> list[list[str]]:
        members = [
            member(head(("x", "FP32", [1, 2]), outputs=names), X.tobytes()) for names in wanted
        ]
        return [
            [each.error.message]
            if each.HasField("error")
            else [name for name, *_ in response_of(each)]
            for each in responses(runner, *members)
        ]

    assert outputs_of(("relu",)) == [["relu"]]
    # What one member asks for is not sent to the other.
    assert outputs_of(("relu",), ("twice",)) == [["relu"], ["twice"]]
    # Only the whole model has it.
    assert "onnx runtime error" in outputs_of(("relu",), ("bad",))[0][0]
    assert outputs_of(("twice",)) == [["twice"]]


def test_a_set_of_something_else_than_outputs(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="'output_sets' names 'y', which is no output"):
        backend.load(instance(CONFIG + OTHERS + sets("relu,y"), fragile(tmp_path / "1")))


def test_sets_and_instances_have_a_bound_together(tmp_path: Path) -> None:
    more = OTHERS + sets("relu; twice") + " instance_group { count: 200 }"
    text = "parameter 'output_sets' of model 'm' must be at most 512 sessions for 200 instances but"
    with pytest.raises(InvalidArgument, match=f"{text} is 600"):
        backend.load(instance(CONFIG + more, fragile(tmp_path / "1")))


def test_a_model_of_which_all_is_needed_is_loaded_as_it_is(tmp_path: Path) -> None:
    path = fragile(tmp_path / "1") / "model.onnx"
    assert prune_outputs(path, ["twice", "bad"]) is None
    # The configuration names an output that is not there; checking it says so.
    assert prune_outputs(path, ["relu", "y"]) is None
    pruned = onnx.load_from_string(prune_outputs(path, ["twice"]) or b"")
    assert [node.op_type for node in pruned.graph.node] == ["Relu", "Add"]
    assert not pruned.graph.initializer
    assert [output.name for output in pruned.graph.output] == ["twice"]
    assert pruned.ir_version == 10


def test_graphs_within_nodes_keep_what_they_take_from_around_them(tmp_path: Path) -> None:
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["outer"], [name])], name, [], [value(name, "FP32", None)]
        )
        for name, kind in (("then", "Identity"), ("else", "Neg"))
    }
    path = write(
        tmp_path / "1",
        [
            helper.make_node("Relu", ["x"], ["outer"]),
            helper.make_node("If", ["flag"], ["relu"], **branches),
            helper.make_node("Neg", ["x"], ["other"]),
        ],
        [value("x", "FP32", ["n", 2])],
        [value("relu", "FP32", ["n", 2]), value("other", "FP32", ["n", 2])],
        [numpy_helper.from_array(np.array(True), "flag")],
    )
    model = backend.load(instance(CONFIG, path))
    assert model.execute({"x": X}, ["relu"])[0].tolist() == [[1.0, 0.0]]
    pruned = onnx.load_from_string(prune_outputs(path / "model.onnx", ["relu"]) or b"")
    assert [node.op_type for node in pruned.graph.node] == ["Relu", "If"]


def test_inputs_that_only_spared_nodes_take_may_still_be_sent(tmp_path: Path) -> None:
    path = write(
        tmp_path / "1",
        [helper.make_node("Relu", ["x"], ["relu"]), helper.make_node("Neg", ["z"], ["other"])],
        [value("x", "FP32", ["n", 2]), value("z", "FP32", ["n", 2])],
        [value("relu", "FP32", ["n", 2]), value("other", "FP32", ["n", 2])],
    )
    model = backend.load(
        instance(CONFIG + " input { name: 'z' data_type: TYPE_FP32 dims: 2 }", path)
    )
    assert model.execute({"x": X, "z": X}, ["relu"])[0].tolist() == [[1.0, 0.0]]


def weighted(directory: Path) -> Path:
    """relu = w x, other = -x; w is in a file of its own."""
    return with_external_weights(
        write(
            directory,
            [
                helper.make_node("Mul", ["x", "w"], ["relu"]),
                helper.make_node("Neg", ["x"], ["other"]),
            ],
            [value("x", "FP32", ["n", 2])],
            [value("relu", "FP32", ["n", 2]), value("other", "FP32", ["n", 2])],
            [numpy_helper.from_array(np.array([3.0, 5.0], np.float32), "w")],
        )
    )


def test_external_weights_are_found(tmp_path: Path) -> None:
    model = backend.load(instance(CONFIG, weighted(tmp_path / "1")))
    assert model.execute({"x": X}, ["relu"])[0].tolist() == [[3.0, -10.0]]


@pytest.mark.parametrize("more", ["", sets("relu")])
def test_a_model_in_a_hubs_cache_is_loaded_as_it_is(tmp_path: Path, more: str) -> None:
    """Its files are links to blobs elsewhere, which ONNX Runtime takes of a model's file only."""
    blobs, snapshot = tmp_path / "hub/blobs", tmp_path / "hub/snapshots/1"
    weighted(blobs)
    snapshot.mkdir(parents=True)
    for name in ("model.onnx", "weights"):
        (blobs / name).rename(blobs / f"sha256-{name}")
        (snapshot / name).symlink_to(f"../../blobs/sha256-{name}")
    version = tmp_path / "m/1"
    version.parent.mkdir()
    version.symlink_to(snapshot)
    spec = instance(CONFIG + more, version)
    model = backend.load(spec)
    assert model.execute({"x": X}, ["relu"])[0].tolist() == [[3.0, -10.0]]
    assert backend.describe(spec.config, version) == model.description


def test_describing_a_model_opens_what_loading_it_does(tmp_path: Path) -> None:
    """An output that cannot even be loaded is none of a configuration that omits it."""
    node = helper.make_node("NoSuchOperator", ["x"], ["bad"])
    path = write(
        tmp_path / "1",
        [helper.make_node("Relu", ["x"], ["relu"]), node],
        [value("x", "FP32", ["n", 2])],
        [value("relu", "FP32", ["n", 2]), value("bad", "FP32", ["n", 2])],
    )
    spec = instance(CONFIG, path)
    assert backend.describe(spec.config, path) == backend.load(spec).description
