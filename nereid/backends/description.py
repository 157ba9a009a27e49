"""What a model file states about its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2


class TensorDescription(NamedTuple):
    """An input or output of a model file."""

    name: str
    # A KServe datatype, such as FP32 or BYTES.
    datatype: str
    # With the batch dimension; -1: variable. None: the file states no rank.
    dims: tuple[int, ...] | None
    optional: bool = False


class ModelDescription(NamedTuple):
    """A model file's inputs and outputs, in its order."""

    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    # Set if the model completes its configuration itself: the whole configuration, to which nothing
    # is added.
    config: model_config_pb2.ModelConfig | None = None


# The file states nothing: the configuration is used as it is written.
EMPTY_DESCRIPTION: Final = ModelDescription((), ())
