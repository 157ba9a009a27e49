"""Descriptions of a model's tensors, as its model file states them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2


class TensorDescription(NamedTuple):
    """One input or output, as a model file states it."""

    name: str
    # KServe datatype, such as FP32 or BYTES.
    datatype: str
    # Includes the batch dimension; -1 is a variable dimension. `None` if the file states no rank.
    dims: tuple[int, ...] | None
    optional: bool = False


class ModelDescription(NamedTuple):
    """The inputs and outputs that a model file states, in the order of the file."""

    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    # The whole configuration if the model completes it itself. Nothing is added to it.
    config: model_config_pb2.ModelConfig | None = None
    # The numbers of a row depend on the other rows of its batch.
    mixes_rows: bool = False


EMPTY_DESCRIPTION: Final = ModelDescription((), ())
