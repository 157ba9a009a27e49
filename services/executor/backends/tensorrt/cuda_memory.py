"""CUDA streams, memory of host and device, and captured graphs.

All belong to the thread that created them, on the device that it had set. Knows no models.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import runtime as cuda

from nereid.core.errors import Internal

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.tensors import Array


def check_cuda(result: tuple[Any, ...]) -> Any:
    """The value of a CUDA call's result.

    Raises:
        Internal: the call failed.
    """
    error, *values = result
    if error != cuda.cudaError_t.cudaSuccess:
        _, text = cuda.cudaGetErrorString(error)
        raise Internal(f"CUDA error {int(error)}: {text.decode()}")
    return values[0] if len(values) == 1 else values


def set_device(number: int) -> None:
    """Make this thread use a GPU."""
    check_cuda(cuda.cudaSetDevice(number))


def compute_capability(number: int) -> str:
    """A GPU's compute capability, such as 8.6."""
    attributes = cuda.cudaDeviceAttr
    major = check_cuda(
        cuda.cudaDeviceGetAttribute(attributes.cudaDevAttrComputeCapabilityMajor, number)
    )
    minor = check_cuda(
        cuda.cudaDeviceGetAttribute(attributes.cudaDevAttrComputeCapabilityMinor, number)
    )
    return f"{major}.{minor}"


class Stream:
    """A stream, and an event to wait for its work."""

    def __init__(self, *, priority: int = 0, busy_wait: bool = False) -> None:
        """priority: above 0 the highest, below 0 the lowest. busy_wait: poll, do not block."""
        lowest, highest = check_cuda(cuda.cudaDeviceGetStreamPriorityRange())
        cuda_priority = highest if priority > 0 else lowest if priority < 0 else 0
        flags = cuda.cudaEventDisableTiming | (0 if busy_wait else cuda.cudaEventBlockingSync)
        stream = cuda.cudaStreamCreateWithPriority(cuda.cudaStreamNonBlocking, cuda_priority)
        self._stream = check_cuda(stream)
        self._event = check_cuda(cuda.cudaEventCreateWithFlags(flags))
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Wait for all enqueued work."""
        check_cuda(cuda.cudaEventRecord(self._event, self._stream))
        check_cuda(cuda.cudaEventSynchronize(self._event))

    def capture_graph(self, work: Callable[[], None]) -> Graph:
        """The graph of what `work` enqueues on this stream; it is not executed yet."""
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        check_cuda(cuda.cudaStreamBeginCapture(self._stream, mode))
        try:
            work()
        finally:
            # Otherwise the stream stays in capture mode, and unusable.
            graph = check_cuda(cuda.cudaStreamEndCapture(self._stream))
        return Graph(graph)

    def launch_graph(self, graph: Graph) -> None:
        check_cuda(cuda.cudaGraphLaunch(graph.executable, self._stream))

    def copy_to_device(self, device: int, host: int, size_bytes: int) -> None:
        kind = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        check_cuda(cuda.cudaMemcpyAsync(device, host, size_bytes, kind, self._stream))

    def copy_to_host(self, host: int, device: int, size_bytes: int) -> None:
        kind = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        check_cuda(cuda.cudaMemcpyAsync(host, device, size_bytes, kind, self._stream))

    def close(self) -> None:
        check_cuda(cuda.cudaEventDestroy(self._event))
        check_cuda(cuda.cudaStreamDestroy(self._stream))


class Graph:
    """A captured graph, ready to launch."""

    def __init__(self, graph: Any) -> None:
        try:
            self.executable = check_cuda(cuda.cudaGraphInstantiate(graph, 0))
        finally:
            check_cuda(cuda.cudaGraphDestroy(graph))

    def close(self) -> None:
        check_cuda(cuda.cudaGraphExecDestroy(self.executable))


class DeviceMemory:
    """Memory of the GPU."""

    def __init__(self, size_bytes: int) -> None:
        # At least one byte: an empty tensor needs an address, too.
        self.address = int(check_cuda(cuda.cudaMalloc(max(1, size_bytes))))
        self.size_bytes = size_bytes

    def close(self) -> None:
        check_cuda(cuda.cudaFree(self.address))


class HostBuffer:
    """Host memory for copies to and from the GPU; asynchronous copies need it pinned."""

    def __init__(self, size_bytes: int, *, pinned: bool) -> None:
        self._pinned = 0
        self._bytes: Array = np.empty(max(1, size_bytes) if not pinned else 0, np.uint8)
        if pinned:
            flags = cuda.cudaHostAllocDefault
            self._pinned = int(check_cuda(cuda.cudaHostAlloc(max(1, size_bytes), flags)))
            memory = (ctypes.c_uint8 * max(1, size_bytes)).from_address(self._pinned)
            self._bytes = np.ctypeslib.as_array(memory)
        self.address = int(self._bytes.ctypes.data)

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The start of the buffer, as an array."""
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        array: Array = self._bytes[:size_bytes].view(dtype).reshape(shape)
        return array

    def close(self) -> None:
        """Free the buffer; its views are invalid afterwards."""
        if self._pinned:
            check_cuda(cuda.cudaFreeHost(self._pinned))
