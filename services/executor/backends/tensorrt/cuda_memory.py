"""What a backend needs of CUDA itself: a stream, memory on both sides of the bus, captured graphs.

Everything belongs to the thread that made it, on the device that it had chosen. Knows no models.
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


def done(result: tuple[Any, ...]) -> Any:
    """The value of a call to CUDA.

    Raises:
        Internal: the call failed.
    """
    error, *values = result
    if error != cuda.cudaError_t.cudaSuccess:
        _, text = cuda.cudaGetErrorString(error)
        raise Internal(f"CUDA error {int(error)}: {text.decode()}")
    return values[0] if len(values) == 1 else values


def choose_device(number: int) -> None:
    """Have this thread use a GPU from now on."""
    done(cuda.cudaSetDevice(number))


def capability(number: int) -> str:
    """A GPU's compute capability, such as 8.6."""
    attributes = cuda.cudaDeviceAttr
    major = done(cuda.cudaDeviceGetAttribute(attributes.cudaDevAttrComputeCapabilityMajor, number))
    minor = done(cuda.cudaDeviceGetAttribute(attributes.cudaDevAttrComputeCapabilityMinor, number))
    return f"{major}.{minor}"


class Stream:
    """A stream, and how its end is awaited."""

    def __init__(self, *, urgency: int = 0, busy_wait: bool = False) -> None:
        """Urgency above 0: before others' work; below: after. busy_wait: with the CPU, at once."""
        least, greatest = done(cuda.cudaDeviceGetStreamPriorityRange())
        priority = greatest if urgency > 0 else least if urgency < 0 else 0
        flags = cuda.cudaEventDisableTiming | (0 if busy_wait else cuda.cudaEventBlockingSync)
        stream = cuda.cudaStreamCreateWithPriority(cuda.cudaStreamNonBlocking, priority)
        self._stream = done(stream)
        self._event = done(cuda.cudaEventCreateWithFlags(flags))
        self.handle = int(self._stream)

    def wait(self) -> None:
        """Until all that was asked for is done."""
        done(cuda.cudaEventRecord(self._event, self._stream))
        done(cuda.cudaEventSynchronize(self._event))

    def capture(self, work: Callable[[], None]) -> Graph:
        """What work asks for of this stream, to be launched again and again."""
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        done(cuda.cudaStreamBeginCapture(self._stream, mode))
        try:
            work()
        finally:
            # Else the stream would stay unusable.
            graph = done(cuda.cudaStreamEndCapture(self._stream))
        return Graph(graph)

    def launch(self, graph: Graph) -> None:
        done(cuda.cudaGraphLaunch(graph.executable, self._stream))

    def copy_in(self, device: int, host: int, size_bytes: int) -> None:
        kind = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        done(cuda.cudaMemcpyAsync(device, host, size_bytes, kind, self._stream))

    def copy_out(self, host: int, device: int, size_bytes: int) -> None:
        kind = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        done(cuda.cudaMemcpyAsync(host, device, size_bytes, kind, self._stream))

    def close(self) -> None:
        done(cuda.cudaEventDestroy(self._event))
        done(cuda.cudaStreamDestroy(self._stream))


class Graph:
    """A captured graph that can be launched."""

    def __init__(self, graph: Any) -> None:
        try:
            self.executable = done(cuda.cudaGraphInstantiate(graph, 0))
        finally:
            done(cuda.cudaGraphDestroy(graph))

    def close(self) -> None:
        done(cuda.cudaGraphExecDestroy(self.executable))


class DeviceMemory:
    """Memory of the GPU."""

    def __init__(self, size_bytes: int) -> None:
        # An address is wanted of what has no bytes as well.
        self.address = int(done(cuda.cudaMalloc(max(1, size_bytes))))
        self.size_bytes = size_bytes

    def close(self) -> None:
        done(cuda.cudaFree(self.address))


class Staging:
    """Host memory that a GPU reads and writes by itself: pinned, unless told otherwise."""

    def __init__(self, size_bytes: int, *, pinned: bool) -> None:
        self._pinned = 0
        self._bytes: Array = np.empty(max(1, size_bytes) if not pinned else 0, np.uint8)
        if pinned:
            flags = cuda.cudaHostAllocDefault
            self._pinned = int(done(cuda.cudaHostAlloc(max(1, size_bytes), flags)))
            memory = (ctypes.c_uint8 * max(1, size_bytes)).from_address(self._pinned)
            self._bytes = np.ctypeslib.as_array(memory)
        self.address = int(self._bytes.ctypes.data)

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The memory's beginning as an array."""
        size_bytes = int(np.prod(shape)) * dtype.itemsize
        array: Array = self._bytes[:size_bytes].view(dtype).reshape(shape)
        return array

    def close(self) -> None:
        """No view may be used afterwards."""
        if self._pinned:
            done(cuda.cudaFreeHost(self._pinned))
