"""What a model file says of itself: its tensors, as an executor read them from the graph.

Knows nothing of configurations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nereid.pb import nereid_pb2


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor of the graph. dims has the batch dimension; None: the graph states no rank."""

    name: str
    # A number of model_config.proto's DataType.
    datatype: int
    dims: tuple[int, ...] | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The graph's inputs and outputs, in its order."""

    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]

    @classmethod
    def from_proto(cls, described: nereid_pb2.Described) -> ModelDescription:
        """From an executor's answer to Describe."""
        return cls(
            tuple(map(_tensor, described.inputs)),
            tuple(map(_tensor, described.outputs)),
        )


def _tensor(tensor: nereid_pb2.TensorDescription) -> TensorDescription:
    return TensorDescription(
        name=tensor.name,
        datatype=tensor.data_type,
        dims=None if tensor.unknown_rank else tuple(tensor.dims),
        optional=tensor.optional,
    )
