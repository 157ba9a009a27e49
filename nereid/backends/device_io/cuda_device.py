"""A GPU that is used through NVIDIA's driver.

This module has not been tried on a GPU yet; `python -m benchmarks.gpu` tries it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from nereid.core.cuda_driver import (
    Address,
    CudaDriver,
    DriverError,
    Pointer,
    Size,
    load_library,
)
from nereid.core.errors import Internal, Unavailable
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

_SUCCESS: Final = 0
_NOT_READY: Final = 600
# CU_STREAM_NON_BLOCKING: the stream does not wait for the legacy default stream.
_NON_BLOCKING: Final = 1
# CU_EVENT_BLOCKING_SYNC: a waiting thread sleeps. CU_EVENT_DISABLE_TIMING: waiting costs less.
_BLOCKING_SYNC: Final = 1
_DISABLE_TIMING: Final = 2
# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may make calls that cannot be captured.
_THREAD_LOCAL: Final = 1
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY: Final = (75, 76)

_Policy = model_config_pb2.ModelOptimizationPolicy
_PRIORITY: Final = {_Policy.PRIORITY_MAX: 1, _Policy.PRIORITY_MIN: -1}

_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "cuMemAlloc_v2": (ctypes.POINTER(Address), Size),
    "cuMemFree_v2": (Address,),
    "cuMemHostAlloc": (ctypes.POINTER(Pointer), Size, ctypes.c_uint),
    "cuMemFreeHost": (Pointer,),
    "cuCtxGetStreamPriorityRange": (ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)),
    "cuStreamCreateWithPriority": (ctypes.POINTER(Pointer), ctypes.c_uint, ctypes.c_int),
    "cuStreamDestroy_v2": (Pointer,),
    "cuStreamSynchronize": (Pointer,),
    "cuStreamWaitEvent": (Pointer, Pointer, ctypes.c_uint),
    "cuEventCreate": (ctypes.POINTER(Pointer), ctypes.c_uint),
    "cuEventDestroy_v2": (Pointer,),
    "cuEventRecord": (Pointer, Pointer),
    "cuEventQuery": (Pointer,),
    "cuEventSynchronize": (Pointer,),
    "cuMemcpyHtoDAsync_v2": (Address, Pointer, Size, Pointer),
    "cuMemcpyDtoHAsync_v2": (Pointer, Address, Size, Pointer),
    "cuMemcpyDtoDAsync_v2": (Address, Address, Size, Pointer),
    "cuStreamBeginCapture_v2": (Pointer, ctypes.c_int),
    "cuStreamEndCapture": (Pointer, ctypes.POINTER(Pointer)),
    "cuGraphInstantiateWithFlags": (ctypes.POINTER(Pointer), Pointer, ctypes.c_ulonglong),
    "cuGraphDestroy": (Pointer,),
    "cuGraphLaunch": (Pointer, Pointer),
    "cuGraphExecDestroy": (Pointer,),
    "cuDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
}


def open_gpu(number: int, config: model_config_pb2.ModelConfig, library: Any = None) -> CudaDevice:
    """Open a GPU as the configuration says; raise Unavailable without a driver or the GPU."""
    optimization = config.optimization
    return CudaDevice(
        number,
        priority=_PRIORITY.get(optimization.priority, 0),
        busy_wait=optimization.cuda.busy_wait_events,
        library=library,
    )


class CudaDevice:
    """A GraphDevice: one GPU, for the thread that creates this object.

    It uses the primary context, so runtimes can use the same addresses and streams.
    """

    def __init__(
        self, number: int, *, priority: int = 0, busy_wait: bool = False, library: Any = None
    ) -> None:
        """Open the GPU; raise Unavailable. Priority above 0 is the highest, below 0 the lowest."""
        try:
            self._driver = CudaDriver(library or load_library(), _FUNCTIONS)
            self._driver.select_device(number)
        except (DriverError, AttributeError) as error:
            raise Unavailable(f"GPU {number} cannot be used: {error}") from error
        self._number = number
        lowest, highest = ctypes.c_int(), ctypes.c_int()
        self._call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
        chosen = highest if priority > 0 else lowest if priority < 0 else ctypes.c_int()
        self._priority = chosen.value
        self._event_flags = _DISABLE_TIMING | (0 if busy_wait else _BLOCKING_SYNC)

    def compute_capability(self) -> str:
        """Return the compute capability of the GPU, such as 8.6."""
        device, value = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), self._number)
        numbers = []
        for attribute in _CAPABILITY:
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            numbers.append(str(value.value))
        return ".".join(numbers)

    def allocate_device(self, size_bytes: int) -> int:
        """Allocate device memory; return its address."""
        address = Address()
        self._call("cuMemAlloc_v2", ctypes.byref(address), size_bytes)
        return address.value

    def free_device(self, address: int) -> None:
        """Free device memory."""
        self._call("cuMemFree_v2", address)

    def allocate_pinned(self, size_bytes: int) -> int:
        """Allocate pinned memory of the host; return its address."""
        address = Pointer()
        self._call("cuMemHostAlloc", ctypes.byref(address), size_bytes, 0)
        return address.value or 0

    def free_pinned(self, address: int) -> None:
        """Free pinned memory."""
        self._call("cuMemFreeHost", address)

    def create_stream(self) -> int:
        """Create a stream."""
        stream = Pointer()
        self._call(
            "cuStreamCreateWithPriority", ctypes.byref(stream), _NON_BLOCKING, self._priority
        )
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._call("cuStreamDestroy_v2", stream)

    def synchronize_stream(self, stream: int) -> None:
        """Wait until the stream has done all enqueued work."""
        self._call("cuStreamSynchronize", stream)

    def create_event(self) -> int:
        """Create an event. It counts as complete until it is recorded."""
        event = Pointer()
        self._call("cuEventCreate", ctypes.byref(event), self._event_flags)
        return event.value or 0

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._call("cuEventDestroy_v2", event)

    def record_event(self, event: int, stream: int) -> None:
        """Record the event: it completes when the stream has done all work enqueued so far."""
        self._call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        """Make later work on the stream wait until the event, as last recorded, is complete."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def is_complete(self, event: int) -> bool:
        """Return whether the event, as last recorded, is complete."""
        code = self._driver.query("cuEventQuery", event)
        if code not in (_SUCCESS, _NOT_READY):
            raise Internal(f"cuEventQuery failed with CUDA's error {code}")
        return code == _SUCCESS

    def synchronize_event(self, event: int) -> None:
        """Wait until the event, as last recorded, is complete."""
        self._call("cuEventSynchronize", event)

    def copy_to_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from the host's memory to the device's."""
        self._call("cuMemcpyHtoDAsync_v2", target, source, size_bytes, stream)

    def copy_to_host(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy from the device's memory to the host's."""
        self._call("cuMemcpyDtoHAsync_v2", target, source, size_bytes, stream)

    def copy_on_device(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        """Enqueue a copy within the device's memory."""
        self._call("cuMemcpyDtoDAsync_v2", target, source, size_bytes, stream)

    def capture_graph(self, stream: int, work: Callable[[], None]) -> int:
        """Capture as a graph what work() enqueues on the stream; nothing is executed yet."""
        graph, executable = Pointer(), Pointer()
        self._call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
        try:
            work()
        finally:
            # Otherwise the stream stays in capture mode and is unusable.
            self._call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        finally:
            self._call("cuGraphDestroy", graph)
        return executable.value or 0

    def launch_graph(self, graph: int, stream: int) -> None:
        """Enqueue the execution of a graph."""
        self._call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph."""
        self._call("cuGraphExecDestroy", graph)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            self._driver.call(name, *arguments)
        except DriverError as error:
            raise Internal(str(error)) from error
