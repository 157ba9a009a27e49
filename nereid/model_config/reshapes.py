"""Tensor shapes that differ between clients and the model: `reshape` in a configuration."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from nereid.core.tensors.shapes import VARIABLE, substitute

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2


class Reshape(NamedTuple):
    """A change of shape from source to target, both without the batch dimension.

    -1 is a variable dimension. batch_dims (1 or 0) counts the batch dimensions in front.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    batch_dims: int

    def apply(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a tensor's new shape, or the old shape if the element counts would differ."""
        batch, row = shape[: self.batch_dims], shape[self.batch_dims :]
        if len(row) == len(self.source):
            target = substitute(self.target, self.source, row)
        else:
            # As in Triton, a fixed target is used even if the rank is not the configured one.
            target = self.target
        return batch + target if prod(target) == prod(row) and VARIABLE not in target else shape


def input_reshapes(config: model_config_pb2.ModelConfig) -> dict[str, Reshape]:
    """Return for each input the reshape from the client's shape to the model's."""
    return {
        tensor.name: Reshape(
            tuple(tensor.dims), tuple(tensor.reshape.shape), int(config.max_batch_size > 0)
        )
        for tensor in config.input
        if tensor.HasField("reshape")
    }


def output_reshapes(config: model_config_pb2.ModelConfig) -> dict[str, Reshape]:
    """Return for each output the reshape from the model's shape to the client's."""
    return {
        tensor.name: Reshape(
            tuple(tensor.reshape.shape), tuple(tensor.dims), int(config.max_batch_size > 0)
        )
        for tensor in config.output
        if tensor.HasField("reshape")
    }
