"""NVIDIA's driver library through ctypes: functions, errors, GPUs' primary contexts.

Every machine with a GPU has the driver, but not always CUDA's runtime library. Both use a GPU's
primary context, so addresses, streams and events of one are valid in the other.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIBRARY: Final = "libcuda.so.1"

Address = ctypes.c_uint64
Size = ctypes.c_size_t
Pointer = ctypes.c_void_p

_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(Pointer), ctypes.c_int),
    "cuCtxSetCurrent": (Pointer,),
}
# Texts of CUresult. The library that a caller passes may lack cuGetErrorName.
_ERRORS: Final = {
    1: "invalid value",
    2: "out of memory",
    3: "not initialized",
    100: "no device",
    101: "invalid device",
    201: "invalid context",
    400: "invalid handle",
    700: "illegal address",
    719: "launch failed",
    900: "not possible while a stream is captured",
    901: "a capture was invalidated",
    999: "unknown error",
}


class DriverError(Exception):
    """Raised if a call into the driver failed, or if there is no driver."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        # CUresult; 0 if no call was made.
        self.code = code


class CudaDriver:
    """Calls the driver in each GPU's primary context. Each thread has its own current GPU."""

    def __init__(self, library: Any, functions: Mapping[str, tuple[Any, ...]]) -> None:
        """Look up the driver's functions and initialise the driver.

        functions: maps a name to argument types. Each function must return 0 or an error number.
        Raises AttributeError for a missing function, and DriverError without a usable GPU.
        """
        self._functions = {}
        for name, argument_types in {**_FUNCTIONS, **functions}.items():
            function = getattr(library, name)
            function.argtypes, function.restype = argument_types, ctypes.c_int
            self._functions[name] = function
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self.call("cuInit", 0)

    def select_device(self, device_id: int) -> None:
        """Make the GPU with this number in CUDA the current one for this thread's next calls."""
        context = self._contexts.get(device_id)
        if context is None:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(device), device_id)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device_id] = context
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; raise DriverError if it reports an error."""
        code = self._functions[name](*arguments)
        if code:
            text = _ERRORS.get(code, "see CUresult")
            raise DriverError(f"{name} failed with CUDA's error {code} ({text})", code)

    def query(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver and return its result, which may be an error number."""
        return int(self._functions[name](*arguments))


@functools.cache
def load_library(name: str = _LIBRARY) -> Any:
    """Load the machine's libcuda, once; raise DriverError if it is unusable."""
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise DriverError(f"{name} cannot be used: {error}") from error
