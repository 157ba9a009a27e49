"""Tensors that clients see in another shape than the model: `reshape` in a configuration."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from nereid.core.tensors.shapes import VARIABLE, substitute

if TYPE_CHECKING:
    from nereid.pb import model_config_pb2


class Reshape(NamedTuple):
    """From source to target, both without the batch dimension; -1: variable.

    batch_dims: how many dimensions come before these, 1 or 0.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    batch_dims: int

    def apply(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A tensor's shape after it; the same if that has another number of elements."""
        batch, row = shape[: self.batch_dims], shape[self.batch_dims :]
        if len(row) == len(self.source):
            target = substitute(self.target, self.source, row)
        else:
            # As on Triton, a model's output may have any shape if its configured one is fixed.
            target = self.target
        return batch + target if prod(target) == prod(row) and VARIABLE not in target else shape


def input_reshapes(config: model_config_pb2.ModelConfig) -> dict[str, Reshape]:
    """From the shapes of requests to those that the model expects, by input."""
    return {
        tensor.name: Reshape(
            tuple(tensor.dims), tuple(tensor.reshape.shape), int(config.max_batch_size > 0)
        )
        for tensor in config.input
        if tensor.HasField("reshape")
    }


def output_reshapes(config: model_config_pb2.ModelConfig) -> dict[str, Reshape]:
    """From the shapes of the model's outputs to those of responses, by output."""
    return {
        tensor.name: Reshape(
            tuple(tensor.reshape.shape), tuple(tensor.dims), int(config.max_batch_size > 0)
        )
        for tensor in config.output
        if tensor.HasField("reshape")
    }
