"""Which batches are captured as CUDA graphs, and which graph executes one."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from nereid.backends.device_io.graph_specs import (
    GraphSpec,
    find_graph,
    graph_specs,
)
from nereid.core.errors import InvalidArgument, NereidError, Unimplemented
from nereid.pb import model_config_pb2
from nereid_tensorrt.optimization_profiles import Shapes

FIXED: Shapes = {"x": (-1, 4), "y": (-1,)}
OPEN: Shapes = {"x": (-1, -1), "y": (-1,)}


def config(cuda: str, more: str = "max_batch_size: 8") -> model_config_pb2.ModelConfig:
    text = f'name: "m" {more} optimization {{ cuda {{ {cuda} }} }}'
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def written(body: str) -> str:
    return f"graphs: true graph_spec {{ {body} }}"


X3 = 'input { key: "x" value { dim: 3 } }'


def sizes(specs: list[GraphSpec]) -> list[int]:
    return [spec.rows for spec in specs]


def test_by_default_nothing_is_captured() -> None:
    assert graph_specs(config(""), FIXED) == []
    assert graph_specs(config("graph_spec { batch_size: 1 }"), FIXED) == []


def test_by_default_batches_that_are_common_are_captured() -> None:
    specs = graph_specs(config("graphs: true"), FIXED)
    assert specs == [
        GraphSpec({"x": (1, 4), "y": (1,)}, 1),
        GraphSpec({"x": (8, 4), "y": (8,)}, 8),
    ]
    preferred = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 8 ] }"
    assert sizes(graph_specs(config("graphs: true", preferred), FIXED)) == [1, 4, 8]


def test_shapes_that_vary_have_to_be_written() -> None:
    assert graph_specs(config("graphs: true"), OPEN) == []
    specs = graph_specs(config(written(f"batch_size: 2 {X3}")), OPEN)
    assert specs == [GraphSpec({"x": (2, 3), "y": (2,)}, 2)]


def test_without_batching_there_is_one_graph() -> None:
    assert graph_specs(config("graphs: true", ""), {"x": (2, 4)}) == [GraphSpec({"x": (2, 4)}, 0)]
    specs = graph_specs(config(written(X3), ""), {"x": (-1,)})
    assert specs == [GraphSpec({"x": (3,)}, 0)]


def test_a_lower_bound_lets_smaller_batches_in() -> None:
    bound = f"graph_lower_bound {{ batch_size: 2 {X3} }}"
    (spec,) = graph_specs(config(written(f"batch_size: 4 {X3} {bound}")), OPEN)
    assert (spec.rows, spec.min_rows) == (4, 2)


Z = 'input { key: "z" value { } }'
SMALLER = f"graph_lower_bound {{ batch_size: 2 {X3.replace('3', '2')} }}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"batch_size: 9 {X3}", "graph_spec has batch_size 9, max_batch_size is 8"),
        (X3, "graph_spec has batch_size 0, max_batch_size is 8"),
        ("batch_size: 1", r"shape \[1,-1\] for input 'x', the model \[-1,-1\]"),
        (
            f"batch_size: 1 {X3.replace('3', '[ 3, 3 ]')}",
            r"shape \[1,3,3\] for input 'x', the model",
        ),
        (f"batch_size: 1 {X3} {Z}", "graph_spec names 'z', which is no input"),
        (f"batch_size: 4 {X3} {SMALLER}", "graph_lower_bound of input 'x' differs"),
    ],
)
def test_graphs_that_cannot_be_are_refused(body: str, message: str) -> None:
    with pytest.raises(NereidError, match=message) as caught:
        graph_specs(config(written(body)), OPEN)
    expected = Unimplemented if body.endswith(SMALLER) else InvalidArgument
    assert type(caught.value) is expected


SPECS = [
    GraphSpec({"x": (8, 4), "y": (8,)}, 5),
    GraphSpec({"x": (6, 4), "y": (6,)}, 3),
    GraphSpec({"x": (2, 4), "y": (2,)}, 2),
]


@pytest.mark.parametrize(
    ("rows", "found"),
    [(8, 0), (7, 0), (6, 1), (5, 1), (3, 1), (2, 2), (1, None), (9, None)],
)
def test_the_smallest_graph_that_can_execute_it_is_found(rows: int, found: int | None) -> None:
    assert find_graph(SPECS, {"x": (rows, 4), "y": (rows,)}, batching=True) == found


def test_other_shapes_have_no_graph() -> None:
    assert find_graph(SPECS, {"x": (8, 5), "y": (8,)}, batching=True) is None
    assert find_graph(SPECS, {"x": (8, 4)}, batching=True) is None
    assert find_graph([GraphSpec({"x": (4,)}, 0)], {"x": (3,)}, batching=False) is None
    assert find_graph([GraphSpec({"x": (4,)}, 0)], {"x": (4,)}, batching=False) == 0
