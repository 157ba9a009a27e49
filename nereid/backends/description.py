"""Descriptions of models' tensors, as model files state them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2


class TensorDescription(NamedTuple):
    """An input or output of a model file."""

    name: str
    # A KServe datatype, such as FP32 or BYTES.
    datatype: str
    # Dimensions, with the batch dimension; -1 is a variable one. `None` if the file states no rank.
    dims: tuple[int, ...] | None
    optional: bool = False


class ModelDescription(NamedTuple):
    """The inputs and outputs of a model file, in its order."""

    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    # The whole configuration, to which nothing is added, if the model completes it itself.
    config: model_config_pb2.ModelConfig | None = None


# Description of a file that states nothing: the configuration is used as it is written.
EMPTY_DESCRIPTION: Final = ModelDescription((), ())
