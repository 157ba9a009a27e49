"""CUDA regions on a driver that keeps its devices in this process, and on a real one."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from nereid.core.cuda_driver import DriverError
from nereid.core.errors import NereidError
from nereid_gateway.plane.client_shm.cuda import CudaMemory, Driver, open_cuda
from nereid_gateway.plane.client_shm.regions import CUDA, Registration

HANDLE = bytes(range(64))


class Function:
    """A function of a C library."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.argtypes: tuple[Any, ...] = ()
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> int:
        assert len(arguments) == len(self.argtypes)
        return int(self.call(*arguments) or 0)


class Library:
    """libcuda as far as it is needed: two devices, of which the second shares 32 bytes."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_char * 32)()
        self.address = ctypes.addressof(self.memory)
        self.current: int | None = None
        self.open = False
        self.fails: set[str] = set()
        self.cuInit = self._function("cuInit", lambda _: 0)
        self.cuDeviceGet = self._function("cuDeviceGet", self._device)
        self.cuDevicePrimaryCtxRetain = self._function("cuDevicePrimaryCtxRetain", self._retain)
        self.cuCtxSetCurrent = self._function("cuCtxSetCurrent", self._enter)
        self.cuIpcOpenMemHandle_v2 = self._function("cuIpcOpenMemHandle_v2", self._open)
        self.cuIpcCloseMemHandle = self._function("cuIpcCloseMemHandle", self._close)
        self.cuMemGetAddressRange_v2 = self._function("cuMemGetAddressRange_v2", self._range)
        self.cuMemcpyDtoH_v2 = self._function("cuMemcpyDtoH_v2", ctypes.memmove)
        self.cuMemcpyHtoD_v2 = self._function("cuMemcpyHtoD_v2", ctypes.memmove)

    def _function(self, name: str, call: Any) -> Function:
        def checked(*arguments: Any) -> int:
            if name in self.fails:
                return 999
            if call is ctypes.memmove:
                assert self.current == 2
                call(*arguments)
                return 0
            return int(call(*arguments) or 0)

        return Function(checked)

    def _device(self, found: Any, ordinal: int) -> int:
        found._obj.value = ordinal
        return 0 if ordinal < 2 else 101

    def _retain(self, context: Any, device: Any) -> None:
        context._obj.value = device.value + 1

    def _enter(self, context: Any) -> None:
        self.current = context.value

    def _open(self, address: Any, handle: Any, flags: int) -> int:
        assert flags == 1
        if bytes(handle) != HANDLE or self.current != 2:
            return 400
        address._obj.value, self.open = self.address, True
        return 0

    def _close(self, address: int) -> None:
        assert address == self.address
        self.open = False

    def _range(self, base: Any, size_bytes: Any, address: Any) -> None:
        base._obj.value, size_bytes._obj.value = address.value, 32


def region(size_bytes: int = 32, device_id: int = 1) -> Registration:
    return Registration(CUDA, "c", size_bytes, device_id=device_id)


def test_device_memory_is_read_and_written() -> None:
    library = Library()
    memory = open_cuda(region(), HANDLE, Driver(library))
    assert memory.write(4, memoryview(b"abcd"))
    assert memory.write(0, b"")
    assert memory.read(3, 6) == b"\0abcd\0"
    assert memory.read(0, 0) == b""
    memory.close()
    assert not library.open


@pytest.mark.parametrize(
    ("registration", "handle"),
    [
        (region(33), HANDLE),
        (region(), bytes(64)),
        (region(), HANDLE[:63]),
        (region(), b""),
        (region(device_id=0), HANDLE),
        (region(device_id=2), HANDLE),
        (region(device_id=-1), HANDLE),
        (region(device_id=1 << 31), HANDLE),
    ],
)
def test_what_is_refused(registration: Registration, handle: bytes) -> None:
    library = Library()
    with pytest.raises(NereidError) as caught:
        open_cuda(registration, handle, Driver(library))
    assert caught.value.code == 3
    assert not library.open


def test_a_device_that_fails_is_an_error() -> None:
    library = Library()
    memory = open_cuda(region(), HANDLE, Driver(library))
    library.fails = {"cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuIpcCloseMemHandle"}
    for attempt in (lambda: memory.read(0, 4), lambda: memory.write(0, b"abcd")):
        with pytest.raises(NereidError, match="CUDA's error 999") as caught:
            attempt()
        assert caught.value.code == 13
    memory.close()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is an NVIDIA GPU")
def test_a_machine_without_a_driver() -> None:
    with pytest.raises(NereidError) as caught:
        open_cuda(region(), HANDLE)
    assert caught.value.code == 3


def test_a_driver_that_does_not_start() -> None:
    library = Library()
    library.fails = {"cuInit"}
    with pytest.raises(DriverError, match="cuInit"):
        Driver(library)


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="there is no NVIDIA GPU")
def test_memory_of_another_process_on_a_real_device() -> None:
    import multiprocessing  # noqa: PLC0415

    spawning = multiprocessing.get_context("spawn")
    mine, its = spawning.Pipe()
    owner = spawning.Process(target=share_memory, args=(its,))
    owner.start()
    try:
        handle = mine.recv()
        memory: CudaMemory = open_cuda(region(4096, device_id=0), handle)
        assert memory.read(0, 4) == b"\x07\x07\x07\x07"
        assert memory.write(8, b"abcd")
        memory.close()
        mine.send("done")
        assert mine.recv()[8:12] == b"abcd"
    finally:
        owner.join(30)
        owner.kill()


def share_memory(pipe: Any) -> None:
    """Runs in a process of its own: allocates, shares, and sends back what it found afterwards."""
    library = ctypes.CDLL("libcuda.so.1")
    driver = Driver(library)
    driver.select_device(0)
    address = ctypes.c_uint64()
    assert library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    driver.write(address.value, 0, b"\x07" * 4096)
    handle = (ctypes.c_char * 64)()
    assert library.cuIpcGetMemHandle(ctypes.byref(handle), address) == 0
    pipe.send(bytes(handle))
    pipe.recv()
    pipe.send(driver.read(address.value, 0, 4096))
