"""A model whose batches go through a Pipeline, whatever runs it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.backends import TensorParts
from nereid.core.errors import InvalidArgument
from nereid_executor.backends.device_io.pipeline import Streams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from nereid.backends import ModelDescription
    from nereid.core.tensors.tensors import Array
    from nereid_executor.backends.device_io.device import Device
    from nereid_executor.backends.device_io.pipeline import Pipeline


class DeviceModel:
    """A PipelinedModel; used by its instance's thread alone."""

    bytes_as_text = False
    escapes_bytes = False

    def __init__(
        self, description: ModelDescription, pipeline: Pipeline, resources: ExitStack
    ) -> None:
        """resources: what to close after the pipeline, which the model takes over."""
        self.description = description
        self.pipeline = pipeline
        self.pipeline_depth = pipeline.depth
        resources.callback(pipeline.close)
        self._resources = resources.pop_all()

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        self.submit_batch({name: parts_of(array) for name, array in inputs.items()}, outputs)
        return self.collect_batch()

    def submit_batch(self, inputs: Mapping[str, TensorParts], outputs: Sequence[str]) -> None:
        self.pipeline.submit(inputs, outputs)

    def is_batch_complete(self) -> bool:
        return self.pipeline.is_complete()

    def collect_batch(self) -> Sequence[Array]:
        return self.pipeline.collect()

    def close(self) -> None:
        self._resources.close()


def make_streams(device: Device, depth: int, resources: ExitStack) -> Streams:
    """Three where batches overlap, else one. resources: gets what destroys them."""

    def make_stream() -> int:
        stream = device.create_stream()
        resources.callback(device.destroy_stream, stream)
        return stream

    if depth > 1:
        return Streams(make_stream(), make_stream(), make_stream())
    return Streams(*[make_stream()] * 3)


def parts_of(array: Array) -> TensorParts:
    """An array as one part."""
    if array.dtype.hasobject:
        raise InvalidArgument("strings cannot be copied to a GPU")
    flat = array.reshape(-1).view("u1")
    return TensorParts([flat.data], array.shape, array.dtype)
