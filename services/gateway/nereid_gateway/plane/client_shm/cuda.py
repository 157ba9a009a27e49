"""CUDA shared memory: device memory that a client's process shares by an IPC handle.

The driver is loaded with the first region, so without CUDA regions no GPU is needed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import TYPE_CHECKING, Any, Final

from nereid.core.cuda_driver import Address, CudaDriver, DriverError, Size, load_library
from nereid.core.errors import Internal, InvalidArgument

if TYPE_CHECKING:
    from nereid_gateway.plane.client_shm.regions import Registration

_log = logging.getLogger(__name__)

HANDLE_BYTES: Final = 64
# CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag of cuIpcOpenMemHandle.
_LAZY_PEER_ACCESS: Final = 1
_INT_MAX: Final = (1 << 31) - 1
_REFUSED: Final = "failed to register shared memory region: invalid args"


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * HANDLE_BYTES),)


_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(Address), _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (Address,),
    "cuMemGetAddressRange_v2": (ctypes.POINTER(Address), ctypes.POINTER(Size), Address),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, Address, Size),
    "cuMemcpyHtoD_v2": (Address, ctypes.c_void_p, Size),
}


class Driver:
    """Calls the few functions of libcuda that are needed, in the primary context of a device."""

    def __init__(self, library: Any) -> None:
        self._cuda = CudaDriver(library, _FUNCTIONS)
        self._call = self._cuda.call
        self.select_device = self._cuda.select_device

    def open(self, handle: bytes, device_id: int) -> tuple[int, int]:
        """Map another process's memory. Return address and size in bytes, or raise DriverError."""
        self.select_device(device_id)
        address = Address()
        shared = _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), shared, _LAZY_PEER_ACCESS)
        base, size_bytes = Address(), Size()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size_bytes), address)
        return address.value, size_bytes.value

    def close(self, address: int, device_id: int) -> None:
        """Unmap memory that open() mapped."""
        self.select_device(device_id)
        self._call("cuIpcCloseMemHandle", address)

    def read(self, address: int, device_id: int, size_bytes: int) -> bytes:
        """Return a copy of device memory."""
        self.select_device(device_id)
        data = bytearray(size_bytes)
        if size_bytes:
            host = (ctypes.c_char * size_bytes).from_buffer(data)
            self._call("cuMemcpyDtoH_v2", ctypes.addressof(host), address, size_bytes)
        return bytes(data)

    def write(self, address: int, device_id: int, data: bytes) -> None:
        """Copy data into device memory."""
        self.select_device(device_id)
        if data:
            self._call("cuMemcpyHtoD_v2", address, data, len(data))


class CudaMemory:
    """A `regions.Memory` for another process's device memory, which begins at `address`."""

    def __init__(self, driver: Driver, address: int, device_id: int) -> None:
        self._driver = driver
        self._address = address
        self._device_id = device_id

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return a copy of a range. Raises Internal if the driver cannot read it."""
        try:
            return self._driver.read(self._address + offset, self._device_id, size_bytes)
        except DriverError as error:
            raise Internal(f"Unable to read CUDA shared memory: {error}") from error

    def write(self, offset: int, data: Any) -> bool:
        """Copy data to the offset and return True. Raises Internal if the driver cannot write."""
        try:
            self._driver.write(self._address + offset, self._device_id, bytes(data))
        except DriverError as error:
            raise Internal(f"Unable to write CUDA shared memory: {error}") from error
        return True

    def close(self) -> None:
        """Unmap the memory. A failure is only logged."""
        try:
            self._driver.close(self._address, self._device_id)
        except DriverError:
            _log.exception("CUDA shared memory could not be closed")


@functools.cache
def system_driver() -> Driver:
    """Return this machine's driver. Raises DriverError if no driver works."""
    try:
        return Driver(load_library())
    except AttributeError as error:
        raise DriverError(f"libcuda is too old: {error}") from error


def open_cuda(
    registration: Registration, handle: bytes, driver: Driver | None = None
) -> CudaMemory:
    """Open the memory that a client registers.

    Raises InvalidArgument if there is no GPU, the handle is invalid, or the memory is too small.
    """
    if len(handle) != HANDLE_BYTES or not 0 <= registration.device_id <= _INT_MAX:
        raise InvalidArgument(_REFUSED)
    try:
        driver = driver or system_driver()
        address, size_bytes = driver.open(handle, registration.device_id)
    except DriverError as error:
        _log.warning("CUDA region %r cannot be registered: %s", registration.name, error)
        raise InvalidArgument(_REFUSED) from error
    memory = CudaMemory(driver, address, registration.device_id)
    if registration.size_bytes > size_bytes:
        memory.close()
        raise InvalidArgument(
            f"failed to register shared memory region '{registration.name}': invalid args"
        )
    return memory
