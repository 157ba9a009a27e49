"""Choice of the CUDA graphs to capture, and of the graph for a batch, by Triton's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.tensors.shapes import VARIABLE, format_shape, shape_fits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.pb import model_config_pb2

Shapes = dict[str, tuple[int, ...]]


class GraphSpec(NamedTuple):
    """Full shapes of a graph's inputs, and the smallest batch size that the graph executes."""

    shapes: Shapes
    min_rows: int

    @property
    def rows(self) -> int:
        """Number of rows that the graph computes, if the model supports batches."""
        return next(iter(self.shapes.values()))[0]


def graph_specs(config: model_config_pb2.ModelConfig, inputs: Shapes) -> list[GraphSpec]:
    """Return the specs of the graphs to capture.

    inputs: shapes with the batch dimension; -1 is variable. Raises InvalidArgument if the model
    does not allow a shape. Raises Unimplemented if a lower bound differs from its graph in more
    than the batch dimension.
    """
    cuda = config.optimization.cuda
    if not cuda.graphs:
        return []
    if cuda.graph_spec:
        return [_from_graph_spec(config, inputs, written) for written in cuda.graph_spec]
    batching = config.max_batch_size > 0
    if any(VARIABLE in (dims[1:] if batching else dims) for dims in inputs.values()):
        # Only a graph_spec could give sizes for variable dimensions.
        return []
    if not batching:
        return [GraphSpec(dict(inputs), 0)]
    sizes = {1, config.max_batch_size, *config.dynamic_batching.preferred_batch_size}
    return [
        GraphSpec({name: (size, *dims[1:]) for name, dims in inputs.items()}, size)
        for size in sorted(sizes)
    ]


def find_graph(specs: Sequence[GraphSpec], shapes: Shapes, *, batching: bool) -> int | None:
    """Return the index of the smallest graph that can execute these shapes; `None` if none can."""
    best: int | None = None
    for index, spec in enumerate(specs):
        if spec.shapes == shapes:
            return index
        if batching and _covers(spec, shapes) and (best is None or spec.rows < specs[best].rows):
            best = index
    return best


def _covers(spec: GraphSpec, shapes: Shapes) -> bool:
    return spec.shapes.keys() == shapes.keys() and all(
        spec.min_rows <= shape[0] <= spec.rows and shape[1:] == spec.shapes[name][1:]
        for name, shape in shapes.items()
    )


def _from_graph_spec(
    config: model_config_pb2.ModelConfig, inputs: Shapes, written: Any
) -> GraphSpec:
    batching = config.max_batch_size > 0
    if written.batch_size > config.max_batch_size or (batching and written.batch_size < 1):
        raise InvalidArgument(
            f"unable to load model '{config.name}', graph_spec has batch_size "
            f"{written.batch_size}, max_batch_size is {config.max_batch_size}"
        )
    unknown = sorted(written.input.keys() - inputs.keys())
    if unknown:
        raise InvalidArgument(
            f"unable to load model '{config.name}', graph_spec names '{unknown[0]}', "
            "which is no input"
        )
    shapes = {}
    for name, dims in inputs.items():
        rest = tuple(written.input[name].dim) if name in written.input else dims[batching:]
        shape = (written.batch_size, *rest) if batching else rest
        if VARIABLE in shape or not shape_fits(shape, dims):
            raise InvalidArgument(
                f"unable to load model '{config.name}', graph_spec has the shape "
                f"{format_shape(shape)} for input '{name}', the model {format_shape(dims)}"
            )
        shapes[name] = shape
    return GraphSpec(shapes, _min_rows(config, written, shapes))


def _min_rows(config: model_config_pb2.ModelConfig, written: Any, shapes: Shapes) -> int:
    if not written.HasField("graph_lower_bound"):
        return int(written.batch_size)
    bound = written.graph_lower_bound
    batching = config.max_batch_size > 0
    for name, each in bound.input.items():
        if tuple(each.dim) != shapes.get(name, ())[batching:]:
            raise Unimplemented(
                f"unable to load model '{config.name}', graph_lower_bound of input '{name}' "
                "differs from its graph in more than batch_size"
            )
    return int(bound.batch_size) if batching else 0
