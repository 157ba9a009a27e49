"""The driver's functions, on a library that notes its calls, and on a real GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from nereid.backends.device_io.cuda_device import CudaDevice, open_gpu
from nereid.core.cuda_driver import DriverError, load_library
from nereid.core.errors import Internal, Unavailable
from tests.support.models.onnx_models import config

NOT_READY = 600


class Function:
    """A function of a C library: notes its arguments, and sets what they point to."""

    def __init__(self, library: Library, name: str) -> None:
        self.library, self.name = library, name
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> int:
        # As ctypes does it.
        assert len(arguments) == len(self.argtypes), self.name
        for argument, kind in zip(arguments, self.argtypes, strict=True):
            kind.from_param(argument)
        noted = []
        for argument in arguments:
            pointed = getattr(argument, "_obj", None)
            if pointed is not None:
                pointed.value = self.library.gives.get(self.name, 7)
            else:
                noted.append(getattr(argument, "value", argument))
        self.library.calls.append((self.name, *noted))
        return self.library.results.get(self.name, 0)


class Library:
    """libcuda with whatever function is asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.results: dict[str, int] = {}
        self.gives: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        function = Function(self, name)
        setattr(self, name, function)
        return function


def device(library: Library, **options: Any) -> CudaDevice:
    made = CudaDevice(1, library=library, **options)
    library.calls.clear()
    return made


def test_calls_have_the_drivers_arguments_in_its_order() -> None:
    library = Library()
    gpu = device(library)
    library.gives = {"cuMemAlloc_v2": 1 << 40, "cuMemHostAlloc": 1 << 41}
    assert gpu.allocate_device(100) == 1 << 40
    assert gpu.allocate_pinned(200) == 1 << 41
    gpu.copy_to_device(1 << 40, 1 << 41, 64, 5)
    gpu.copy_to_host(1 << 41, 1 << 40, 64, 5)
    gpu.copy_on_device((1 << 40) + 64, 1 << 40, 64, 5)
    gpu.record_event(8, 5)
    gpu.wait_event(6, 8)
    gpu.synchronize_event(8)
    gpu.synchronize_stream(5)
    gpu.free_device(1 << 40)
    gpu.free_pinned(1 << 41)
    gpu.destroy_event(8)
    gpu.destroy_stream(5)
    assert library.calls == [
        ("cuMemAlloc_v2", 100),
        ("cuMemHostAlloc", 200, 0),
        ("cuMemcpyHtoDAsync_v2", 1 << 40, 1 << 41, 64, 5),
        ("cuMemcpyDtoHAsync_v2", 1 << 41, 1 << 40, 64, 5),
        ("cuMemcpyDtoDAsync_v2", (1 << 40) + 64, 1 << 40, 64, 5),
        ("cuEventRecord", 8, 5),
        ("cuStreamWaitEvent", 6, 8, 0),
        ("cuEventSynchronize", 8),
        ("cuStreamSynchronize", 5),
        ("cuMemFree_v2", 1 << 40),
        ("cuMemFreeHost", 1 << 41),
        ("cuEventDestroy_v2", 8),
        ("cuStreamDestroy_v2", 5),
    ]


@pytest.mark.parametrize(("priority", "expected"), [(1, -5), (0, 0), (-1, -5)])
def test_streams_do_not_wait_for_the_default_one(priority: int, expected: int) -> None:
    library = Library()
    library.gives["cuCtxGetStreamPriorityRange"] = -5
    gpu = device(library, priority=priority)
    assert gpu.create_stream() == 7
    assert library.calls == [("cuStreamCreateWithPriority", 1, expected)]


@pytest.mark.parametrize(("busy_wait", "flags"), [(False, 3), (True, 2)])
def test_events_keep_no_times(busy_wait: bool, flags: int) -> None:
    library = Library()
    assert device(library, busy_wait=busy_wait).create_event() == 7
    assert library.calls == [("cuEventCreate", flags)]


@pytest.mark.parametrize(
    ("text", "stream", "flags"),
    [
        ("", 0, 3),
        ("optimization { priority: PRIORITY_MAX cuda { busy_wait_events: true } }", -7, 2),
        ("optimization { priority: PRIORITY_MIN }", -7, 3),
    ],
)
def test_a_models_configuration_has_a_say(text: str, stream: int, flags: int) -> None:
    library = Library()
    library.gives["cuCtxGetStreamPriorityRange"] = -7
    gpu = open_gpu(1, config(text), library)
    library.calls.clear()
    gpu.create_stream()
    gpu.create_event()
    assert library.calls == [
        ("cuStreamCreateWithPriority", 1, stream),
        ("cuEventCreate", flags),
    ]


def test_the_compute_capability() -> None:
    library = Library()
    gpu = device(library)
    library.gives = {"cuDeviceGet": 4, "cuDeviceGetAttribute": 9}
    assert gpu.compute_capability() == "9.9"
    assert library.calls == [
        ("cuDeviceGet", 1),
        ("cuDeviceGetAttribute", 75, 4),
        ("cuDeviceGetAttribute", 76, 4),
    ]


def test_a_graph_of_what_is_enqueued_meanwhile() -> None:
    library = Library()
    gpu = device(library)
    library.gives = {"cuStreamEndCapture": 20, "cuGraphInstantiateWithFlags": 21}
    graph = gpu.capture_graph(5, lambda: gpu.copy_on_device(1, 2, 64, 5))
    assert graph == 21
    gpu.launch_graph(graph, 5)
    gpu.destroy_graph(graph)
    assert library.calls == [
        ("cuStreamBeginCapture_v2", 5, 1),
        ("cuMemcpyDtoDAsync_v2", 1, 2, 64, 5),
        ("cuStreamEndCapture", 5),
        ("cuGraphInstantiateWithFlags", 20, 0),
        ("cuGraphDestroy", 20),
        ("cuGraphLaunch", 21, 5),
        ("cuGraphExecDestroy", 21),
    ]


def test_a_capture_that_fails_is_ended() -> None:
    library = Library()
    gpu = device(library)

    def fail() -> None:
        raise Internal("the engine refuses")

    with pytest.raises(Internal, match="the engine refuses"):
        gpu.capture_graph(5, fail)
    assert [name for name, *_ in library.calls] == ["cuStreamBeginCapture_v2", "cuStreamEndCapture"]


def test_an_event_is_complete_or_not() -> None:
    library = Library()
    gpu = device(library)
    assert gpu.is_complete(8)
    library.results["cuEventQuery"] = NOT_READY
    assert not gpu.is_complete(8)
    library.results["cuEventQuery"] = 700
    with pytest.raises(Internal, match="700"):
        gpu.is_complete(8)


def test_errors_say_what_failed_and_why() -> None:
    library = Library()
    gpu = device(library)
    library.results["cuMemAlloc_v2"] = 2
    with pytest.raises(Internal, match=r"cuMemAlloc_v2 failed with CUDA's error 2 \(out of mem"):
        gpu.allocate_device(1)
    library.results["cuMemAlloc_v2"] = 12345
    with pytest.raises(Internal, match="12345"):
        gpu.allocate_device(1)


def test_a_gpu_that_is_not_there() -> None:
    library = Library()
    library.results["cuDeviceGet"] = 101
    with pytest.raises(Unavailable, match=r"GPU 1 cannot be used: .*invalid device"):
        CudaDevice(1, library=library)


def test_a_machine_without_a_driver() -> None:
    with pytest.raises(DriverError, match=r"no-such-library\.so cannot be used"):
        load_library("libno-such-library.so")


@pytest.mark.gpu
def test_bytes_go_to_a_gpu_and_back_on_streams_that_wait_for_each_other() -> None:
    try:
        gpu = CudaDevice(0)
    except Unavailable as error:
        pytest.skip(str(error))
    size = 1 << 20
    content = bytes(range(256)) * (size // 256)
    there, back = gpu.allocate_pinned(size), gpu.allocate_pinned(size)
    first, second = gpu.allocate_device(size), gpu.allocate_device(size)
    streams = [gpu.create_stream() for _ in range(3)]
    copied, moved, done = (gpu.create_event() for _ in range(3))
    ctypes.memmove(there, content, size)
    gpu.copy_to_device(first, there, size, streams[0])
    gpu.record_event(copied, streams[0])
    gpu.wait_event(streams[1], copied)
    gpu.copy_on_device(second, first, size, streams[1])
    gpu.record_event(moved, streams[1])
    gpu.wait_event(streams[2], moved)
    gpu.copy_to_host(back, second, size, streams[2])
    gpu.record_event(done, streams[2])
    gpu.synchronize_event(done)
    assert gpu.is_complete(copied)
    assert ctypes.string_at(back, size) == content
    for event in (copied, moved, done):
        gpu.destroy_event(event)
    for stream in streams:
        gpu.destroy_stream(stream)
    for address in (first, second):
        gpu.free_device(address)
    for address in (there, back):
        gpu.free_pinned(address)
