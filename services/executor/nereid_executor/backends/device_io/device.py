"""What the data path needs of a device: memory, streams, events and copies.

Streams run what is enqueued on them in order, beside each other; events order one after another.
Implemented for NVIDIA's GPUs by cuda_device.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy as np


class DeviceTensor(NamedTuple):
    """A tensor in device memory, without gaps."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    # Whatever has to live for as long as the memory is used.
    owner: object = None

    @property
    def size_bytes(self) -> int:
        size = self.dtype.itemsize
        for dim in self.shape:
            size *= dim
        return size


class Device(Protocol):
    """One device, as seen by one thread. Streams and events are numbers.

    Copies are enqueued; host memory that is not pinned may be read at once. Every method raises
    Internal if the device refuses.
    """

    def allocate_device(self, size_bytes: int) -> int: ...
    def free_device(self, address: int) -> None: ...

    def allocate_pinned(self, size_bytes: int) -> int: ...
    def free_pinned(self, address: int) -> None: ...

    def create_stream(self) -> int: ...
    def destroy_stream(self, stream: int) -> None: ...

    def synchronize_stream(self, stream: int) -> None:
        """Wait for all that has been enqueued."""

    def create_event(self) -> int:
        """A new event, complete until it is recorded."""

    def destroy_event(self, event: int) -> None: ...

    def record_event(self, event: int, stream: int) -> None:
        """Complete the event once the stream has done what is enqueued on it now."""

    def wait_event(self, stream: int, event: int) -> None:
        """Have what is enqueued on the stream from now on wait for the event as recorded now."""

    def is_complete(self, event: int) -> bool: ...

    def synchronize_event(self, event: int) -> None:
        """Wait for the event as recorded last."""

    def copy_to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None: ...
    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None: ...
    def copy_on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None: ...


class GraphDevice(Device, Protocol):
    """A Device that captures graphs, which are numbers as well."""

    def capture_graph(self, stream: int, work: Callable[[], None]) -> int:
        """The graph of what work() enqueues on this stream; it is not executed yet."""

    def launch_graph(self, graph: int, stream: int) -> None: ...
    def destroy_graph(self, graph: int) -> None: ...
