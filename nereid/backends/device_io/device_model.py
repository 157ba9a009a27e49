"""A model whose batches go through a Pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.backends import Capabilities, TensorParts
from nereid.backends.device_io.pipeline import Streams
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from nereid.backends import ModelDescription
    from nereid.backends.device_io.device import Device
    from nereid.backends.device_io.pipeline import Pipeline
    from nereid.core.tensors.tensors import Array


class DeviceModel:
    """A PipelinedModel whose batches go through a Pipeline; only its instance's thread uses it."""

    def __init__(
        self, description: ModelDescription, pipeline: Pipeline, resources: ExitStack
    ) -> None:
        self.description = description
        self.pipeline = pipeline
        self.capabilities = Capabilities(pipeline_depth=pipeline.depth)
        resources.callback(pipeline.close)
        self._resources = resources.pop_all()

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Execute one batch and wait for its outputs."""
        self.submit_batch({name: parts_of(array) for name, array in inputs.items()}, outputs)
        return self.collect_batch()

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        """Begin a batch; raise NereidError if the model or the device refuses the batch."""
        self.pipeline.submit(inputs, outputs)

    def is_batch_complete(self) -> bool:
        """Return whether the outputs of the oldest batch are ready."""
        return self.pipeline.is_complete()

    def collect_batch(self) -> Sequence[Array]:
        """Wait for and return the oldest batch's outputs, which are valid until the next call."""
        return self.pipeline.collect()

    def close(self) -> None:
        """Free the pipeline and all resources."""
        self._resources.close()


def make_streams(device: Device, depth: int, resources: ExitStack) -> Streams:
    """Create three streams if batches overlap, otherwise one; `resources` destroys them."""

    def make_stream() -> int:
        stream = device.create_stream()
        resources.callback(device.destroy_stream, stream)
        return stream

    if depth > 1:
        return Streams(make_stream(), make_stream(), make_stream())
    return Streams(*[make_stream()] * 3)


def parts_of(array: Array) -> TensorParts:
    """Return an array as TensorParts with a single part."""
    if array.dtype.hasobject:
        raise InvalidArgument("strings cannot be copied to a GPU")
    flat = array.reshape(-1).view("u1")
    return TensorParts([flat.data], array.shape, array.dtype)
