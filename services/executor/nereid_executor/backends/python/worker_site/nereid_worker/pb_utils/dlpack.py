"""Converts tensors to and from DLPack capsules, including BF16, which numpy lacks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..values.errors import TritonModelException

_CPU = 1
_BFLOAT = 4
_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _DELETER),
)

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_api.PyCapsule_IsValid.restype = ctypes.c_int
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.restype = ctypes.c_int
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)

# Key: an address in a capsule. The objects stay alive until the capsule's consumer deletes it.
_given: dict[int, tuple[Any, ...]] = {}


@_DELETER  # type: ignore[untyped-decorator]  # ctypes has no types for it
def _forget(managed: Any) -> None:
    _given.pop(ctypes.addressof(managed.contents), None)


def bf16_capsule(words: Any) -> Any:
    """Return a capsule of BF16 numbers. words: an array with the numbers' bits as uint16."""
    shape = (ctypes.c_int64 * max(1, words.ndim))(*words.shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = words.ctypes.data, _CPU, 0
    tensor.ndim, tensor.code, tensor.bits, tensor.lanes = words.ndim, _BFLOAT, 16, 1
    tensor.shape = shape
    managed.deleter = _forget
    address = ctypes.addressof(managed)
    _given[address] = (managed, shape, words)
    return _api.PyCapsule_New(address, _NAME, None)


class _Holder:
    """An exporter of a capsule. numpy does not accept bare capsules."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


class _Writeable:
    def __init__(self, array: Any) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def array_of(source: Any) -> tuple[Any, bool]:
    """Return the array of a DLPack capsule or exporter, and whether it holds BF16 as uint16.

    Raises TritonModelException for another, consumed or unsupported source.
    """
    if hasattr(source, "__dlpack__"):
        device, _ = source.__dlpack_device__()
        if device != _CPU:
            source = _on_cpu(source)
        capsule = source.__dlpack__()
    else:
        capsule = source
    if type(capsule).__name__ != "PyCapsule":
        # Triton's text has the same spaces.
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule "
            "        or have `__dlpack__` and `__dlpack_device__` attributes"
        )
    if not _api.PyCapsule_IsValid(capsule, _NAME):
        raise TritonModelException("from_dlpack() expects a DLPack capsule that is not used yet")
    address = _api.PyCapsule_GetPointer(capsule, _NAME)
    tensor = _Managed.from_address(address).tensor
    if tensor.device_type != _CPU:
        capsule = _capsule_on_cpu(capsule)
        return array_of(capsule)
    if (tensor.code, tensor.bits, tensor.lanes) == (_BFLOAT, 16, 1):
        return _bf16_array(capsule, address), True
    try:
        array = np.from_dlpack(_Holder(capsule))
    except (RuntimeError, BufferError, TypeError) as error:
        raise TritonModelException(f"DLPack: {error}") from error
    if not array.flags.writeable:
        # numpy treats a capsule's memory as read-only unless the capsule says otherwise.
        array = np.asarray(_Writeable(array))
    return array, False


def _bf16_array(capsule: Any, address: int) -> Any:
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    shape = tuple(tensor.shape[place] for place in range(tensor.ndim))
    start = (tensor.data or 0) + tensor.byte_offset
    if tensor.strides:
        strides = tuple(2 * tensor.strides[place] for place in range(tensor.ndim))
        reach = 2 + sum((n - 1) * s for n, s in zip(shape, strides))  # noqa: B905 - Python 3.9
        if any(stride < 0 for stride in strides):
            raise TritonModelException("DLPack: tensors with negative strides are not supported")
    else:
        strides, reach = None, 2 * int(np.prod(shape))
    if 0 in shape:
        array = np.empty(shape, np.uint16)
    else:
        memory = (ctypes.c_char * reach).from_address(start)
        array = np.ndarray(shape, np.uint16, memory, 0, strides).copy()
    _api.PyCapsule_SetName(capsule, _USED_NAME)
    if managed.deleter:
        managed.deleter(ctypes.pointer(managed))
    return array


def _on_cpu(source: Any) -> Any:
    if hasattr(source, "cpu"):
        return source.detach().cpu() if hasattr(source, "detach") else source.cpu()
    if hasattr(source, "get"):
        return source.get()
    raise TritonModelException("DLPack: the tensor is on a device that cannot be read from here")


def _capsule_on_cpu(capsule: Any) -> Any:
    try:
        from torch.utils import dlpack  # noqa: PLC0415 - only where the model has torch
    except ImportError as error:
        raise TritonModelException(
            "DLPack: reading a GPU's tensor needs PyTorch; give the tensor instead of its capsule"
        ) from error
    return dlpack.to_dlpack(dlpack.from_dlpack(capsule).cpu())
