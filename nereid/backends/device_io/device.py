"""The part of a device that the data path needs: memory, streams, events and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy as np


class DeviceTensor(NamedTuple):
    """A tensor in device memory, without gaps between its elements."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    # Object that must live as long as the memory is used.
    owner: object = None

    @property
    def size_bytes(self) -> int:
        """Size of the tensor in bytes."""
        size = self.dtype.itemsize
        for dim in self.shape:
            size *= dim
        return size


class Device(Protocol):
    """One device, as seen by one thread. Streams and events are numbers.

    Copies are enqueued. If host memory is not pinned, a copy may read it before the call returns.
    Every method raises Internal if the device reports an error.
    """

    def allocate_device(self, size_bytes: int) -> int:
        """Allocate device memory; return its address."""

    def free_device(self, address: int) -> None:
        """Free device memory."""

    def allocate_pinned(self, size_bytes: int) -> int:
        """Allocate pinned memory of the host; return its address."""

    def free_pinned(self, address: int) -> None:
        """Free pinned memory."""

    def create_stream(self) -> int:
        """Create a stream."""

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""

    def synchronize_stream(self, stream: int) -> None:
        """Wait until the stream has done all enqueued work."""

    def create_event(self) -> int:
        """Create an event. It counts as complete until it is recorded."""

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""

    def record_event(self, event: int, stream: int) -> None:
        """Record the event: it completes when the stream has done all work enqueued so far."""

    def wait_event(self, stream: int, event: int) -> None:
        """Make later work on the stream wait until the event, as last recorded, is complete."""

    def is_complete(self, event: int) -> bool:
        """Return whether the event, as last recorded, is complete."""

    def synchronize_event(self, event: int) -> None:
        """Wait until the event, as last recorded, is complete."""

    def copy_to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from the host's memory to the device's."""

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from the device's memory to the host's."""

    def copy_on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy within the device's memory."""


class GraphDevice(Device, Protocol):
    """A Device that captures graphs, which are numbers as well."""

    def capture_graph(self, stream: int, work: Callable[[], None]) -> int:
        """Capture as a graph what work() enqueues on the stream; nothing is executed yet."""

    def launch_graph(self, graph: int, stream: int) -> None:
        """Enqueue the execution of a graph."""

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""
